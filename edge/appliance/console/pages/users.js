// Users: devices and people, with their rights in words; new passwords are shown once.

import { del, get, post, put, withQuery } from "./api.js";
import { html, useState } from "./html.js";
import { CommandLine } from "./command_line.js";
import { Dialog, Empty, ErrorNote, Name, Pairs, Panel, Pill, Time } from "./parts.js";
import { address, go } from "./route.js";
import { useSession } from "./session.js";
import { useEvery } from "./state.js";
import { PagedTable } from "./table.js";
import { counted, number, plain } from "./text.js";
import { AllowRight, NewPassword, Secret } from "./user_changes.js";
import { ImportUsers } from "./user_import.js";

const PROFILES = [
  ["sensor", "Device: sends readings, gets its commands"],
  ["application", "Program: gets all readings, sends commands"],
  ["viewer", "Person who looks"],
  ["operator", "Person who changes things"],
  ["", "No usual rights: only those below"],
];

const COLUMNS = [
  { name: "User", cell: (row) => html`<a href=${address("users", row.name)}><${Name}>${row.name}<//></a><small>${row.kind}</small>` },
  { name: "Rights", wide: true, cell: (row) => row.words.length === 0 ? html`<span class="bad-t">no rights</span>` : html`${row.words.slice(0, 2).map(plain).join(", ")}${row.words.length > 2 ? `, and ${row.words.length - 2} more` : ""}` },
  { name: "Passwords", optional: true, cell: (row) => passwords(row) },
  { name: "Connections", numeric: true, cell: (row) => number(row.connections) },
  { name: "Last login", numeric: true, cell: (row) => html`<${Time} at=${ms(row.last_login_at)} relative />` },
];

const ms = (seconds) => (typeof seconds === "number" ? seconds * 1000 : null);

function passwords(user) {
  if (user.secrets.length === 0) return "none";
  return user.secrets.length === 1 ? "1" : `${user.secrets.length}: an old one is still valid`;
}

export function Users({ rest, query }) {
  const session = useSession();
  const [adding, setAdding] = useState(query.add ?? null);
  const [importing, setImporting] = useState(false);
  const [turn, setTurn] = useState(0);
  if (rest) return html`<${User} name=${rest} />`;
  const missing = session.manage ? "" : "needs the right manage:#";
  const button = html`<button class="button" disabled=${!session.manage} title=${missing} onClick=${() => setImporting(true)}>Import…</button> <button class="button main" disabled=${!session.manage} title=${missing} onClick=${() => setAdding("")}>Add a user…</button>`;
  return html`${session.open && html`<p class="note-warn">This gateway requires no login: everybody may do everything, and the rights below are not checked.</p>`}
    <${Panel} title="Users" extra=${button} flush>
      <${PagedTable} key=${turn} label="users" path="/api/v1/users" items="users" columns=${COLUMNS} id=${(row) => row.name}
        empty=${html`<${Empty} title="There is no user yet">A device logs in with the name and password of a user. Add the first one above, or with${" "}
          <code>waypost user add pump7</code>.<//>`} />
    <//>
    ${importing && html`<${ImportUsers} close=${() => { setImporting(false); setTurn(turn + 1); }} />`}
    ${adding !== null && html`<${Add} suggested=${adding} close=${() => { setAdding(null); setTurn(turn + 1); if (query.add) go(address("users"), true); }} />`}`;
}

function Add({ suggested, close }) {
  const [name, setName] = useState(suggested);
  const [profile, setProfile] = useState("sensor");
  const [more, setMore] = useState("");
  const [made, setMade] = useState(null);
  const [error, setError] = useState(null);
  const [running, setRunning] = useState(false);
  async function submit(event) {
    event.preventDefault();
    setRunning(true);
    setError(null);
    try {
      setMade(await post("/api/v1/users", { name, profile: profile || null, allow: more.split(/\s+/).filter(Boolean) }));
    } catch (failed) {
      setError(failed);
    }
    setRunning(false);
  }
  if (made) return html`<${Dialog} title=${`${plain(made.user.name)} was added`} close=${close}><${Secret} made=${made} /><div class="do"><button class="button main" onClick=${close}>Done</button></div><//>`;
  return html`<${Dialog} title="Add a user" close=${close}><form class="stack" onSubmit=${submit}>
    <label class="field">Name<input class="input" name="name" required autocapitalize="none" spellcheck="false" autocomplete="off" value=${name} onInput=${(event) => setName(event.target.value)} /></label>
    <label class="field">What is it?<select class="input" value=${profile} onChange=${(event) => setProfile(event.target.value)}>
      ${PROFILES.map(([key, text]) => html`<option key=${key} value=${key}>${text}</option>`)}</select></label>
    <label class="field">Further rights<input class="input mono" name="allow" placeholder="send:alarm/%u recv:plans/#" autocapitalize="none" spellcheck="false" value=${more}
      onInput=${(event) => setMore(event.target.value)} /></label>
    <p class="soft small">It gets a password, which is shown once.</p>
    <${ErrorNote} error=${error} />
    <div class="do"><button class="button main" disabled=${running || !name}>${running ? "…" : "Add"}</button><button type="button" class="button" onClick=${close}>Cancel</button></div>
    <${CommandLine} words=${["waypost", "user", "add", name || "NAME", ...(profile ? ["--profile", profile] : []), ...more.split(/\s+/).filter(Boolean).flatMap((right) => ["--allow", right])]} />
  </form><//>`;
}

function User({ name }) {
  const [user, setUser] = useState(null);
  const [error, setError] = useState(null);
  const [asked, setAsked] = useState("");
  const { manage } = useSession();
  const path = `/api/v1/users/${encodeURIComponent(name)}`;
  async function load() {
    try {
      setUser(await get(path));
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }
  useEvery(5, load, [name]);
  const back = html`<p><a href=${address("users")}>All users</a></p>`;
  if (error?.status === 404) return html`${back}<${Panel} title="User"><${Empty} title="There is no such user">It was removed, or never added.<//><//>`;
  if (user === null) return html`${back}<${ErrorNote} error=${error} retry=${load} />`;
  const byHand = user.origin !== "resource";
  const allowed = manage && byHand;
  const why = byHand ? "needs the right manage:#" : "change its MessagingUser";
  const button = (action, label) => html`<button class="button" disabled=${!allowed} title=${allowed ? "" : why} onClick=${() => setAsked(action)}>${label}</button>`;
  function done() {
    setAsked("");
    load();
  }
  return html`${back}<${ErrorNote} error=${error} />
    <div class="grid">
      <${Panel} title=${plain(user.name)} span=${6} extra=${html`<${Pill} tone=${user.connections ? "good" : "idle"}>${user.connections ? "connected" : "not connected"}<//>`}>
        ${!byHand && html`<p class="note-warn">It comes from a MessagingUser resource: change that, and apply it.</p>`}
        <${Pairs} pairs=${[["kind", user.kind], ["connections", number(user.connections)], ["last login", html`<${Time} at=${ms(user.last_login_at)} relative />`],
          ...user.secrets.map((secret, place) => [`password ${place + 1}`, secret.not_after === null ? "valid" : html`ends <${Time} at=${ms(secret.not_after)} />`])]} />
        <div class="do">${button("password", "New password…")}${button("rights", "Change rights…")}${button("remove", "Remove…")}</div>
      <//>
      <${Panel} title="Rights" span=${6}>
        ${user.allow.length === 0 ? html`<p class="soft">It has no rights: it may log in, and nothing else.</p>` : html`<${Pairs} pairs=${user.allow.map((right, place) => [
          plain(user.words[place]), html`<span class="tag">${plain(right)}</span>`])} />`}
      <//>
      <${RightsTest} path=${path} name=${user.name} allowed=${allowed} changed=${load} />
    </div>
    ${asked === "password" && html`<${NewPassword} name=${user.name} close=${done} />`}
    ${asked === "rights" && html`<${ChangeRights} user=${user} path=${path} close=${done} />`}
    ${asked === "remove" && html`<${Remove} user=${user} path=${path} close=${() => setAsked("")} />`}`;
}

/** Whether the user may do something, and why. */
function RightsTest({ path, name, allowed, changed }) {
  const [operation, setOperation] = useState("send");
  const [where, setWhere] = useState("");
  const [verdict, setVerdict] = useState(null);
  const [error, setError] = useState(null);
  const [allowing, setAllowing] = useState(false);
  async function ask(event) {
    event?.preventDefault();
    setError(null);
    try {
      setVerdict(await get(withQuery(`${path}/rights`, { operation, address: where })));
    } catch (failed) {
      setError(failed);
      setVerdict(null);
    }
  }
  return html`<${Panel} title="Try a right" span=${12}>
    <form class="do" onSubmit=${ask}>
      <label class="do">May ${plain(name)} <select class="input" aria-label="Operation" value=${operation} onChange=${(event) => { setOperation(event.target.value); setVerdict(null); }}>
        <option value="send">send to</option><option value="recv">receive from</option></select></label>
      <input class="input mono" name="address" aria-label="Address" placeholder="plant/pump7/temp" required autocapitalize="none" spellcheck="false" value=${where}
        onInput=${(event) => { setWhere(event.target.value); setVerdict(null); }} />
      <button class="button">Try</button>
    </form>
    <${ErrorNote} error=${error} />
    ${verdict && html`<p role="status"><${Pill} tone=${verdict.allowed ? "good" : "bad"}>${verdict.allowed ? "yes" : "no"}<//> ${plain(verdict.why)}.
      ${!verdict.allowed && verdict.right && allowed && html` <button class="button" onClick=${() => setAllowing(true)}>Allow this…</button>`}</p>`}
    ${allowing && html`<${AllowRight} name=${name} right=${verdict.right} close=${() => { setAllowing(false); changed(); ask(); }} />`}
  <//>`;
}

function ChangeRights({ user, path, close }) {
  const [text, setText] = useState(user.allow.join("\n"));
  const [etag] = useState(user.etag); // of the rights in the form: the page loads the user again meanwhile
  const [error, setError] = useState(null);
  const rights = text.split(/\n/).map((each) => each.trim()).filter(Boolean);
  async function submit(event) {
    event.preventDefault();
    try {
      await put(`${path}/rights`, { allow: rights }, etag);
      close();
    } catch (failed) {
      setError(failed);
    }
  }
  const added = rights.filter((each) => !user.allow.includes(each));
  const gone = user.allow.filter((each) => !rights.includes(each));
  return html`<${Dialog} title=${`Rights of ${plain(user.name)}`} close=${close}><form class="stack" onSubmit=${submit}>
    <label class="field">One right a line: operations, a colon, an address or filter<textarea class="input mono" rows="8" spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>
    ${added.length > 0 && html`<p>New: ${added.map((each) => html`<span class="tag">${plain(each)}</span> `)}</p>`}
    ${gone.length > 0 && html`<p>Taken away: ${gone.map((each) => html`<span class="tag">${plain(each)}</span> `)}</p>`}
    <p class="soft small">Its ${counted(user.connections, "connection")} close, and it connects again with the new rights.</p>
    <${ErrorNote} error=${error} />
    <div class="do"><button class="button main" disabled=${added.length + gone.length === 0}>Change</button><button type="button" class="button" onClick=${close}>Cancel</button></div>
    <${CommandLine} words=${["waypost", "user", "allow", user.name, ...rights.flatMap((right) => ["--allow", right])]} />
  </form><//>`;
}

function Remove({ user, path, close }) {
  const [typed, setTyped] = useState("");
  const [error, setError] = useState(null);
  async function submit(event) {
    event.preventDefault();
    try {
      await del(path, user.etag);
      go(address("users"));
    } catch (failed) {
      setError(failed);
    }
  }
  return html`<${Dialog} title=${`Remove ${plain(user.name)}`} close=${close}><form class="stack" onSubmit=${submit}>
    <p>${user.connections > 0 ? `${counted(user.connections, "connection")} of it close, and it` : "It"} can no longer log in. Its messages stay.</p>
    <label class="field"><span>To confirm, type <b>${plain(user.name)}</b></span><input class="input" name="confirm" autocapitalize="none" autocomplete="off" spellcheck="false" value=${typed}
      onInput=${(event) => setTyped(event.target.value)} /></label>
    <${ErrorNote} error=${error} />
    <div class="do"><button class="button danger" disabled=${typed !== user.name}>Remove</button><button type="button" class="button" onClick=${close}>Cancel</button></div>
    <${CommandLine} words=${["waypost", "user", "remove", user.name]} />
  </form><//>`;
}
