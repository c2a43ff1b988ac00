// Import of users from a table: checked row by row, then what would change, then the passwords once.

import { post } from "./api.js";
import { html, useState } from "./html.js";
import { Dialog, ErrorNote, Name } from "./parts.js";
import { saveText } from "./save.js";
import { counted, number, plain } from "./text.js";

const PATH = "/api/v1/user-import";
const EXAMPLE = "name,profile,allow\npump7,sensor,\npress2,,send:plant/press2/# recv:command/press2";
const SHOWN = 20;

export function ImportUsers({ close }) {
  const [table, setTable] = useState("");
  const [plan, setPlan] = useState(null);
  const [made, setMade] = useState(/** @type {{name: string, password: string}[]} */ ([]));
  const [state, setState] = useState("");
  const [error, setError] = useState(null);
  const edit = (text) => { setTable(text); setPlan(null); };
  async function check(event) {
    event.preventDefault();
    setError(null);
    try {
      setPlan(await post(PATH, { csv: table, dry_run: true }));
    } catch (failed) {
      setError(failed);
    }
  }
  async function apply() {
    setState("running");
    setError(null);
    try {
      let step;
      do {
        step = await post(PATH, { csv: table });
        const some = step.passwords;
        setMade((before) => [...before, ...some]);
      } while (step.left > 0);
      setState("done");
    } catch (failed) {
      setState("stopped");
      setError(failed);
    }
  }
  if (state) {
    const received = new Set(made.map((each) => each.name));
    const lost = state === "done" ? plan.added.filter((name) => !received.has(name)) : [];
    return html`<${Dialog} title="Import users" close=${close}><div class="stack">
      <p role="status">${state === "running" ? `${number(made.length)} of ${number(plan.added.length)} users are added…` : `${counted(made.length + lost.length, "user")} added, ${number(plan.changed.length)} changed.`}</p>
      ${made.length > 0 && html`<p class="note-warn">The passwords are shown only now: save them before you close this.</p>`}
      ${lost.length > 0 && html`<p class="note-bad" role="alert">${counted(lost.length, "user")} added, but the password was not received: give new ones. ${lost.map((name) => html`<span key=${name} class="tag"><${Name}>${name}<//></span> `)}</p>`}
      <${ErrorNote} error=${error} />
      <div class="do"><button class="button main" disabled=${made.length === 0 || state === "running"} onClick=${() => saveText("passwords.csv", csvOf(made), "text/csv")}>Save passwords as CSV</button>
        ${state === "stopped" && html`<button class="button" onClick=${apply}>Go on</button>`}
        <button class="button" disabled=${state === "running"} onClick=${close}>Close</button></div>
    </div><//>`;
  }
  const changes = plan ? plan.added.length + plan.changed.length : 0;
  return html`<${Dialog} title="Import users" close=${close}><form class="stack" onSubmit=${check}>
    <label class="field">CSV file<input class="input" type="file" name="file" accept=".csv,text/csv" onChange=${async (event) => event.target.files[0] && edit(await event.target.files[0].text())} /></label>
    <label class="field"><span>or paste the table: <code>name</code>, <code>profile</code> (sensor, application, viewer, operator), <code>allow</code> (rights, with spaces between them)</span>
      <textarea class="input mono" name="csv" rows="8" required spellcheck="false" placeholder=${EXAMPLE} value=${table} onInput=${(event) => edit(event.target.value)}></textarea></label>
    <${ErrorNote} error=${error} />
    ${plan && html`<${Plan} plan=${plan} />`}
    <div class="do"><button class="button ${plan && !plan.faults_total && changes ? "" : "main"}" disabled=${!table.trim()}>Check</button>
      ${plan && plan.faults_total === 0 && changes > 0 && html`<button key="apply" type="button" class="button main" onClick=${apply}>Add ${number(plan.added.length)}, change ${number(plan.changed.length)}</button>`}
      <button key="cancel" type="button" class="button" onClick=${close}>Cancel</button></div>
  </form><//>`;
}

/** What the table would do. */
function Plan({ plan }) {
  if (plan.faults_total > 0) {
    return html`<div class="note-bad" role="alert"><p>${counted(plan.faults_total, "row")} ${plan.faults_total === 1 ? "is" : "are"} wrong; nothing is changed until they are right.</p>
      <ul>${plan.faults.map((fault) => html`<li key=${fault.line}>Line ${number(fault.line)}: ${plain(fault.error)}</li>`)}</ul></div>`;
  }
  return html`<div role="status"><p><b>${counted(plan.added.length, "user")}</b> would be added with a new password, <b>${number(plan.changed.length)}</b> would get other rights, ${number(plan.unchanged)} stay as they are.</p>
    ${plan.added.length > 0 && html`<p class="small">New: ${plan.added.slice(0, SHOWN).map((name) => html`<span class="tag"><${Name}>${name}<//></span> `)}${more(plan.added.length)}</p>`}
    ${plan.changed.slice(0, SHOWN).map((each) => html`<p key=${each.name} class="small"><${Name}>${each.name}<//>: ${each.before.filter((right) => !each.after.includes(right)).map((right) => html`<del class="tag">${plain(right)}</del> `)}
      ${each.after.filter((right) => !each.before.includes(right)).map((right) => html`<ins class="tag">${plain(right)}</ins> `)}</p>`)}
    ${more(plan.changed.length)}</div>`;
}

const more = (count) => (count > SHOWN ? `and ${number(count - SHOWN)} more` : "");

/** Names and passwords as CSV. A cell that a spreadsheet would take for a formula begins with an apostrophe. */
function csvOf(made) {
  const cell = (text) => `"${(/^[=+\-@\t]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
  return `name,password\r\n${made.map((each) => `${cell(each.name)},"${each.password}"\r\n`).join("")}`;
}
