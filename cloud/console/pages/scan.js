// Read the code on a gateway's label, or of a token: with the camera, or pasted.

import { html, useEffect, useRef, useState } from "./html.js";
import { Dialog, Name, Pairs } from "./parts.js";
import { address } from "./route.js";
import { plain } from "./text.js";

const LOOK_MS = 250;
const TOKEN = /^wpt1\.([0-9a-f]{12})\./;
const FIELDS = ["name", "hostname", "hub", "address", "image", "card", "date"];

/**
 * Return what a code says: a token, or the label of a gateway. Null: neither.
 *
 * @returns {{token: string} | {label: Record<string, string>} | null}
 */
export function readCode(text) {
  const token = TOKEN.exec(text.trim());
  if (token) return { token: token[1] };
  const pairs = text.split("\n").map((line) => line.split(/:\s(.*)/s)).filter(([key, value]) => FIELDS.includes(key) && value);
  const label = Object.fromEntries(pairs.map(([key, value]) => [key, value.trim()]));
  return label.name ? { label } : null;
}

/** The browser's reader of codes; null where it has none, or where the page may not use the camera. */
async function makeReader() {
  const Detector = /** @type {any} */ (window).BarcodeDetector;
  if (!Detector || !navigator.mediaDevices?.getUserMedia) return null;
  const formats = await Detector.getSupportedFormats();
  return formats.includes("qr_code") ? new Detector({ formats: ["qr_code"] }) : null;
}

export function Scan({ close }) {
  const [text, setText] = useState("");
  const [camera, setCamera] = useState("starting");
  const video = useRef(null);
  useEffect(() => watch(video, setText, setCamera), []);
  const found = text ? readCode(text) : null;
  return html`<${Dialog} title="Scan a code" close=${close}><div class="stack">
    ${camera === "on" || camera === "starting" ? html`<video ref=${video} class="camera" hidden=${camera !== "on"} muted playsinline aria-label="Picture of the camera"></video>` : null}
    <p role="status">${{
      starting: "Starting the camera…",
      on: "Hold the code of a gateway’s label, or of a token, in front of the camera.",
      none: "This browser cannot read codes with the camera. Read the code with the camera of a phone, and paste its text here.",
      denied: "The camera cannot be used: allow it for this page, or paste the text of the code here.",
    }[camera]}</p>
    <label class="field">Text of the code<textarea class="input mono" rows="4" autocapitalize="none" spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>
    ${text && !found && html`<p class="note-warn">This is neither a token nor the label of a gateway.</p>`}
    ${found && html`<${Found} found=${found} close=${close} />`}
    <div class="do"><button class="button" onClick=${close}>Close</button></div></div><//>`;
}

/** Look at the camera until the dialog closes. */
function watch(video, setText, setCamera) {
  let over = false;
  let stream = null;
  async function run() {
    const reader = await makeReader();
    if (!reader) {
      setCamera("none");
      return;
    }
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    if (over) {
      stop();
      return;
    }
    video.current.srcObject = stream;
    await video.current.play();
    setCamera("on");
    while (!over) {
      const codes = await reader.detect(video.current).catch(() => []);
      if (codes.length) setText(codes[0].rawValue);
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
  }
  function stop() {
    over = true;
    stream?.getTracks().forEach((track) => track.stop());
  }
  run().catch(() => setCamera("denied"));
  return stop;
}

function Found({ found, close }) {
  if (found.token) {
    return html`<p>Token <span class="mono">${found.token}</span>: <a href=${address("enrolment", "", { token: found.token })} onClick=${close}>what became of it</a></p>`;
  }
  const { name, ...rest } = found.label;
  return html`<${Pairs} pairs=${[["gateway", html`<${Name}>${name}<//>`], ...Object.entries(rest).map(([key, value]) => [key, plain(value)])]} />
    <div class="do"><a class="button main" href=${address("fleet", `default/${name}`)} onClick=${close}>Open its page</a>
      <a class="button" href=${address("enrolment", "", { gateway: name })} onClick=${close}>Make a token for it</a></div>`;
}
