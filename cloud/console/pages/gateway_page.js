// One gateway as the hub knows it: delivery, completeness, configuration, commands, history.

import { get, patch, post, withQuery } from "./api.js";
import { Spark } from "./chart.js";
import { Diff } from "./diff.js";
import { lazy } from "./frame.js";
import { useRead } from "./gold.js";
import { Faults, HourStrip } from "./hours.js";
import { html, useState } from "./html.js";
import { ActionButton, Choice, Empty, ErrorNote, Name, Pairs, Panel, Pill, Time } from "./parts.js";
import { address, go } from "./route.js";
import { useSession } from "./session.js";
import { useEvery } from "./state.js";
import { room, STATES } from "./fleet.js";
import { bytes, counted, number, plain } from "./text.js";

const TABS = [["", "Delivery"], ["completeness", "Completeness"], ["configuration", "Configuration"], ["commands", "Commands"], ["identity", "Identity"], ["history", "History"]];
const STRIP_DAYS = 7;
const Identity = lazy(() => import("./identity.js"), "Identity");
const History = lazy(() => import("./analytics.js"), "GatewayDelivery");

/** @param {{name: string, query?: Record<string, string>, configures: boolean}} properties `name`: tenant and name */
export function GatewayPage({ name, query = {}, configures }) {
  const [tenant, ...rest] = name.split("/");
  const gatewayName = rest.join("/");
  const [gateway, setGateway] = useState(null);
  const [error, setError] = useState(null);
  const { manage } = useSession();
  async function load() {
    try {
      setGateway(await get(withQuery(`/api/v1/gateways/${encodeURIComponent(gatewayName)}`, { tenant })));
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }
  useEvery(5, load, [name]);
  const back = html`<p><a href=${address("fleet")}>All gateways</a></p>`;
  if (configures && (gateway === null ? error?.status === 404 : gateway.state === "never")) {
    return html`${back}<p class="note-warn"><${Name}>${gatewayName}<//> has not connected yet.${gateway?.next_step ? html` Next: ${plain(gateway.next_step)}` : ""}</p><${Identity} tenant=${tenant} gateway=${gatewayName} manage=${manage} enrols=${true} connected=${false} />`;
  }
  if (gateway === null) return html`${back}<${ErrorNote} error=${error} retry=${load} />`;
  const [tone, word] = STATES[gateway.state] ?? ["idle", gateway.connected ? "connected" : "offline"];
  const tab = query.tab ?? "";
  const choose = (value) => go(address("fleet", name, { tab: value }), true);
  const shared = { tenant, gateway: gatewayName, manage };
  return html`${back}<${ErrorNote} error=${error} />
    ${gateway.why && html`<section class="problem ${tone === "bad" ? "" : "warn"}"><div><h2>${word}</h2><p>${plain(gateway.why)}</p></div>
      <p class="soft small right">${gateway.since ? html`since <${Time} at=${gateway.since} />` : ""}</p>
      ${gateway.next_step && html`<p class="do"><b class="small">Next:</b> <span class="small">${plain(gateway.next_step)}</span></p>`}</section>`}
    <div class="filters"><${Choice} label=${`About ${plain(gateway.name)}`} options=${TABS} value=${tab} choose=${choose} /></div>
    ${tab === "" && html`<${Delivery} gateway=${gateway} tone=${tone} word=${word} labels=${configures} manage=${manage} loaded=${load} />`}
    ${tab === "completeness" && html`<${Hours} ...${shared} />`}
    ${tab === "configuration" && html`<${Configuration} ...${shared} configures=${configures} />`}
    ${tab === "commands" && html`<${Commands} ...${shared} />`}
    ${tab === "identity" && html`<${Identity} ...${shared} enrols=${configures} connected=${gateway.connected} />`}
    ${tab === "history" && html`<div class="stack"><${History} query=${{ ...query, tenant, gateway: gatewayName }} /></div>`}`;
}

function Delivery({ gateway, tone, word, labels, manage, loaded }) {
  const status = gateway.status ?? {};
  return html`<div class="grid">
    <${Panel} title=${plain(gateway.name)} span=${6} extra=${html`<${Pill} tone=${tone}>${word}<//>`}>
      <${Pairs} pairs=${[
        ["tenant", html`<${Name}>${gateway.tenant}<//>`],
        ["address", html`<span class="mono">${plain(gateway.remote ?? "–")}</span>`],
        ["first seen", html`<${Time} at=${gateway.first_seen} />`],
        ["last seen", gateway.connected ? "now" : html`<${Time} at=${gateway.last_seen} relative />`],
        ["version", plain(status.version ?? "–")],
        ["devices connected", number(status.devices_connected)],
        ...(status.errors ? [["errors that it reports", html`<span class="bad-t">${number(status.errors)}</span>`]] : []),
        ...(status.errors_muted ? [["errors muted there", number(status.errors_muted)]] : []),
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
    <${Panel} title="Labels"><${Labels} gateway=${gateway} editable=${labels} manage=${manage} loaded=${loaded} /><//>
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

/** Labels with a button to remove each, and a form for another one. */
function Labels({ gateway, editable, manage, loaded }) {
  const [draft, setDraft] = useState("");
  const [error, setError] = useState(null);
  const labels = Object.entries(gateway.labels ?? {});
  const change = (changes) => patch(withQuery(`/api/v1/labels/${encodeURIComponent(gateway.name)}`, { tenant: gateway.tenant }), changes);
  async function submit(event) {
    event.preventDefault();
    const [key, ...value] = draft.split("=");
    try {
      await change({ [key.trim()]: value.join("=").trim() });
      setDraft("");
      setError(null);
      loaded();
    } catch (failed) {
      setError(failed);
    }
  }
  return html`<div class="do">${labels.map(([key, value]) => html`<span class="action" key=${key}><span class="tag">${plain(key)}=${plain(value)}</span>
      ${editable && html`<${ActionButton} label=${`Remove ${plain(key)}`} allowed=${manage} onDone=${loaded} action=${() => change({ [key]: null })} />`}</span>`)}
    ${labels.length === 0 && html`<span class="soft">None: pages and selectors find gateways by labels.</span>`}</div>
    ${editable && html`<form class="do" onSubmit=${submit}><label class="field">Label<input class="input" placeholder="site=berlin" pattern="[^=]+=.*" required value=${draft}
      onInput=${(event) => setDraft(event.target.value)} /></label><button class="button" disabled=${!manage} title=${manage ? "" : "needs the right manage:#"}>Set</button></form>`}
    <${ErrorNote} error=${error} />`;
}

function Hours({ tenant, gateway }) {
  const { found, error, load } = useRead(withQuery(`/api/v1/completeness/${encodeURIComponent(gateway)}`, { tenant, days: STRIP_DAYS }));
  const proof = withQuery(`/api/v1/proof/${encodeURIComponent(gateway)}`, { tenant, days: 31 });
  return html`<${Panel} title="Hours" extra=${html`<a class="button" href=${proof} download>Download the proof</a>`}>
      <${ErrorNote} error=${error} retry=${load} />
      ${!found && !error && html`<p class="soft">Reading the lake…</p>`}
      ${found && html`<${HourStrip} hours=${found.hours} days=${STRIP_DAYS} />
        ${found.open && html`<p class="small">${counted(found.open.accepted, "message")} of the present hour are not stated yet${found.open.waiting ? `; ${number(found.open.waiting)} of them wait` : ""}.</p>`}
        <p class="soft small">From ${counted(found.statements, "signed statement")} of the gateway, the ledger, and what the hub has landed. The same with every message:${" "}
          <code class="name">waypost prove --gateway ${plain(gateway)} --hours</code></p>`}
    <//>
    ${found?.faults.length > 0 && html`<${Panel} title="Statements that are missing or forged" flush><${Faults} faults=${found.faults} left_out=${found.faults_left_out} gateway=${false} /><//>`}`;
}

function Configuration({ tenant, gateway, manage, configures }) {
  const path = withQuery(`/api/v1/configurations/${encodeURIComponent(gateway)}`, { tenant });
  const { found, error, missing, load } = useRead(configures ? path : "");
  const [shown, setShown] = useState(false);
  const none = html`<${Panel} title="Configuration"><${Empty} title="It uses its own configuration">The hub has none for it:${" "}
    <code>waypost config apply</code> gives it one.<//><//>`;
  if (!configures || missing) return none;
  if (!found) return html`<${ErrorNote} error=${error} retry=${load} />`;
  const back = (version) => post(withQuery(`/api/v1/configurations/${encodeURIComponent(gateway)}/rollback`, { tenant, to: version }), undefined, `"${found.wanted}"`);
  return html`<div class="grid"><${Panel} title="Configuration" span=${6}><${Pairs} pairs=${[
        ["state", html`<span class=${found.why ? "bad-t" : ""}>${plain(found.state)}</span>`],
        ["wanted version", number(found.wanted)],
        ["in force", number(found.version)],
        ...(found.why ? [["reason", plain(found.why)]] : []),
        ...(found.kept.length ? [["kept by the gateway itself", found.kept.map(plain).join(", ")]] : []),
        ["reported", html`<${Time} at=${found.reported_at} relative />`],
        ...(found.system ? [["next update", html`${plain(found.system.version)}: ${plain(found.system.phase)}${found.system.percent ? `, ${found.system.percent} %` : ""}
          ${found.system.why && html`<small>${plain(found.system.why)}</small>`}`]] : []),
      ]} /><//>
    <${Panel} title="Wanted" span=${6} extra=${html`<button class="button" aria-expanded=${shown} onClick=${() => setShown(!shown)}>${shown ? "Hide" : "Show"}</button>`}>
      ${shown ? html`<pre class="code scroll" tabindex="0">${plainLines(JSON.stringify(found.resources, null, 2))}</pre>` : html`<p class="soft">${counted(found.resources.length, "resource")}; secrets are not shown.</p>`}<//>
    <${Panel} title="From in force to wanted">${found.difference === null
      ? html`<p class="soft">The hub has not kept version ${number(found.version)}, so it cannot compare.</p>`
      : found.difference === "" ? html`<p class="soft">Nothing differs: the gateway has what is wanted.</p>` : html`<${Diff} text=${found.difference} label="Difference from in force to wanted" />`}<//>
    <${Panel} title="Versions" flush><div class="scroll" tabindex="0" role="region" aria-label="Table of versions"><table class="cards">
      <thead><tr><th scope="col">Version</th><th scope="col">State</th><th scope="col">Why</th><th scope="col" class="n">Made</th><th scope="col"><span class="skip">Action</span></th></tr></thead>
      <tbody>${found.versions.map((one) => html`<tr key=${one.version}><th scope="row">${number(one.version)}</th>
        <td><${Pill} tone=${one.failure ? "bad" : one.confirmed_at ? "good" : "idle"}>${one.failure ? "taken back" : one.confirmed_at ? "confirmed" : "not reported"}<//>${one.failure && html`<small>${plain(one.failure)}</small>`}</td>
        <td class="what">${plain(one.note || one.selector || (one.rollout ? `roll-out ${one.rollout.slice(0, 8)}` : "–"))}</td>
        <td class="n" data-label="Made"><${Time} at=${one.made_at} /><small><${Name}>${one.made_by}<//></small></td>
        <td>${one.version !== found.wanted && html`<${ActionButton} label=${`Go back to ${number(one.version)}`} allowed=${manage} onDone=${load} action=${() => back(one.version)}
          confirm=${`Version ${one.version} becomes the next version of this gateway. It is taken back by itself if the gateway does not come back.`} />`}</td></tr>`)}</tbody></table></div>
      <p class="table-bar soft small">On the command line: <code class="name">waypost config rollback ${plain(gateway)} --to VERSION</code></p><//></div>`;
}

/** Text of several lines without hidden characters. */
const plainLines = (text) => text.split("\n").map(plain).join("\n");

function Commands({ tenant, gateway }) {
  const { found, error, load } = useRead(withQuery("/api/v1/commands", { tenant, gateway, limit: 50 }));
  return html`<${Panel} title="Commands" extra=${html`<a class="small" href=${address("commands", "", { gateway })}>send, cancel</a>`}>
    <${ErrorNote} error=${error} retry=${load} />
    ${found && (found.commands.length === 0 ? html`<${Empty} title="No command was sent to its devices">A command waits for its device until its time to live ends.<//>`
      : html`<${Pairs} pairs=${found.commands.map((one) => [html`<${Name}>${one.device}<//> ${plain(one.name)}`, html`${one.state} <${Time} at=${one.changed_at} relative />`])} />`)}<//>`;
}
