// Router network: the tree of cheapest paths, as `waypost topology` draws it, and the neighbours of this gateway.

import { get } from "./api.js";
import { html, useState } from "./html.js";
import { Empty, ErrorNote, Name, Pairs, Panel, Pill } from "./parts.js";
import { useEvery } from "./state.js";
import { bytes, counted, number, plain } from "./text.js";

const OUTCOMES = { accepted: "accepted by consumers", rejected: "rejected by consumers", released: "released", modified: "returned as failed", path_lost: "unanswered, as a link was lost" };

export function Network() {
  const [topology, setTopology] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(null);
  async function load() {
    try {
      setTopology(await get("/api/v1/topology"));
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }
  useEvery(5, load);
  if (topology === null) return html`<${ErrorNote} error=${error} retry=${load} />`;
  if (!topology.router) return null;
  const reached = topology.routers.filter((/** @type {any} */ router) => router.cost !== null);
  const extra = html`<${Pill} tone=${topology.neighbours.length ? "good" : "bad"}>${counted(reached.length - 1, "router")} reached<//>`;
  return html`<${Panel} title="Router network" extra=${extra}>
    <${ErrorNote} error=${error} />
    <div class="grid">
      <div class="g7 stack"><${Tree} topology=${topology} /></div>
      <div class="g5"><${Pairs} pairs=${pairs(topology)} /></div>
    </div>
    <${Neighbours} neighbours=${topology.neighbours} />
  <//>`;
}

/** Cheapest paths from this gateway, the links that none of them uses, and the routers that are away. */
function Tree({ topology }) {
  const inside = new Set(topology.routers.filter((one) => one.parent && one.parent !== one.name).map((one) => [one.parent, one.name].sort().join("\n")));
  const further = topology.links.filter((link) => !inside.has([...link.ends].sort().join("\n")));
  const away = topology.routers.filter((one) => one.cost === null);
  return html`${topology.name_taken && html`<p class="note-bad">Another gateway of the network is called <${Name}>${topology.router}<//> too: give each a name of its own.</p>`}
    <ul class="tree network-tree" aria-label="Cheapest paths"><${Branch} topology=${topology} name=${topology.router} /></ul>
    ${further.length > 0 && html`<p class="small soft">Further links, which no path from here uses: ${further.map((link, i) => html`${i > 0 && ", "}<${Name}>${link.ends[0]}<//> – <${Name}>${link.ends[1]}<//> (cost ${number(link.cost)})`)}</p>`}
    ${away.length > 0 && html`<p class="small bad-t">Not reached: ${away.map((one, i) => html`${i > 0 && ", "}<${Name}>${one.name}<//>`)}</p>`}`;
}

function Branch({ topology, name, above = 0 }) {
  const router = topology.routers.find((/** @type {any} */ one) => one.name === name);
  if (!router) return null;
  const behind = topology.routers.filter((/** @type {any} */ one) => one.parent === name && one.name !== name);
  const own = name === topology.router;
  return html`<li>
    <span class="leaf">${!own && html`<span class="tag" title="Cost of the link">cost ${number(router.cost - above)}</span>`}
      <b><${Name}>${name}<//></b>${own && html`<span class="soft small">this gateway</span>`}
      <span class="soft small" title=${router.addresses.map(plain).join("\n")}>${consumers(router)}</span></span>
    ${behind.length > 0 && html`<ul class="tree">${behind.map((one) => html`<${Branch} key=${one.name} topology=${topology} name=${one.name} above=${router.cost} />`)}</ul>`}
  </li>`;
}

function consumers(router) {
  const kinds = [["anycast", router.anycast], ["multicast", router.multicast]].filter(([, count]) => count);
  return kinds.length ? `consumers of ${kinds.map(([kind, count]) => `${number(count)} ${kind}`).join(", ")}` : "no consumers";
}

function Neighbours({ neighbours }) {
  if (!neighbours.length) return html`<${Empty} title="No neighbour is linked">Messages of direct addresses stay at this gateway until a link is back.<//>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Neighbours">
    <table class="cards"><thead><tr><th scope="col">Neighbour</th><th scope="col" class="n">Cost</th><th scope="col" class="n">Sent</th>
      <th scope="col" class="n">Received</th><th scope="col" class="n">Unanswered</th><th scope="col" class="n">Links</th></tr></thead>
    <tbody>${neighbours.map((one, i) => html`<tr key=${`${one.name} ${i}`}>
      <th scope="row"><${Name}>${one.name}<//>${one.waiting_links > 0 && html`<small class="warn-t">${counted(one.waiting_links, "address", "addresses")} wait for a link</small>`}</th>
      <td class="n" data-label="Cost">${number(one.cost)}</td><td class="n" data-label="Sent">${number(one.sent)}</td>
      <td class="n" data-label="Received">${number(one.received)}</td><td class="n" data-label="Unanswered">${bytes(one.unanswered_bytes)}</td>
      <td class="n" data-label="Links">${number(one.links)}</td></tr>`)}</tbody></table></div>`;
}

function pairs(topology) {
  const rows = Object.entries(topology.outcomes).filter(([, count]) => count).map(([name, count]) => [OUTCOMES[name] ?? name, number(count)]);
  if (!rows.length) rows.push(["answers of neighbours", "none yet"]);
  if (topology.passed_through) rows.push(["passed through", number(topology.passed_through)]);
  if (topology.dropped) rows.push(["dropped for slow neighbours", number(topology.dropped)]);
  if (topology.looped) rows.push(["released: passed here before", number(topology.looped)]);
  if (topology.unannounced) rows.push(["addresses not announced", html`<span class="warn-t">${number(topology.unannounced)}</span>`]);
  return rows;
}
