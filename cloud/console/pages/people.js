// People and applications of the hub, and tenants with limits and use.

import { del, get, post, put, withQuery } from "./api.js";
import { Spark } from "./chart.js";
import { useRead } from "./gold.js";
import { html, useState } from "./html.js";
import { ActionButton, Choice, Dialog, Empty, ErrorNote, Meter, Name, Pairs, Panel, Pill, Time } from "./parts.js";
import { address, go } from "./route.js";
import { useSession } from "./session.js";
import { useEvery } from "./state.js";
import { PagedTable } from "./table.js";
import { bytes, counted, number, percent, plain } from "./text.js";

const SHOWN = [["", "Users"], ["tenants", "Tenants"]];
const DAYS = 14;
const NEAR = 0.8;
const PROFILES = [
  ["view:#", "Person who looks"],
  ["view:# manage:#", "Person who changes things"],
  ["recv:#", "Application that receives what gateways send"],
  ["recv:# send:command/#", "Application that also sends commands"],
  ["view:$fleet manage:$fleet", "Operator of the hub: all tenants"],
  ["", "Only the rights below"],
];
const OVERLAPS = [["0", "End at once"], ["3600", "Stay valid for 1 hour"], ["86400", "Stay valid for 1 day"], ["604800", "Stay valid for 7 days"]];
const KEPT_BY = {
  issuer: ["An issuer of tokens has the users", "They sign in there, and their rights come with the token. Add and remove them at the issuer."],
  none: ["This hub requires no sign-in", "In development mode everybody on this machine may do everything. Run the hub without --dev."],
};
const ACTIONS = [["password", "New password…"], ["rights", "Change rights…"], ["sign-out", "End sessions…"], ["remove", "Remove…"]];
const IN_BYTES = /bytes/i;

export function People({ rest, query }) {
  if (rest) return html`<${User} name=${rest} />`;
  const shown = query.show ?? "";
  return html`<div class="filters"><${Choice} label="Show" options=${SHOWN} value=${shown} choose=${(show) => go(address("people", "", { show }), true)} /></div>
    ${shown === "" ? html`<${Users} query=${query} />` : query.tenant ? html`<${Tenant} name=${query.tenant} />` : html`<${Tenants} />`}`;
}

const tags = (rights) => rights.map((right) => html`<span class="tag">${plain(right)}</span> `);
const pathOf = (name) => `/api/v1/users/${encodeURIComponent(name)}`;

const COLUMNS = [
  { name: "User", cell: (row) => html`<a href=${address("people", row.name)}><${Name}>${row.name}<//></a>` },
  { name: "Role", cell: (row) => (row.role ? html`<${Pill}>${row.role}<//>` : html`<span class="soft">own choice</span>`) },
  { name: "Rights", wide: true, cell: (row) => (row.allow.length ? tags(row.allow.slice(0, 4)) : html`<span class="bad-t">none: it may do nothing</span>`) },
  { name: "Sessions", numeric: true, optional: true, cell: (row) => number(row.sessions) },
  { name: "Connections", numeric: true, optional: true, cell: (row) => number(row.connections) },
  { name: "Last sign-in", numeric: true, cell: (row) => html`<${Time} at=${row.last_login_at} relative />` },
];

function Users({ query }) {
  const { manage } = useSession();
  const { found } = useRead("/api/v1/users?limit=1");
  const [adding, setAdding] = useState(false);
  const [turn, setTurn] = useState(0);
  const elsewhere = KEPT_BY[found?.kept_by];
  if (elsewhere) return html`<${Panel} title="Users"><${Empty} title=${elsewhere[0]}>${elsewhere[1]}<//><//>`;
  const button = found && html`<button class="button main" disabled=${!manage} title=${manage ? "" : "needs the right manage:#"} onClick=${() => setAdding(true)}>Add a user…</button>`;
  return html`<${Panel} title="Users" extra=${button} flush>
      <${PagedTable} key=${turn} label="users" path="/api/v1/users" items="users" query=${{ tenant: query.tenant ?? "" }} columns=${COLUMNS} id=${(row) => row.name} every=${15}
        empty=${html`<${Empty} title="There is no user yet">People sign in with a user, and applications connect as one. Add the first one above, or with${" "}
          <code>waypost hub user add NAME@TENANT</code>.<//>`} /><//>
    ${adding && html`<${Add} close=${() => { setAdding(false); setTurn(turn + 1); }} />`}`;
}

/** Password that is shown once. */
function Password({ made, close }) {
  return html`<p class="note-warn">This password is shown only now.</p>
    <${Pairs} pairs=${[["user", html`<code class="name">${plain(made.user.name)}</code>`], ["password", html`<code class="name" data-password>${made.password}</code>`]]} />
    <div class="do"><button class="button" onClick=${() => navigator.clipboard?.writeText(made.password)}>Copy the password</button>
      <button class="button main" onClick=${close}>Done</button></div>`;
}

/** Form of a dialog: its fields, an error, and two buttons. */
function DialogForm({ title, label, danger = false, allowed = true, act, close, children }) {
  const [error, setError] = useState(null);
  const [running, setRunning] = useState(false);
  async function submit(event) {
    event.preventDefault();
    setRunning(true);
    setError(null);
    try {
      await act();
    } catch (failed) {
      setError(failed);
    }
    setRunning(false);
  }
  return html`<${Dialog} title=${title} close=${close}><form class="stack" onSubmit=${submit}>${children}<${ErrorNote} error=${error} />
    <div class="do"><button class="button ${danger ? "danger" : "main"}" disabled=${running || !allowed}>${running ? "…" : label}</button>
      <button type="button" class="button" onClick=${close}>Cancel</button></div></form><//>`;
}

function Add({ close }) {
  const [name, setName] = useState("");
  const [profile, setProfile] = useState(PROFILES[0][0]);
  const [more, setMore] = useState("");
  const [made, setMade] = useState(null);
  const allow = `${profile} ${more}`.split(/\s+/).filter(Boolean);
  if (made) return html`<${Dialog} title=${`${plain(made.user.name)} was added`} close=${close}><${Password} made=${made} close=${close} /><//>`;
  return html`<${DialogForm} title="Add a user" label="Add" close=${close} act=${async () => setMade(await post("/api/v1/users", { name, allow }))}>
    <label class="field">Name, an @, and its tenant<input class="input" name="name" required pattern="[^@]+@[^@]+" placeholder="anna@default" autocapitalize="none" spellcheck="false" autocomplete="off"
      value=${name} onInput=${(event) => setName(event.target.value)} /></label>
    <label class="field">Who is it?<select class="input" value=${profile} onChange=${(event) => setProfile(event.target.value)}>
      ${PROFILES.map(([rights, text]) => html`<option key=${text} value=${rights}>${text}</option>`)}</select></label>
    <label class="field">Further rights<input class="input mono" name="allow" placeholder="recv:plant/#" autocapitalize="none" spellcheck="false" value=${more} onInput=${(event) => setMore(event.target.value)} /></label>
    <p class="soft small">It gets a password, which is shown once.</p>
    <p class="soft small">The same: <code class="name">waypost hub user add ${plain(name || "NAME@TENANT")}${allow.map((right) => ` --allow '${plain(right)}'`).join("")}</code></p><//>`;
}

function User({ name }) {
  const [user, setUser] = useState(null);
  const [error, setError] = useState(null);
  const [asked, setAsked] = useState("");
  const { manage } = useSession();
  async function load() {
    try {
      setUser(await get(pathOf(name)));
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }
  useEvery(5, load, [name]);
  const back = html`<p><a href=${address("people")}>All users</a></p>`;
  if (error?.status === 404) return html`${back}<${Panel} title="User"><${Empty} title="There is no such user">It was removed, or never added.<//><//>`;
  if (user === null) return html`${back}<${ErrorNote} error=${error} retry=${load} />`;
  const allowed = manage && user.manageable;
  const why = manage ? "it has more rights than you" : "needs the right manage:#";
  const done = () => { setAsked(""); load(); };
  return html`${back}<${ErrorNote} error=${error} /><div class="grid">
    <${Panel} title=${plain(user.name)} span=${6} extra=${html`<${Pill} tone=${user.connections ? "good" : "idle"}>${user.connections ? "here now" : "not here"}<//>`}>
      <${Pairs} pairs=${[
        ["tenant", html`<a href=${address("people", "", { show: "tenants", tenant: user.tenant })}><${Name}>${user.tenant}<//></a>`],
        ["role", user.role ?? "rights of its own choice"],
        ["sessions in browsers", number(user.sessions)],
        ["connections and sessions", number(user.connections)],
        ["last sign-in since the hub started", html`<${Time} at=${user.last_login_at} relative />`],
        ["passwords", user.passwords > 1 ? `${user.passwords}: an old one is still valid` : number(user.passwords)],
      ]} />
      <div class="do">${ACTIONS.map(([action, label]) => html`<button key=${action} class="button ${action === "remove" ? "danger" : ""}" disabled=${!allowed} title=${allowed ? "" : why} onClick=${() => setAsked(action)}>${label}</button>`)}
        <a class="button" href=${address("audit", "", { user: user.name })}>What it changed</a></div><//>
    <${Panel} title="Rights" span=${6}>${user.allow.length ? html`<p>${tags(user.allow)}</p>` : html`<p class="soft">None: it may sign in, and nothing else.</p>`}
      <p class="soft small">view and manage are for pages and programs over HTTP, recv and send for applications. # is everything in its own tenant, $fleet every tenant.</p><//></div>
    ${asked === "password" && html`<${NewPassword} user=${user} close=${done} />`}
    ${asked === "rights" && html`<${Rights} user=${user} close=${done} />`}
    ${asked === "sign-out" && html`<${DialogForm} title=${`End the sessions of ${plain(user.name)}`} label="End sessions" close=${done} act=${async () => { await del(`${pathOf(name)}/sessions`); done(); }}>
      <p>${counted(user.sessions, "session")} in browsers end at once. With its password it can sign in again.</p><//>`}
    ${asked === "remove" && html`<${Remove} user=${user} close=${() => setAsked("")} />`}`;
}

function NewPassword({ user, close }) {
  const [overlap, setOverlap] = useState("0");
  const [made, setMade] = useState(null);
  if (made) return html`<${Dialog} title=${`New password of ${plain(user.name)}`} close=${close}><${Password} made=${made} close=${close} /><//>`;
  return html`<${DialogForm} title=${`New password for ${plain(user.name)}`} label="Make a new password" close=${close}
    act=${async () => setMade(await post(`${pathOf(user.name)}/password`, { overlap_s: Number(overlap) }, user.etag))}>
    <p>It is made here and shown once.${overlap === "0" ? " Its sessions in browsers end." : ""}</p>
    <label class="field">Old passwords<select class="input" value=${overlap} onChange=${(event) => setOverlap(event.target.value)}>
      ${OVERLAPS.map(([seconds, text]) => html`<option key=${seconds} value=${seconds}>${text}</option>`)}</select></label><//>`;
}

function Rights({ user, close }) {
  const [text, setText] = useState(user.allow.join("\n"));
  const [etag] = useState(user.etag); // of the rights in the form: the page loads the user again meanwhile
  const rights = text.split(/\s+/).filter(Boolean);
  const added = rights.filter((each) => !user.allow.includes(each));
  const gone = user.allow.filter((each) => !rights.includes(each));
  return html`<${DialogForm} title=${`Rights of ${plain(user.name)}`} label="Change" allowed=${added.length + gone.length > 0} close=${close}
    act=${async () => { await put(`${pathOf(user.name)}/rights`, { allow: rights }, etag); close(); }}>
    <label class="field">One right a line: operations, a colon, an address or filter<textarea class="input mono" rows="6" spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>
    ${added.length > 0 && html`<p>New: ${tags(added)}</p>`}${gone.length > 0 && html`<p>Taken away: ${tags(gone)}</p>`}
    <p class="soft small">Its ${counted(user.connections, "connection")} close, and its sessions end.</p><//>`;
}

function Remove({ user, close }) {
  const [typed, setTyped] = useState("");
  return html`<${DialogForm} title=${`Remove ${plain(user.name)}`} label="Remove" danger allowed=${typed === user.name} close=${close}
    act=${async () => { await del(pathOf(user.name), user.etag); go(address("people")); }}>
    <p>It can sign in and connect no longer; ${counted(user.connections, "connection")} close. What it made stays.</p>
    <label class="field">Type the name <b>${plain(user.name)}</b><input class="input" autocomplete="off" value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label>
    <p class="soft small">The same: <code class="name">waypost hub user remove ${plain(user.name)}</code></p><//>`;
}

// --- tenants -----------------------------------------------------------------------------------------------------------

/** The limit that is closest. */
function closest(tenant) {
  const bounded = tenant.quota.filter((each) => each.used !== null && each.most);
  return bounded.reduce((most, each) => (each.used / each.most > most.used / most.most ? each : most), bounded[0]);
}

const amount = (limit, value) => (IN_BYTES.test(limit) ? bytes(value) : number(value));
const refused = (tenant) => tenant.quota.reduce((sum, each) => sum + each.reached, 0);

function Use({ use }) {
  if (use.most === null) return html`<span class="soft">no limit</span>`;
  if (use.used === null) return html`${amount(use.limit, use.most)}`;
  const share = use.used / use.most;
  return html`<${Meter} parts=${[[share, share >= 1 ? "mb" : share >= NEAR ? "mw" : "mg"]]} label=${`${percent(use.used, use.most)} of ${use.limit}`} />
    <small>${amount(use.limit, use.used)} of ${amount(use.limit, use.most)}</small>`;
}

const TENANT_COLUMNS = [
  { name: "Tenant", cell: (row) => html`<a href=${address("people", "", { show: "tenants", tenant: row.tenant })}><${Name}>${row.tenant}<//></a><small>${row.own_quota ? "limits of its own" : ""}</small>` },
  { name: "Gateways", numeric: true, cell: (row) => `${number(row.connected)} of ${number(row.gateways)}` },
  { name: "Users", numeric: true, cell: (row) => number(row.users) },
  { name: "Landed in 31 days", numeric: true, optional: true, cell: (row) => (row.month ? bytes(row.month.bytes) : "–") },
  { name: "Messages, last minute", numeric: true, optional: true, cell: (row) => number(row.rate.reduce((sum, each) => sum + each, 0)) },
  { name: "Closest limit", wide: true, cell: (row) => html`${closest(row).limit} <${Use} use=${closest(row)} />` },
  { name: "Refused at a limit", numeric: true, optional: true, cell: (row) => html`<span class=${refused(row) ? "bad-t" : ""}>${number(refused(row))}</span>` },
];

function Tenants() {
  return html`<${Panel} title="Tenants" flush><${PagedTable} label="tenants" path="/api/v1/tenants" items="tenants" columns=${TENANT_COLUMNS} id=${(row) => row.tenant}
    empty=${html`<${Empty} title="There is no tenant yet">A tenant exists from its first user or gateway on.<//>`} /><//>`;
}

function Tenant({ name }) {
  const [tenant, setTenant] = useState(null);
  const [error, setError] = useState(null);
  async function load() {
    try {
      const { tenants } = await get(withQuery("/api/v1/tenants", { q: name, limit: 500 }));
      setTenant(tenants.find((each) => each.tenant === name) ?? null);
      setError(tenants.length ? null : new Error("There is no such tenant: it has neither user nor gateway."));
    } catch (failed) {
      setError(failed);
    }
  }
  useEvery(5, load, [name]);
  const back = html`<p><a href=${address("people", "", { show: "tenants" })}>All tenants</a></p>`;
  if (tenant === null) return html`${back}<${ErrorNote} error=${error} retry=${load} />`;
  return html`${back}<${ErrorNote} error=${error} /><div class="grid">
    <${Panel} title=${plain(tenant.tenant)} span=${6}>
      ${tenant.trouble && html`<p class="note-bad">Applications cannot connect: ${plain(tenant.trouble)}</p>`}
      <${Pairs} pairs=${[
        ["gateways connected", html`<a href=${address("fleet", "", { show: "all", q: tenant.tenant })}>${number(tenant.connected)} of ${number(tenant.gateways)}</a>`],
        ["users", html`<a href=${address("people", "", { tenant: tenant.tenant })}>${number(tenant.users)}</a>`],
        ["landed today", amountOf(tenant.today)],
        ["landed in 31 days", amountOf(tenant.month)],
        ["changes", html`<a href=${address("audit", "", { tenant: tenant.tenant })}>audit of this tenant</a>`],
      ]} />
      <${Spark} values=${tenant.rate} label="messages in each of the last 60 seconds" /><//>
    <${Panel} title="Limits" span=${6} flush><div class="scroll" tabindex="0" role="region" aria-label="Table of limits"><table class="cards">
      <thead><tr><th scope="col">Limit</th><th scope="col">Use</th><th scope="col" class="n">Refused</th></tr></thead>
      <tbody>${tenant.quota.map((use) => html`<tr key=${use.limit}><th scope="row">${use.limit}</th><td class="what"><${Use} use=${use} /></td>
        <td class="n" data-label="Refused"><span class=${use.reached ? "bad-t" : ""}>${number(use.reached)}</span></td></tr>`)}</tbody></table></div>
      <p class="table-bar soft small">${tenant.own_quota ? "It has limits of its own (tenants in the hub's configuration)." : "The limits of every tenant (tenantQuota in the hub's configuration)."}</p><//>
    <${Usage} tenant=${name} /><${Days} tenant=${name} /></div>`;
}

/** Messages and bytes that landed. @param {{messages: number, bytes: number} | null} amount */
const amountOf = (amount) => (amount ? `${counted(amount.messages, "message")}, ${bytes(amount.bytes)}` : "not known now");

/** What landed on each day. */
function Usage({ tenant }) {
  const { found, error, load } = useRead(withQuery(`/api/v1/tenants/${encodeURIComponent(tenant)}/usage`, { days: DAYS }));
  return html`<${Panel} title="Landed per day" span=${6} flush><${ErrorNote} error=${error} retry=${load} />
    ${found && found.days.length === 0 && html`<div class="body"><${Empty} title="Nothing has landed">The hub counts messages and bytes as they land, and keeps 400 days.<//></div>`}
    ${found && found.days.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Table of landed messages"><table class="cards">
      <thead><tr><th scope="col">Day</th><th scope="col" class="n">Messages</th><th scope="col" class="n">Bytes</th></tr></thead>
      <tbody>${found.days.map((row) => html`<tr key=${row.day}><th scope="row">${row.day}</th><td class="n" data-label="Messages">${number(row.messages)}</td><td class="n" data-label="Bytes">${bytes(row.bytes)}</td></tr>`)}</tbody></table></div>
      <p class="table-bar soft small">Days are UTC. On the command line: <code class="name">waypost tenant usage ${plain(tenant)}</code></p>`}<//>`;
}

/** Messages of each day, from the statements of its gateways. */
function Days({ tenant }) {
  const { found, error, missing, load } = useRead(withQuery("/api/v1/completeness", { tenant, days: DAYS }));
  const rows = found?.days ?? [];
  return html`<${Panel} title="Stated per day" span=${6} flush><${ErrorNote} error=${error} retry=${load} />
    ${(missing || (found && rows.length === 0)) && html`<div class="body"><${Empty} title="No day is stated yet">Gateways state each hour what they accepted; analytics add the hours up.<//></div>`}
    ${rows.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Table of days"><table class="cards">
      <thead><tr><th scope="col">Day</th><th scope="col" class="n">Accepted</th><th scope="col" class="n">Landed</th></tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${row.day}><th scope="row">${row.day}</th><td class="n" data-label="Accepted">${number(row.accepted)}</td><td class="n" data-label="Landed">${number(row.landed)}</td></tr>`)}</tbody></table></div>`}<//>`;
}
