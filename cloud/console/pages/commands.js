// Commands to devices, and what became of them.

import { del, get, post, withQuery } from "./api.js";
import { html, useState } from "./html.js";
import { ActionButton, Dialog, Empty, ErrorNote, Name, Panel, Pill, Time } from "./parts.js";
import { address } from "./route.js";
import { useSession } from "./session.js";
import { useEvery } from "./state.js";
import { plain } from "./text.js";

const TONES = { delivered: "good", expired: "bad", rejected: "bad", cancelled: "idle", waiting: "warn", sent: "warn", queued: "warn" };
const OPEN = ["waiting", "sent", "queued"];

export function Commands({ query }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const [writing, setWriting] = useState(false);
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
    ${writing && html`<${NewCommand} gateway=${query.gateway ?? ""} close=${() => setWriting(false)} sent=${() => { setWriting(false); load(); }} />`}`;
}

const FIELDS = [["gateway", "Gateway"], ["device", "Device"], ["name", "Command"]];

function NewCommand({ gateway, close, sent }) {
  const [draft, setDraft] = useState({ gateway, device: "", name: "", payload: "", ttl_s: 60 });
  const [error, setError] = useState(null);
  const [running, setRunning] = useState(false);
  const change = (field) => (event) => setDraft({ ...draft, [field]: event.target.value });
  async function submit(event) {
    event.preventDefault();
    setRunning(true);
    try {
      await post("/api/v1/commands", { ...draft, ttl_s: Number(draft.ttl_s) });
      sent();
    } catch (failed) {
      setError(failed);
      setRunning(false);
    }
  }
  return html`<${Dialog} title="Send a command" close=${close}><form class="stack" onSubmit=${submit}>
    ${FIELDS.map(([field, label]) => html`<label class="field">${label}<input class="input" required value=${draft[field]} onInput=${change(field)} /></label>`)}
    <label class="field">Payload<textarea class="input mono" rows="3" onInput=${change("payload")}>${draft.payload}</textarea></label>
    <label class="field">Time to live in seconds<input class="input" type="number" min="1" required value=${draft.ttl_s} onInput=${change("ttl_s")} /></label>
    <${ErrorNote} error=${error} />
    <div class="do"><button class="button main" disabled=${running}>Send</button><button class="button" type="button" onClick=${close}>Cancel</button></div>
  </form><//>`;
}
