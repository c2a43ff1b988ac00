// Fleet: the gateways in danger first, one row a cause.

import { get, withQuery } from "./api.js";
import { html, useState } from "./html.js";
import { Choice, Empty, ErrorNote, Meter, Name, Panel, Pill, Problem, Time } from "./parts.js";
import { address, go } from "./route.js";
import { useEvery } from "./state.js";
import { FleetActions, Views } from "./fleet_actions.js";
import { Chips, Filters, filtersOf, isFiltered } from "./fleet_filters.js";
import { lazy } from "./frame.js";
import { PagedTable } from "./table.js";
import { bytes, counted, duration, number, plain, rate } from "./text.js";

const GatewayPage = lazy(() => import("./gateway_page.js"), "GatewayPage");
const FleetProblems = lazy(() => import("./fleet_problems.js"), "FleetProblems");
const PROBLEMS = "problems";

export const STATES = {
  well: ["good", "well"],
  behind: ["warn", "behind"],
  configuration: ["warn", "configuration"],
  certificate: ["warn", "certificate"],
  refusing: ["bad", "refuses messages"],
  incomplete: ["bad", "incomplete"],
  offline: ["bad", "offline"],
  never: ["idle", "never connected"],
};
const FILTERS = [["danger", "needs a look"], ["all", "all"], ["offline", "offline"], ["behind", "behind"], ["never", "never connected"]];

const COLUMNS = [
  { name: "Gateway", sort: "name", cell: (row) => html`<a href=${address("fleet", key(row))}><${Name}>${row.name}<//></a><small>${labels(row)}</small>` },
  { name: "State", wide: true, cell: (row) => html`<${State} row=${row} />` },
  { name: "Waiting", sort: "waiting", numeric: true, cell: (row) => html`${number(row.waiting_messages ?? undefined)}<small>${row.waiting_bytes ? bytes(row.waiting_bytes) : ""}</small>` },
  { name: "Room left", sort: "room", numeric: true, cell: (row) => room(row.room_hours) },
  { name: "Version", optional: true, cell: (row) => plain(row.status?.version ?? "–") },
  { name: "Newest reading", numeric: true, optional: true, cell: (row) => html`<${Time} at=${row.newest_received_at} relative />` },
  { name: "Last seen", sort: "seen", numeric: true, cell: (row) => (row.connected ? "now" : html`<${Time} at=${row.last_seen} relative />`) },
];

export function key(row) {
  return `${row.tenant}/${row.name}`;
}

function labels(row) {
  const own = Object.entries(row.labels ?? {}).map(([name, value]) => `${plain(name)}=${plain(value)}`);
  return [row.tenant === "default" ? "" : plain(row.tenant), ...own].filter(Boolean).join(", ");
}

export function room(hours) {
  if (typeof hours !== "number") return "–";
  const text = hours > 87_600 ? "over 10 years" : duration(hours * 3600);
  return hours < 48 ? html`<span class="bad-t">${text}</span>` : text;
}

function State({ row }) {
  const [tone, word] = STATES[row.state] ?? ["idle", row.state];
  return html`<${Pill} tone=${tone}>${word}<//>${row.why ? html` <span class="small">${plain(row.why)}</span>` : null}
    ${row.next_step ? html`<small>Next: ${plain(row.next_step)}</small>` : null}`;
}

export function Fleet({ rest, query, figures: status }) {
  const [fleet, setFleet] = useState(null);
  const [error, setError] = useState(null);
  useEvery(5, async () => {
    try {
      setFleet(await get("/api/v1/fleet"));
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  });
  if (rest === PROBLEMS) return html`<${FleetProblems} query=${query} />`;
  if (rest) return html`<${GatewayPage} name=${rest} query=${query} configures=${status !== null && !status.dev} />`;
  const filters = filtersOf(query);
  const shown = query.show ?? (isFiltered(query) ? "all" : "danger");
  const asked = { state: shown === "all" ? "" : shown, ...filters };
  const choose = (value) => go(address("fleet", "", { ...query, show: value }), true);
  return html`
    ${(status?.problems ?? []).map((problem) => html`<${Problem} key=${problem.name} problem=${problem} />`)}
    <${ErrorNote} error=${error} />
    ${fleet && fleet.total > 0 && html`<${States} fleet=${fleet} />`}
    ${fleet?.causes.length > 0 && html`<${Causes} causes=${fleet.causes} />`}
    <${Panel} title="Gateways" flush extra=${html`<${Choice} label="Show" options=${FILTERS} value=${shown} choose=${choose} />`}>
      <div class="table-bar"><${Views} query=${query} /><${Chips} query=${query} /><span class="grow"></span>
        <a class="small" href=${address("fleet", PROBLEMS)}>Problems of the fleet</a>
        <a class="small" href=${withQuery("/api/v1/gateways.csv", asked)} download>CSV</a>
        <${Filters} query=${query} versions=${fleet?.versions ?? []} /></div>
      <${PagedTable} key=${shown} label="gateways" path="/api/v1/gateways" items="gateways" columns=${COLUMNS} id=${key}
        query=${asked}
        actions=${(gateways, clear) => html`<${FleetActions} gateways=${gateways} clear=${clear} configures=${status !== null && !status.dev} />`}
        empty=${isFiltered(query) ? html`<${Empty} title="No gateway matches"><a href=${address("fleet", "", { show: "all" })}>Show all</a><//>` : status?.gateways.known
          ? html`<${Empty} title="Every gateway is well">None is offline, behind, or in need of a look. <a href=${address("fleet", "", { show: "all" })}>Show all</a><//>`
          : html`<${Empty} title="No gateway has connected yet"><a href=${address("enrolment")}>Make a token</a>, and give it to a gateway.<//>`} />
    <//>
    ${fleet?.sites.length > 0 && html`<${Sites} sites=${fleet.sites} />`}`;
}

const SHADES = { well: "mg", behind: "m2", configuration: "mw", certificate: "mw", refusing: "mb", incomplete: "mb", offline: "mb", never: "m2" };

/** Bar of the whole fleet by state. */
function States({ fleet }) {
  const found = Object.keys(STATES).filter((state) => fleet.states[state]);
  const text = found.map((state) => `${number(fleet.states[state])} ${STATES[state][1]}`).join(", ");
  return html`<section class="panel" aria-label="States"><div class="body">
    <${Meter} parts=${found.map((state) => [fleet.states[state] / fleet.total, SHADES[state]])} label=${text} />
    <div class="keys">${found.map((state) => html`<a class=${`k-${SHADES[state]}`} href=${address("fleet", "", { show: state === "well" ? "all" : state })}>
      <b>${number(fleet.states[state])}</b> ${STATES[state][1]}</a>`)}</div>
  </div></section>`;
}

/** Gateways that have the same trouble since about the same time: one cause is likely. */
function Causes({ causes }) {
  return html`<${Panel} title="One cause is likely" flush><div class="scroll" tabindex="0" role="region" aria-label="Table of causes"><table class="cards">
    <thead><tr><th scope="col">Gateways</th><th scope="col">What is wrong</th><th scope="col" class="n">Since</th><th scope="col" class="n">Least room</th></tr></thead>
    <tbody>${causes.map((cause) => html`<tr key=${cause.key}>
      <th scope="row"><a href=${address("fleet", "", { show: cause.kind, selector: cause.selector })}>${counted(cause.count, "gateway")}</a><small>${plain(cause.selector)}</small></th>
      <td class="what"><span class="bad-t">${STATES[cause.kind]?.[1] ?? cause.kind}</span>: ${plain(cause.what)}</td>
      <td class="n" data-label="Since"><${Time} at=${cause.since} /></td><td class="n" data-label="Least room">${room(cause.room_hours)}</td></tr>`)}</tbody></table></div><//>`;
}

function Sites({ sites }) {
  return html`<${Panel} title="Sites" extra=${html`<span class="small soft">by label <span class="tag">${plain(sites[0].label)}</span>, worst first</span>`}>
    <div class="sites">${sites.map((site) => html`<a key=${site.value} class="site ${site.states.offline || site.states.refusing || site.states.incomplete ? "bad" : site.states.behind ? "warn" : ""}"
      href=${site.value ? address("fleet", "", { show: "all", selector: `${site.label}=${site.value}` }) : address("fleet", "", { show: "all" })}>
      <b><${Name}>${site.value || "no site"}<//></b><span>${number(site.total)}</span>
      <${Meter} parts=${Object.keys(STATES).map((state) => [(site.states[state] ?? 0) / site.total, SHADES[state]])} label=${`${number(site.states.well ?? 0)} of ${number(site.total)} well`} />
      <small class="soft">${Object.keys(STATES).filter((state) => state !== "well" && site.states[state]).map((state) => `${number(site.states[state])} ${STATES[state][1]}`).join(" · ") || "all well"}</small></a>`)}</div>
  <//>`;
}
