// Actions on selected gateways, saved views of the list, and the list as a file.

import { NEW, del, get, patch, post, put, withQuery } from "./api.js";
import { lazy } from "./frame.js";
import { html, useState } from "./html.js";
import { Dialog, ErrorNote, Name } from "./parts.js";
import { address, go } from "./route.js";
import { useSession } from "./session.js";
import { useEvery } from "./state.js";
import { counted, plain } from "./text.js";

const Configure = lazy(() => import("./bulk_configuration.js"), "Configure");

/** Bar of actions for selected gateways. `configures`: the hub has an authority. */
export function FleetActions({ gateways, clear, configures }) {
  const [doing, setDoing] = useState("");
  const { manage } = useSession();
  const close = () => setDoing("");
  const done = () => {
    close();
    clear();
  };
  const open = (name) => () => setDoing(name);
  return html`${configures && html`<button class="button" disabled=${!manage} onClick=${open("label")}>Label…</button>`}
    <button class="button" disabled=${!manage} onClick=${open("command")}>Command…</button>
    ${configures && html`<button class="button" disabled=${!manage} onClick=${open("configure")}>Configure…</button>`}
    ${configures && html`<button class="button danger" disabled=${!manage} onClick=${open("revoke")}>Revoke…</button>`}
    ${doing === "label" && html`<${LabelForm} gateways=${gateways} close=${close} done=${done} />`}
    ${doing === "command" && html`<${CommandForm} gateways=${gateways} close=${close} done=${done} />`}
    ${doing === "configure" && html`<${Configure} gateways=${gateways} close=${close} />`}
    ${doing === "revoke" && html`<${RevokeForm} gateways=${gateways} close=${close} done=${done} />`}`;
}

/** Form whose action is done for each gateway in turn; those that fail are listed with the reason. */
function EachForm({ title, label, danger = false, gateways, act, close, done, allowed = true, children }) {
  const [state, setState] = useState({ running: false, over: 0, failures: /** @type {[string, string][]} */ ([]) });
  async function submit(event) {
    event.preventDefault();
    const failures = [];
    for (const [place, one] of gateways.entries()) {
      setState({ running: true, over: place, failures });
      try {
        await act(one);
      } catch (failed) {
        failures.push([one.name, failed.message]);
      }
    }
    setState({ running: false, over: gateways.length, failures });
    if (!failures.length) done();
  }
  return html`<${Dialog} title=${title} close=${close}><form class="stack" onSubmit=${submit}>${children}
    ${state.failures.length > 0 && html`<${ErrorNote} error=${`${counted(state.failures.length, "gateway")} of ${gateways.length} did not: ${state.failures.map(([name, why]) => `${name}: ${why}`).join("; ")}`} />`}
    <div class="do"><button class="button ${danger ? "danger" : "main"}" disabled=${state.running || !allowed}>${state.running ? `${state.over} of ${gateways.length}` : label}</button>
      <button class="button" type="button" onClick=${close}>Cancel</button></div></form><//>`;
}

function Names({ gateways }) {
  return html`<p class="small">${gateways.slice(0, 12).map((one) => html`<span class="tag"><${Name}>${one.name}<//></span> `)}${gateways.length > 12 ? `and ${gateways.length - 12} more` : ""}</p>`;
}

function LabelForm({ gateways, close, done }) {
  const [text, setText] = useState("");
  const changes = Object.fromEntries(text.split(/[\s,]+/).filter(Boolean).map((word) => (word.endsWith("-") && !word.includes("=") ? [word.slice(0, -1), null] : word.split(/=(.*)/s, 2))));
  const act = (one) => patch(withQuery(`/api/v1/labels/${encodeURIComponent(one.name)}`, { tenant: one.tenant }), changes);
  return html`<${EachForm} title="Label gateways" label=${`Label ${counted(gateways.length, "gateway")}`} gateways=${gateways} act=${act} close=${close} done=${done}>
    <${Names} gateways=${gateways} />
    <label class="field">Labels, as in site=lyon; ring- removes one<input class="input" required value=${text} onInput=${(event) => setText(event.target.value)} /></label>
    <p class="small">A gateway that a configuration for these labels chooses gets it at once.</p><//>`;
}

function CommandForm({ gateways, close, done }) {
  const [draft, setDraft] = useState({ device: "", name: "", payload: "", ttl_s: "60" });
  const change = (field) => (event) => setDraft({ ...draft, [field]: event.target.value });
  const act = (one) => post(withQuery("/api/v1/commands", { tenant: one.tenant }), { ...draft, ttl_s: Number(draft.ttl_s), gateway: one.name });
  const away = gateways.filter((one) => !one.connected).length;
  return html`<${EachForm} title="Send a command" label=${`Send to ${counted(gateways.length, "gateway")}`} gateways=${gateways} act=${act} close=${close} done=${() => { done(); go(address("commands")); }}>
    <${Names} gateways=${gateways} />
    ${away > 0 && html`<p class="note-warn">${counted(away, "gateway")} ${away === 1 ? "is" : "are"} not connected: it waits there until its time to live ends.</p>`}
    <label class="field">Device<input class="input" required value=${draft.device} onInput=${change("device")} /></label>
    <label class="field">Command<input class="input" required value=${draft.name} onInput=${change("name")} /></label>
    <label class="field">Payload<textarea class="input mono" rows="3" onInput=${change("payload")}>${draft.payload}</textarea></label>
    <label class="field">Time to live in seconds<input class="input" type="number" min="1" required value=${draft.ttl_s} onInput=${change("ttl_s")} /></label><//>`;
}

function RevokeForm({ gateways, close, done }) {
  const [typed, setTyped] = useState("");
  const wanted = gateways.length === 1 ? gateways[0].name : String(gateways.length);
  const act = (one) => post(withQuery(`/api/v1/gateways/${encodeURIComponent(one.name)}/revoke`, { tenant: one.tenant }));
  return html`<${EachForm} title="Revoke gateways" danger label=${`Revoke ${counted(gateways.length, "gateway")}`} gateways=${gateways} act=${act} close=${close} done=${done} allowed=${typed === wanted}>
    <p>${counted(gateways.length, "gateway")} can connect no longer, and keep${gateways.length === 1 ? "s" : ""} what ${gateways.length === 1 ? "it has" : "they have"} stored. A new token for the name lets a gateway in again.</p>
    <${Names} gateways=${gateways} />
    <label class="field">Type ${gateways.length === 1 ? html`the name <b>${plain(wanted)}</b>` : html`the number <b>${wanted}</b>`}<input class="input" autocomplete="off" value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label>
    <p class="soft small">The same: <code>waypost gateway revoke ${gateways.length === 1 ? plain(wanted) : "GATEWAY"}</code></p><//>`;
}

/** Saved views of the list. `query`: of the page's address. */
export function Views({ query }) {
  const [views, setViews] = useState([]);
  const [naming, setNaming] = useState(false);
  const [name, setName] = useState("");
  const [error, setError] = useState(null);
  const shown = new URLSearchParams(Object.entries(query)).toString();
  async function load() {
    setViews((await get("/api/v1/views").catch(() => ({ views: [] }))).views.filter((one) => one.page === "fleet"));
  }
  useEvery(60, load);
  async function save(event) {
    event.preventDefault();
    try {
      await put(`/api/v1/views/${encodeURIComponent(name)}`, { page: "fleet", query: shown }, views.find((one) => one.name === name)?.etag ?? NEW);
      setNaming(false);
      load();
    } catch (failed) {
      setError(failed);
    }
  }
  const current = views.find((one) => one.query === shown);
  return html`${views.map((one) => html`<a key=${one.name} class="chip" aria-current=${one === current ? "page" : undefined} href=${`#/fleet?${one.query}`}><${Name}>${one.name}<//></a>`)}
    ${current
      ? html`<button class="chip" onClick=${() => del(`/api/v1/views/${encodeURIComponent(current.name)}`).then(load)}>Forget this view</button>`
      : html`<button class="chip" onClick=${() => setNaming(true)}>Save this view…</button>`}
    ${naming && html`<${Dialog} title="Save this view" close=${() => setNaming(false)}><form class="stack" onSubmit=${save}>
      <label class="field">Name<input class="input" required maxlength="60" value=${name} onInput=${(event) => setName(event.target.value)} /></label><${ErrorNote} error=${error} />
      <div class="do"><button class="button main">Save</button><button class="button" type="button" onClick=${() => setNaming(false)}>Cancel</button></div></form><//>`}`;
}
