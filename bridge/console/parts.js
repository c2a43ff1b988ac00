// Small parts that all pages use.

import { html, useEffect, useRef, useState } from "./html.js";
import { ago, clock, dateOf, plain } from "./text.js";

/** @typedef {"good" | "warn" | "bad" | "idle"} Tone */

/** State as a word with a mark: colour alone says nothing. @param {{tone?: Tone, children: any}} properties */
export function Pill({ tone = "idle", children, ...more }) {
  return html`<span class="pill ${tone}" ...${more}>${children}</span>`;
}

/** Text that a device or a person elsewhere chose. */
export function Name({ children, mono = false }) {
  return html`<bdi class=${mono ? "mono name" : "name"}>${plain(children)}</bdi>`;
}

/** Point in time: clock time, exact on hover. `relative`: how long ago instead. */
export function Time({ at, relative = false }) {
  if (at === null || at === undefined) return html`<span class="soft">never</span>`;
  return html`<time dateTime=${dateOf(at).toISOString()} title=${dateOf(at).toISOString()}>${relative ? ago(at) : clock(at)}</time>`;
}

export function Panel({ title, extra = null, span = 12, children, flush = false }) {
  return html`<section class="panel g${span}" aria-label=${title}>
    <header><h2>${title}</h2><span class="grow"></span>${extra}</header>
    ${flush ? children : html`<div class="body">${children}</div>`}
  </section>`;
}

/** Pairs of names and values. @param {{pairs: [string, any][]}} properties */
export function Pairs({ pairs }) {
  return html`<dl class="rows">${pairs.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
}

/** What is not there, why, and the step that brings it. */
export function Empty({ title, children }) {
  return html`<div class="empty"><p><b>${title}</b></p><p class="soft">${children}</p></div>`;
}

/** Error of a request: the reason, the next step, and a button for another try. */
export function ErrorNote({ error, retry = null }) {
  if (!error) return null;
  return html`<div class="note-bad" role="alert">
    <span>${plain(error.message ?? error)}${error.nextStep && html`<br /><small>Next: ${plain(error.nextStep)}</small>`}</span>${retry && html` <button class="button" onClick=${retry}>Try again</button>`}
  </div>`;
}

/** @param {{value: number, parts?: [number, string][], label: string}} properties Shares from 0 to 1, with their class. */
export function Meter({ parts, label }) {
  let x = 0;
  return html`<svg class="meter" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label=${label}>
    <rect class="m0" width="100" height="8" />
    ${parts.map(([share, tone]) => {
      const width = Math.min(100 - x, 100 * Math.max(0, share));
      const part = html`<rect class=${tone} x=${x} width=${width} height="8" />`;
      x += width;
      return part;
    })}
  </svg>`;
}

/** Problem of the node: what is wrong, since when, and the next step. `children`: buttons. */
export function Problem({ problem, children = null }) {
  const tone = { error: "", warning: "warn", notice: "notice" }[problem.severity] ?? "";
  const label = { warning: "Warning: ", notice: "Note: " }[problem.severity] ?? "";
  return html`<section class="problem ${tone}" role=${problem.severity === "error" ? "alert" : "status"}>
    <div><h2>${label}${plain(problem.name)}</h2><p>${plain(problem.what)}</p></div>
    <p class="soft small right">since <${Time} at=${problem.since} /></p>
    <p class="do"><b class="small">Next:</b> <span class="small">${plain(problem.next_step)}</span></p>
    ${children && html`<div class="do">${children}</div>`}
  </section>`;
}

/**
 * Button for an action at the server; shows that it runs, and why it failed.
 *
 * `confirm` is a text with the consequences, shown in a dialog first; `typed` a name that has to be typed there. `allowed`: false shows the button disabled, with the
 * missing right.
 */
export function ActionButton({ label, action, confirm = "", danger = false, allowed = true, main = false, onDone = null, typed = "" }) {
  const [running, setRunning] = useState(false);
  const [error, setError] = useState(null);
  const [asking, setAsking] = useState(false);
  const [entered, setEntered] = useState("");
  async function run() {
    setAsking(false);
    setEntered("");
    setRunning(true);
    setError(null);
    try {
      const result = await action();
      onDone?.(result);
    } catch (failed) {
      setError(failed);
    }
    setRunning(false);
  }
  return html`<span class="action">
    <button class="button ${main ? "main" : ""}" disabled=${running || !allowed} aria-busy=${running}
      title=${allowed ? "" : "needs the right manage:#"} onClick=${() => (confirm ? setAsking(true) : run())}>
      ${running ? "…" : label}
    </button>
    ${error && html`<span class="bad-t small" role="alert">${plain(error.message)}${error.nextStep && html`<br /><small>Next: ${plain(error.nextStep)}</small>`}</span>`}
    ${asking && html`<${Dialog} title=${label} close=${() => setAsking(false)}>
      <div class="stack"><p>${confirm}</p>
      ${typed && html`<label class="field"><span>To confirm, type <b>${plain(typed)}</b></span><input class="input" name="confirm" autocapitalize="none" autocomplete="off"
        spellcheck="false" value=${entered} onInput=${(event) => setEntered(event.target.value)} /></label>`}
      <div class="do"><button class="button ${danger ? "danger" : "main"}" type="button" disabled=${typed !== "" && entered !== typed} onClick=${run}>${label}</button>
        <button type="button" class="button" onClick=${() => setAsking(false)}>Cancel</button></div></div>
    <//>`}
  </span>`;
}

/** Modal dialog; Escape and a click beside it close it. The focus returns to where it was, or to the page. */
export function Dialog({ title, close, children }) {
  const element = useRef(null);
  useEffect(() => {
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    element.current.showModal();
    // Later: while the dialog is still there, nothing else can have the focus.
    return () => queueMicrotask(() => (before?.isConnected ? before : document.getElementById("main"))?.focus());
  }, []);
  return html`<dialog ref=${element} aria-label=${title} onClose=${close}
    onClick=${(event) => event.target === element.current && close()}>
    <div class="dialog"><h2>${title}</h2>${children}</div>
  </dialog>`;
}

/** Buttons of which one is pressed. @param {{options: [string, string][], value: string, choose: (value: string) => void, label: string}} properties */
export function Choice({ options, value, choose, label }) {
  return html`<span class="segmented" role="group" aria-label=${label}>
    ${options.map(([key, text]) => html`<button key=${key} type="button" aria-pressed=${key === value} onClick=${() => choose(key)}>${text}</button>`)}
  </span>`;
}
