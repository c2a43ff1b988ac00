// Console of a hub.

import { demandFilters } from "./api.js";
import { Fleet } from "./fleet.js";
import { Frame, lazy } from "./frame.js";
import { html, render, useEffect } from "./html.js";
import { LiveTopic } from "./live.js";
import { begin, SignedIn } from "./session.js";
import { counted, duration, number, rate } from "./text.js";

const TITLE = "Waypost hub";
const live = new LiveTopic("status", "/api/v1/status");

/** @type {import("./frame.js").Page[][]} */
const GROUPS = [
  [
    { page: "fleet", label: "Fleet", icon: "home", key: "f", view: Fleet, count: countProblems },
    { page: "alerts", label: "Alerts", icon: "alerts", key: "a", view: lazy(() => import("./alerts.js"), "Alerts"), count: countAlerts },
  ],
  [
    { page: "configuration", label: "Configuration", icon: "configuration", key: "o", view: lazy(() => import("./configuration.js"), "Configuration") },
    { page: "rollouts", label: "Roll-outs", icon: "pulse", key: "r", view: lazy(() => import("./rollouts.js"), "Rollouts") },
    { page: "campaigns", label: "Campaigns", icon: "phone", key: "d", view: lazy(() => import("./campaigns.js"), "Campaigns") },
    { page: "enrolment", label: "Enrolment", icon: "enrolment", key: "e", view: lazy(() => import("./enrolment.js"), "Enrolment") },
    { page: "commands", label: "Commands", icon: "commands", key: "c", view: lazy(() => import("./commands.js"), "Commands") },
  ],
  [
    { page: "analytics", label: "Analytics", icon: "analytics", key: "n", view: lazy(() => import("./analytics.js"), "Analytics") },
    { page: "completeness", label: "Completeness", icon: "completeness", key: "p", view: lazy(() => import("./completeness.js"), "Completeness") },
    { page: "lake", label: "Lake", icon: "store", key: "l", view: lazy(() => import("./lake.js"), "Lake") },
    { page: "people", label: "People", icon: "person", key: "u", view: lazy(() => import("./people.js"), "People") },
    { page: "audit", label: "Audit", icon: "log", key: "t", view: lazy(() => import("./audit.js"), "Audit") },
    { page: "log", label: "Log", icon: "list", key: "h", view: lazy(() => import("./log.js"), "Log") },
    { page: "system", label: "System", icon: "system", key: "y", view: lazy(() => import("./system.js"), "System") },
  ],
];

function countProblems(status) {
  const offline = status.gateways.known - status.gateways.connected;
  return { count: (status.problems ?? []).filter((problem) => problem.severity === "error").length + offline, tone: "warn" };
}

function countAlerts(status) {
  return { count: status.alerts?.firing ?? 0, tone: status.alerts?.critical ? "bad" : "warn" };
}

function state(status) {
  const errors = (status.problems ?? []).filter((problem) => problem.severity === "error");
  if (status.landing?.failing) return ["bad", "landing fails: nothing is acknowledged"];
  return errors.length ? ["bad", counted(errors.length, "problem")] : ["good", "landing"];
}

function describe(status) {
  const recent = (status.rate ?? []).slice(-5);
  const perSecond = recent.length ? recent.reduce((sum, count) => sum + count, 0) / recent.length : 0;
  const latency = status.landing?.latency_ms_p50;
  return {
    name: TITLE,
    about: status.tenant ? `tenant ${status.tenant}` : status.dev ? "development mode: no credentials" : `Waypost ${status.version}`,
    state: state(status),
    meta: `${rate(perSecond)} messages/s${typeof latency === "number" ? ` · in the lake within ${number(Math.round(latency))} ms` : ""} · up ${duration((status.now - status.started_at) / 1000)}`,
  };
}

function Console() {
  useEffect(() => live.start(), []);
  return html`<${Frame} title=${TITLE} describe=${describe} live=${live} groups=${GROUPS} />`;
}

demandFilters();
await begin();
render(html`<${SignedIn} title=${TITLE}><${Console} /><//>`, document.body);
