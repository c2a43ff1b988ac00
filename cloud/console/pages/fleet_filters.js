// Filters of the list of gateways: by problem, version, time last seen and labels. They are in the page's address.

import { get } from "./api.js";
import { html, useState } from "./html.js";
import { address, go } from "./route.js";
import { useEvery } from "./state.js";
import { number, plain } from "./text.js";

/** Filters of the address that the API takes by the same name, with their words. */
const WORDS = { selector: "with", problem: "problem", severity: "severity", version: "version", older_than: "older than", connected: "", seen_before: "away for", seen_after: "seen within" };
const SEVERITIES = ["error", "warning", "notice"];
/** Choices of when a gateway was seen, as query parameters. */
const SEEN = [
  ["connected=true", "connected"],
  ["connected=false", "not connected"],
  ["seen_before=1h", "away for 1 h"],
  ["seen_before=1d", "away for 1 d"],
  ["seen_before=7d", "away for 7 d"],
  ["seen_before=30d", "away for 30 d"],
  ["seen_after=1h", "seen within 1 h"],
  ["seen_after=1d", "seen within 1 d"],
];

/** Return the filters of an address, as the API takes them; without any those that are empty. */
export function filtersOf(query) {
  return Object.fromEntries(Object.keys(WORDS).map((name) => [name, query[name] ?? ""]));
}

/** Return whether an address has any filter. */
export function isFiltered(query) {
  return Object.keys(WORDS).some((name) => query[name]);
}

/** Go to the list with other filters. A search is among all gateways, unless the address says otherwise. */
function filter(query, changes) {
  go(address("fleet", "", { ...query, show: query.show ?? "all", ...changes }), true);
}

/** Words of a filter: a value that stands for itself, or what it means. */
function word(name, value) {
  if (name === "connected") return value === "true" ? "connected" : "not connected";
  return `${WORDS[name]} ${plain(value)}`;
}

/** Chips of the filters that are set; each ends one. */
export function Chips({ query }) {
  const set = Object.keys(WORDS).filter((name) => query[name]);
  if (set.length === 0) return null;
  return html`<span class="filters" role="group" aria-label="Filters">${set.map((name) => html`<button key=${name} class="chip" aria-label=${`Remove the filter ${word(name, query[name])}`}
      onClick=${() => filter(query, { [name]: "" })}>${word(name, query[name])} ×</button>`)}
    ${set.length > 1 && html`<button class="chip" onClick=${() => filter(query, filtersOf({}))}>Remove all</button>`}</span>`;
}

/** Form with all filters. `versions`: of the fleet, with their numbers of gateways. */
export function Filters({ query, versions }) {
  const [open, setOpen] = useState(false);
  return html`<details open=${open} onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>Filter</summary>
    ${open && html`<${Form} query=${query} versions=${versions} />`}</details>`;
}

function Form({ query, versions }) {
  const [problems, setProblems] = useState([]);
  useEvery(30, async () => {
    const found = await get("/api/v1/problems?places=0&limit=500").catch(() => ({ problems: [] }));
    setProblems(found.problems.filter((one) => one.gateways > 0));
  });
  const seen = ["connected", "seen_before", "seen_after"].filter((name) => query[name]).map((name) => `${name}=${query[name]}`);
  const nothing = { connected: "", seen_before: "", seen_after: "" };
  const choose = (name) => (event) => filter(query, { [name]: event.target.value });
  const known = versions.filter((one) => one.version !== null);
  return html`<div class="do">
    <${Select} label="Problem" value=${query.problem ?? ""} change=${choose("problem")} options=${options(problems.map((one) => [one.name, `${plain(one.name)} (${number(one.gateways)})`]), query.problem)} />
    <${Select} label="Severity" value=${query.severity ?? ""} change=${choose("severity")} options=${SEVERITIES.map((one) => [one, one])} />
    <${Select} label="Version" value=${query.version ?? ""} change=${choose("version")} options=${options(known.map((one) => [one.version, `${plain(one.version)} (${number(one.count)})`]), query.version)} />
    <${Select} label="Older than" value=${query.older_than ?? ""} change=${choose("older_than")} options=${options(known.map((one) => [one.version, plain(one.version)]), query.older_than)} />
    <${Select} label="Last seen" value=${seen.length === 1 ? seen[0] : ""} change=${(event) => filter(query, { ...nothing, ...Object.fromEntries(new URLSearchParams(event.target.value)) })}
      options=${options(SEEN, seen.length === 1 ? seen[0] : "")} />
    <form onSubmit=${(event) => { event.preventDefault(); filter(query, { selector: event.target.elements.selector.value.trim() }); }}>
      <label class="field">Labels<input class="input" name="selector" placeholder="site=berlin,ring!=canary" defaultValue=${query.selector ?? ""} /></label></form>
  </div>`;
}

/** Options of a field; the present value is one of them. @param {string[][]} found @param {string} [value] */
function options(found, value) {
  return !value || found.some(([key]) => key === value) ? found : [...found, [value, plain(value)]];
}

function Select({ label, value, change, options: all }) {
  return html`<label class="field">${label}<select class="input" value=${value} onChange=${change}><option value="">any</option>
    ${all.map(([key, text]) => html`<option key=${key} value=${key} selected=${key === value}>${text}</option>`)}</select></label>`;
}
