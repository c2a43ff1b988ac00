// Addresses: queues, durable subscriptions and rules, busy first; and the page of one address.

import { del, get, withQuery } from "./api.js";
import { Spark } from "./chart.js";
import { lazy } from "./frame.js";
import { html, useRef, useState } from "./html.js";
import { ActionButton, Choice, Empty, ErrorNote, Name, Pairs, Panel, Pill, Time } from "./parts.js";
import { address, go } from "./route.js";
import { useSession } from "./session.js";
import { useEvery } from "./state.js";
import { PagedTable } from "./table.js";
import { counted, number, plain, rate, shellWord } from "./text.js";

const COLUMNS = [
  { name: "Address", sort: "address", order: "ascending", cell: (row) => html`<a href=${address("addresses", row.address)}><${Name} mono>${row.address}<//></a>${
    row.subscription ? html`<small>subscription <${Name} mono>${row.subscription}<//></small>` : null}` },
  { name: "Type", cell: (row) => row.type },
  { name: "Received/s", sort: "rate", order: "descending", numeric: true, cell: (row) => rate(row.received_per_s) },
  { name: "Delivered/s", sort: "delivered", order: "descending", numeric: true, cell: (row) => rate(row.delivered_per_s) },
  { name: "Waiting", sort: "waiting", order: "descending", numeric: true, cell: (row) => number(row.waiting) },
  { name: "Oldest", numeric: true, optional: true, cell: (row) => (row.oldest_at === null ? "–" : html`<${Time} at=${row.oldest_at * 1000} relative />`) },
  { name: "Consumers", sort: "consumers", order: "descending", numeric: true, cell: (row) => number(row.consumers) },
];

const AddressTree = lazy(() => import("./address_tree.js"), "AddressTree");
const AddressWizard = lazy(() => import("./address_wizard.js"), "AddressWizard");

export function Addresses({ rest, query }) {
  if (query.new) return html`<${AddressWizard} />`;
  return rest ? html`<${Address} key=${rest} name=${rest} />` : html`<${List} tree=${query.show === "tree"} />`;
}

function List({ tree }) {
  const { manage } = useSession();
  const make = html`<${Choice} label="Show as" options=${[["list", "List"], ["tree", "Tree"]]} value=${tree ? "tree" : "list"}
      choose=${(value) => go(address("addresses", "", value === "tree" ? { show: "tree" } : {}), true)} />
    ${manage && html`<a class="button main" href=${address("addresses", "", { new: "1" })}>New address</a>`}`;
  if (tree) return html`<${Panel} title="Addresses" extra=${make}><${AddressTree} /><//>`;
  return html`<${Panel} title="Addresses" extra=${make} flush>
    <${PagedTable} label="addresses" path="/api/v1/addresses" items="addresses" columns=${COLUMNS} every=${5}
      id=${(row) => row.id}
      empty=${html`<${Empty} title="Nothing is kept here yet">A queue appears with its first message or consumer, a durable
        subscription when a device with a session subscribes.<//>`} />
  <//>`;
}

const SAMPLES_MAX = 60;
const EVERY_S = 2;
const WHY_S = 10;

/** Rates of an address since its page was opened, from its counts. */
function useRates(rows) {
  const samples = useRef({ last: null, received: [], delivered: [] });
  const now = { at: Date.now(), received: total(rows, "received"), delivered: total(rows, "delivered") };
  const { last } = samples.current;
  if (rows && last?.rows !== rows) {
    if (last) {
      const seconds = Math.max(0.5, (now.at - last.at) / 1000);
      for (const key of ["received", "delivered"]) {
        samples.current[key].push(Math.max(0, now[key] - last[key]) / seconds);
        samples.current[key].splice(0, samples.current[key].length - SAMPLES_MAX);
      }
    }
    samples.current.last = { ...now, rows };
  }
  return samples.current;
}

function total(rows, key) {
  return (rows ?? []).reduce((sum, row) => sum + (row[key] ?? 0), 0);
}

function Address({ name }) {
  const [detail, setDetail] = useState(null);
  const [error, setError] = useState(null);
  async function load() {
    try {
      setDetail(await get(`/api/v1/addresses/${name.split("/").map(encodeURIComponent).join("/")}`));
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }
  useEvery(EVERY_S, load, [name]);
  const rates = useRates(detail?.rows);
  const back = html`<p><a href=${address("addresses")}>All addresses</a></p>`;
  if (detail === null) return html`${back}<${ErrorNote} error=${error} retry=${load} />`;
  return html`${back}<${ErrorNote} error=${error} />
    <div class="grid">
      <${Panel} title=${plain(detail.address)} span=${6} extra=${html`<${Pill}>${detail.type}<//>`}>
        ${detail.policy.map((each) => html`<p>${plain(each)}</p>`)}
        <${Pairs} pairs=${pairs(detail)} />
      <//>
      <${Panel} title="Messages a second" span=${6}>
        <${Flow} label="received" values=${rates.received} />
        <${Flow} label="delivered" values=${rates.delivered} />
        <p class="small soft">Since this page was opened.</p>
      <//>
      <${Panel} title="Consumers" span=${6} flush>${consumers(detail)}<//>
      <${Panel} title="Who may use it" span=${6}>${rights(detail)}<//>
      <${Why} name=${name} />
      ${detail.rows.length > 0 && html`<${Panel} title="What is counted" flush>${figures(detail)}<//>`}
      ${detail.resource && html`<${Change} detail=${detail} />`}
    </div>`;
}

const STATES = { ok: ["good", "ok"], note: ["idle", "note"], wrong: ["bad", "look"] };

/** The way of a message to this address, and what stands in it. */
function Why({ name }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  async function load() {
    try {
      setFound(await get(withQuery("/api/v1/why", { address: name })));
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }
  useEvery(WHY_S, load, [name]);
  return html`<${Panel} title="Does a message arrive?"><${ErrorNote} error=${error} retry=${load} />
    ${found && html`<p><b>${plain(found.verdict)}</b></p>
      <ul class="why">${found.steps.map((step, place) => html`<li key=${place}><${Pill} tone=${STATES[step.state]?.[0]}>${STATES[step.state]?.[1] ?? step.state}<//>
        <span class="soft">${step.part}</span><span>${plain(step.text)}${step.next_step && html`<br /><span class="small">Next: ${plain(step.next_step)}</span>`}</span></li>`)}</ul>
      <p class="soft small">The same on the command line: <code>waypost trace ${shellWord(name)}</code></p>`}<//>`;
}

/** Deletion of the rule. Its messages stay. */
function Change({ detail }) {
  const { manage } = useSession();
  const waiting = detail.rows.reduce((sum, row) => sum + row.waiting, 0);
  const path = `/api/v1/addresses/${detail.rule.split("/").map(encodeURIComponent).join("/")}`;
  return html`<${Panel} title="Rule"><p><${Name} mono>${detail.rule}<//> is the Address resource <${Name} mono>${detail.resource}<//>.
      Its limits are on the page <a href=${address("configuration")}>Configuration</a>.</p>
    <div class="do"><${ActionButton} label="Delete the rule" danger typed=${detail.rule} allowed=${manage} action=${() => del(path, detail.etag)} onDone=${() => go(address("addresses"))}
      confirm=${`Names of ${plain(detail.rule)} follow another rule from now on. ${counted(waiting, "waiting message")} stay in the store. From a terminal: waypost delete address ${shellWord(detail.resource)}`} /></div><//>`;
}

function Flow({ label, values }) {
  const last = values[values.length - 1];
  return html`<div class="flow"><span>${label}</span><b>${rate(last)}</b>
    <${Spark} values=${values} label=${`${label}: ${last === undefined ? "not known yet" : `${rate(last)} a second`}`} /></div>`;
}

function pairs(detail) {
  const waiting = detail.rows.reduce((sum, row) => sum + row.waiting, 0);
  const times = detail.rows.map((row) => row.oldest_at).filter((at) => at !== null);
  const rows = [
    ["rule", html`<${Name} mono>${detail.rule}<//>`],
    ["waiting", times.length ? html`${number(waiting)}, the oldest <${Time} at=${Math.min(...times) * 1000} relative />` : number(waiting)],
    ["forwarded", detail.forwarders.length ? detail.forwarders.map((each) => html`<${Name} mono>${each}<//> `) : "not to the hub or another peer"],
  ];
  if (detail.deadletter) rows.push(["dead letters", html`${number(detail.dead_letters)} in <a href=${address("addresses", detail.deadletter)}><${Name} mono>${detail.deadletter}<//></a>`]);
  return rows;
}

function consumers(detail) {
  if (detail.consumers_total === 0) {
    return html`<div class="body"><${Empty} title="No consumer is connected">${detail.type === "topic"
      ? "Messages without a durable subscription or a forwarder are dropped." : "Messages wait until one comes, or are refused where nothing is stored."}<//></div>`;
  }
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Table of consumers"><table class="cards">
    <thead><tr><th scope="col">Client</th><th scope="col">Subscription</th><th scope="col" class="n">Can take now</th><th scope="col" class="n">Dropped</th></tr></thead>
    <tbody>${detail.consumers.map((one, place) => html`<tr key=${place}>
      <th scope="row"><${Name}>${one.name}<//>${one.user && one.user !== one.name ? html`<small>user <${Name}>${one.user}<//></small>` : null}</th>
      <td data-label="Subscription">${one.subscription ? html`<${Name} mono>${one.subscription}<//>` : "–"}</td>
      <td class="n" data-label="Can take now">${one.can_take === null ? "all" : one.can_take === 0 ? html`<span class="warn-t">none</span>` : number(one.can_take)}</td>
      <td class="n" data-label="Dropped">${one.dropped ? html`<span class="bad-t">${number(one.dropped)}</span>` : "0"}</td></tr>`)}</tbody>
  </table></div>${detail.consumers_total > detail.consumers.length && html`<p class="body soft small">${number(detail.consumers_total)} in total.</p>`}`;
}

function rights(detail) {
  if (detail.everyone) return html`<p class="soft">No sign-in is configured: every client may send and receive.</p>`;
  return html`<${Pairs} pairs=${[["may send", users(detail.senders)], ["may receive", users(detail.receivers)]]} />`;
}

function users(found) {
  if (found.total === 0) return html`<span class="warn-t">no user</span>`;
  const more = found.total - found.names.length;
  return html`${found.names.map((each) => html`<span class="tag">${plain(each)}</span> `)}${more > 0 && `and ${counted(more, "other")}`}`;
}

function figures(detail) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Table of counts"><table class="cards">
    <thead><tr><th scope="col">Part</th><th scope="col">Type</th><th scope="col" class="n">Received</th><th scope="col" class="n">Delivered</th><th scope="col" class="n">Waiting</th></tr></thead>
    <tbody>${detail.rows.map((row) => html`<tr key=${row.id}><th scope="row"><${Name} mono>${row.subscription || row.address}<//></th>
      <td data-label="Type">${row.type}</td><td class="n" data-label="Received">${number(row.received)}</td>
      <td class="n" data-label="Delivered">${number(row.delivered)}</td><td class="n" data-label="Waiting">${number(row.waiting)}</td></tr>`)}</tbody>
  </table></div>`;
}
