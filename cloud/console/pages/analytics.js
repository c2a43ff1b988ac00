// Analytics: charts and tables of what the jobs made of the lake. The address of the page has the whole state.

import { withQuery } from "./api.js";
import { TimeChart } from "./chart.js";
import { Age, goldPath, NoJob, rowsOf, useRead } from "./gold.js";
import { html, useMemo } from "./html.js";
import { Choice, Empty, ErrorNote, Name, Pairs, Panel, Time } from "./parts.js";
import { address, go } from "./route.js";
import { PagedTable } from "./table.js";
import { counted, duration, measure, number, percent, plain } from "./text.js";

const VIEWS = [["values", "Values"], ["delivery", "Delivery"], ["outages", "Outages"], ["devices", "Devices"]];
const DAY_MS = 86_400_000;
const SPANS = [["1", "24 h"], ["7", "7 days"], ["30", "30 days"], ["365", "1 year"]];
const DEFAULT_DAYS = "7";
const MINUTE_MS = 60_000;
const EVERY_S = 60;

/** Begin and end of a span that ends now; whole minutes, so that a page asks for the same for a while. */
function spanOf(query) {
  const end = query.end ? Number(query.end) : Math.ceil(Date.now() / MINUTE_MS) * MINUTE_MS;
  return { begin: end - Number(query.days ?? DEFAULT_DAYS) * DAY_MS, end };
}

export function Analytics({ query }) {
  const shown = query.show ?? "values";
  const to = (change) => go(address("analytics", "", { ...query, ...change }), true);
  return html`<div class="filters">
      <${Choice} label="Show" options=${VIEWS} value=${shown} choose=${(value) => go(address("analytics", "", { show: value, days: query.days }))} />
      ${shown !== "devices" && html`<${Choice} label="Span" options=${SPANS} value=${query.days ?? DEFAULT_DAYS} choose=${(days) => to({ days, end: "" })} />`}
    </div>
    ${shown === "values" && html`<${Values} query=${query} to=${to} />`}
    ${shown === "delivery" && html`<${Delivery} query=${query} />`}
    ${shown === "outages" && html`<${Outages} query=${query} />`}
    ${shown === "devices" && html`<${Devices} query=${query} />`}`;
}

const NAMES = ["tenant", "gateway", "device", "address", "metric"];
const named = (query) => Object.fromEntries(NAMES.map((name) => [name, query[name] ?? ""]));
const inDefault = (tenant) => (tenant === "default" ? "" : tenant);

const SERIES = [
  { name: "Metric", cell: (row) => html`<a href=${address("analytics", "", { show: "values", ...pick(row) })}><${Name}>${row.metric}<//></a><small><${Name} mono>${row.address}<//></small>` },
  { name: "Device", cell: (row) => html`<${Name}>${row.device}<//>` },
  { name: "Gateway", cell: (row) => html`<${Name}>${row.gateway}<//><small>${plain(inDefault(row.tenant))}</small>` },
  { name: "Unit", optional: true, cell: (row) => plain(row.unit ?? "") },
  { name: "Last value", numeric: true, cell: (row) => html`<${Time} at=${row.last_at} relative />` },
];
const pick = (row) => Object.fromEntries(NAMES.map((name) => [name, row[name]]));

/** Chart of one series, or the list of series to choose from. */
function Values({ query, to }) {
  if (!query.metric || !query.device) {
    return html`<${Panel} title="Choose a series" flush>
      <${PagedTable} label="series" path="/api/v1/gold/series" items="series" query=${{ gateway: query.gateway ?? "" }} columns=${SERIES}
        id=${(row) => NAMES.map((name) => row[name]).join("\0")} every=${EVERY_S} empty=${html`<${NoJob} what="A chart" />`} /><//>`;
  }
  return html`<${Series} query=${query} to=${to} />`;
}

/** Insert a point without values where rows are missing, so that no line is drawn across a gap. */
function withGaps(rows, time, stepMs) {
  const whole = [];
  for (const row of rows) {
    const before = whole[whole.length - 1];
    if (before && stepMs && row[time] - before[time] > 1.5 * stepMs) whole.push({ [time]: before[time] + stepMs });
    whole.push(row);
  }
  return whole;
}

const line = (rows, label, tone, value, more = {}) => ({ label, tone, values: rows.map((row) => value(row) ?? null), ...more });

function Series({ query, to }) {
  const { begin, end } = spanOf(query);
  const ask = { ...named(query), begin, end };
  const { found, error, missing, load } = useRead(goldPath("rollup", ask));
  const unusual = useRead(goldPath("anomalies", { ...ask, limit: 200 }));
  const anomalies = unusual.found ? rowsOf(unusual.found) : [];
  const rows = useMemo(() => (found ? withGaps(rowsOf(found), "window_start", found.step_s * 1000) : []), [found]);
  const unit = rows.find((row) => row.unit)?.unit ?? "value";
  const times = useMemo(() => rows.map((row) => row.window_start / 1000), [rows]);
  const lines = useMemo(() => [
    line(rows, "highest", "c3", (row) => row.max),
    line(rows, "mean", "c1", (row) => row.mean),
    line(rows, "lowest", "c3", (row) => row.min),
  ], [rows]);
  const marks = useMemo(() => anomalies.map((row) => ({ at: row.event_time / 1000, value: row.value, expected: row.expected })), [unusual.found]);
  const last = rows[rows.length - 1];
  const words = last ? `${counted(rows.length, "point")}, last mean ${measure(last.mean)} ${plain(unit)}, ${counted(anomalies.length, "unusual value")}` : "no values";
  const title = `${plain(query.metric)} of ${plain(query.device)}`;
  return html`<${Panel} title=${title} extra=${html`<a class="small" href=${address("analytics", "", { show: "values", days: query.days })}>another series</a>
      <a class="button" href=${goldPath(found?.table ?? "rollup", { ...ask, format: "csv" })} download>CSV</a>`}>
      <p class="soft small"><${Name}>${query.gateway}<//> · <${Name} mono>${query.address}<//>${inDefault(query.tenant) ? ` · ${plain(query.tenant)}` : ""}</p>
      <${ErrorNote} error=${error} retry=${load} />
      ${missing && html`<${NoJob} what="A chart" />`}
      ${found && rows.length === 0 && html`<${Empty} title="No value in this span">${found.newest ? html`The newest row of the table is from <${Time} at=${found.newest} />.
        <button class="button" onClick=${() => to({ end: found.newest })}>Show the span before it</button>` : "The table has no rows."}<//>`}
      ${rows.length > 0 && html`<${TimeChart} key=${`${found.table} ${NAMES.map((name) => query[name]).join("\0")} ${begin}`} title=${title} unit=${plain(unit)} times=${times}
        lines=${lines} marks=${marks} band=${[0, 2]} zero=${false} format=${measure} height=${260} summary=${words} />
        <div class="legend"><span><i></i>mean (${plain(unit)})</span><span><i class="k3"></i>lowest and highest of each ${duration(found.step_s)}</span>
          ${marks.length > 0 && html`<span class="bad-t">◆ unusual value, with a line to the expected one</span>`}</div>
        <p class="small">${words}</p>`}
      ${found && html`<${Age} page=${found} />`}
    <//>
    ${anomalies.length > 0 && html`<${Panel} title="Unusual values" flush><div class="scroll" tabindex="0" role="region" aria-label="Table of unusual values"><table class="cards">
      <thead><tr><th scope="col">Time</th><th scope="col" class="n">Value</th><th scope="col" class="n">Expected</th><th scope="col">Rule</th><th scope="col" class="n">Score</th></tr></thead>
      <tbody>${anomalies.slice(0, 20).map((row) => html`<tr key=${row.sequence}><th scope="row"><${Time} at=${row.event_time} /></th>
        <td class="n" data-label="Value">${measure(row.value)}</td><td class="n" data-label="Expected">${measure(row.expected)}</td>
        <td data-label="Rule">${plain(row.rule ?? "–")}</td><td class="n" data-label="Score">${measure(row.score)}</td></tr>`)}</tbody></table></div>
      <p class="table-bar soft small">${anomalies.length > 20 ? `The last 20 of ${number(anomalies.length)}. ` : ""}Score 0.5 and more is unusual for this series; 1 is certain.</p><//>`}`;
}

const seconds = (value) => (typeof value === "number" ? (value < 10 ? `${measure(value)} s` : duration(value)) : "–");

const FRESH = [
  { name: "Gateway", sort: "gateway", cell: (row) => html`<a href=${address("analytics", "", { show: "delivery", tenant: row.tenant, gateway: row.gateway })}><${Name}>${row.gateway}<//></a><small>${plain(inDefault(row.tenant))}</small>` },
  { name: "Last data", sort: "last_ingested_at", numeric: true, cell: (row) => html`<${Time} at=${row.last_ingested_at} relative />` },
  { name: "Delay, median", sort: "lag_p50_s", numeric: true, cell: (row) => seconds(row.lag_p50_s) },
  { name: "95 of 100 within", sort: "lag_p95_s", numeric: true, cell: (row) => seconds(row.lag_p95_s) },
  { name: "Longest", sort: "lag_max_s", numeric: true, optional: true, cell: (row) => seconds(row.lag_max_s) },
  { name: "Messages", sort: "rows", numeric: true, optional: true, cell: (row) => number(row.rows) },
];

/** Delays of all gateways, or those of one over time. */
function Delivery({ query }) {
  if (!query.gateway) {
    return html`<${Panel} title="Delays of gateways" flush extra=${html`<a class="button" href=${withQuery(withEmpty("gateway_freshness", "device"), { format: "csv" })} download>CSV</a>`}>
      <${PagedTable} label="gateways" path=${withEmpty("gateway_freshness", "device")} unpack=${rowsOf} columns=${FRESH} id=${(row) => `${row.tenant}/${row.gateway}`} every=${EVERY_S}
        empty=${html`<${NoJob} what="This table" />`} /><//>`;
  }
  return html`<${GatewayDelivery} query=${query} />`;
}

/** Path of a table with a column that has no value. */
const withEmpty = (table, column) => `/api/v1/gold/${table}?${column}=`;

export function GatewayDelivery({ query }) {
  const { begin, end } = spanOf(query);
  const days = Number(query.days ?? DEFAULT_DAYS);
  const ask = { tenant: query.tenant ?? "", gateway: query.gateway, begin, end };
  const slo = useRead(goldPath("delivery_slo", { ...ask, width_s: days > 31 ? 86_400 : 3_600, limit: 2000 }));
  const cut = useRead(goldPath("outages", { tenant: ask.tenant, gateway: ask.gateway, limit: 200 }));
  const outages = (cut.found ? rowsOf(cut.found) : []).filter((row) => row.until >= begin && row.began <= end);
  const rows = slo.found ? rowsOf(slo.found) : [];
  const times = rows.map((row) => row.window_start / 1000);
  const off = rows.map((row) => outages.some((outage) => outage.began < row.window_start + row.width_s * 1000 && outage.until > row.window_start));
  const sum = (name) => rows.reduce((total, row) => total + (row[name] ?? 0), 0);
  const title = `Delay of ${plain(query.gateway)}`;
  return html`<${Panel} title=${title} extra=${html`<a class="small" href=${address("analytics", "", { show: "delivery", days: query.days })}>all gateways</a>
      <a class="button" href=${goldPath("delivery_slo", { ...ask, format: "csv" })} download>CSV</a>`}>
    <${ErrorNote} error=${slo.error} retry=${slo.load} />
    ${slo.missing && html`<${NoJob} what="This chart" />`}
    ${slo.found && rows.length === 0 && html`<${Empty} title="No message in this span">Choose a longer one${slo.found.newest ? html`; the newest row is from <${Time} at=${slo.found.newest} />` : ""}.<//>`}
    ${rows.length > 0 && html`<${Pairs} pairs=${[
        ["in the lake within a minute", html`${percent(sum("within"), sum("timed"))} <span class="soft">(${number(sum("within"))} of ${number(sum("timed"))})</span>`],
        ["messages", number(sum("messages"))],
        ["outages", number(outages.length)],
      ]} />
      <${TimeChart} key=${`${query.gateway} ${begin}`} title=${title} unit="s" times=${times} off=${off} format=${measure} height=${220} lines=${[
        line(rows, "median", "c1", (row) => row.p50_s), line(rows, "95 of 100", "c2", (row) => row.p95_s), line(rows, "99 of 100", "c3", (row) => row.p99_s)]}
        summary=${`${percent(sum("within"), sum("timed"))} within a minute, ${counted(outages.length, "outage")}`} />
      <div class="legend"><span><i></i>median (s)</span><span><i class="k2"></i>95 of 100</span><span><i class="k3"></i>99 of 100</span><span><i class="ks"></i>outage</span></div>`}
    ${slo.found && html`<${Age} page=${slo.found} />`}
  <//>
  ${outages.length > 0 && html`<${Panel} title="Outages" flush><div class="scroll" tabindex="0" role="region" aria-label="Table of outages"><table class="cards">
    <thead><tr><th scope="col">Began</th><th scope="col" class="n">Lasted</th><th scope="col" class="n">Messages that waited</th><th scope="col" class="n">Delivered after</th></tr></thead>
    <tbody>${outages.map((row) => html`<tr key=${row.began}><th scope="row"><${Time} at=${row.began} /></th><td class="n" data-label="Lasted">${duration((row.until - row.began) / 1000)}</td>
      <td class="n" data-label="Messages">${number(row.messages)}</td><td class="n" data-label="Delivered after">${duration((row.drained - row.drain_began) / 1000)}</td></tr>`)}</tbody></table></div><//>`}`;
}

const OUTAGES = [
  { name: "Began", sort: "began", cell: (row) => html`<${Time} at=${row.began} />` },
  { name: "Gateway", sort: "gateway", cell: (row) => html`<a href=${address("analytics", "", { show: "delivery", tenant: row.tenant, gateway: row.gateway })}><${Name}>${row.gateway}<//></a>` },
  { name: "Lasted", numeric: true, cell: (row) => duration((row.until - row.began) / 1000) },
  { name: "Messages that waited", sort: "messages", numeric: true, cell: (row) => number(row.messages) },
  { name: "Delivered after", numeric: true, cell: (row) => duration((row.drained - row.drain_began) / 1000) },
];

function Outages({ query }) {
  const { begin, end } = spanOf(query);
  return html`<${Panel} title="Outages" flush extra=${html`<a class="button" href=${goldPath("outages", { begin, end, format: "csv" })} download>CSV</a>`}>
    <${PagedTable} label="outages" path="/api/v1/gold/outages" unpack=${rowsOf} query=${{ begin: String(begin), end: String(end) }} columns=${OUTAGES}
      id=${(row) => `${row.tenant}/${row.gateway}/${row.began}`} every=${EVERY_S}
      empty=${html`<${OutagesEmpty} />`} /><//>`;
}

function OutagesEmpty() {
  const { missing } = useRead("/api/v1/gold/outages?limit=1");
  return missing ? html`<${NoJob} what="This table" />` : html`<${Empty} title="No outage in this span">An outage is a time in which messages waited at their gateway.<//>`;
}

const DEVICES = [
  { name: "Device", sort: "device", cell: (row) => html`<a href=${address("analytics", "", { show: "values", gateway: row.gateway })}><${Name}>${row.device}<//></a><small><${Name}>${row.gateway}<//></small>` },
  { name: "Silent for", sort: "silent_s", numeric: true, cell: (row) => html`<span class=${row.missed >= 5 ? "bad-t" : ""}>${duration(row.silent_s)}</span><small>${row.missed ? `${number(row.missed)} messages missed` : ""}</small>` },
  { name: "Usual interval", sort: "interval_s", numeric: true, optional: true, cell: (row) => seconds(row.interval_s ?? undefined) },
  { name: "Battery", sort: "battery", numeric: true, cell: (row) => html`${measure(row.battery ?? undefined)}<small>${typeof row.battery_per_day === "number" ? `${measure(row.battery_per_day)} a day` : ""}</small>` },
  { name: "Boots", sort: "boots", numeric: true, optional: true, cell: (row) => number(row.boots) },
  { name: "Clock ahead", sort: "clock_ahead_s", numeric: true, optional: true, cell: (row) => seconds(row.clock_ahead_s ?? undefined) },
  { name: "Radio", sort: "rssi", numeric: true, optional: true, cell: (row) => (typeof row.rssi === "number" ? `${Math.round(row.rssi)} dBm` : "–") },
];

function Devices({ query }) {
  const only = query.gateway ? { gateway: query.gateway, tenant: query.tenant ?? "" } : {};
  return html`<${Panel} title="Devices, last 30 days" flush extra=${html`<a class="button" href=${goldPath("device_health", { ...only, format: "csv" })} download>CSV</a>`}>
    <${PagedTable} label="devices" path="/api/v1/gold/device_health" unpack=${rowsOf} query=${only} columns=${DEVICES}
      id=${(row) => `${row.tenant}/${row.gateway}/${row.device}`} every=${EVERY_S} empty=${html`<${NoJob} what="This table" />`} /><//>`;
}
