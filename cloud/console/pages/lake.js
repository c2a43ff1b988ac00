// Lake: landing, tables with their files and maintenance, quarantine.

import { Spark } from "./chart.js";
import { useRead } from "./gold.js";
import { html } from "./html.js";
import { Empty, ErrorNote, Name, Pairs, Panel, Pill, Time } from "./parts.js";
import { bytes, counted, number, plain } from "./text.js";

const SMALL_FILES_MANY = 200;
/** Bytes of a head of a delivery that are shown as text where they are printable. */
const HEAD_HEX = 64;

export function Lake({ figures: status }) {
  if (status === null) return null;
  return html`<div class="grid">
    ${status.landing ? html`<${Landing} landing=${status.landing} totals=${status.totals} />`
      : html`<${Panel} title="Lake"><${Empty} title="Figures of the lake belong to no tenant">They need the right <code>view:$fleet</code>.<//><//>`}
    ${status.landing?.held?.length > 0 && html`<${Panel} title="Gateways that cannot land"><${Pairs} pairs=${status.landing.held.map((one) => [
      html`<${Name}>${one.gateway}<//>`, html`${plain(one.reason)}, since <${Time} at=${one.since} />`])} /><//>`}
    ${status.landing && html`<${Tables} />`}
    <${Quarantine} />
  </div>`;
}

function Landing({ landing, totals }) {
  const ms = (value) => (typeof value === "number" ? `${number(Math.round(value))} ms` : "–");
  return html`<${Panel} title="Landing" extra=${html`<${Pill} tone=${landing.failing ? "bad" : "good"}>${landing.failing ? "fails" : "healthy"}<//>`}>
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
    ${landing.latencies_ms.length > 2 && html`<${Spark} values=${landing.latencies_ms.map((value) => value ?? 0)} label="latency of the last landings" />`}
  <//>`;
}

function Tables() {
  const { found, error, load } = useRead("/api/v1/lake");
  const tables = found?.tables ?? [];
  const size = tables.reduce((sum, table) => sum + (table.bytes ?? 0), 0);
  const many = tables.some((table) => table.small_files >= SMALL_FILES_MANY);
  return html`<${Panel} title="Tables" flush extra=${found && html`<span class="small soft">${counted(tables.length, "table")}, ${bytes(size)}</span>`}>
    <${ErrorNote} error=${error} retry=${load} />
    ${found && html`<div class="scroll" tabindex="0" role="region" aria-label="Table of tables"><table class="cards">
      <thead><tr><th scope="col">Table</th><th scope="col" class="n">Rows</th><th scope="col" class="n">Size</th><th scope="col" class="n">Files</th><th scope="col" class="n">Oldest day</th>
        <th scope="col" class="n">Last commit</th><th scope="col" class="n">Last maintained</th></tr></thead>
      <tbody>${tables.map((table) => (table.error
        ? html`<tr key=${table.table}><th scope="row"><span class="mono">${plain(table.table)}</span></th><td class="what bad-t" colspan="6">${plain(table.error)}</td></tr>`
        : html`<tr key=${table.table}><th scope="row"><span class="mono">${plain(table.table)}</span></th><td class="n" data-label="Rows">${number(table.rows)}</td><td class="n" data-label="Size">${bytes(table.bytes)}</td>
          <td class="n" data-label="Files">${number(table.files)}<small class=${table.small_files >= SMALL_FILES_MANY ? "warn-t" : ""}>${table.small_files ? `${number(table.small_files)} small` : ""}</small></td>
          <td class="n" data-label="Oldest day">${table.oldest_day ?? "–"}</td><td class="n" data-label="Last commit"><${Time} at=${table.written_at} relative /><small>version ${number(table.version)}</small></td>
          <td class="n" data-label="Last maintained"><${Time} at=${table.optimized_at} relative /></td></tr>`))}</tbody></table></div>
      <p class="table-bar soft small">A small file has less than 4 MB. The hub compacts what it lands; <code class="name">waypost lake maintain --lake ${plain(found.place)}</code> compacts every table and removes
        replaced files${many ? ": it is due" : ""}. With <code>lake run --follow</code> it happens by itself.</p>`}<//>`;
}

function Quarantine() {
  const { found, error, missing, load } = useRead("/api/v1/quarantine");
  return html`<${Panel} title="Quarantine" flush=${Boolean(found?.total)} extra=${found && html`<${Pill} tone=${found.total ? "warn" : "good"}>${found.total ? number(found.total) : "empty"}<//>`}>
    <${ErrorNote} error=${error} retry=${load} />
    ${(missing || found?.total === 0) && html`<p class="soft">Deliveries that no program can read are kept here as they came, so nothing is lost by a mistake in a program. There is none.</p>`}
    ${found?.total > 0 && html`<p class="table-bar">${found.reasons.slice(0, 5).map((each) => html`<span class="tag">${number(each.count)} × ${plain(each.reason)}</span> `)}</p>
      <div class="scroll" tabindex="0" role="region" aria-label="Table of deliveries in quarantine"><table class="cards">
      <thead><tr><th scope="col">Gateway</th><th scope="col">Reason</th><th scope="col">Head, hexadecimal</th><th scope="col" class="n">Size</th><th scope="col" class="n">Received</th></tr></thead>
      <tbody>${found.rows.map((row, place) => html`<tr key=${place}><th scope="row"><${Name}>${row.gateway}<//><small>${plain(row.link)}</small></th><td class="what">${plain(row.reason)}</td>
        <td class="what"><code class="name">${row.head.slice(0, HEAD_HEX)}${row.head.length > HEAD_HEX ? "…" : ""}</code></td><td class="n" data-label="Size">${bytes(row.bytes)}</td>
        <td class="n" data-label="Received"><${Time} at=${row.received_at} /></td></tr>`)}</tbody></table></div>
      <p class="table-bar soft small">All of them: <code class="name">waypost lake query "SELECT * FROM quarantine"</code></p>`}<//>`;
}
