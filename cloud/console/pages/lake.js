// Lake: landing and tables.

import { Spark } from "./chart.js";
import { html } from "./html.js";
import { Empty, Name, Pairs, Panel, Pill, Time } from "./parts.js";
import { bytes, duration, number, plain } from "./text.js";

export function Lake({ figures: status }) {
  if (status === null) return null;
  if (!status.landing) return html`<${Panel} title="Lake"><${Empty} title="Figures of the lake belong to no tenant">They need the right <code>view:$fleet</code>.<//><//>`;
  const { landing, totals, tables } = status;
  const ms = (value) => (typeof value === "number" ? `${number(Math.round(value))} ms` : "–");
  return html`<div class="grid">
    <${Panel} title="Landing" span=${6} extra=${html`<${Pill} tone=${landing.failing ? "bad" : "good"}>${landing.failing ? "fails" : "healthy"}<//>`}>
      ${landing.fault && html`<p class="note-bad">${plain(landing.fault.reason)}, since <${Time} at=${landing.fault.since} /></p>`}
      <${Pairs} pairs=${[
        ["in the lake since the start", number(totals.rows)],
        ["landings", number(totals.landings)],
        ["latency, median", ms(landing.latency_ms_p50)],
        ["latency, 99 of 100", ms(landing.latency_ms_p99)],
        ["waiting to land", `${number(landing.pending_messages)} (${bytes(landing.pending_bytes)})`],
        ["repeated messages removed", number(totals.duplicates)],
        ["gaps seen, closed later", `${number(totals.gaps)}, ${number(totals.holes_closed)}`],
        ["set aside as unreadable", number(totals.quarantined)],
      ]} />
      <${Spark} values=${landing.latencies_ms.map((value) => value ?? 0)} label="latency of the last landings" />
    <//>
    <${Panel} title="Tables" span=${6}><${Pairs} pairs=${Object.entries(tables).map(([name, version]) => [html`<span class="mono">${plain(name)}</span>`, `version ${number(version)}`])} />
      <p class="soft small">What the jobs make of them: <code>waypost report</code>.</p><//>
    ${landing.held?.length > 0 && html`<${Panel} title="Gateways that cannot land"><${Pairs} pairs=${landing.held.map((one) => [
      html`<${Name}>${one.gateway}<//>`, html`${plain(one.reason)}, since <${Time} at=${one.since} />`])} /><//>`}
  </div>`;
}
