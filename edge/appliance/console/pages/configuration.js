// Configuration: the gateway's own resources in an editor that checks as one types, on trial until kept, with history.

import { get, post, put } from "./api.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { ActionButton, Empty, ErrorNote, Name, Panel, Pill, Time } from "./parts.js";
import { useSession } from "./session.js";
import { useEvery, useNow } from "./state.js";
import { counted, duration, number, plain } from "./text.js";

const TYPING_MS = 500;
const EVERY_S = 5;
const TRY_S = 120;

export function Configuration() {
  const [known, setKnown] = useState(null);
  const [error, setError] = useState(null);
  async function load() {
    try {
      const found = await get("/api/v1/configuration");
      setKnown({ ...found, at: Date.now() });
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }
  useEvery(EVERY_S, load);
  if (known === null) return html`<${ErrorNote} error=${error} retry=${load} />`;
  return html`<${ErrorNote} error=${error} />
    ${known.trial && html`<${Trial} trial=${known.trial} at=${known.at} done=${load} />`}
    ${known.fixed
      ? html`<${Panel} title="Configuration"><${Empty} title="Nothing can be changed here">${plain(known.fixed)}.<//><//>`
      : html`<${Editor} known=${known} applied=${load} />`}
    ${known.managed.length > 0 && html`<${Managed} known=${known} />`}
    ${!known.fixed && html`<${History} known=${known} applied=${load} />`}`;
}

/** Change on trial: the time that is left, and the decision. */
function Trial({ trial, at, done }) {
  const { manage } = useSession();
  const left = Math.max(0, trial.seconds_left - (useNow() - at) / 1000);
  return html`<section class="problem warn" aria-label="Change on trial">
    <div><h2>Version ${number(trial.version)} is on trial</h2>
      <p>It is in force. Unless it is kept within ${duration(left)}, the version before returns, also when the gateway restarts.</p></div>
    <div class="do">
      <${ActionButton} label="Keep it" main allowed=${manage} action=${() => post("/api/v1/configuration/keep")} onDone=${done} />
      <${ActionButton} label="Take it back now" allowed=${manage} action=${() => post("/api/v1/configuration/revert")} onDone=${done} />
      <span class="small soft">tried by ${plain(trial.by)}</span>
    </div>
  </section>`;
}

function Editor({ known, applied }) {
  const { manage } = useSession();
  const [base, setBase] = useState({ version: known.version, text: known.text });
  const [text, setText] = useState(known.text);
  const [check, setCheck] = useState(null);
  const [error, setError] = useState(null);
  const [tries, setTries] = useState(true);
  const area = useRef(null);
  const edited = text !== base.text;
  const behind = known.version !== base.version;
  useEffect(() => {
    if (behind && !edited) restart();
  }, [known.version]);
  useEffect(() => {
    setCheck(null);
    if (!edited || !manage) return undefined;
    let over = false;
    const timer = setTimeout(async () => {
      try {
        const found = await post("/api/v1/configuration/check", { text });
        if (!over) {
          setCheck(found);
          setError(null);
        }
      } catch (failed) {
        if (!over) setError(failed);
      }
    }, TYPING_MS);
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [text, base]);

  function restart() {
    setBase({ version: known.version, text: known.text });
    setText(known.text);
  }

  function done() {
    setBase({ version: base.version, text });
    applied();
  }

  function show(line) {
    const lines = text.split("\n");
    const start = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
    area.current.focus();
    area.current.setSelectionRange(start, start + (lines[line - 1] ?? "").length);
  }

  const wrong = new Set((check?.errors ?? []).map((each) => each.line));
  const lines = text.split("\n");
  const extra = html`<span class="small soft">version ${number(base.version)}</span>`;
  return html`<${Panel} title="This gateway's own configuration" extra=${extra}>
    <p class="soft small">All resources as YAML. Secrets are hidden; a value that stays <code>********</code> keeps its secret. A resource that
      you remove is deleted; stored messages stay. The same as <code>waypost get -o yaml</code> and <code>waypost apply -f</code>.</p>
    ${behind && edited && html`<div class="note-warn" role="alert">Version ${number(known.version)} is in force by now.
      <button class="button" onClick=${restart}>Drop my changes and show it</button></div>`}
    <div class="editor">
      <pre class="numbers" aria-hidden="true">${lines.map((_, place) => html`<span key=${place} class=${wrong.has(place + 1) ? "bad-t" : ""}>${`${place + 1}\n`}</span>`)}</pre>
      <textarea ref=${area} class="input mono" aria-label="Configuration as YAML" aria-describedby="configuration-check" wrap="off" spellcheck=${false}
        autocapitalize="off" rows=${lines.length + 1} value=${text} readonly=${!manage} onInput=${(event) => setText(event.target.value)}></textarea>
    </div>
    <${ErrorNote} error=${error} />
    <div id="configuration-check" aria-live="polite"><${Check} check=${check} edited=${edited} show=${show} /></div>
    <div class="do">
      <${ActionButton} label=${tries ? "Try for 2 minutes" : "Apply"} main allowed=${manage && Boolean(check?.ok && check.changes.length)}
        action=${() => put("/api/v1/configuration", { text, version: base.version, try_s: tries ? TRY_S : null })} onDone=${done} />
      <label class="check"><input type="checkbox" checked=${tries} onChange=${(event) => setTries(event.target.checked)} /> take it back unless I keep it</label>
      ${edited && html`<button class="button" onClick=${restart}>Drop my changes</button>`}
    </div>
  <//>`;
}

/** Result of a check: mistakes with their lines, or what would change. */
function Check({ check, edited, show = null, about = "Difference" }) {
  if (!edited) return html`<p class="soft small">Nothing is changed.</p>`;
  if (check === null) return html`<p class="soft small">Checking…</p>`;
  if (!check.ok) {
    return html`<p class="bad-t">${counted(check.errors.length, "mistake")}: nothing can be applied.</p>
      <ul>${check.errors.map((each, place) => html`<li key=${place}>${each.line > 0 && html`<button class="link" onClick=${() => show?.(each.line)}>line ${number(each.line)}</button>${": "}`}
        ${each.path && html`<code>${plain(each.path)}</code>${": "}`}${plain(each.message)}</li>`)}</ul>`;
  }
  if (check.changes.length === 0) return html`<p class="soft small">No resource changes.</p>`;
  return html`<p class="good-t">It can be applied. ${counted(check.changes.length, "resource")} would change:</p>
    ${check.changes.map((each) => html`<details key=${`${each.kind}/${each.name}`} open=${check.changes.length < 4}>
      <summary>${plain(each.kind)} <${Name} mono>${each.name}<//> ${each.change}</summary><${Diff} text=${each.diff} label=${`${about} of ${plain(each.kind)} ${plain(each.name)}`} /></details>`)}
    ${[...check.bridge, ...check.notes].map((each, place) => html`<p key=${place} class="note-warn">${plain(each)}</p>`)}`;
}

const SIGNS = { "+": "plus", "-": "minus" };

function Diff({ text, label }) {
  const lines = text.split("\n").filter((line) => line && !/^(---|\+\+\+|@@)/.test(line));
  return html`<pre class="diff scroll" tabindex="0" role="region" aria-label=${label}>${lines.map((line, place) => html`<span key=${place} class=${SIGNS[line[0]] ?? ""}>${plain(line)}\n</span>`)}</pre>`;
}

function Managed({ known }) {
  const extra = html`<${Pill}>locked<//>`;
  return html`<${Panel} title="Managed by the hub" extra=${extra}>
    <p class="soft small">Version ${number(known.hub_version)} of the hub's configuration decides about these: change them there.${" "}
      <code>waypost apply --local</code> overrides one until the hub's next version.</p>
    ${known.managed.map((each) => html`<details key=${`${each.kind}/${each.name}`}><summary>${plain(each.kind)} <${Name} mono>${each.name}<//></summary>
      <pre class="diff scroll" tabindex="0" role="region" aria-label=${`Resource ${plain(each.kind)} ${plain(each.name)}`}>${yamlLines(each.text)}</pre></details>`)}
  <//>`;
}

/** YAML with its lines. */
function yamlLines(text) {
  return text.split("\n").map((line) => `${plain(line)}\n`);
}

function History({ known, applied }) {
  const [versions, setVersions] = useState(null);
  const [error, setError] = useState(null);
  const [shown, setShown] = useState(null);
  const { manage } = useSession();
  async function load() {
    try {
      setVersions((await get("/api/v1/configuration/history")).versions);
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }
  useEffect(() => {
    load();
    setShown(null);
  }, [known.version]);
  async function look(version) {
    try {
      setShown(await get(`/api/v1/configuration/${version}`));
    } catch (failed) {
      setError(failed);
    }
  }
  return html`<${Panel} title="History" flush>
    <${ErrorNote} error=${error} retry=${load} />
    ${versions?.length === 0 && html`<div class="body"><${Empty} title="No change yet">Each change appears here with its time and its user, the last 50 of them.<//></div>`}
    ${versions?.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Versions"><table class="cards">
      <thead><tr><th scope="col">Version</th><th scope="col">Time</th><th scope="col">By</th><th scope="col" class="n">Resources</th><th scope="col"><span class="quiet">Action</span></th></tr></thead>
      <tbody>${versions.map((each) => html`<tr key=${each.version}><th scope="row">${number(each.version)}${each.version === known.version ? html` <${Pill} tone="good">in force<//>` : null}</th>
        <td data-label="Time"><${Time} at=${each.at * 1000} /></td><td data-label="By">${each.by ? html`<${Name}>${each.by}<//>` : "–"}</td>
        <td class="n" data-label="Resources">${number(each.resources)}</td>
        <td class="n">${each.version !== known.version && html`<button class="button" onClick=${() => look(each.version)}>Look</button>`}</td></tr>`)}</tbody></table></div>`}
    ${shown && html`<div class="body"><h3>Back to version ${number(shown.version)}</h3><${Check} check=${shown.check} edited about="Return" />
      <div class="do"><${ActionButton} label=${`Try version ${shown.version} for 2 minutes`} main allowed=${manage && shown.check.ok && shown.check.changes.length > 0}
        action=${() => put("/api/v1/configuration", { restore: shown.version, version: known.version, try_s: TRY_S })} onDone=${applied} />
        <button class="button" onClick=${() => setShown(null)}>Close</button></div></div>`}
  <//>`;
}
