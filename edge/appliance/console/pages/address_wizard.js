// New address in four steps: its purpose, its name, its limits, its users; then what changes, and the change.

import { get, post } from "./api.js";
import { html, useEffect, useState } from "./html.js";
import { ActionButton, ErrorNote, Name, Panel } from "./parts.js";
import { address, go } from "./route.js";
import { useSession } from "./session.js";
import { plain, shellWord } from "./text.js";

const TYPING_MS = 300;

const PURPOSES = [
  { key: "telemetry", title: "Readings that go on to the hub", about: "Every subscriber gets a copy, and the hub each message once.", type: "topic", example: "plant/+/temperature", forwards: true },
  { key: "jobs", title: "A queue of jobs", about: "Each message is stored, and goes to one worker.", type: "queue", example: "jobs" },
  { key: "commands", title: "Commands to devices", about: "Stored for a device that is away, and dropped when they are out of date.", type: "queue", example: "commands/+", ttl: 3600 },
  { key: "last", title: "A last value", about: "A new subscriber gets the last message at once. Publishers set the flag retain.", type: "topic", example: "state/#" },
];
const STEPS = ["Purpose", "Name", "Limits", "Users", "Review"];
const FULL = [["reject", "refuse new messages"], ["dropOldest", "drop the oldest"], ["thin", "thin old ones to a summary"]];
const DURABILITY = [
  ["fsync", "on disk before each answer (the promise; most wear)"],
  ["batch:200", "on disk within 200 ms, then the answer (less wear)"],
  ["memory", "in memory only: a power cut loses messages"],
];
const DEFAULTS = { megabytes: "", full: "reject", durability: "fsync" };

export function AddressWizard() {
  const { manage } = useSession();
  const [step, setStep] = useState(0);
  const [purpose, setPurpose] = useState(null);
  const [name, setName] = useState("");
  const [limits, setLimits] = useState(DEFAULTS);
  const [hub, setHub] = useState("");
  const [accepted, setAccepted] = useState(false);
  useEffect(() => {
    get("/api/v1/bridge").then((bridge) => setHub(bridge.connectors[0]?.name ?? ""), () => setHub(""));
  }, []);
  const found = useMatch(name, step);
  const taken = found?.rule === name.trim() && found?.resource;
  const usable = Boolean(found) && !found.error && !taken;
  const spec = purpose && specOf(purpose, name.trim(), limits, hub);
  const back = html`<p><a href=${address("addresses")}>All addresses</a></p>`;
  const steps = html`<ol class="steps" aria-label="Steps">${STEPS.map((each, place) => html`<li key=${each} aria-current=${place === step ? "step" : undefined}>${each}</li>`)}</ol>`;
  return html`${back}<${Panel} title="New address" extra=${steps}>
    ${step === 0 && html`<h3>What is it for?</h3><div class="choices">${PURPOSES.map((each) => html`<button key=${each.key} class="choice"
        onClick=${() => { setPurpose(each); setStep(1); }}><b>${each.title}</b><span class="soft">${each.about}</span></button>`)}</div>`}
    ${step === 1 && html`<${NameStep} purpose=${purpose} name=${name} setName=${setName} found=${found} taken=${taken} hub=${hub} enter=${() => usable && setStep(4)} />`}
    ${step === 2 && html`<${Limits} purpose=${purpose} limits=${limits} setLimits=${setLimits} />`}
    ${step === 3 && html`<${Users} found=${found} name=${name.trim()} />`}
    ${step === 4 && html`<${Review} name=${name.trim()} spec=${spec} setAccepted=${setAccepted} />`}
    ${step > 0 && html`<div class="do">
      <button class="button" onClick=${() => setStep(step === 4 ? 1 : step - 1)}>Back</button>
      ${step === 1 && html`<button class="button" disabled=${!usable} onClick=${() => setStep(2)}>Limits and users</button>`}
      ${step === 2 && html`<button class="button" onClick=${() => setStep(3)}>Users</button>`}
      ${step < 4 && html`<button class="button main" disabled=${!usable} onClick=${() => setStep(4)}>Review</button>`}
      ${step === 4 && accepted && html`<${ActionButton} label="Create" main allowed=${manage}
        action=${() => post("/api/v1/addresses", { address: name.trim(), spec })} onDone=${() => go(address("addresses", name.trim()))} />`}
    </div>`}
  <//>`;
}

/** What the rules of the gateway say about a name, some moments after the last key. */
function useMatch(name, step) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    setFound(null);
    if (!name.trim() || step === 0) return undefined;
    let over = false;
    const timer = setTimeout(() => {
      const path = name.trim().split("/").map(encodeURIComponent).join("/");
      get(`/api/v1/addresses/${path}`).then((detail) => over || setFound(detail), (error) => over || setFound({ error: error.message }));
    }, TYPING_MS);
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [name, step === 0]);
  return found;
}

function NameStep({ purpose, name, setName, found, taken, hub, enter }) {
  return html`<form class="form" onSubmit=${(event) => { event.preventDefault(); enter(); }}>
    <label>Name or pattern <input class="input mono" value=${name} placeholder=${purpose.example} autocapitalize="off" autocomplete="off" spellcheck=${false} autofocus
      onInput=${(event) => setName(event.target.value)} /></label>
    <p class="soft small"><code>+</code> stands for one level, <code>#</code> at the end for all that follow: <code>plant/+/temperature</code>.</p>
    <div aria-live="polite">
      ${found?.error && html`<p class="bad-t">${plain(found.error)}</p>`}
      ${taken && html`<p class="bad-t">There is a rule for exactly this name already: <a href=${address("addresses", name.trim())}>look at it</a>.</p>`}
      ${found && !found.error && !taken && html`<p>Until now <${Name} mono>${name.trim()}<//> follows the rule <${Name} mono>${found.rule}<//>, a ${found.type}.
        ${found.overlapping.length > 0 && html` It overlaps with ${found.overlapping.map((each) => html`<${Name} mono>${each}<//> `)}: the most specific rule applies.`}</p>`}
      ${purpose.forwards && !hub && html`<p class="warn-t">No hub is configured: messages stay on this gateway until it is enrolled.</p>`}
    </div>
  </form>`;
}

function Limits({ purpose, limits, setLimits }) {
  const set = (key) => (event) => setLimits({ ...limits, [key]: event.target.value });
  return html`<div class="form">
    <label>Keep at most (MB; empty: the whole space) <input class="input" type="number" min="1" inputmode="numeric" value=${limits.megabytes} onInput=${set("megabytes")} /></label>
    <label>When that is full <select class="input" value=${limits.full} onChange=${set("full")}>${FULL.map(([key, text]) => html`<option key=${key} value=${key}>${text}</option>`)}</select></label>
    <label>A message is acknowledged when it is <select class="input" value=${limits.durability} onChange=${set("durability")}>
      ${DURABILITY.map(([key, text]) => html`<option key=${key} value=${key}>${text}</option>`)}</select></label>
    ${purpose.ttl && html`<p class="soft small">A command expires after an hour.</p>`}
  </div>`;
}

function Users({ found, name }) {
  if (!found || found.everyone) return html`<p class="soft">No sign-in is configured: every client may send and receive.</p>`;
  const list = (users) => (users.total ? users.names.map((each) => html`<span class="tag">${plain(each)}</span> `) : html`<span class="warn-t">no user</span>`);
  return html`<p>May send: ${list(found.senders)}</p><p>May receive: ${list(found.receivers)}</p>
    <p class="soft small">Rights belong to users: <code>waypost user allow USER ${shellWord(`send:${name}`)}</code>. They are in force at once.</p>`;
}

function Review({ name, spec, setAccepted }) {
  const [check, setCheck] = useState(null);
  const [error, setError] = useState(null);
  const yaml = yamlOf(name, spec);
  useEffect(() => {
    (async () => {
      const known = await get("/api/v1/configuration");
      const text = known.text ? `${known.text}---\n${yaml}` : yaml;
      const found = await post("/api/v1/configuration/check", { text });
      setCheck(found);
      setAccepted(found.ok);
    })().catch(setError);
    return () => setAccepted(false);
  }, [yaml]);
  return html`<${ErrorNote} error=${error} />
    <pre class="diff scroll" tabindex="0" role="region" aria-label="YAML">${yaml.split("\n").map((line) => `${plain(line)}\n`)}</pre>
    <p class="soft small">The same on the command line: <code>waypost apply -f address.yaml</code></p>
    <div aria-live="polite">
      ${check?.ok && html`<p class="good-t">It can be created: in force at once, stored messages stay where they are.</p>`}
      ${check && !check.ok && check.errors.map((each, place) => html`<p key=${place} class="bad-t">${plain(each.path)}: ${plain(each.message)}</p>`)}
      ${check && [...check.bridge, ...check.notes].map((each, place) => html`<p key=${place} class="note-warn">${plain(each)}</p>`)}
    </div>`;
}

function specOf(purpose, name, limits, hub) {
  const spec = { type: purpose.type };
  if (limits.megabytes) spec.quota = { bytes: Math.round(Number(limits.megabytes) * 1e6) };
  if (limits.full !== DEFAULTS.full) spec.whenFull = limits.full;
  if (limits.durability !== DEFAULTS.durability) spec.durability = limits.durability;
  if (purpose.ttl) spec.messageTtl = { maximum: purpose.ttl };
  if (purpose.forwards && hub) spec.forwarders = [{ name: "to-hub", remoteAddress: `${hub}/${name}`, direction: "out" }];
  return spec;
}

/** YAML of the resource: JSON of each value is YAML. */
function yamlOf(name, spec) {
  const plainName = name.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[-._]+|[-._]+$/g, "") || "address";
  const lines = Object.entries({ address: name, ...spec }).map(([key, value]) => `  ${key}: ${JSON.stringify(value)}`);
  return `apiVersion: waypost/v1\nkind: Address\nmetadata: {name: ${JSON.stringify(plainName)}}\nspec:\n${lines.join("\n")}\n`;
}
