// Commands to devices, and what became of them.

import { del, post, withQuery } from "./api.js";
import { html, useState } from "./html.js";
import { ActionButton, Choice, Dialog, Empty, ErrorNote, Name, Panel, Pill, Time } from "./parts.js";
import { address, go } from "./route.js";
import { useSession } from "./session.js";
import { PagedTable } from "./table.js";
import { counted, number, plain } from "./text.js";

const TONES = { delivered: "good", expired: "bad", rejected: "bad", cancelled: "idle", waiting: "warn", sent: "warn", queued: "warn" };
const OPEN = ["waiting", "sent", "queued"];

const SHOWN = [["", "all"], ["waiting", "waiting"], ["sent", "sent"], ["queued", "queued"], ["delivered", "delivered"], ["expired", "expired"], ["rejected", "rejected"]];

const columns = (manage, reload) => [
  { name: "Device", cell: (row) => html`<${Name}>${row.device}<//><small><${Name}>${row.gateway}<//></small>` },
  { name: "Command", cell: (row) => html`<${Name} mono>${row.name}<//>` },
  { name: "State", wide: true, cell: (row) => html`<${Pill} tone=${TONES[row.state]}>${row.state}<//>${row.reason ? html` <span class="small">${plain(row.reason)}</span>` : null}
    ${row.response ? html`<small>answered ${row.response.status ?? ""} <${Time} at=${row.response.at} /></small>` : null}` },
  { name: "Sent", numeric: true, cell: (row) => html`<${Time} at=${row.created_at} /><small><${Name}>${row.sent_by ?? ""}<//></small>` },
  { name: "Action", cell: (row) => OPEN.includes(row.state) && html`<${ActionButton} label="Cancel" allowed=${manage} action=${() => del(`/api/v1/commands/${encodeURIComponent(row.id)}`)} onDone=${reload} />` },
];

export function Commands({ query }) {
  const [writing, setWriting] = useState(Boolean(query.selector));
  const [turn, setTurn] = useState(0);
  const { manage } = useSession();
  const reload = () => setTurn((before) => before + 1);
  const { gateway = "", show: state = "" } = query;
  const choose = (value) => go(address("commands", "", { ...query, show: value }), true);
  return html`<${Panel} title=${gateway ? `Commands to ${plain(gateway)}` : "Commands"} flush
      extra=${html`${gateway && html`<a class="small" href=${address("commands")}>all</a>`} <button class="button main" onClick=${() => setWriting(true)}>Send a command…</button>`}>
      <${PagedTable} key=${turn} label="commands" path="/api/v1/commands" items="commands" query=${{ gateway, state }} columns=${columns(manage, reload)} id=${(row) => row.id} every=${3} search=${false}
        filters=${html`<${Choice} label="Show" options=${SHOWN} value=${state} choose=${choose} />`}
        empty=${html`<${Empty} title=${state ? "No command is in this state" : "No command was sent"}>A command waits for its device until its time to live ends; what
        became of it is shown here.<//>`} /><//>
    ${writing && html`<${NewCommand} gateway=${gateway} selector=${query.selector ?? ""} close=${() => setWriting(false)} sent=${() => { setWriting(false); reload(); }} />`}`;
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
