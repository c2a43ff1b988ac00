// Check of the way to the hub: each step with its result as it ends, and what to do about a failure.

import { get, post } from "./api.js";
import { html, useEffect, useState } from "./html.js";
import { ErrorNote, Name, Pill, Time } from "./parts.js";
import { useSession } from "./session.js";
import { plain } from "./text.js";

const PATH = "/api/v1/bridge/check";
const ASK_MS = 500;
const LEVELS = { ok: ["good", "ok"], warn: ["warn", "warning"], fail: ["bad", "failed"] };

/** Button and results. `connector`: only its steps, and those of this machine. */
export function UplinkCheck({ connector = "" }) {
  const { manage } = useSession();
  const [report, setReport] = useState(null);
  const [error, setError] = useState(null);
  const running = Boolean(report?.running);
  const ask = (request) => request.then((found) => { setReport(found); setError(null); }, setError);
  useEffect(() => {
    if (!running || error) return undefined;
    const timer = setTimeout(() => ask(get(PATH)), ASK_MS);
    return () => clearTimeout(timer);
  }, [report, error]);
  const steps = (report?.steps ?? []).filter((each) => !connector || !each.connector || each.connector === connector);
  return html`<div class="stack">
    <div class="do"><button class="button" disabled=${!manage || running} aria-busy=${running} title=${manage ? "" : "needs the right manage:#"}
      onClick=${() => ask(post(PATH))}>${running ? "Checking…" : "Check each step"}</button>
      <span class="soft small" role="status">${summary(report, steps)}</span></div>
    <${ErrorNote} error=${error} />
    ${steps.length > 0 && html`<ul class="why" aria-label="Steps to the hub">${steps.map((each, place) => html`<li key=${place}>
      <${Pill} tone=${LEVELS[each.level][0]}>${LEVELS[each.level][1]}<//><span class="soft">${plain(each.step)}</span>
      <span><${Name}>${each.seen}<//>${each.next_step && html`<br /><span class="small">Next: ${plain(each.next_step)}</span>`}</span></li>`)}</ul>`}
  </div>`;
}

function summary(report, steps) {
  if (report === null) return "clock, name, TCP, TLS, sign-in: some seconds";
  if (report.running) return "";
  const failed = steps.filter((each) => each.level === "fail");
  const end = html`ended <${Time} at=${report.ended_at * 1000} />`;
  return failed.length ? html`It fails at ${plain(failed[0].step)}; ${end}` : html`Each step works; ${end}`;
}
