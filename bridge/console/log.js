// Log of a node: the latest lines as they come, and the events among them: changes, problems, sign-ins.

import { get, withQuery } from "./api.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { LiveTopic } from "./live.js";
import { Choice, Empty, ErrorNote, Name, Panel, Time } from "./parts.js";
import { address, go } from "./route.js";
import { useEvery } from "./state.js";
import { counted, number, plain } from "./text.js";

const KEPT_MAX = 2_000;
const SHOWN_MAX = 200;
const LEVELS = [["debug", "All"], ["info", "Info"], ["warning", "Warnings"], ["error", "Errors"]];
const RANKS = { debug: 0, info: 1, warning: 2, error: 3 };
const TONES = { warning: "warn-t", error: "bad-t" };
const SHOWN = [["log", "Log"], ["events", "Events"]];
const EVERY_S = 5;

export function Log({ query }) {
  const shown = query.show === "events" ? "events" : "log";
  const choice = html`<${Choice} label="Lines" options=${SHOWN} value=${shown} choose=${(key) => go(address("log", "", key === "log" ? {} : { show: key }), true)} />`;
  return shown === "events" ? html`<${Events} choice=${choice} />` : html`<${Lines} choice=${choice} />`;
}

/** Lines that this page has, the latest last. `held`: nothing is added while it is true. */
function useLines(held) {
  const [lines, setLines] = useState([]);
  const [missed, setMissed] = useState(0);
  const [error, setError] = useState(null);
  const stopped = useRef(held);
  stopped.current = held;
  function add(page) {
    if (stopped.current) return;
    setMissed((before) => before + page.missed);
    if (page.lines.length === 0) return;
    setLines((before) => {
      const known = new Map([...before, ...page.lines].map((line) => [line.number, line]));
      return [...known.values()].sort((one, other) => one.number - other.number).slice(-KEPT_MAX);
    });
  }
  async function load() {
    try {
      add({ ...(await get(`/api/v1/log?limit=500`)), missed: 0 });
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }
  useEffect(() => {
    const live = new LiveTopic("log", "/api/v1/log?limit=500");
    const ends = [live.figures.follow((page) => page && add(page)), live.problem.follow((text) => setError(text && { message: text })), live.start()];
    return () => ends.forEach((end) => end());
  }, []);
  useEffect(() => {
    if (!held) load();
  }, [held]);
  return { lines, missed, error, load };
}

function Lines({ choice }) {
  const [level, setLevel] = useState("debug");
  const [text, setText] = useState("");
  const [held, setHeld] = useState(false);
  const { lines, missed, error, load } = useLines(held);
  const wanted = text.trim().toLowerCase();
  const found = lines.filter((line) => RANKS[line.level] >= RANKS[level] && has(line, wanted));
  return html`<${Panel} title="Log" extra=${choice} flush>
    <div class="table-bar">
      <input type="search" class="input" placeholder="Search" aria-label="Search the log" value=${text} onInput=${(event) => setText(event.target.value)} />
      <${Choice} label="Level" options=${LEVELS} value=${level} choose=${setLevel} />
      <span class="grow"></span>
      <span class="soft small">${number(found.length)} of ${counted(lines.length, "line")}${missed ? `, ${number(missed)} were too many at once` : ""}</span>
      <button class="button" aria-pressed=${held} onClick=${() => setHeld(!held)}>${held ? "Continue" : "Hold"}</button>
      <a class="button" href="/api/v1/log.txt" download>Download</a>
    </div>
    <${ErrorNote} error=${error} retry=${load} />
    ${found.length === 0 ? html`<div class="body"><${Empty} title=${lines.length ? "No line matches" : "There is no line yet"}>The last 2,000 lines since
      the start are here. Longer ago: <code>journalctl</code> on the machine, or the log of its container.<//></div>` : html`<${Table} lines=${found} label="Lines of the log" />`}
  <//>`;
}

function Events({ choice }) {
  const [page, setPage] = useState(null);
  const [error, setError] = useState(null);
  const [text, setText] = useState("");
  async function load() {
    try {
      setPage(await get(withQuery("/api/v1/journal", { q: text.trim(), limit: 500 })));
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }
  useEvery(EVERY_S, load, [text]);
  return html`<${Panel} title="Events" extra=${choice} flush>
    <div class="table-bar">
      <input type="search" class="input" placeholder="Search" aria-label="Search the events" value=${text} onInput=${(event) => setText(event.target.value)} />
      <span class="grow"></span><span class="soft small" role="status">${page && counted(page.lines.length, "event")}</span>
    </div>
    <${ErrorNote} error=${error} retry=${load} />
    ${page && (page.lines.length === 0 ? html`<div class="body"><${Empty} title="Nothing happened">Changes that users make, sign-ins,
      problems, and what else may be looked for later appear here, the last 1,000.<//></div>`
      : html`<${Table} lines=${page.lines} label="Table of events" />`)}
  <//>`;
}

function has(line, text) {
  return !text || line.text.toLowerCase().includes(text) || line.logger.includes(text) || line.event.includes(text);
}

/** The last lines, the latest first. */
function Table({ lines, label }) {
  const shown = lines.slice(-SHOWN_MAX).reverse();
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table class="cards log">
    <thead><tr><th scope="col">Time</th><th scope="col">Level</th><th scope="col">Line</th></tr></thead>
    <tbody>${shown.map((line) => html`<tr key=${line.number}>
      <th scope="row"><${Time} at=${line.at * 1000} /></th>
      <td data-label="Level"><span class=${TONES[line.level] ?? "soft"}>${line.level}</span>${line.event && html` <span class="tag">${plain(line.event)}</span>`}</td>
      <td class="what"><${Text} line=${line} /></td></tr>`)}</tbody>
  </table></div>${lines.length > shown.length && html`<p class="body soft small">The last ${number(shown.length)} are shown: search, or download all.</p>`}`;
}

/** Text of a line; the frames of an exception open below it. */
function Text({ line }) {
  const [first, ...frames] = line.text.split("\n");
  return html`<${Name} mono>${first}<//>${frames.length > 0 && html`<details><summary>${counted(frames.length, "more line")}</summary>
    ${frames.map((each, place) => html`<div key=${place}><${Name} mono>${each}<//></div>`)}</details>`}
    <small>${plain(line.logger)}</small>`;
}
