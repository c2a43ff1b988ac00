// Alerts: what is wrong now, one row a cause; mutes, rules, receivers, history.

import { NEW, del, get, patch, post, put } from "./api.js";
import { html, useState } from "./html.js";
import { ActionButton, Choice, Dialog, Empty, ErrorNote, Name, Pairs, Panel, Pill, Time } from "./parts.js";
import { address, go } from "./route.js";
import { useSession } from "./session.js";
import { useEvery } from "./state.js";
import { PagedTable } from "./table.js";
import { counted, duration, number, plain } from "./text.js";

const TONES = { firing: "bad", acknowledged: "idle", muted: "idle", resolved: "good", pending: "warn" };
const SHOWN = [["open", "open"], ["pending", "pending"], ["resolved", "history"], ["mutes", "mutes"], ["rules", "rules"], ["receivers", "receivers"], ["webhooks", "webhooks"]];
const TIMES = [["60", "1 h"], ["240", "4 h"], ["1440", "1 d"], ["10080", "7 d"]];

/** Place of an alert: its gateway, its gateways, or the hub. */
function Place({ alert, link = true }) {
  if (alert.gateway) {
    const name = html`<${Name}>${alert.gateway}<//>`;
    return link ? html`<a href=${address("fleet", `${alert.tenant}/${alert.gateway}`)}>${name}</a>` : name;
  }
  if (!alert.tenant) return "Hub";
  const words = counted(alert.gateways, "gateway");
  const selector = alert.selector && html` <span class="tag">${plain(alert.selector)}</span>`;
  return html`${link && alert.selector ? html`<a href=${address("fleet", "", { show: "all", selector: alert.selector })}>${words}</a>` : words}${selector}`;
}

function State({ alert }) {
  const tone = alert.state === "firing" && alert.severity === "warning" ? "warn" : TONES[alert.state];
  return html`<${Pill} tone=${tone}>${alert.state === "firing" ? alert.severity : alert.state}<//>`;
}

function More({ alert }) {
  if (alert.state === "muted") return html`<small>muted until <${Time} at=${alert.muted_until} /></small>`;
  if (alert.acknowledged_at && alert.state !== "resolved") {
    return html`<small>acknowledged by <${Name}>${alert.acknowledged_by || "an operator"}<//>${alert.note ? html`: ${plain(alert.note)}` : null}</small>`;
  }
  return null;
}

const COLUMNS = [
  { name: "Where", cell: (row) => html`<${Place} alert=${row} />` },
  { name: "What is wrong", wide: true, cell: (row) => html`<${State} alert=${row} /> <a href=${address("alerts", row.id)}>${plain(row.what)}</a><${More} alert=${row} />
    ${row.state === "resolved" ? null : html`<small>Next: ${plain(row.next_step)}</small>`}` },
  { name: "Since", numeric: true, cell: (row) => html`<${Time} at=${row.since} />` },
  { name: "Until", numeric: true, optional: true, cell: (row) => (row.resolved_at ? html`<${Time} at=${row.resolved_at} />` : "–") },
];
const PENDING = [
  { name: "Where", cell: (row) => html`<${Place} alert=${{ ...row, gateways: 1, selector: "" }} />` },
  { name: "What is wrong", wide: true, cell: (row) => plain(row.what) },
  { name: "Since", numeric: true, cell: (row) => html`<${Time} at=${row.since} />` },
  { name: "Fires", numeric: true, cell: (row) => html`<${Time} at=${row.fires_at} />` },
];

export function Alerts({ rest, query }) {
  if (rest) return html`<${Alert} id=${rest} />`;
  const shown = query.show ?? "open";
  const choice = html`<${Choice} label="Show" options=${SHOWN} value=${shown} choose=${(value) => go(address("alerts", "", { show: value }), true)} />`;
  if (shown === "rules") return html`<${Rules} choice=${choice} />`;
  if (shown === "receivers") return html`<${Receivers} choice=${choice} />`;
  if (shown === "webhooks") return html`<${Webhooks} choice=${choice} />`;
  if (shown === "mutes") return html`<${Mutes} choice=${choice} />`;
  const pending = shown === "pending";
  return html`<${Panel} title="Alerts" flush extra=${choice}>
    <${PagedTable} key=${shown} label="alerts" path="/api/v1/alerts" items=${pending ? "pending" : "alerts"} query=${{ state: shown }} search=${!pending}
      columns=${pending ? PENDING : COLUMNS} id=${(row) => row.id ?? `${row.rule} ${row.tenant}/${row.gateway} ${row.what}`} empty=${nothing(shown)} />
  <//>`;
}

function nothing(shown) {
  if (shown === "pending") return html`<${Empty} title="Nothing is pending">A rule that is true waits here until it has been true for its time; then it fires.<//>`;
  if (shown === "resolved") return html`<${Empty} title="No alert has ended yet">Alerts that are over are kept for 90 days.<//>`;
  return html`<${Empty} title="No alert is open">The hub evaluates its <a href=${address("alerts", "", { show: "rules" })}>rules</a> every 10 s. To be told of
    alerts, add a <a href=${address("alerts", "", { show: "receivers" })}>receiver</a>.<//>`;
}

function useLoaded(path, every = 5) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  async function load() {
    try {
      setFound(await get(path));
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }
  useEvery(every, load, [path]);
  return { found, error, load };
}

function Alert({ id }) {
  const path = `/api/v1/alerts/${encodeURIComponent(id)}`;
  const { found: alert, error, load } = useLoaded(path, 3);
  const [asking, setAsking] = useState("");
  const { manage } = useSession();
  const back = html`<p><a href=${address("alerts")}>All alerts</a></p>`;
  if (alert === null) return html`${back}<${ErrorNote} error=${error} retry=${load} />`;
  const over = alert.state === "resolved";
  const done = () => {
    setAsking("");
    load();
  };
  return html`${back}<${ErrorNote} error=${error} />
    <${Panel} title=${plain(alert.what)} extra=${html`<${State} alert=${alert} />`}>
      <${Pairs} pairs=${[
        ["where", html`<${Place} alert=${alert} />`],
        ["severity", alert.severity],
        ["since", html`<${Time} at=${alert.since} />`],
        ["fired", html`<${Time} at=${alert.fired_at} />`],
        ...(over ? [["resolved", html`<${Time} at=${alert.resolved_at} />${alert.outcome ? `: ${plain(alert.outcome)}` : ""}`]] : []),
        ["receivers notified", alert.notified_at ? html`<${Time} at=${alert.notified_at} />` : "no"],
        ...(alert.acknowledged_at ? [["acknowledged", html`<${Name}>${alert.acknowledged_by || "an operator"}<//> <${Time} at=${alert.acknowledged_at} /> ${plain(alert.note)}`]] : []),
        ...(alert.muted_until ? [["muted until", html`<${Time} at=${alert.muted_until} />`]] : []),
        ["rule", html`<a href=${address("alerts", "", { show: "rules" })}>${alert.rule}</a>`],
      ]} />
      ${!over && html`<p class="do"><b class="small">Next:</b> <span class="small">${plain(alert.next_step)}</span></p>
        <div class="do">${!alert.acknowledged_at && html`<button class="button main" disabled=${!manage} onClick=${() => setAsking("acknowledge")}>Acknowledge…</button>`}
          <button class="button" disabled=${!manage} onClick=${() => setAsking("mute")}>Mute…</button></div>`}
    <//>
    ${alert.members.length > 0 && !alert.gateway && html`<${Panel} title="Gateways" flush><div class="scroll" tabindex="0" role="region" aria-label="Table of gateways"><table class="cards">
      <thead><tr><th scope="col">Gateway</th><th scope="col" class="n">Since</th><th scope="col" class="n">Well again</th></tr></thead>
      <tbody>${alert.members.map((one) => html`<tr key=${one.gateway}><th scope="row"><a href=${address("fleet", `${alert.tenant}/${one.gateway}`)}><${Name}>${one.gateway}<//></a></th>
        <td class="n" data-label="Since"><${Time} at=${one.since} /></td><td class="n" data-label="Well again">${one.over_at ? html`<${Time} at=${one.over_at} />` : "not yet"}</td></tr>`)}</tbody></table></div>
      ${alert.members.length < alert.gateways && html`<p class="table-bar soft small">${number(alert.members.length)} of ${number(alert.gateways)}</p>`}<//>`}
    ${asking === "acknowledge" && html`<${Acknowledge} path=${path} close=${() => setAsking("")} done=${done} />`}
    ${asking === "mute" && html`<${NewMute} scope=${scopeOf(alert)} close=${() => setAsking("")} done=${done} />`}`;
}

/** Narrowest mute that covers an alert. */
function scopeOf(alert) {
  const own = { tenant: alert.tenant, rule: alert.rule };
  if (alert.gateway) return { ...own, gateway: alert.gateway, selector: "" };
  return { ...own, gateway: "", selector: alert.selector };
}

/** Dialog with a form; `send` raises what the server refuses. */
function FormDialog({ title, label, close, send, done, children }) {
  const [error, setError] = useState(null);
  const [running, setRunning] = useState(false);
  async function submit(event) {
    event.preventDefault();
    setRunning(true);
    try {
      done(await send());
    } catch (failed) {
      setError(failed);
      setRunning(false);
    }
  }
  return html`<${Dialog} title=${title} close=${close}><form class="stack" onSubmit=${submit}>${children}<${ErrorNote} error=${error} />
    <div class="do"><button class="button main" disabled=${running}>${label}</button><button class="button" type="button" onClick=${close}>Cancel</button></div></form><//>`;
}

function Acknowledge({ path, close, done }) {
  const [note, setNote] = useState("");
  return html`<${FormDialog} title="Acknowledge" label="Acknowledge" close=${close} done=${done} send=${() => post(`${path}/acknowledge`, { note })}>
    <p>Others see that somebody looks after it. It stays open until its condition is over.</p>
    <label class="field">Note<input class="input" maxlength="500" value=${note} onInput=${(event) => setNote(event.target.value)} /></label><//>`;
}

function NewMute({ scope, close, done }) {
  const [draft, setDraft] = useState({ ...scope, minutes: "240", reason: "" });
  const change = (field) => (event) => setDraft({ ...draft, [field]: event.target.value });
  const send = () => post("/api/v1/mutes", { ...draft, minutes: Number(draft.minutes) });
  return html`<${FormDialog} title="Mute alerts" label="Mute" close=${close} done=${done} send=${send}>
    <p>Alerts that match are still listed, and notify no receiver until then. Empty fields match everything.</p>
    <fieldset class="plain"><legend class="small">For</legend><${Choice} label="For" options=${TIMES} value=${draft.minutes} choose=${(minutes) => setDraft({ ...draft, minutes })} /></fieldset>
    <label class="field">Reason<input class="input" required maxlength="500" value=${draft.reason} onInput=${change("reason")} /></label>
    <label class="field">Rule<input class="input" value=${draft.rule} onInput=${change("rule")} /></label>
    <label class="field">Labels, as in site=lyon<input class="input" value=${draft.selector} onInput=${change("selector")} /></label>
    <label class="field">Gateway<input class="input" value=${draft.gateway} onInput=${change("gateway")} /></label>
    <p class="soft small">The same: <code>waypost alert mute --for ${duration(Number(draft.minutes) * 60).replace(/ (\w).*/, "$1")} --reason …${draft.rule ? ` --rule ${draft.rule}` : ""}${draft.selector ? ` --selector ${draft.selector}` : ""}${draft.gateway ? ` --gateway ${plain(draft.gateway)}` : ""}</code></p><//>`;
}

function Mutes({ choice }) {
  const { found, error, load } = useLoaded("/api/v1/mutes");
  const [making, setMaking] = useState(false);
  const { manage } = useSession();
  const mutes = found?.mutes ?? [];
  return html`<${Panel} title="Mutes" flush extra=${choice}><${ErrorNote} error=${error} retry=${load} />
    <div class="table-bar"><span class="grow"></span><button class="button main" disabled=${!manage} onClick=${() => setMaking(true)}>Mute alerts…</button></div>
    ${found && mutes.length === 0 && html`<div class="body"><${Empty} title="Nothing is muted">A mute keeps receivers quiet about planned work; it ends by itself.<//></div>`}
    ${mutes.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Table of mutes"><table class="cards">
      <thead><tr><th scope="col">What</th><th scope="col">Reason</th><th scope="col" class="n">Until</th><th scope="col"><span class="skip">Action</span></th></tr></thead>
      <tbody>${mutes.map((one) => html`<tr key=${one.id}><th scope="row">${[one.rule, one.selector, one.gateway, one.tenant].filter(Boolean).map((each) => html`<span class="tag">${plain(each)}</span> `)}
          ${!one.rule && !one.selector && !one.gateway && !one.tenant && "everything"}</th>
        <td class="what">${plain(one.reason)}<small><${Name}>${one.made_by || "an operator"}<//></small></td><td class="n" data-label="Until"><${Time} at=${one.until} /></td>
        <td><${ActionButton} label="End" allowed=${manage} action=${() => del(`/api/v1/mutes/${one.id}`)} onDone=${load} /></td></tr>`)}</tbody></table></div>`}
    ${making && html`<${NewMute} scope=${{ tenant: "", rule: "", selector: "", gateway: "" }} close=${() => setMaking(false)} done=${() => { setMaking(false); load(); }} />`}<//>`;
}

function Rules({ choice }) {
  const { found, error, load } = useLoaded("/api/v1/alert-rules", 10);
  const [editing, setEditing] = useState(null);
  const { manage } = useSession();
  return html`<${Panel} title="Rules" flush extra=${choice}><${ErrorNote} error=${error} retry=${load} />
    ${found && html`<div class="scroll" tabindex="0" role="region" aria-label="Table of rules"><table class="cards">
      <thead><tr><th scope="col">Rule</th><th scope="col">Fires when</th><th scope="col">State</th><th scope="col"><span class="skip">Action</span></th></tr></thead>
      <tbody>${found.rules.map((one) => html`<tr key=${one.rule}><th scope="row">${one.rule.replace("Waypost", "")}<small>${one.severity}${one.selector ? `, ${plain(one.selector)}` : ""}</small></th>
        <td class="what">${one.title}${one.for_s ? `, for ${duration(one.for_s)}` : ""}<small class="mono">${one.expression}</small></td>
        <td data-label="State"><${RuleState} rule=${one} /></td>
        <td><button class="button" aria-label=${`Change ${one.rule}`} disabled=${!manage} onClick=${() => setEditing(one)}>Change…</button></td></tr>`)}</tbody></table></div>`}
    ${editing && html`<${RuleForm} rule=${editing} close=${() => setEditing(null)} done=${() => { setEditing(null); load(); }} />`}<//>`;
}

function RuleState({ rule }) {
  if (!rule.enabled) return html`<${Pill}>off<//>`;
  if (rule.firing) return html`<${Pill} tone="bad">${counted(rule.firing, "alert")}<//>`;
  if (rule.pending) return html`<${Pill} tone="warn">${number(rule.pending)} pending<//>`;
  if (!rule.measured) return html`<${Pill}>no figures<//><small>${rule.rule.includes("Lake") || rule.rule.includes("Loss") || rule.rule.includes("Proof") ? html`run <code>waypost prove --metrics DATA/proof.prom</code>` : "not on this hub"}</small>`;
  return html`<${Pill} tone="good">well<//>`;
}

function RuleForm({ rule, close, done }) {
  const [draft, setDraft] = useState({ enabled: rule.enabled, minutes: String(rule.for_s / 60), severity: rule.severity, selector: rule.selector });
  const [etag] = useState(rule.etag); // of what the form shows: the page loads the rule again meanwhile
  const change = (field) => (event) => setDraft({ ...draft, [field]: event.target.value });
  const path = `/api/v1/alert-rules/${rule.rule}`;
  const send = () => patch(path, { enabled: draft.enabled, for_s: Math.round(Number(draft.minutes) * 60), severity: draft.severity, selector: draft.selector || null }, etag);
  return html`<${FormDialog} title=${rule.rule} label="Save" close=${close} done=${done} send=${send}>
    <p>${rule.title}</p>
    <label class="check"><input type="checkbox" checked=${draft.enabled} onChange=${(event) => setDraft({ ...draft, enabled: event.target.checked })} /> on</label>
    <label class="field">For, in minutes<input class="input" type="number" min="0" step="any" required value=${draft.minutes} onInput=${change("minutes")} /></label>
    <label class="field">Severity<select class="input" value=${draft.severity} onChange=${change("severity")}><option>critical</option><option>warning</option></select></label>
    <label class="field">Only gateways with labels, as in site=lyon<input class="input" value=${draft.selector} onInput=${change("selector")} /></label>
    <p class="soft small">Prometheus' file has the rule as delivered.</p><//>`;
}

function Receivers({ choice }) {
  const { found, error, load } = useLoaded("/api/v1/receivers");
  const [making, setMaking] = useState("");
  const [made, setMade] = useState(null);
  const { manage } = useSession();
  const receivers = found?.receivers ?? [];
  const path = (one) => `/api/v1/receivers/${encodeURIComponent(one.name)}`;
  return html`<${Panel} title="Receivers" flush extra=${choice}><${ErrorNote} error=${error} retry=${load} />
    <div class="table-bar"><span class="grow"></span>${["webhook", "mail", "ping"].map((kind) => html`<button class="button" disabled=${!manage} onClick=${() => setMaking(kind)}>Add a ${kind}…</button>`)}</div>
    ${found && receivers.length === 0 && html`<div class="body"><${Empty} title="Nobody is told of alerts">A webhook gets signed JSON, a mail goes through your SMTP server, and a ping tells a
      service in intervals that the hub is alive.<//></div>`}
    ${receivers.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Table of receivers"><table class="cards">
      <thead><tr><th scope="col">Receiver</th><th scope="col">To</th><th scope="col">Last delivery</th><th scope="col"><span class="skip">Actions</span></th></tr></thead>
      <tbody>${receivers.map((one) => html`<tr key=${one.name}><th scope="row"><${Name}>${one.name}<//><small>${one.settings.kind}${one.settings.kind === "ping" ? `, every ${duration(one.settings.every_s)}` : one.severity === "critical" ? ", critical only" : ""}</small></th>
        <td class="what"><${Name}>${one.settings.url ?? one.settings.to.join(", ")}<//></td>
        <td data-label="Last delivery">${one.failure ? html`<span class="bad-t">failed</span> <${Time} at=${one.failed_at} /><small>${plain(one.failure)}</small>` : html`<${Time} at=${one.delivered_at} />`}</td>
        <td><div class="do"><${ActionButton} label="Test" allowed=${manage} action=${() => post(`${path(one)}/test`)} onDone=${load} />
          <${ActionButton} label="Delete" danger allowed=${manage} confirm=${`${plain(one.name)} is told of no further alert.`} action=${() => del(path(one), one.etag)} onDone=${load} /></div></td></tr>`)}</tbody></table></div>`}
    ${making && html`<${NewReceiver} kind=${making} close=${() => setMaking("")} done=${(one) => { setMaking(""); setMade(one); load(); }} />`}
    ${made?.secret && html`<${Dialog} title="Key of the signatures" close=${() => setMade(null)}><p>Copy it now; it is shown once. Requests are signed with it as Standard Webhooks has it: <code>webhook-signature</code> is the
      HMAC-SHA256 of <code>ID.TIMESTAMP.BODY</code>.</p><p class="mono name">${made.secret}</p><div class="do"><button class="button" onClick=${() => setMade(null)}>Close</button></div><//>`}<//>`;
}

const FIELDS = {
  webhook: [["url", "URL", "url"]],
  ping: [["url", "URL", "url"], ["every_s", "Every … seconds", "number"]],
  mail: [["host", "SMTP server", "text"], ["port", "Port", "number"], ["sender", "From", "email"], ["to", "To, with commas", "text"], ["user", "User", "text", true], ["secret", "Password", "password", true]],
};

function NewReceiver({ kind, close, done }) {
  const [draft, setDraft] = useState({ name: kind, severity: "warning", security: "starttls", port: "587", every_s: "300", url: "", host: "", sender: "", to: "", user: "", secret: "" });
  const change = (field) => (event) => setDraft({ ...draft, [field]: event.target.value });
  function send() {
    const { url, host, sender, user, security } = draft;
    const settings = {
      webhook: { kind, url },
      ping: { kind, url, every_s: Number(draft.every_s) },
      mail: { kind, host, port: Number(draft.port), sender, user, security, to: draft.to.split(/[\s,;]+/).filter(Boolean) },
    }[kind];
    return put(`/api/v1/receivers/${encodeURIComponent(draft.name)}`, { settings, severity: draft.severity, secret: draft.secret || null }, NEW);
  }
  return html`<${FormDialog} title=${`Add a ${kind}`} label="Add" close=${close} done=${done} send=${send}>
    <label class="field">Name<input class="input" required value=${draft.name} onInput=${change("name")} /></label>
    ${FIELDS[kind].map(([field, label, type, optional]) => html`<label class="field">${label}<input class="input" type=${type} autocomplete="off" required=${!optional} value=${draft[field]} onInput=${change(field)} /></label>`)}
    ${kind === "mail" && html`<label class="field">Encryption<select class="input" value=${draft.security} onChange=${change("security")}><option>starttls</option><option>tls</option><option>none</option></select></label>`}
    ${kind !== "ping" && html`<label class="field">Least severity<select class="input" value=${draft.severity} onChange=${change("severity")}><option>warning</option><option>critical</option></select></label>`}<//>`;
}

const WEBHOOK_TONES = { active: "good", paused: "idle", failed: "bad", gone: "idle" };

/** Webhooks, which get the events of the fleet or of a tenant. */
function Webhooks({ choice }) {
  const { found, error, load } = useLoaded("/api/v1/webhooks?limit=500");
  const [making, setMaking] = useState(false);
  const [made, setMade] = useState(null);
  const { manage } = useSession();
  const webhooks = found?.webhooks ?? [];
  const path = (one) => `/api/v1/webhooks/${one.id}`;
  return html`<${Panel} title="Webhooks" flush extra=${choice}><${ErrorNote} error=${error} retry=${load} />
    <div class="table-bar"><span class="grow"></span><button class="button" disabled=${!manage} onClick=${() => setMaking(true)}>Add a webhook…</button></div>
    ${found && webhooks.length === 0 && html`<div class="body"><${Empty} title="No program is told of events">A webhook gets each event of the fleet as a signed request, in order: gateways that connect,
      problems, alerts, results of commands. The same: <code>waypost hub webhook add URL</code><//></div>`}
    ${webhooks.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Table of webhooks"><table class="cards">
      <thead><tr><th scope="col">Webhook</th><th scope="col">Events</th><th scope="col">Last delivery</th><th scope="col"><span class="skip">Actions</span></th></tr></thead>
      <tbody>${webhooks.map((one) => html`<tr key=${one.id}><th scope="row"><${Name}>${one.url}<//><small>${one.id}${one.tenant ? `, tenant ${plain(one.tenant)}` : ""}</small></th>
        <td class="what">${[...one.types, ...one.gateways, one.selector].filter(Boolean).map((each) => html`<span class="tag">${plain(each)}</span> `)}${!one.types.length && !one.gateways.length && !one.selector && "all"}</td>
        <td data-label="Last delivery"><${Pill} tone=${one.attempts ? "bad" : WEBHOOK_TONES[one.state]}>${one.state}<//> ${one.delivered_at ? html`<${Time} at=${one.delivered_at} />` : "none yet"}${one.failure ? html`<small>${plain(one.failure)}</small>` : null}</td>
        <td><div class="do"><${ActionButton} label="Test" allowed=${manage} action=${() => post(`${path(one)}/test`)} onDone=${load} />
          ${one.state === "active" && !one.attempts ? html`<${ActionButton} label="Pause" allowed=${manage} action=${() => patch(path(one), { paused: true }, one.etag)} onDone=${load} />` : html`<${ActionButton} label="Resume" allowed=${manage} action=${() => patch(path(one), { paused: false }, one.etag)} onDone=${load} />`}
          <${ActionButton} label="Remove" danger allowed=${manage} confirm=${`${plain(one.url)} gets no further event.`} action=${() => del(path(one), one.etag)} onDone=${load} /></div></td></tr>`)}</tbody></table></div>`}
    ${making && html`<${NewWebhook} close=${() => setMaking(false)} done=${(one) => { setMaking(false); setMade(one); load(); }} />`}
    ${made?.secret && html`<${Dialog} title="Secret of the signatures" close=${() => setMade(null)}><p>Copy it now; it is shown once. Requests are signed with it as Standard Webhooks has it.</p>
      <p class="mono name">${made.secret}</p><div class="do"><button class="button" onClick=${() => setMade(null)}>Close</button></div><//>`}<//>`;
}

function NewWebhook({ close, done }) {
  const [draft, setDraft] = useState({ url: "", types: "", gateways: "", selector: "" });
  const change = (field) => (event) => setDraft({ ...draft, [field]: event.target.value });
  const words = (text) => text.split(/[\s,;]+/).filter(Boolean);
  const send = () => post("/api/v1/webhooks", { ...draft, types: words(draft.types), gateways: words(draft.gateways) });
  return html`<${FormDialog} title="Add a webhook" label="Add" close=${close} done=${done} send=${send}>
    <label class="field">URL<input class="input" type="url" required value=${draft.url} onInput=${change("url")} /></label>
    <label class="field">Types of events, as in alert, gateway.revoked<input class="input" value=${draft.types} onInput=${change("types")} /></label>
    <label class="field">Gateways, with commas<input class="input" value=${draft.gateways} onInput=${change("gateways")} /></label>
    <label class="field">Only gateways with labels, as in site=lyon<input class="input" value=${draft.selector} onInput=${change("selector")} /></label>
    <p class="soft small">Empty fields match every event that you may see.</p><//>`;
}
