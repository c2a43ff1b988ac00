// Dead letters: groups by reason and origin, the messages of a group, and what can be done with them.

import { get, post } from "./api.js";
import { html, useState } from "./html.js";
import { MessageBody } from "./message_body.js";
import { MessageFilters } from "./message_filters.js";
import { CommandLine } from "./command_line.js";
import { Dialog, Empty, ErrorNote, Name, Panel, Time } from "./parts.js";
import { address, go } from "./route.js";
import { useSession } from "./session.js";
import { useEvery } from "./state.js";
import { PagedTable } from "./table.js";
import { counted, number, plain } from "./text.js";

const PATH = "/api/v1/dead-letters";
const SAID = { retry: "Retry", move: "Move", delete: "Delete" };
const DONE = { retry: "retried", move: "moved", delete: "deleted" };

export function DeadLetters({ query, choice }) {
  const [list, setList] = useState(null);
  const [error, setError] = useState(null);
  const [asked, setAsked] = useState(null);
  async function load() {
    try {
      setList(await get(PATH));
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }
  useEvery(5, load);
  if (query.queue) return html`<${Group} query=${query} />`;
  const groups = list?.groups ?? [];
  return html`<${Panel} title="Dead letters" extra=${choice} flush>
    <${ErrorNote} error=${error} retry=${load} />
    ${list && groups.length === 0 && html`<div class="body"><${Nothing} queues=${list.queues} /></div>`}
    ${groups.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Table of dead letters">
      <table class="cards"><thead><tr><th scope="col">Reason</th><th scope="col">Dropped at</th><th scope="col">They wait in</th>
        <th scope="col" class="n">Messages</th><th scope="col" class="n">Last</th><th scope="col">Do</th></tr></thead>
      <tbody>${groups.map((group) => html`<tr key=${`${group.queue}\n${group.reason}\n${group.from}`}>
        <th scope="row"><a href=${address("messages", "", { show: "dead", ...selectionOf(group) })}>${plain(group.reason || "sent directly")}</a></th>
        <td data-label="Dropped at"><${Name} mono>${group.from || "–"}<//></td>
        <td data-label="They wait in"><${Name} mono>${group.queue}<//></td>
        <td class="n" data-label="Messages">${number(group.messages)}</td>
        <td class="n" data-label="Last"><${Time} at=${group.last_at * 1000} relative /></td>
        <td class="what"><${Buttons} group=${group} selection=${selectionOf(group)} ask=${setAsked} /></td>
      </tr>`)}</tbody></table></div>`}
    ${list && !list.complete && html`<p class="body soft small" role="status">Not all messages are counted yet.</p>`}
    ${asked && html`<${Act} ...${asked} close=${() => { setAsked(null); load(); }} />`}
  <//>`;
}

/** Condition of a group, as the API and the address of the page have it. */
function selectionOf(group) {
  return { queue: group.queue, reason: group.reason, from: group.from };
}

function Nothing({ queues }) {
  if (queues.length === 0) {
    return html`<${Empty} title="No address has a dead letter address">Messages that are rejected, tried too often or expired are entered in the
      loss ledger and dropped. To keep them, give an address <code>deadletter:</code> and <code>expiry:</code>, and apply it.<//>`;
  }
  return html`<${Empty} title="No dead letters">Messages that consumers reject, that were tried too often or that expired come here
    (${queues.map((queue, place) => html`${place > 0 && ", "}<${Name} mono>${queue}<//>`)}).<//>`;
}

function Buttons({ group, selection, ask, count = group.messages }) {
  const { manage } = useSession();
  const missing = manage ? "" : "needs the right manage:#";
  return html`<span class="do">
    ${["retry", "move", "delete"].map((action) => html`<button key=${action} class="button" disabled=${!manage || count === 0 || (action === "retry" && !group.from)}
      title=${missing || (action === "retry" && !group.from ? "they were sent here directly: move them" : "")}
      aria-label=${`${SAID[action]} ${counted(count, "message")}: ${plain(group.reason || "sent directly")}`}
      onClick=${() => ask({ action, group, selection })}>${SAID[action]}…</button>`)}
  </span>`;
}

/** Dialog of an action: the count first, then the steps with their progress, then the outcome. */
function Act({ action, group, selection, close }) {
  const [count, setCount] = useState(null);
  const [target, setTarget] = useState("");
  const [typed, setTyped] = useState("");
  const [outcome, setOutcome] = useState(null);
  const [running, setRunning] = useState(false);
  const [error, setError] = useState(null);
  const path = `${PATH}/${action}`;
  useEvery(3_600, async () => {
    try {
      setCount(await post(action === "move" ? `${PATH}/delete` : path, { ...selection, dry_run: true }));
    } catch (failed) {
      setError(failed);
    }
  });
  async function run(event) {
    event.preventDefault();
    setRunning(true);
    setError(null);
    const whole = { done: 0, kept: 0, why: "" };
    try {
      let after = null;
      do {
        const step = await post(path, { ...selection, after, ...(action === "move" ? { to: target } : {}) });
        whole.done += step.done;
        whole.kept += step.kept;
        whole.why = step.why || whole.why;
        after = step.next;
        setOutcome({ ...whole, over: after === null });
      } while (after !== null);
    } catch (failed) {
      setError(failed);
    }
    setRunning(false);
  }
  const ready = count !== null && count.messages > 0 && (action !== "move" || target !== "") && (action !== "delete" || typed === group.queue);
  return html`<${Dialog} title=${`${SAID[action]} dead letters`} close=${close}><form class="stack" onSubmit=${run}>
    <p>${count === null ? "Counting…" : sentence(action, group, count.messages)}</p>
    ${count?.why && action === "retry" && html`<p class="note-warn">${plain(count.why)}</p>`}
    ${action === "move" && html`<label class="field">Address that gets them<input class="input" name="to" required autocapitalize="none" spellcheck="false"
      value=${target} onInput=${(event) => setTarget(event.target.value.trim())} /></label>`}
    ${action === "delete" && html`<label class="field"><span>To confirm, type <b>${plain(group.queue)}</b></span><input class="input" name="confirm"
      autocapitalize="none" autocomplete="off" spellcheck="false" value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label>`}
    ${outcome && html`<p role="status">${counted(outcome.done, "message")} ${DONE[action]}${outcome.over ? "." : "…"}
      ${outcome.kept > 0 && ` ${counted(outcome.kept, "message")} kept: ${plain(outcome.why)}.`}</p>`}
    <${ErrorNote} error=${error} />
    <div class="do">${!outcome?.over && html`<button class="button ${action === "delete" ? "danger" : "main"}" disabled=${!ready || running}>${running ? "…" : `${SAID[action]} ${counted(count?.messages ?? 0, "message")}`}</button>`}
      <button type="button" class="button" onClick=${close}>${outcome?.over ? "Close" : "Cancel"}</button></div>
    ${!selection.positions && html`<${CommandLine} words=${["waypost", "message", "dead", action, group.queue, ...(action === "move" ? ["--to", target || "ADDRESS"] : []),
      "--reason", group.reason, "--from", group.from]} />`}
  </form><//>`;
}

function sentence(action, group, count) {
  const what = counted(count, "message");
  if (action === "retry") {
    return html`${what} go back to <${Name} mono>${group.from}<//> and leave this queue in the same commit. If it is a topic, all of
      its subscribers get them again.`;
  }
  if (action === "move") return html`${what} go to another address and leave this queue in the same commit.`;
  return html`${what} are given up and entered in the loss ledger. They cannot be brought back.`;
}

function Group({ query }) {
  const selection = { queue: query.queue, reason: query.reason ?? "", from: query.from ?? "" };
  const conditions = { since: query.since ?? "", where: query.where ?? "", json: query.json ?? "" };
  const change = (some) => go(address("messages", "", { show: "dead", ...selection, ...conditions, ...some }), true);
  const [chosen, setChosen] = useState(/** @type {number[]} */ ([]));
  const [asked, setAsked] = useState(null);
  const [turn, setTurn] = useState(0);
  const group = { ...selection, messages: chosen.length };
  const toggle = (position) => setChosen(chosen.includes(position) ? chosen.filter((each) => each !== position) : [...chosen, position]);
  const columns = [
    { name: "Message", cell: (row) => html`<label class="check"><input type="checkbox" checked=${chosen.includes(row.position)}
      aria-label=${`Select message ${row.position}`} onChange=${() => toggle(row.position)} /> <${Name}>${row.device}<//></label>
      <small><${Time} at=${row.received_at * 1000} /></small>` },
    { name: "Body", wide: true, cell: (row) => html`<${MessageBody} message=${row} />` },
    { name: "Size", numeric: true, cell: (row) => number(row.size) },
  ];
  return html`<p><a href=${address("messages", "", { show: "dead" })}>All dead letters</a></p>
    <${Panel} title=${`${plain(selection.reason || "sent directly")}${selection.from ? ` at ${plain(selection.from)}` : ""}`} flush
      extra=${html`<${Buttons} group=${group} selection=${{ ...selection, positions: chosen }} ask=${setAsked} count=${chosen.length} />`}>
      <${PagedTable} key=${turn} label="messages" path=${`${PATH}/messages?${new URLSearchParams(selection)}`} items="messages" every=${3_600} query=${conditions} filters=${html`<${MessageFilters} query=${query} change=${change} />`}
        columns=${columns} id=${(row) => row.position}
        empty=${html`<${Empty} title="No message is left in this group">They were retried, moved, deleted, or a consumer took them.<//>`} />
      ${asked && html`<${Act} ...${asked} close=${() => { setAsked(null); setChosen([]); setTurn(turn + 1); }} />`}
    <//>`;
}
