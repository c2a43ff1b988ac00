// Commands to devices, and what became of them.

import { del, get, post, withQuery } from "./api.js";
import { html, useState } from "./html.js";
import { ActionButton, Dialog, Empty, ErrorNote, Name, Panel, Pill, Time } from "./parts.js";
import { address } from "./route.js";
import { useSession } from "./session.js";
import { useEvery } from "./state.js";
import { counted, number, plain } from "./text.js";

const TONES = { delivered: "good", expired: "bad", rejected: "bad", cancelled: "idle", waiting: "warn", sent: "warn", queued: "warn" };
const OPEN = ["waiting", "sent", "queued"];

export function Commands({ query }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const [writing, setWriting] = useState(Boolean(query.selector));
  const { manage } = useSession();
  async function load() {
    try {
      setFound((await get(withQuery("/api/v1/commands", { gateway: query.gateway ?? "", limit: 100 }))).commands);
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }
  useEvery(3, load, [query.gateway]);
  return html`<${ErrorNote} error=${error} retry=${load} />
    <${Panel} title=${query.gateway ? `Commands to ${plain(query.gateway)}` : "Commands"} flush
      extra=${html`${query.gateway && html`<a class="small" href=${address("commands")}>all</a>`} <button class="button main" onClick=${() => setWriting(true)}>Send a command…</button>`}>
      ${found?.length === 0 && html`<div class="body"><${Empty} title="No command was sent">A command waits for its device until its time to live ends; what
        became of it is shown here.<//></div>`}
      ${found?.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Table of commands"><table class="cards">
        <thead><tr><th scope="col">Device</th><th scope="col">Command</th><th scope="col">State</th><th scope="col" class="n">Sent</th><th scope="col"><span class="skip">Action</span></th></tr></thead>
        <tbody>${found.map((one) => html`<tr key=${one.id}><th scope="row"><${Name}>${one.device}<//><small><${Name}>${one.gateway}<//></small></th>
          <td data-label="Command"><${Name} mono>${one.name}<//></td>
          <td class="what"><${Pill} tone=${TONES[one.state]}>${one.state}<//>${one.reason ? html` <span class="small">${plain(one.reason)}</span>` : null}
            ${one.response ? html`<small>answered ${one.response.status ?? ""} <${Time} at=${one.response.at} /></small>` : null}</td>
          <td class="n" data-label="Sent"><${Time} at=${one.created_at} /><small><${Name}>${one.sent_by ?? ""}<//></small></td>
          <td>${OPEN.includes(one.state) && html`<${ActionButton} label="Cancel" allowed=${manage} action=${() => del(`/api/v1/commands/${encodeURIComponent(one.id)}`)} onDone=${load} />`}</td>
        </tr>`)}</tbody></table></div>`}
    <//>
    ${writing && html`<${NewCommand} gateway=${query.gateway ?? ""} selector=${query.selector ?? ""} close=${() => setWriting(false)} sent=${() => { setWriting(false); load(); }} />`}`;
}

const FIELDS = [["device", "Device"], ["name", "Command"]];
const WHEN = { now: "good", "when it connects": "warn", never: "bad" };

function NewCommand({ gateway, selector, close, sent }) {
  const [draft, setDraft] = useState({ gateway, selector, device: "", name: "", payload: "", ttl_s: 60 });
  const [rehearsal, setRehearsal] = useState(null);
  const [error, setError] = useState(null);
  const [running, setRunning] = useState(false);
  const many = draft.selector !== "";
  const change = (field) => (event) => {
    setDraft({ ...draft, [field]: event.target.value });
    setRehearsal(null);
  };
  const body = () => ({ ...draft, gateway: many ? "" : draft.gateway, ttl_s: Number(draft.ttl_s) });
  async function run(work) {
    setRunning(true);
    setError(null);
    try {
      await work();
    } catch (failed) {
      setError(failed);
    }
    setRunning(false);
  }
  const look = () => run(async () => setRehearsal(await post("/api/v1/commands/rehearsal", body())));
  const send = () => run(async () => {
    const made = await post(withQuery("/api/v1/commands", { expected: many ? rehearsal.total : "" }), body());
    if (!made.refused?.length) sent();
    else setError(new Error(`Sent to ${made.commands.length}. Not to ${made.refused.map((one) => `${one.gateway}: ${one.why}`).join("; ")}`));
  });
  const ready = !many || rehearsal !== null;
  return html`<${Dialog} title="Send a command" close=${close}><form class="stack" onSubmit=${(event) => { event.preventDefault(); ready ? send() : look(); }}>
    <label class="field">Gateway<input class="input" required=${!many} disabled=${many} value=${many ? "" : draft.gateway} onInput=${change("gateway")} /></label>
    <label class="field">Or all gateways with labels, as in site=lyon<input class="input" value=${draft.selector} onInput=${change("selector")} /></label>
    ${FIELDS.map(([field, label]) => html`<label class="field">${label}<input class="input" required value=${draft[field]} onInput=${change(field)} /></label>`)}
    <label class="field">Payload<textarea class="input mono" rows="3" onInput=${change("payload")}>${draft.payload}</textarea></label>
    <label class="field">Time to live in seconds<input class="input" type="number" min="1" required value=${draft.ttl_s} onInput=${change("ttl_s")} /></label>
    ${rehearsal && html`<${Rehearsal} found=${rehearsal} />`}
    <${ErrorNote} error=${error} />
    <div class="do">${ready && html`<button class="button main" disabled=${running}>${many ? `Send to ${counted(rehearsal.total, "gateway")}` : "Send"}</button>`}
      <button class="button ${ready ? "" : "main"}" type="button" disabled=${running} onClick=${look}>Who would get it?</button><button class="button" type="button" onClick=${close}>Cancel</button></div>
  </form><//>`;
}

/** Who would get a command, and when. */
function Rehearsal({ found }) {
  const odd = found.gateways.filter((one) => one.when !== "now").slice(0, 8);
  return html`<section aria-label="Who would get it" role="status" class="stack"><p><b>${counted(found.total, "gateway")}</b>: ${number(found.now)} now, ${number(found.later)} when they connect
      within the time to live, ${number(found.never)} never.</p>
    ${odd.map((one) => html`<p key=${one.gateway} class="small"><${Pill} tone=${WHEN[one.when]}>${one.when}<//> <${Name}>${one.gateway}<//>${one.why ? `: ${plain(one.why)}` : html` <span class="soft">last seen <${Time} at=${one.last_seen} relative /></span>`}</p>`)}
  </section>`;
}
