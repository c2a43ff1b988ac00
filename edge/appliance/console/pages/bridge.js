// Bridge: each connector with its state, what waits, and a test to the lake and back.

import { get, post, withQuery } from "./api.js";
import { html, useState } from "./html.js";
import { ActionButton, Empty, ErrorNote, Name, Pairs, Panel, Pill, Time } from "./parts.js";
import { useSession } from "./session.js";
import { useEvery } from "./state.js";
import { bytes, clock, counted, duration, number, plain, rate } from "./text.js";
import { Network } from "./network.js";
import { UplinkCheck } from "./uplink_check.js";

const TONES = { connected: "good", connecting: "bad", paused: "warn" };

export function Bridge() {
  const [bridge, setBridge] = useState(null);
  const [error, setError] = useState(null);
  async function load() {
    try {
      setBridge(await get("/api/v1/bridge"));
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }
  useEvery(2, load);
  if (bridge === null) return html`<${ErrorNote} error=${error} retry=${load} />`;
  const left = Object.entries(bridge.left ?? {});
  return html`<${ErrorNote} error=${error} />
    ${bridge.connectors.length === 0 && html`<${Panel} title="Connectors"><${Empty} title="No hub is configured">
      Messages stay on this gateway. <code>waypost enrol</code> gets a certificate and connects it to a hub.<//><//>`}
    ${bridge.connectors.map((one) => html`<${Connector} key=${one.name} connector=${one} loaded=${setBridge} />`)}
    <${Network} />
    ${left.length > 0 && html`<${Panel} title="Messages for forwarders that are no longer configured">
      <p class="soft">New messages are kept for them too, until they are configured again or purged (<code>waypost store purge</code>).</p>
      <${Pairs} pairs=${left.map(([name, count]) => [html`<${Name} mono>${name}<//>`, `up to ${number(count)}`])} /><//>`}`;
}

function Connector({ connector, loaded }) {
  const { manage } = useSession();
  const [results, setResults] = useState(null);
  const query = { connector: connector.name };
  const paused = connector.state === "paused";
  const state = html`<${Pill} tone=${TONES[connector.state]}>${connector.state}<//> <span class="small soft">since <${Time} at=${connector.since * 1000} /></span>`;
  return html`<${Panel} title=${plain(connector.name)} extra=${state}>
    <div class="grid">
      <div class="g6"><${Pairs} pairs=${pairs(connector)} /></div>
      <div class="g6 stack">
        ${connector.last_error && connector.state !== "connected" && html`<p class="note-bad">Last attempt: <${Name}>${connector.last_error}<//></p>`}
        <div class="do">
          <${ActionButton} label=${connector.router ? "Test the link" : "Test to the hub and back"} main allowed=${manage}
            action=${() => post(withQuery("/api/v1/bridge/test", query))} onDone=${setResults} />
          ${paused
            ? html`<${ActionButton} label="Resume" allowed=${manage} action=${() => post(withQuery("/api/v1/bridge/resume", query))} onDone=${loaded} />`
            : html`<${ActionButton} label="Pause" allowed=${manage} onDone=${loaded} action=${() => post(withQuery("/api/v1/bridge/pause", query))}
                confirm="The connection is closed until it is resumed here or the gateway restarts. Messages are stored meanwhile." />`}
        </div>
        ${results?.map((result) => html`<p role="status" class=${result.ok ? "good-t" : "bad-t"}>${result.ok
          ? `${plain(result.why)}${result.round_trip_s === null ? "" : `: ${Math.round(result.round_trip_s * 1000)} ms`}`
          : plain(result.why)}</p>`)}
        <${UplinkCheck} connector=${connector.name} />
      </div>
    </div>
    ${connector.forwarders.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label=${`Forwarders of ${plain(connector.name)}`}>
      <table class="cards"><thead><tr><th scope="col">Forwarder</th><th scope="col">Direction</th><th scope="col">Addresses</th>
        <th scope="col">At the peer</th><th scope="col" class="n">Waiting</th></tr></thead>
      <tbody>${connector.forwarders.map((one) => html`<tr key=${one.name}>
        <th scope="row"><${Name}>${one.name}<//>${one.fault && html`<small class="bad-t">${plain(one.fault)}</small>`}</th>
        <td data-label="Direction">${one.direction}</td>
        <td data-label="Addresses"><${Name} mono>${one.filter}<//></td><td data-label="At the peer"><${Name} mono>${one.remote_address}<//></td>
        <td class="n" data-label="Waiting">${number(one.backlog_messages)}${one.rejected ? html`<small class="bad-t">${counted(one.rejected, "message")} rejected</small>` : ""}</td>
      </tr>`)}</tbody></table></div>`}
  <//>`;
}

/** Figures of a connector to a router: it stores nothing. */
function linkPairs(one) {
  const { neighbour, cost, links, sent, received, unanswered, outcomes } = one.router;
  const rows = [["peer", html`<${Name}>${one.endpoint ?? "–"}<//>`]];
  if (neighbour) rows.push(["linked to", html`<${Name}>${neighbour}<//>, cost ${number(cost)}`], ["links with messages", number(links)]);
  rows.push(["sent", `${number(sent)}, ${number(unanswered)} unanswered`], ["accepted", `${number(outcomes.accepted)}, ${rate(one.accepted_per_s)}/s`], ["received", number(received)]);
  return rows;
}

function pairs(one) {
  const away = one.state !== "connected";
  const drain = !one.backlog_messages ? "nothing waits" : away ? "not while it is away" : one.drain_s === null ? "not at the present rate" : duration(one.drain_s);
  const rows = one.router ? linkPairs(one) : [
    ["peer", html`<${Name}>${one.endpoint ?? "–"}<//>`],
    ["waiting", `${number(one.backlog_messages)} (${bytes(one.backlog_bytes)})`],
    ["oldest", one.backlog_oldest_at === null ? "–" : html`<${Time} at=${one.backlog_oldest_at * 1000} relative />`],
    ["empty in", drain],
    ["accepted", `${number(one.accepted)}, ${rate(one.accepted_per_s)}/s`],
  ];
  if (away) rows.push(["attempts", number(one.attempts)]);
  if (one.manifest_hour !== null) rows.push(["counted and signed until", clock(one.manifest_hour * 1000)], ["statements that wait", number(one.manifest_waiting)]);
  if (one.budget_bytes !== null) rows.push(["data this month", `${bytes(one.spent_bytes)} of ${bytes(one.budget_bytes)}`]);
  if (one.quiet) rows.push(["quiet hours", "the backlog waits"]);
  return rows;
}
