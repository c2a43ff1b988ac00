// Hours of a gateway as a strip: proven, open, or unexplained.

import { html } from "./html.js";
import { Empty, Name, Pill, Time } from "./parts.js";
import { counted, number, percent, plain } from "./text.js";

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const WIDTH = 10;
const HEIGHT = 20;

export const TONES = { proven: ["good", "proven"], open: ["warn", "open"], unexplained: ["bad", "unexplained"] };

/** Mark of an hour. Its height and form say the same as its colour. */
function mark(hour, place) {
  const x = place * WIDTH;
  if (!hour) return html`<rect class="mi" x=${x + 1} y=${HEIGHT - 2} width=${WIDTH - 2} height="2" />`;
  if (hour.state === "proven") return html`<rect class="mg" x=${x + 1} y="4" width=${WIDTH - 2} height=${HEIGHT - 4} />`;
  if (hour.state === "open") return html`<rect class="mw" x=${x + 1} y=${HEIGHT - 8} width=${WIDTH - 2} height="8" />`;
  return html`<rect class="mb" x=${x + 1} y="0" width=${WIDTH - 2} height=${HEIGHT} />
    <path class="hour-cross" d=${`M${x + 3} 7l4 6M${x + 7} 7l-4 6`} />`;
}

/** @param {{hours: any[], days?: number}} properties hours with `hour` (milliseconds), `state` and counts */
export function HourStrip({ hours, days = 7 }) {
  if (hours.length === 0) {
    return html`<${Empty} title="No hour is stated">A gateway signs a statement of the messages that it accepted after each hour. The first
      one comes when an hour with messages has ended.<//>`;
  }
  const byHour = new Map(hours.map((hour) => [hour.hour, hour]));
  const today = Math.floor(Date.now() / DAY_MS) * DAY_MS;
  const newest = Math.floor(Math.max(...byHour.keys()) / DAY_MS) * DAY_MS;
  const last = today - newest > days * DAY_MS ? newest : today;
  const shown = Array.from({ length: days }, (_, place) => last - place * DAY_MS);
  const count = (state) => hours.filter((hour) => hour.state === state).length;
  const total = (name) => hours.reduce((sum, hour) => sum + hour[name], 0);
  const troubled = hours.filter((hour) => hour.state !== "proven").sort((one, other) => other.unexplained - one.unexplained || other.hour - one.hour);
  const text = `${counted(count("proven"), "hour")} proven, ${number(count("open"))} open, ${number(count("unexplained"))} unexplained`;
  return html`<p>${percent(total("landed") + total("given_up"), total("accepted"))} of ${counted(total("accepted"), "accepted message")} accounted for: ${text}.</p>
    <div class="hours" role="img" aria-label=${text}>${shown.map((day) => html`<div key=${day}><span class="small soft">${new Date(day).toISOString().slice(5, 10)}</span>
      <svg viewBox=${`0 0 ${24 * WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
        ${Array.from({ length: 24 }, (_, place) => mark(byHour.get(day + place * HOUR_MS), place))}</svg></div>`)}</div>
    <p class="soft small">A row is a day from 0 to 24 h, UTC. Full: proven. Half: open, some messages still wait at the gateway. Crossed: unexplained. Line: nothing stated.</p>
    ${troubled.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Table of hours"><table class="cards">
      <thead><tr><th scope="col">Hour</th><th scope="col">State</th><th scope="col" class="n">Accepted</th><th scope="col" class="n">Landed</th><th scope="col" class="n">Discarded</th><th scope="col" class="n">Waiting</th><th scope="col" class="n">Unexplained</th></tr></thead>
      <tbody>${troubled.slice(0, 30).map((hour) => html`<tr key=${hour.hour}><th scope="row"><${Time} at=${hour.hour} /></th>
        <td><${Pill} tone=${TONES[hour.state][0]}>${TONES[hour.state][1]}<//></td>
        <td class="n" data-label="Accepted">${number(hour.accepted)}</td><td class="n" data-label="Landed">${number(hour.landed)}</td>
        <td class="n" data-label="Discarded">${number(hour.given_up)}<small>${Object.keys(hour.reasons).map(plain).join(", ")}</small></td>
        <td class="n" data-label="Waiting">${number(hour.waiting)}</td><td class="n ${hour.unexplained ? "bad-t" : ""}" data-label="Unexplained">${number(hour.unexplained)}</td></tr>`)}</tbody>
    </table></div>`}`;
}

/** Statements that are missing or forged. @param {{faults: any[], left_out: number, gateway?: boolean}} properties */
export function Faults({ faults, left_out: leftOut, gateway = true }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Table of faults of statements"><table class="cards">
    <thead><tr><th scope="col">What</th>${gateway && html`<th scope="col">Gateway</th>`}<th scope="col">Address</th><th scope="col" class="n">Sequences</th><th scope="col">Why</th></tr></thead>
    <tbody>${faults.slice(0, 50).map((fault, place) => html`<tr key=${place}><th scope="row" class="bad-t">${fault.kind}</th>${gateway && html`<td data-label="Gateway"><${Name}>${fault.gateway}<//></td>`}
      <td data-label="Address"><${Name} mono>${fault.address || "–"}<//></td><td class="n" data-label="Sequences">${fault.last < fault.first ? "–" : `${number(fault.first)}–${number(fault.last)}`}</td>
      <td class="what">${plain(fault.words)}</td></tr>`)}</tbody></table></div>
    ${(faults.length > 50 || leftOut > 0) && html`<p class="table-bar soft small">The first ${number(Math.min(50, faults.length))} of ${number(faults.length + leftOut)}; the proof has all.</p>`}`;
}
