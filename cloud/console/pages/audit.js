// Audit: who changed what, from where, and the outcome.

import { html, useState } from "./html.js";
import { Choice, Dialog, Empty, Name, Pairs, Panel, Pill, Time } from "./parts.js";
import { address, go } from "./route.js";
import { PagedTable } from "./table.js";
import { number, plain } from "./text.js";

const OUTCOMES = [["", "all"], ["done", "done"], ["refused", "refused"]];
const NOUNS = ["alert", "alert-rule", "command", "configuration", "gateway", "mute", "receiver", "rollout", "session", "token", "user"];

const WORDS = { "session.open": "sign-in", "session.close": "sign-out" };

/** Action in words: `token.create` is "token: create". */
const words = (action) => WORDS[action] ?? action.replace(".", ": ").replaceAll("-", " ");

function outcome(row) {
  return html`<${Pill} tone=${row.status < 400 ? "good" : "bad"}>${row.status < 400 ? "done" : "refused"}<//>`;
}

const columns = (open) => [
  { name: "When", cell: (row) => html`<button class="link" onClick=${() => open(row)}><${Time} at=${row.at} /></button>` },
  { name: "Who", cell: (row) => html`<${Name}>${row.user || "without sign-in"}<//><small>${plain(row.remote)}</small>` },
  { name: "What", cell: (row) => words(row.action) },
  { name: "Of", wide: true, cell: (row) => html`<${Name}>${row.subject}<//><small>${row.tenant && row.tenant !== "default" ? plain(row.tenant) : ""}</small>` },
  { name: "Outcome", cell: (row) => html`${outcome(row)}${row.error && html`<small>${plain(row.error)}</small>`}` },
];

export function Audit({ query }) {
  const [shown, setShown] = useState(null);
  const choose = (changes) => go(address("audit", "", { ...query, ...changes }), true);
  const { outcome: wanted = "", action = "", user = "", tenant = "" } = query;
  const given = [["user", user], ["tenant", tenant]].filter(([, value]) => value);
  return html`<${Panel} title="Changes" flush extra=${html`<${Choice} label="Show" options=${OUTCOMES} value=${wanted} choose=${(value) => choose({ outcome: value })} />`}>
    <${PagedTable} label="changes" path="/api/v1/audit" items="lines" query=${{ outcome: wanted, action, user, tenant }} columns=${columns(setShown)} id=${(row) => String(row.number)} every=${15}
      filters=${html`<select class="input" aria-label="What was changed" value=${action} onChange=${(event) => choose({ action: event.target.value })}>
          <option value="">everything</option>${NOUNS.map((noun) => html`<option key=${noun} value=${noun}>${words(noun)}</option>`)}</select>
        ${given.map(([key, value]) => html`<button key=${key} class="chip" aria-label=${`Show every ${key}`} onClick=${() => choose({ [key]: "" })}>${key} <${Name}>${value}<//> ✕</button>`)}`}
      empty=${html`<${Empty} title="No change is recorded">Each change over HTTP has a line here, by this page or by a program, and each sign-in.<//>`} /><//>
    <p class="soft small">Lines are kept for 400 days, at most 50 000 of each tenant and a million of all. Programs read them at <code>/api/v1/audit</code>.</p>
    ${shown && html`<${Line} row=${shown} close=${() => setShown(null)} />`}`;
}

const text = (value) => (value === null ? "–" : html`<code class="name">${plain(JSON.stringify(value))}</code>`);

function Line({ row, close }) {
  return html`<${Dialog} title=${`Change ${number(row.number)}`} close=${close}><${Pairs} pairs=${[
    ["when", html`<${Time} at=${row.at} />`],
    ["who", html`<a href=${address("audit", "", { user: row.user })} onClick=${close}><${Name}>${row.user || "without sign-in"}<//></a>`],
    ["from", plain(row.remote)],
    ["what", words(row.action)],
    ["of", html`<${Name}>${row.subject}<//>`],
    ["tenant", row.tenant ? html`<${Name}>${row.tenant}<//>` : "the hub itself"],
    ["before", text(row.before)],
    ["after", text(row.after)],
    ["outcome", html`${outcome(row)} ${row.error ? plain(row.error) : ""} <span class="soft small">${row.status}</span>`],
  ]} /><div class="do"><button class="button main" onClick=${close}>Close</button></div><//>`;
}
