// One gateway as the hub knows it: delivery, addresses, configuration, commands.

import { get, post, withQuery } from "./api.js";
import { Spark } from "./chart.js";
import { html, useState } from "./html.js";
import { ActionButton, Empty, ErrorNote, Name, Pairs, Panel, Pill, Time } from "./parts.js";
import { address } from "./route.js";
import { useSession } from "./session.js";
import { useEvery } from "./state.js";
import { room, STATES } from "./fleet.js";
import { bytes, duration, number, plain, rate } from "./text.js";

export function GatewayPage({ name, configures }) {
  const [tenant, ...rest] = name.split("/");
  const gatewayName = rest.join("/");
  const [gateway, setGateway] = useState(null);
  const [wanted, setWanted] = useState(null);
  const [commands, setCommands] = useState(null);
  const [error, setError] = useState(null);
  const { manage } = useSession();
  async function loadWanted() {
    const found = await get(withQuery("/api/v1/configurations", { tenant })).catch(() => ({ gateways: [] }));
    setWanted(found.gateways.find((each) => each.gateway === gatewayName) ?? null);
  }
  async function load() {
    try {
      setGateway(await get(withQuery(`/api/v1/gateways/${encodeURIComponent(gatewayName)}`, { tenant })));
      setError(null);
    } catch (failed) {
      setError(failed);
    }
    if (configures) await loadWanted();
    setCommands(await get(withQuery("/api/v1/commands", { tenant, gateway: gatewayName, limit: 10 })).catch(() => null));
  }
  useEvery(5, load, [name]);
  const back = html`<p><a href=${address("fleet")}>All gateways</a></p>`;
  if (gateway === null) return html`${back}<${ErrorNote} error=${error} retry=${load} />`;
  const [tone, word] = STATES[gateway.state] ?? ["idle", gateway.connected ? "connected" : "offline"];
  const status = gateway.status ?? {};
  return html`${back}<${ErrorNote} error=${error} />
    ${gateway.why && html`<section class="problem ${tone === "bad" ? "" : "warn"}"><div><h2>${word}</h2><p>${plain(gateway.why)}</p></div>
      <p class="soft small right">${gateway.since ? html`since <${Time} at=${gateway.since} />` : ""}</p>
      ${gateway.next_step && html`<p class="do"><b class="small">Next:</b> <span class="small">${plain(gateway.next_step)}</span></p>`}</section>`}
    <div class="grid">
      <${Panel} title=${plain(gateway.name)} span=${6} extra=${html`<${Pill} tone=${tone}>${word}<//>`}>
        <${Pairs} pairs=${[
          ["tenant", html`<${Name}>${gateway.tenant}<//>`],
          ["labels", Object.entries(gateway.labels ?? {}).map(([label, value]) => html`<span class="tag">${plain(label)}=${plain(value)}</span> `)],
          ["address", html`<span class="mono">${plain(gateway.remote ?? "–")}</span>`],
          ["first seen", html`<${Time} at=${gateway.first_seen} />`],
          ["last seen", gateway.connected ? "now" : html`<${Time} at=${gateway.last_seen} relative />`],
          ["version", plain(status.version ?? "–")],
          ["devices connected", number(status.devices_connected)],
          ["clock", plain(status.clock_quality ?? "–")],
        ]} />
      <//>
      <${Panel} title="Delivery" span=${6} extra=${html`<${Spark} values=${gateway.rate.length ? gateway.rate : [0, 0]} label="messages a second over the last minute" />`}>
        <${Pairs} pairs=${[
          ["messages in the lake", number(gateway.landed)],
          ["newest reading", html`<${Time} at=${gateway.newest_received_at} relative />`],
          ["waiting at the gateway", `${number(status.backlog_messages)}${status.backlog_bytes ? ` (${bytes(status.backlog_bytes)})` : ""}`],
          ["oldest of them", status.backlog_oldest_at ? html`<${Time} at=${status.backlog_oldest_at} relative />` : "–"],
          ["room left", room(gateway.room_hours)],
        ]} />
      <//>
      <${Panel} title="Configuration" span=${6}><${Configuration} wanted=${wanted} tenant=${tenant} manage=${manage} loaded=${load} /><//>
      <${Panel} title="Commands" span=${6} extra=${html`<a class="small" href=${address("commands", "", { gateway: gatewayName })}>all</a>`}>
        ${!commands?.commands?.length ? html`<p class="soft">No command was sent to its devices.</p>`
          : html`<${Pairs} pairs=${commands.commands.map((one) => [html`<${Name}>${one.device}<//> ${plain(one.name)}`, html`${one.state} <${Time} at=${one.changed_at} relative />`])} />`}<//>
      <${Panel} title="Addresses" flush>${gateway.marks.length === 0
        ? html`<div class="body"><${Empty} title="Nothing has landed">Its addresses appear with their first message.<//></div>`
        : html`<div class="scroll" tabindex="0" role="region" aria-label="Table of addresses"><table class="cards">
          <thead><tr><th scope="col">Address</th><th scope="col">Epoch</th><th scope="col" class="n">Landed up to</th><th scope="col" class="n">Complete up to</th><th scope="col" class="n">Missing</th></tr></thead>
          <tbody>${gateway.marks.map((mark) => html`<tr key=${`${mark.epoch} ${mark.address}`}><th scope="row"><${Name} mono>${mark.address}<//></th>
            <td class="mono" data-label="Epoch">${plain(mark.epoch).slice(0, 8)}</td><td class="n" data-label="Landed up to">${number(mark.mark)}</td>
            <td class="n" data-label="Complete up to">${number(mark.contiguous)}</td><td class="n ${mark.missing ? "warn-t" : ""}" data-label="Missing">${number(mark.missing)}</td></tr>`)}</tbody></table></div>`}
        ${gateway.marks_total > gateway.marks.length && html`<p class="table-bar soft small">${number(gateway.marks.length)} of ${number(gateway.marks_total)} addresses</p>`}<//>
    </div>`;
}

function Configuration({ wanted, tenant, manage, loaded }) {
  if (!wanted?.state) return html`<p class="soft">The hub has no configuration for it: it uses its own.</p>`;
  return html`<${Pairs} pairs=${[
      ["state", html`<span class=${wanted.why ? "bad-t" : ""}>${plain(wanted.state)}</span>`],
      ["wanted version", number(wanted.wanted)],
      ["in force", number(wanted.version)],
      ...(wanted.why ? [["reason", plain(wanted.why)]] : []),
      ["reported", html`<${Time} at=${wanted.reported_at} relative />`],
    ]} />
    ${wanted.wanted > 1 && html`<div class="do"><${ActionButton} label="Go back to version ${wanted.wanted - 1}" allowed=${manage} onDone=${loaded}
      confirm=${`Version ${wanted.wanted - 1} becomes the next version of this gateway. It is taken back by itself if the gateway does not come back.`}
      action=${() => post(withQuery(`/api/v1/configurations/${encodeURIComponent(wanted.gateway)}/rollback`, { tenant, to: wanted.wanted - 1 }))} /></div>`}`;
}
