// The problems of a gateway, each with its next step and a way to the page where it is solved.

import { lazy } from "./frame.js";
import { html, useState } from "./html.js";
import { Problem } from "./parts.js";
import { address } from "./route.js";
import { useSession } from "./session.js";
import { plain } from "./text.js";

const Muted = lazy(() => import("./mutes.js"), "Muted"); // only with muted problems
const Mute = lazy(() => import("./mutes.js"), "Mute");

/** Pages by the begin of a problem's name. @type {[string, string, (name: string) => string][]} */
const PAGES = [
  ["device refused", "Refused devices", () => address("devices", "", { show: "refused" })],
  ["device silent", "Silent devices", () => address("devices", "", { show: "silent" })],
  ["logins", "Refused devices", () => address("devices", "", { show: "refused" })],
  ["no subscriber", "Addresses", () => address("addresses")],
  ["address ", "This address", (name) => address("addresses", name.slice("address ".length))],
  ["queue ", "This address", (name) => address("addresses", name.slice("queue ".length))],
  ["connector ", "Bridge", () => address("bridge")],
  ["forwarder ", "Bridge", () => address("bridge")],
  ["losses", "Dead letters", () => address("messages", "", { show: "dead" })],
  ["store", "Store & card", () => address("store")],
  ["free space", "Store & card", () => address("store")],
  ["space", "Store & card", () => address("store")],
  ["memory", "System", () => address("system")],
  ["connections", "Devices", () => address("devices")],
  ["places", "Devices", () => address("devices")],
  ["certificate", "Log", () => address("log")],
  ["identity", "Log", () => address("log")],
  ["users", "Users", () => address("users")],
  ["subscriptions", "Log", () => address("log")],
  ["housekeeping", "Log", () => address("log")],
];

/** Problems, the most serious first. `hidden`: names of notices that the page tells about in more detail. */
export function Problems({ problems, hidden = [] }) {
  const { manage } = useSession();
  const [muting, setMuting] = useState(null);
  const shown = problems.filter((each) => !each.muted && (each.severity !== "notice" || !hidden.includes(each.name)));
  const muted = problems.filter((each) => each.muted);
  return html`${shown.map((problem) => {
      const found = PAGES.find(([begin]) => problem.name.startsWith(begin));
      const link = found && html`<a class="button" href=${found[2](problem.name)}>${found[1]}</a>`;
      return html`<${Problem} key=${`${problem.name}\n${problem.what}`} problem=${problem}>${link}
        <button class="button" disabled=${!manage} title=${manage ? "" : "needs the right manage:#"} aria-label=${`Mute ${plain(problem.name)}…`} onClick=${() => setMuting(problem)}>Mute…</button><//>`;
    })}
    ${muted.length > 0 && html`<${Muted} problems=${muted} manage=${manage} />`}
    ${muting && html`<${Mute} problem=${muting} close=${() => setMuting(null)} />`}`;
}
