// Console of a gateway.

import { Frame, lazy } from "./frame.js";
import { html, render, useEffect } from "./html.js";
import { LiveTopic } from "./live.js";
import { Overview } from "./overview.js";
import { begin, SignedIn } from "./session.js";
import { counted, duration } from "./text.js";

const TITLE = "Waypost gateway";
const live = new LiveTopic("status", "/api/v1/status");

/** @type {import("./frame.js").Page[][]} */
const GROUPS = [
  [
    { page: "overview", label: "Overview", icon: "home", key: "o", view: Overview, count: countProblems },
    { page: "devices", label: "Devices", icon: "phone", key: "d", view: lazy(() => import("./devices.js"), "Devices") },
    { page: "addresses", label: "Addresses", icon: "list", key: "a", view: lazy(() => import("./addresses.js"), "Addresses") },
    { page: "messages", label: "Messages", icon: "messages", key: "m", view: lazy(() => import("./messages.js"), "Messages") },
    { page: "bridge", label: "Bridge", icon: "bridge", key: "b", view: lazy(() => import("./bridge.js"), "Bridge") },
    { page: "store", label: "Store & card", icon: "store", key: "s", view: lazy(() => import("./store.js"), "Store") },
  ],
  [
    { page: "users", label: "Users", icon: "person", key: "u", view: lazy(() => import("./users.js"), "Users") },
    { page: "configuration", label: "Configuration", icon: "configuration", key: "c", view: lazy(() => import("./configuration.js"), "Configuration") },
    { page: "log", label: "Log", icon: "log", key: "l", view: lazy(() => import("./log.js"), "Log") },
    { page: "system", label: "System", icon: "system", key: "y", view: lazy(() => import("./system.js"), "System") },
  ],
];

function countProblems(status) {
  const serious = (status.problems ?? []).filter((problem) => problem.severity !== "notice" && !problem.muted);
  return { count: serious.length, tone: serious.some((problem) => problem.severity === "error") ? "" : "warn" };
}

/** State of the gateway in a word or two: whether it serves its devices, and whether the hub is there. */
function state(status) {
  const errors = (status.problems ?? []).filter((problem) => problem.severity === "error" && !problem.muted);
  const uplink = status.uplink?.state ?? "off";
  if (errors.length) return ["bad", counted(errors.length, "problem")];
  if (uplink === "connecting") return ["bad", "serving · hub away"];
  if (uplink === "paused") return ["warn", "serving · uplink paused"];
  return ["good", uplink === "off" ? "serving · no hub" : "serving"];
}

function describe(status) {
  const clockText = status.clock === "good" ? "clock synchronized" : "clock not synchronized";
  return {
    name: status.gateway,
    about: status.dev ? "development mode: no credentials" : `Waypost ${status.version}`,
    state: state(status),
    meta: `up ${duration(status.uptime_s)} · ${clockText}`,
  };
}

function Console() {
  useEffect(() => live.start(), []);
  return html`<${Frame} title=${TITLE} describe=${describe} live=${live} groups=${GROUPS} />`;
}

await begin();
render(html`<${SignedIn} title=${TITLE}><${Console} /><//>`, document.body);
