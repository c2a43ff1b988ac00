// System: the hub's process, its limits, registry and certificates; landing and the lake's maintenance.

import { useRead } from "./gold.js";
import { html } from "./html.js";
import { ErrorNote, Meter, Pairs, Panel, Pill, Time } from "./parts.js";
import { address } from "./route.js";
import { bytes, counted, dateOf, duration, number, percent, plain } from "./text.js";

const NEAR = 0.8;
const SOON_DAYS = 30;
const NAMES = { authority: "authority, which signs the gateways' certificates", server: "server, for pages and gateways" };

const TONES = { serving: "good", draining: "warn", gone: "bad" };

export function System({ figures: status }) {
  const fleet = Boolean(status?.landing);
  const { found, error, load } = useRead(fleet ? "/api/v1/system" : "");
  if (status === null) return null;
  const ms = (seconds) => `${Math.round(1000 * (seconds ?? 0))} ms`;
  return html`<${ErrorNote} error=${error} retry=${load} /><div class="grid">
    <${Panel} title="Hub" span=${6}><${Pairs} pairs=${[
      ["version", status.version],
      ["running for", duration((status.now - status.started_at) / 1000)],
      ["gateways known", number(status.gateways.known)],
      ["gateways connected", number(status.gateways.connected)],
      ...(found ? [["machine", html`${plain(found.machine)}, Python ${found.python}`], ["process", `${found.pid}, ${counted(found.threads, "thread")}`]] : []),
      ...(status.loop ? [["largest delay of the event loop", `${ms(status.loop.lag_s)} in the last minute, ${ms(status.loop.lag_s_max)} since the start`]] : []),
      ...(status.log ? [["log lines dropped", number(status.log.dropped)]] : []),
    ]} /><//>
    ${found && html`<${Limits} system=${found} />`}
    ${found && html`<${Certificates} ends=${found.certificates} />`}
    ${found && found.hubs.length > 1 && html`<${Hubs} hubs=${found.hubs} />`}
    ${fleet && html`<${Landing} landing=${status.landing} />`}
    <${Panel} title="For programs" span=${6}><p><a href="/api/v1/status">Status as JSON</a> · <a href="/metrics">Metrics for Prometheus</a> · <a href=${address("audit")}>who changed what</a></p><//>
  </div>`;
}

function Bound({ used, most, words, text = number }) {
  if (!most) return html`${text(used)}, without a limit`;
  const share = used / most;
  return html`<${Meter} parts=${[[share, share >= 1 ? "mb" : share >= NEAR ? "mw" : "mg"]]} label=${`${percent(used, most)} of ${words}`} /><small>${text(used)} of ${text(most)}</small>`;
}

function Limits({ system }) {
  return html`<${Panel} title="Limits" span=${6}><${Pairs} pairs=${[
    ["memory", html`<${Bound} used=${system.memory} most=${system.memory_most} words="the hub's limit of memory" text=${bytes} />`],
    ...(system.memory_allowed ? [["memory of the unit or container", html`<${Bound} used=${system.memory} most=${system.memory_allowed} words="the memory of the unit" text=${bytes} />`]] : []),
    ["connections", html`<${Bound} used=${system.connections} most=${system.connections_most} words="connections" />`],
    ["open files", html`<${Bound} used=${system.open_files} most=${system.open_files_most} words="open files" />`],
    ["registry", html`${bytes(system.registry_size)} <small class="name">${plain(system.registry)}</small>`],
    ["free on the disk", html`${bytes(system.data_free)} <small class="name">${plain(system.data)}</small>`],
  ]} /><//>`;
}

function Certificates({ ends }) {
  return html`<${Panel} title="Certificates" span=${6}>${ends.length === 0 ? html`<p class="soft">None: connections are not encrypted in development mode.</p>` : html`<${Pairs} pairs=${ends.map((one) => [
    NAMES[one.certificate] ?? one.certificate,
    one.ends_at === null ? html`<span class="bad-t">cannot be read</span>` : html`<${Pill} tone=${one.days < 0 ? "bad" : one.days < SOON_DAYS ? "warn" : "good"}>${one.days < 0 ? "ended" : counted(one.days, "day")}<//> ${dateOf(one.ends_at).toISOString().slice(0, 10)}`,
  ])} />`}
    <p class="soft small">The hub renews the certificate of its own server. Gateways trust the authority: keep a copy of it off this machine.</p><//>`;
}

function Hubs({ hubs }) {
  return html`<${Panel} title="Hubs of this registry" span=${6}><${Pairs} pairs=${hubs.map((hub) => [
    plain(hub.name),
    html`<${Pill} tone=${TONES[hub.state] ?? "idle"}>${plain(hub.state)}<//> ${counted(hub.gateways, "gateway")}, ${counted(hub.connections, "connection")}, version ${plain(hub.version)}, seen <${Time} at=${hub.seen_at} relative />`,
  ])} /><//>`;
}

function Landing({ landing }) {
  const { found } = useRead("/api/v1/lake");
  const tables = found?.tables ?? [];
  const maintained = tables.map((table) => table.optimized_at).filter((at) => at);
  const ms = (value) => (typeof value === "number" ? `${number(Math.round(value))} ms` : "–");
  return html`<${Panel} title="Landing" span=${6} extra=${html`<${Pill} tone=${landing.failing ? "bad" : "good"}>${landing.failing ? "fails" : "healthy"}<//>`}><${Pairs} pairs=${[
    ["latency, median", ms(landing.latency_ms_p50)],
    ["latency, 99 of 100", ms(landing.latency_ms_p99)],
    ["waiting to land", `${number(landing.pending_messages)} (${bytes(landing.pending_bytes)})`],
    ["lake last maintained", maintained.length ? html`<${Time} at=${Math.max(...maintained)} relative />` : "never"],
    ["next maintenance", html`with <code>waypost lake run --follow</code>, or by hand`],
  ]} /><p><a href=${address("lake")}>All about the lake</a></p><//>`;
}
