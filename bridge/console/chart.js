// Charts: lines over time by uPlot, and sparklines as SVG.

import { html, useEffect, useRef, useState } from "./html.js";
import { clock, number } from "./text.js";

const HEIGHT = 150;

let uPlot = /** @type {any} */ (null);

/** Load uPlot with the first chart: it is a third of what a page with charts loads. */
async function loadLibrary() {
  // @ts-expect-error: it is a script on disk, and served as a module
  uPlot ??= /** @type {any} */ (await import("./vendor/uplot.js")).default;
}

/**
 * @typedef {{label: string, values: (number | null)[], tone: "c1" | "c2" | "c3", fill?: boolean}} Line
 */

/** @typedef {{at: number, value: number, expected: number | null}} Mark Value to point at, and the value that was expected instead. */

/** Colour of the style sheet. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Shade the spans in which `off` is true. */
function shade(chart, times, off) {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.fillStyle = colour("shade");
  for (let i = 0; i < times.length; i += 1) {
    if (!off[i]) continue;
    let end = i;
    while (end + 1 < times.length && off[end + 1]) end += 1;
    const [left, right] = [times[i], times[Math.min(end + 1, times.length - 1)]].map((t) => chart.valToPos(t, "x", true));
    ctx.fillRect(left, bbox.top, Math.max(1, right - left), bbox.height);
    i = end;
  }
  ctx.restore();
}

const MARK_PX = 5;
const NO_MARKS = [];

/** Draw each mark as a diamond, with a line to the expected value. */
function point(chart, marks) {
  const { ctx, bbox } = chart;
  const scale = devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = colour("bad");
  ctx.fillStyle = colour("bad");
  ctx.lineWidth = scale;
  for (const { at, value, expected } of marks) {
    const x = chart.valToPos(at, "x", true);
    const y = chart.valToPos(value, "y", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    if (typeof expected === "number") {
      ctx.moveTo(x, y);
      ctx.lineTo(x, chart.valToPos(expected, "y", true));
      ctx.stroke();
      ctx.beginPath();
    }
    const size = MARK_PX * scale;
    ctx.moveTo(x, y - size);
    ctx.lineTo(x + size, y);
    ctx.lineTo(x, y + size);
    ctx.lineTo(x - size, y);
    ctx.fill();
  }
  ctx.restore();
}

const DAY_S = 86_400;

/** Label of a time on the axis: the time of day, or the day where several are shown. */
function tick(at, times) {
  const date = new Date(at * 1000);
  return times[times.length - 1] - times[0] > 2 * DAY_S
    ? date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })
    : date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

function options(width, height, lines, times, { off, unit, marks, band, zero, format }) {
  const axis = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  return {
    width,
    height,
    legend: { show: false },
    cursor: { y: false, points: { size: 6 } },
    scales: { x: { time: true }, y: { range: (_, low, high) => (zero ? [Math.min(0, low ?? 0), Math.max(1, high ?? 1) * 1.05] : around(low, high, marks)) } },
    bands: band ? [{ series: [band[0] + 1, band[1] + 1], fill: colour("c1-wash") }] : [],
    axes: [
      { ...axis, grid: { show: false }, size: 26, space: 70, values: (_, ticks) => ticks.map((each) => tick(each, times)) },
      { ...axis, size: 52, values: (_, ticks) => ticks.map((each) => format(each)) },
    ],
    series: [
      { label: "time", value: (_, at) => (at === null ? "–" : clock(at * 1000)) },
      ...lines.map((line) => ({
        label: `${line.label} (${unit})`,
        stroke: colour(line.tone),
        fill: line.fill ? colour(`${line.tone}-wash`) || undefined : undefined,
        dash: line.tone === "c3" ? [4, 3] : undefined, // as in the legend
        width: 1.75,
        points: { show: false },
        spanGaps: false,
      })),
    ],
    hooks: { drawClear: [(chart) => shade(chart, times, off)], draw: [(chart) => point(chart, marks)] },
  };
}

/** Range of an axis that does not begin at zero: the values and marks, with some room. */
function around(low, high, marks) {
  const values = [low, high, ...marks.flatMap(({ value, expected }) => [value, expected])].filter((each) => typeof each === "number");
  if (values.length === 0) return [0, 1];
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const room = (most - least || Math.abs(most) || 1) * 0.06;
  return [least - room, most + room];
}

/**
 * Lines over time. Missing values are gaps; `t`, or the button, shows the values as a table.
 *
 * @param {object} properties
 * @param {string} properties.title of the chart, for people who do not see it
 * @param {string} properties.unit of the values
 * @param {number[]} properties.times seconds since 1970
 * @param {Line[]} properties.lines
 * @param {boolean[]} [properties.off] spans that are shaded
 * @param {string} properties.summary the same in words
 * @param {number} [properties.height] in pixels
 * @param {Mark[]} [properties.marks] values to point at
 * @param {[number, number] | null} [properties.band] places of the upper and the lower line of a filled band
 * @param {boolean} [properties.zero] the axis of values begins at zero
 * @param {(value: number | undefined) => string} [properties.format] of values
 */
export function TimeChart({ title, unit, times, lines, off = [], summary, height = HEIGHT, marks = NO_MARKS, band = null, zero = true, format = number }) {
  const place = useRef(null);
  const chart = useRef(null);
  const shape = `${lines.map((line) => line.label)} ${times.length > 1}`;
  const latest = useRef(null);
  latest.current = { times, lines, off, marks };
  const [loaded, setLoaded] = useState(uPlot !== null);
  useEffect(() => {
    loadLibrary().then(() => setLoaded(true), () => {});
  }, []);
  useEffect(() => {
    if (times.length < 2 || !loaded) return undefined;
    const element = place.current;
    function draw() {
      chart.current?.destroy();
      const now = latest.current;
      const data = [now.times, ...now.lines.map((line) => line.values)];
      chart.current = new uPlot(
        options(element.clientWidth, height, now.lines, now.times, { off: now.off, unit, marks: now.marks, band, zero, format }), data, element,
      );
    }
    draw();
    let width = element.clientWidth;
    const watch = new ResizeObserver(() => {
      if (element.clientWidth === width) return;
      width = element.clientWidth;
      chart.current?.setSize({ width, height });
    });
    watch.observe(element);
    const theme = matchMedia("(prefers-color-scheme: dark)");
    theme.addEventListener("change", draw);
    return () => {
      watch.disconnect();
      theme.removeEventListener("change", draw);
      chart.current?.destroy();
      chart.current = null;
    };
  }, [shape, height, loaded]);
  useEffect(() => {
    const drawn = chart.current;
    if (!drawn || times.length < 2) return;
    drawn.hooks.drawClear = [(each) => shade(each, times, off)];
    drawn.hooks.draw = [(each) => point(each, marks)];
    drawn.setData([times, ...lines.map((line) => line.values)]);
  }, [times, lines, marks]);
  if (times.length < 2) return html`<p class="soft small chart-empty">The first figures come in a moment.</p>`;
  return html`<div class="time-chart" ref=${place} role="img" aria-label=${`${title}: ${summary}`}></div>
    <${ChartValues} title=${title} times=${times} lines=${lines} format=${format} />`;
}

const SHOWN_VALUES = 12;

/** Values of a chart as a table, for screen readers and for people who want the number. */
function ChartValues({ title, times, lines, format }) {
  const [open, setOpen] = useState(false);
  const step = Math.max(1, Math.floor(times.length / SHOWN_VALUES));
  const places = open ? times.map((_, place) => place).filter((place) => place % step === 0) : [];
  return html`<details class="values" open=${open} onToggle=${(event) => setOpen(event.target.open)}>
    <summary>Values</summary>
    ${open && html`<div class="scroll" tabindex="0" role="region" aria-label=${`Values of ${title}`}><table>
      <thead><tr><th scope="col">Time</th>${lines.map((line) => html`<th scope="col" class="n">${line.label}</th>`)}</tr></thead>
      <tbody>${places.map((place) => html`<tr key=${times[place]}><th scope="row">${clock(times[place] * 1000)}</th>
        ${lines.map((line) => html`<td class="n">${format(line.values[place] ?? undefined)}</td>`)}</tr>`)}</tbody>
    </table></div>`}
  </details>`;
}

/** Line without axes, for cells of tables. @param {{values: number[], label: string}} properties */
export function Spark({ values, label }) {
  const top = Math.max(1, ...values);
  const step = 100 / Math.max(1, values.length - 1);
  const points = values.map((value, place) => `${(place * step).toFixed(1)} ${(23 - (21 * value) / top).toFixed(1)}`);
  const line = points.length ? `M${points.join("L")}` : "";
  return html`<svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label=${label}>
    ${line && html`<path class="a1" d=${`${line}L100 24L0 24Z`} /><path class="l1" d=${line} />`}
  </svg>`;
}
