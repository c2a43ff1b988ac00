// Completeness: what was accepted is in the lake, discarded with a reason, or still waiting. Anything else is shown.

import { withQuery } from "./api.js";
import { Age, NoJob, rowsOf, useRead } from "./gold.js";
import { Faults } from "./hours.js";
import { html, useState } from "./html.js";
import { Choice, Empty, ErrorNote, Name, Panel, Pill } from "./parts.js";
import { address, go } from "./route.js";
import { PagedTable } from "./table.js";
import { counted, number, percent, plain } from "./text.js";

const SPANS = [["7", "7 days"], ["14", "14 days"], ["31", "31 days"], ["92", "a quarter"]];
const EVERY_S = 60;
const CHECKED_DAYS_MAX = 31;

const GAPS = [
  { name: "Gateway", sort: "gateway", cell: (row) => html`<a href=${address("fleet", `${row.tenant}/${row.gateway}`, { tab: "completeness" })}><${Name}>${row.gateway}<//></a><small>${row.tenant === "default" ? "" : plain(row.tenant)}</small>` },
  { name: "Address", sort: "address", cell: (row) => html`<${Name} mono>${row.address}<//>` },
  { name: "Sequences", numeric: true, cell: (row) => `${number(row.first_sequence)}–${number(row.last_sequence)}` },
  { name: "Messages", sort: "missing", numeric: true, cell: (row) => html`<span class="bad-t">${number(row.missing)}</span>` },
  { name: "Epoch", optional: true, cell: (row) => html`<span class="mono">${plain(row.epoch).slice(0, 8)}</span>` },
];

export function Completeness({ query }) {
  const days = query.days ?? "14";
  return html`<div class="filters"><${Choice} label="Span" options=${SPANS} value=${days} choose=${(value) => go(address("completeness", "", { ...query, days: value }), true)} /></div>
    <${Days} days=${days} />
    <${Panel} title="Unexplained ranges" flush>
      <${PagedTable} label="ranges" path="/api/v1/gold/gaps?explained=false" unpack=${rowsOf} columns=${GAPS} every=${EVERY_S}
        id=${(row) => [row.tenant, row.gateway, row.epoch, row.address, row.first_sequence].join("\0")} empty=${html`<${GapsEmpty} />`} /><//>
    <${Statements} days=${Math.min(CHECKED_DAYS_MAX, Number(days))} />
    <${Proof} />`;
}

function GapsEmpty() {
  const { missing } = useRead("/api/v1/gold/gaps?limit=1");
  return missing ? html`<${NoJob} what="This table" />` : html`<${Empty} title="Nothing is unexplained">Every message that a gateway accepted is in the lake, in the ledger, or waiting at its gateway.<//>`;
}

function Days({ days }) {
  const { found, error, missing, load } = useRead(withQuery("/api/v1/completeness", { days }));
  const rows = found?.days ?? [];
  const several = new Set(rows.map((row) => row.tenant)).size > 1;
  return html`<${Panel} title="Proven per day" flush>
    <${ErrorNote} error=${error} retry=${load} />
    ${missing && html`<div class="body"><${NoJob} /></div>`}
    ${found && rows.length === 0 && html`<div class="body"><${Empty} title="No hour is stated in these days">Gateways state each hour what they accepted. Choose a longer span.<//></div>`}
    ${rows.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Table of days"><table class="cards">
      <thead><tr><th scope="col">Day</th>${several && html`<th scope="col">Tenant</th>`}<th scope="col">Proven</th><th scope="col" class="n">Accepted</th><th scope="col" class="n">Landed</th>
        <th scope="col" class="n">Discarded</th><th scope="col" class="n">Waiting</th><th scope="col" class="n">Unexplained</th></tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${`${row.tenant} ${row.day}`}><th scope="row">${row.day}</th>${several && html`<td data-label="Tenant"><${Name}>${row.tenant}<//></td>`}
        <td><${Pill} tone=${row.unexplained ? "bad" : row.waiting ? "warn" : "good"}>${percent(row.landed + row.given_up, row.accepted)}<//></td>
        <td class="n" data-label="Accepted">${number(row.accepted)}</td><td class="n" data-label="Landed">${number(row.landed)}</td><td class="n" data-label="Discarded">${number(row.given_up)}</td>
        <td class="n" data-label="Waiting">${number(row.waiting)}</td><td class="n ${row.unexplained ? "bad-t" : ""}" data-label="Unexplained">${number(row.unexplained)}</td></tr>`)}</tbody></table></div>`}
    ${found && html`<div class="table-bar"><${Age} page=${found} table="completeness_hourly" /></div>`}<//>`;
}

function verdict(found) {
  if (found.faults.length) return counted(found.faults.length + found.faults_left_out, "fault");
  return found.statements ? "none missing, none forged" : "none yet";
}

function Statements({ days }) {
  const { found, error, missing, load } = useRead(withQuery("/api/v1/statements", { days }));
  return html`<${Panel} title="Statements of gateways" flush=${Boolean(found?.faults.length)} extra=${found && html`<${Pill} tone=${found.faults.length ? "bad" : found.statements ? "good" : "idle"}>${verdict(found)}<//>`}>
    <${ErrorNote} error=${error} retry=${load} />
    ${missing && html`<p class="soft">The table <code>manifests</code> does not exist yet.</p>`}
    ${found && html`<p class=${found.faults.length ? "table-bar" : ""}>${counted(found.statements, "statement")} of ${counted(found.gateways, "gateway")} in ${counted(days, "day")}: signatures and chains are checked.
      ${found.parts > 1 ? ` This hour one of ${number(found.parts)} parts of the fleet was checked; the next hour checks another one.` : ""}</p>`}
    ${found?.faults.length > 0 && html`<${Faults} faults=${found.faults} left_out=${found.faults_left_out} />`}<//>`;
}

/** Proof of one gateway as a file. */
function Proof() {
  const [gateway, setGateway] = useState("");
  const [days, setDays] = useState("31");
  const path = withQuery(`/api/v1/proof/${encodeURIComponent(gateway)}`, { days });
  return html`<${Panel} title="Proof as a file"><div class="do">
      <label class="field">Gateway<input class="input" value=${gateway} onInput=${(event) => setGateway(event.target.value)} /></label>
      <label class="field">Days<select class="input" value=${days} onChange=${(event) => setDays(event.target.value)}>
        ${["7", "31", "92"].map((count) => html`<option key=${count} value=${count}>${count}</option>`)}<option value="">all</option></select></label>
      ${gateway ? html`<a class="button main" href=${path} download>Download</a>` : html`<button class="button main" disabled>Download</button>`}</div>
    <p class="soft small">Statements with their signatures, and the balance of every hour, for people who have to check it themselves. The same on the command line:${" "}
      <code class="name">waypost prove --gateway ${gateway ? plain(gateway) : "NAME"} --hours --json</code></p><//>`;
}
