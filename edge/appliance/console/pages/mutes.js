// Mutes of problems: those in effect, and the dialog for another one.

import { del, post, withQuery } from "./api.js";
import { html, useState } from "./html.js";
import { ActionButton, Dialog, ErrorNote, Name, Panel, Time } from "./parts.js";
import { counted, plain } from "./text.js";

/** Problems that somebody has muted, each with who, why and until when. */
export function Muted({ problems, manage }) {
  return html`<${Panel} title=${`${counted(problems.length, "problem")} muted`} flush>
    <div class="scroll" tabindex="0" role="region" aria-label="Table of muted problems"><table class="cards">
      <thead><tr><th scope="col">Problem</th><th scope="col">Until</th><th scope="col">Why</th><th scope="col"><span class="skip">Action</span></th></tr></thead>
      <tbody>${problems.map((each) => html`<tr key=${`${each.name}\n${each.what}`}>
        <th scope="row" class="what"><${Name}>${each.name}<//><small>${plain(each.what)}</small></th>
        <td data-label="Until"><${Time} at=${each.muted.until} /></td>
        <td class="what" data-label="Why">${plain(each.muted.reason)}<small>${each.muted.by ? html`by <${Name}>${each.muted.by}<//>` : ""}</small></td>
        <td><${ActionButton} label="Show again" allowed=${manage} action=${() => unmute(each)} /></td></tr>`)}</tbody></table></div><//>`;
}

/** End the mute of a problem: that of its text, else that of its name. */
async function unmute(problem) {
  try {
    await del(withQuery("/api/v1/mutes", { name: problem.name, what: problem.what }));
  } catch (error) {
    if (error.status !== 404) throw error;
    await del(withQuery("/api/v1/mutes", { name: problem.name }));
  }
}

const SPANS = [["4 hours", 14_400], ["24 hours", 86_400], ["7 days", 604_800], ["30 days", 2_592_000]];

export function Mute({ problem, close }) {
  const [seconds, setSeconds] = useState(SPANS[1][1]);
  const [reason, setReason] = useState("");
  const [all, setAll] = useState(false);
  const [error, setError] = useState(null);
  async function save(event) {
    event.preventDefault();
    try {
      await post("/api/v1/mutes", { name: problem.name, what: all ? "" : problem.what, severity: problem.severity, seconds, reason: reason.trim() });
      close();
    } catch (failed) {
      setError(failed);
    }
  }
  return html`<${Dialog} title=${`Mute ${plain(problem.name)}`} close=${close}><form class="stack" onSubmit=${save}>
    <p class="soft">It is listed apart until then, does not count, and raises no alert at the hub, which is told that it is muted. <code>/healthz</code> and the metrics still report it.</p>
    <label class="field"><span>For</span><select class="input" value=${seconds} onChange=${(event) => setSeconds(Number(event.target.value))}>
      ${SPANS.map(([label, value]) => html`<option key=${value} value=${value}>${label}</option>`)}</select></label>
    <label class="field"><span>Reason</span><input class="input" name="reason" required maxlength="500" value=${reason} onInput=${(event) => setReason(event.target.value)} /></label>
    <label class="check"><input type="checkbox" checked=${all} onChange=${(event) => setAll(event.target.checked)} /> Every problem of this name, also later ones. One that is more serious is shown all the same</label>
    <${ErrorNote} error=${error} />
    <p class="soft small">On the command line: <code class="name">waypost problem mute '${plain(problem.name)}' --until 24h --reason …</code></p>
    <div class="do"><button class="button main" disabled=${!reason.trim()}>Mute</button><button type="button" class="button" onClick=${close}>Cancel</button></div>
  </form><//>`;
}
