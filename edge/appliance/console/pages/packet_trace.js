// Packet trace of one client: what it sends and gets, and what becomes of each message. It ends by itself.

import { withQuery } from "./api.js";
import { CommandLine } from "./command_line.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { Name, Panel, Pill } from "./parts.js";
import { address } from "./route.js";
import { saveText } from "./save.js";
import { useSession } from "./session.js";
import { counted, number, plain } from "./text.js";

const KEPT = 2_000;
const SHOWN = 200;
const TIMES = [["60", "1 minute"], ["300", "5 minutes"], ["900", "15 minutes"]];
const SIGNS = { "<-": "from it", "->": "to it", "==": "outcome", "--": "connection", "<>": "HTTP", "!!": "not shown" };

/** Page of a trace. `client`: identifier, user or address; it need not be connected. */
export function PacketTrace({ client }) {
  const { manage } = useSession();
  const [draft, setDraft] = useState({ client, seconds: "300", payload: false });
  const [followed, setFollowed] = useState(/** @type {any} */ (null));
  const [lines, setLines] = useState(/** @type {any[]} */ ([]));
  const [state, setState] = useState("");
  const numbered = useRef(0);

  useEffect(() => {
    if (!followed) return undefined;
    const stream = new EventSource(new URL(withQuery("/api/v1/trace", followed), location.origin));
    const stop = (why) => {
      stream.close();
      setState(why);
      setFollowed(null);
    };
    stream.addEventListener("trace", (event) => {
      const some = JSON.parse(event.data);
      const started = some.find((each) => each.kind === "started");
      if (started) setState(started.count ? `${counted(started.count, "connection")} followed.` : "It is not connected: waiting for it.");
      const more = some.filter((each) => each.kind !== "started").map((each) => ({ ...each, number: (numbered.current += 1) }));
      if (more.length) setLines((before) => [...before, ...more].slice(-KEPT));
    });
    stream.addEventListener("end", (event) => stop(`The trace ended: ${plain(JSON.parse(event.data).why)}.`));
    stream.onerror = () => stop("The trace ended: it is not allowed, too many run, or the connection was cut.");
    const leave = () => stream.close();
    addEventListener("pagehide", leave);
    return () => {
      removeEventListener("pagehide", leave);
      stream.close();
    };
  }, [followed]);

  function start(event) {
    event.preventDefault();
    setLines([]);
    setState("Connecting.");
    setFollowed({ client: draft.client.trim(), seconds: draft.seconds, payload: draft.payload ? "1" : "" });
  }
  const set = (change) => setDraft({ ...draft, ...change });
  const busy = Boolean(followed);
  const shown = lines.slice(-SHOWN).reverse();
  return html`<p><a href=${address("devices")}>All devices</a></p>
  <${Panel} title="Packets of a client" extra=${busy && html`<${Pill} tone="good">following<//>`}>
    <form class="do" onSubmit=${start}>
      <input class="input mono" name="client" aria-label="Client identifier, user or address" placeholder="pump7 or 10.0.0.17" required autocapitalize="none" spellcheck="false"
        value=${draft.client} disabled=${busy} onInput=${(event) => set({ client: event.target.value })} />
      <label class="do">for at most <select class="input" value=${draft.seconds} disabled=${busy} onChange=${(event) => set({ seconds: event.target.value })}>
        ${TIMES.map(([seconds, text]) => html`<option key=${seconds} value=${seconds}>${text}</option>`)}</select></label>
      <label class="check"><input type="checkbox" checked=${draft.payload} disabled=${busy} onChange=${(event) => set({ payload: event.target.checked })} /> Show payloads</label>
      ${busy
        ? html`<button key="stop" type="button" class="button" onClick=${() => { setFollowed(null); setState("You ended the trace."); }}>Stop</button>`
        : html`<button key="follow" class="button main" disabled=${!manage} title=${manage ? "" : "needs the right manage:#"}>Follow</button>`}
      <button type="button" class="button" disabled=${lines.length === 0} onClick=${() => saveText(`trace-${draft.client}.txt`, lines.map(asText).join(""))}>Download</button>
    </form>
    <p class="small soft" role="status">${state || `It ends by itself, at the latest after ${number(KEPT)} events. Passwords are never shown; payloads only where you may receive them.`}
      ${lines.length > SHOWN ? ` The last ${number(SHOWN)} of ${number(lines.length)} events are shown; the download has all.` : ""}</p>
    ${shown.length > 0 && html`<ol class="live-messages" tabindex="0" aria-label="Packets, the latest first">${shown.map((each) => html`<li key=${each.number}>
      <p class="small"><span class="mono soft">${(each.at ?? "").slice(11, 23)}</span> <span class="tag">${SIGNS[each.sign] ?? each.sign}</span> <${Name} mono>${each.client ?? ""}<//></p>
      <p class=${each.failed ? "bad-t" : ""}>${each.failed && "Failed: "}<${Name}>${each.text}<//></p>
      ${each.payload && html`<pre class="payload" tabindex="0">${plain(each.payload)}</pre>`}</li>`)}</ol>`}
    <${CommandLine} words=${["waypost", "client", "trace", "--client", draft.client || "CLIENT", "--for", `${draft.seconds}s`]} />
  <//>`;
}

/** Return a line of the download, as the command prints it. */
function asText(each) {
  const payload = each.payload ? JSON.stringify(each.payload) : "";
  return `${[each.at, each.sign, each.client, each.text, payload].filter(Boolean).join(" ")}\n`;
}
