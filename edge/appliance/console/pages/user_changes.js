// Changes of one user that several pages offer: a new password, and one more right.

import { post } from "./api.js";
import { html, useState } from "./html.js";
import { CommandLine } from "./command_line.js";
import { Dialog, ErrorNote, Pairs, Time } from "./parts.js";
import { plain } from "./text.js";

const OVERLAPS = [["0", "End at once"], ["3600", "Stay valid for 1 hour"], ["86400", "Stay valid for 1 day"], ["604800", "Stay valid for 7 days"]];

/** Dialog that gives a user a new password. */
export function NewPassword({ name, close }) {
  const [overlap, setOverlap] = useState("3600");
  const [made, setMade] = useState(null);
  const [error, setError] = useState(null);
  async function submit(event) {
    event.preventDefault();
    setError(null);
    try {
      setMade(await post(`/api/v1/users/${encodeURIComponent(name)}/password`, { overlap_s: Number(overlap) }));
    } catch (failed) {
      setError(failed);
    }
  }
  if (made) {
    return html`<${Dialog} title=${`New password of ${plain(name)}`} close=${close}><${Secret} made=${made} />
      ${made.old_end_at !== null && html`<p class="small">The old password ends <${Time} at=${made.old_end_at * 1000} />.</p>`}
      <div class="do"><button class="button main" onClick=${close}>Done</button></div><//>`;
  }
  return html`<${Dialog} title=${`New password for ${plain(name)}`} close=${close}><form class="stack" onSubmit=${submit}>
    <p>It is made here and shown once. Then set it in the device.</p>
    <label class="field">Old passwords<select class="input" value=${overlap} onChange=${(event) => setOverlap(event.target.value)}>
      ${OVERLAPS.map(([seconds, text]) => html`<option key=${seconds} value=${seconds}>${text}</option>`)}</select></label>
    <${ErrorNote} error=${error} />
    <div class="do"><button class="button main">Make a new password</button><button type="button" class="button" onClick=${close}>Cancel</button></div>
    <${CommandLine} words=${["waypost", "user", "rotate", name, "--overlap", `${overlap}s`]} />
  </form><//>`;
}

/** A password that is shown once: as text, as a QR code, and as code to paste. */
export function Secret({ made }) {
  const [shown, setShown] = useState("python");
  const at = made.uri ? new URL(made.uri.replace(/^mqtts?:/, "http:")) : null;
  const tls = made.uri.startsWith("mqtts:");
  const port = at ? at.port || "80" : "1883";
  const code = { python: python, mosquitto: mosquitto, arduino: arduino }[shown]({ host: location.hostname, port, user: made.user.name, password: made.password, tls });
  return html`<p class="note-warn">This password is shown only now.</p>
    <${Pairs} pairs=${[["user", html`<code class="name">${plain(made.user.name)}</code>`], ["password", html`<code class="name" data-password>${made.password}</code>`],
      ...(at ? [["server", html`<code class="name">${`${location.hostname}:${port}${tls ? ", TLS" : ""}`}</code>`]] : [])]} />
    ${made.qr && html`<details><summary>QR code</summary><img class="qr" alt="QR code with the server's address, user and password" src=${made.qr} /></details>`}
    <details><summary>Code to paste</summary>
      <label class="field">For<select class="input" value=${shown} onChange=${(event) => setShown(event.target.value)}>
        <option value="python">Python (paho)</option><option value="mosquitto">mosquitto_pub</option><option value="arduino">Arduino</option></select></label>
      <pre class="payload" tabindex="0">${code}</pre>
      <button class="button" onClick=${() => navigator.clipboard?.writeText(code)}>Copy</button>
    </details>`;
}

/** Return a word quoted for a shell. */
export const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

function mosquitto({ host, port, user, password, tls }) {
  return `mosquitto_pub -h ${quoted(host)} -p ${port}${tls ? " --cafile ca.pem" : ""} -u ${quoted(user)} -P ${quoted(password)} -q 1 -t ${quoted(`plant/${user}/temp`)} -m 21.5`;
}

function python({ host, port, user, password, tls }) {
  return `import paho.mqtt.client as mqtt

client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=${JSON.stringify(user)}, protocol=mqtt.MQTTv5)
client.username_pw_set(${JSON.stringify(user)}, ${JSON.stringify(password)})
${tls ? 'client.tls_set("ca.pem")\n' : ""}client.connect(${JSON.stringify(host)}, ${port})
client.loop_start()
client.publish(${JSON.stringify(`plant/${user}/temp`)}, "21.5", qos=1).wait_for_publish()
`;
}

function arduino({ host, port, user, password, tls }) {
  return `const char* MQTT_HOST = ${JSON.stringify(host)};
const int MQTT_PORT = ${port};${tls ? "  // TLS: set the gateway's certificate" : ""}
const char* MQTT_USER = ${JSON.stringify(user)};
const char* MQTT_PASSWORD = ${JSON.stringify(password)};
mqtt.setServer(MQTT_HOST, MQTT_PORT);
mqtt.connect(MQTT_USER, MQTT_USER, MQTT_PASSWORD);
mqtt.publish("plant/${user.replace(/["\\]/g, "")}/temp", "21.5");
`;
}

/** Dialog that gives a user one right more, after showing it. */
export function AllowRight({ name, right, close }) {
  const [error, setError] = useState(null);
  async function submit(event) {
    event.preventDefault();
    try {
      await post(`/api/v1/users/${encodeURIComponent(name)}/rights`, { allow: [right] });
      close();
    } catch (failed) {
      setError(failed);
    }
  }
  return html`<${Dialog} title=${`Allow this to ${plain(name)}`} close=${close}><form class="stack" onSubmit=${submit}>
    <p>${plain(name)} gets the right <span class="tag">${plain(right)}</span>, and keeps its others. Its connections close, and it connects again.</p>
    <${ErrorNote} error=${error} />
    <div class="do"><button class="button main">Allow</button><button type="button" class="button" onClick=${close}>Cancel</button></div>
    <${CommandLine} words=${["waypost", "user", "allow", name, "--add", "--allow", right]} />
  </form><//>`;
}
