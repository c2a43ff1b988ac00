// Problems of the fleet: how many gateways have each, since when, and which.

import { html } from "./html.js";
import { Empty, Name, Panel, Pill, Time } from "./parts.js";
import { address } from "./route.js";
import { PagedTable } from "./table.js";
import { number, plain } from "./text.js";

const RANKS = { error: 0, warning: 1, notice: 2 };
const TONES = { error: "bad", warning: "warn", notice: "idle" };

const COLUMNS = [
  { name: "Problem", cell: (row) => html`<a href=${address("fleet", "problems", { name: row.name })}><${Name}>${row.name}<//></a>` },
  { name: "Severity", cell: (row) => html`<${Pill} tone=${TONES[row.severity]}>${row.severity}<//>` },
  { name: "Gateways", numeric: true, cell: (row) => html`<${Gateways} row=${row} />` },
  { name: "Hubs", numeric: true, optional: true, cell: (row) => (row.hubs ? number(row.hubs) : "–") },
  { name: "First since", numeric: true, cell: (row) => html`<${Time} at=${row.since} />` },
];

function Gateways({ row }) {
  if (!row.gateways) return "–";
  return html`<a href=${address("fleet", "", { show: "all", problem: row.name })}>${number(row.gateways)}</a>${row.away ? html`<small>${number(row.away)} away</small>` : null}`;
}

const PLACES = [
  { name: "Where", cell: (row) => html`<${Where} row=${row} />` },
  { name: "What is wrong", wide: true, cell: (row) => html`<${Pill} tone=${TONES[row.severity]}>${row.severity}<//> ${plain(row.what)}${row.next_step ? html`<small>Next: ${plain(row.next_step)}</small>` : null}` },
  { name: "Since", numeric: true, cell: (row) => html`<${Time} at=${row.since} />` },
  { name: "Reported", numeric: true, cell: (row) => (row.connected === false ? html`before it went away <small><${Time} at=${row.last_seen} relative /></small>` : "now") },
];

function Where({ row }) {
  if (!row.gateway) return html`Hub <${Name}>${row.hub}<//>`;
  return html`<a href=${address("fleet", `${row.tenant}/${row.gateway}`)}><${Name}>${row.gateway}<//></a>${row.tenant === "default" ? null : html`<small><${Name}>${row.tenant}<//></small>`}`;
}

/** Problems of a page, the worst of most gateways first. */
function worstFirst(page) {
  return [...page.problems].sort((one, other) => RANKS[one.severity] - RANKS[other.severity] || other.gateways - one.gateways);
}

/** @param {{query: Record<string, string>}} properties `query.name`: one problem, with its places; else all */
export function FleetProblems({ query }) {
  if (query.name) return html`<${Places} name=${query.name} />`;
  return html`<p><a href=${address("fleet")}>All gateways</a></p>
    <${Panel} title="Problems of the fleet" flush>
      <${PagedTable} label="problems" path="/api/v1/problems" unpack=${worstFirst} query=${{ places: "0" }} search=${false} every=${10} columns=${COLUMNS} id=${(row) => row.name}
        empty=${html`<${Empty} title="No gateway or hub has a problem">A gateway names its problems when they change. One that is away keeps its last ones for 7 days.<//>`} />
    <//>`;
}

function Places({ name }) {
  return html`<p><a href=${address("fleet", "problems")}>All problems</a></p>
    <${Panel} title=${plain(name)} flush extra=${html`<a class="small" href=${address("fleet", "", { show: "all", problem: name })}>in the list of gateways</a>`}>
      <p class="table-bar soft small"><span>What it means, and the next steps: <code class="name">waypost explain ${plain(name)}</code></span></p>
      <${PagedTable} label="places" path=${`/api/v1/problems/${encodeURIComponent(name)}`} items="places" search=${false} every=${10} columns=${PLACES}
        id=${(row) => `${row.tenant} ${row.gateway} ${row.hub} ${row.what}`} empty=${html`<${Empty} title="No gateway or hub has it">It is over, or nothing has reported it.<//>`} />
    <//>`;
}
