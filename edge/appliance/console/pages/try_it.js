// Try it: publish a message as the signed-in user, and see messages as they arrive.

import { post, withQuery } from "./api.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { MessageBody } from "./message_body.js";
import { CommandLine } from "./command_line.js";
import { ErrorNote, Name, Panel, Pill, Time } from "./parts.js";
import { useSession } from "./session.js";
import { counted, number, plain } from "./text.js";
import { quoted } from "./user_changes.js";

const KEPT = 200;
const REPEATS_MAX = 100;
const EVERY_S_MAX = 60;
const TYPES = [["text/plain; charset=utf-8", "Text"], ["application/json", "JSON"], ["", "Not stated"]];

export function TryIt({ query, choice }) {
  const { user, open } = useSession();
  const as = open ? "without a user, as no login is required" : `as ${plain(user ?? "")}`;
  return html`<${Panel} title="Try it" extra=${choice}><p class="soft">You publish and receive ${as}, with the rights of that user.</p><//>
    <div class="grid"><${Publish} suggested=${query.filter} /><${Follow} suggested=${query.filter ?? "#"} /></div>`;
}

function Publish({ suggested }) {
  const [draft, setDraft] = useState({ address: suggested && !/[+#]/.test(suggested) ? suggested : "", body: "", content_type: TYPES[0][0], properties: "", retain: false });
  const [repeat, setRepeat] = useState({ times: "1", every_s: "2" });
  const [left, setLeft] = useState(0);
  const running = useRef(0);
  useEffect(() => () => clearTimeout(running.current), []);
  const [sent, setSent] = useState(null);
  const [error, setError] = useState(null);
  const set = (name) => ({ target }) => setDraft((before) => ({ ...before, [name]: target.type === "checkbox" ? target.checked : target.value }));
  // At each key, as for the other fields: the page is drawn again while someone types, and would show the number before.
  const setNumber = (name) => ({ target }) => setRepeat((before) => ({ ...before, [name]: target.value }));
  const wrong = draft.content_type === "application/json" ? fault(draft.body) : "";
  /** Publish once, and again after a pause while `more` are left. It ends with the page, and at the first error. */
  async function publish(more, count) {
    setLeft(more);
    try {
      const outcome = await post("/api/v1/messages", { ...draft, content_type: draft.content_type || null, properties: pairs(draft.properties) });
      setSent({ ...outcome, at: Date.now(), count });
      if (more > 0) running.current = setTimeout(() => publish(more - 1, count + 1), Number(repeat.every_s) * 1000);
    } catch (failed) {
      setLeft(0);
      setError(failed);
    }
  }
  function submit(event) {
    event.preventDefault();
    clearTimeout(running.current);
    setError(null);
    setSent(null);
    publish(Number(repeat.times) - 1, 1);
  }
  function stop() {
    clearTimeout(running.current);
    setLeft(0);
  }
  return html`<${Panel} title="Publish" span=${6}><form class="stack" onSubmit=${submit}>
    <label class="field">Address<input class="input mono" name="address" required autocapitalize="none" spellcheck="false" value=${draft.address} onInput=${set("address")} /></label>
    <label class="field">Body<textarea class="input mono" name="body" rows="5" spellcheck="false" value=${draft.body} onInput=${set("body")}></textarea></label>
    ${wrong && html`<p class="bad-t small" role="status">Not JSON: ${plain(wrong)}</p>`}
    <label class="field">Content type<select class="input" value=${draft.content_type} onChange=${set("content_type")}>
      ${TYPES.map(([type, text]) => html`<option key=${type} value=${type}>${text}</option>`)}</select></label>
    <label class="field"><span>Properties, one <code>name: value</code> a line</span><textarea class="input mono" name="properties" rows="2" spellcheck="false" value=${draft.properties} onInput=${set("properties")}></textarea></label>
    <label class="check"><input type="checkbox" checked=${draft.retain} onChange=${set("retain")} /> Keep as the last message (retain)</label>
    <${ErrorNote} error=${error} />
    <div class="do"><button class="button main" disabled=${Boolean(wrong) || !draft.address || left > 0}>Publish</button>
      <label class="do small"><input class="input short" type="number" name="times" required min="1" max=${REPEATS_MAX} value=${repeat.times} disabled=${left > 0} onInput=${setNumber("times")} /> times, every</label>
      <label class="do small"><input class="input short" type="number" name="every" required min="1" max=${EVERY_S_MAX} value=${repeat.every_s} disabled=${left > 0} onInput=${setNumber("every_s")} /> s</label>
      ${left > 0 && html`<button type="button" class="button" onClick=${stop}>Stop, ${number(left)} left</button>`}
      ${sent && html`<span role="status"><${Pill} tone=${sent.subscribers ? "good" : "warn"}>${sent.subscribers ? (sent.count > 1 ? `${number(sent.count)} accepted` : "accepted") : "nobody gets it"}<//>
        <span class="small soft"> ${sent.subscribers ? "" : "no subscription matches, so it is not kept; "}<${Time} at=${sent.at} /></span></span>`}</div>
    <${CommandLine} words=${["waypost", "message", "pub", draft.address || "ADDRESS", draft.body]} />
    <${CopyAs} draft=${draft} />
  </form><//>`;
}

/** The same message as code for other programs. */
function CopyAs({ draft }) {
  const { user, open } = useSession();
  const host = location.hostname;
  const login = open ? "" : ` -u ${quoted(user ?? "USER")} -P PASSWORD`;
  const address = draft.address || "ADDRESS";
  const mosquitto = `mosquitto_pub -h ${quoted(host)}${login} -q 1${draft.retain ? " -r" : ""} -t ${quoted(address)} -m ${quoted(draft.body)}`;
  const python = `import paho.mqtt.client as mqtt

client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
${open ? "" : `client.username_pw_set(${JSON.stringify(user ?? "USER")}, "PASSWORD")\n`}client.connect(${JSON.stringify(host)})
client.loop_start()
client.publish(${JSON.stringify(address)}, ${JSON.stringify(draft.body)}, qos=1${draft.retain ? ", retain=True" : ""}).wait_for_publish()`;
  return html`<details><summary class="small">Copy as mosquitto_pub or Python</summary>
    <pre class="payload" tabindex="0">${mosquitto}</pre><button type="button" class="button" onClick=${() => navigator.clipboard?.writeText(mosquitto)}>Copy mosquitto_pub</button>
    <pre class="payload" tabindex="0">${python}</pre><button type="button" class="button" onClick=${() => navigator.clipboard?.writeText(python)}>Copy Python</button>
  </details>`;
}

function fault(body) {
  try {
    JSON.parse(body);
    return "";
  } catch (error) {
    return error.message;
  }
}

function pairs(text) {
  const found = text.split("\n").map((line) => line.match(/^\s*([^:]+?)\s*:\s?(.*)$/)).filter(Boolean);
  return Object.fromEntries(found.map((match) => [match[1], match[2]]));
}

function Follow({ suggested }) {
  const [filter, setFilter] = useState(suggested);
  const [followed, setFollowed] = useState("");
  const [messages, setMessages] = useState([]);
  const [counts, setCounts] = useState({ shown: 0, skipped: 0 });
  const [state, setState] = useState("");
  const [paused, setPaused] = useState(false);
  const held = useRef(false);
  held.current = paused;
  const numbered = useRef(0);

  useEffect(() => {
    if (!followed) return undefined;
    const stream = new EventSource(new URL(withQuery("/api/v1/messages/live", { filter: followed }), location.origin));
    const stop = (why) => {
      stream.close();
      setState(why);
      setFollowed("");
    };
    stream.addEventListener("message", (event) => {
      if (held.current || !event.data) return;
      const message = { ...JSON.parse(event.data), number: (numbered.current += 1) };
      setMessages((before) => [message, ...before].slice(0, KEPT));
    });
    stream.addEventListener("counts", (event) => {
      const last = JSON.parse(event.data);
      setCounts((before) => ({ shown: before.shown + last.shown, skipped: before.skipped + last.skipped }));
    });
    stream.addEventListener("end", (event) => stop(JSON.parse(event.data).why));
    stream.onopen = () => setState("following");
    stream.onerror = () => stop("the stream ended: it is not allowed, too many pages follow, or the connection was cut");
    const leave = () => stream.close();
    addEventListener("pagehide", leave);
    return () => {
      removeEventListener("pagehide", leave);
      stream.close();
    };
  }, [followed]);

  function submit(event) {
    event.preventDefault();
    setMessages([]);
    setCounts({ shown: 0, skipped: 0 });
    setState("connecting");
    setFollowed(filter.trim());
  }
  return html`<${Panel} title="Receive" span=${6} extra=${followed && html`<${Pill} tone="good">following<//>`}>
    <form class="do" onSubmit=${submit}>
      <input class="input mono" name="filter" aria-label="Topic or filter" required autocapitalize="none" spellcheck="false" value=${filter} onInput=${(event) => setFilter(event.target.value)} />
      ${followed
        ? html`<button type="button" class="button" aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "Go on" : "Hold"}</button>
            <button type="button" class="button" onClick=${() => { setFollowed(""); setState(""); }}>Stop</button>`
        : html`<button class="button main">Follow</button>`}
    </form>
    <p class="small soft" role="status">${status(followed, state, counts)}</p>
    <ul class="live-messages" tabindex="0" aria-label="Messages">${messages.map((message) => html`<li key=${message.number}>
      <p class="small"><${Name} mono>${message.address}<//> <span class="soft"><${Time} at=${message.received_at * 1000} /> <${Name}>${message.device}<//></span></p>
      <${MessageBody} message=${message} />
    </li>`)}</ul>
    <${CommandLine} words=${["waypost", "message", "sub", filter || "FILTER"]} />
  <//>`;
}

function status(followed, state, counts) {
  const seen = `${counted(counts.shown + counts.skipped, "message")}${counts.skipped ? `, ${number(counts.skipped)} of them not shown: at most 50 a second are` : ""}`;
  if (followed) return counts.shown ? seen : "Waiting for the first message.";
  return state ? `${plain(state)}. ${counts.shown ? seen : ""}` : "Messages are shown as they arrive, for 10 minutes. Queues are browsed instead: a subscriber would take their messages.";
}
