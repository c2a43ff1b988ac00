// System: versions, memory, event loop, log, and how the gateway was set up.

import { html } from "./html.js";
import { Meter, Pairs, Panel } from "./parts.js";
import { bytes, duration, number, plain } from "./text.js";

export function System({ figures: status }) {
  if (status === null) return null;
  const memory = status.memory;
  const setUp = Object.entries(status.first_boot ?? {});
  return html`<div class="grid">
    <${Panel} title="Gateway" span=${6}><${Pairs} pairs=${[
      ["name", plain(status.gateway)],
      ["version", status.version],
      ["epoch of the store", html`<span class="mono">${plain(status.epoch)}</span>`],
      ["running for", duration(status.uptime_s)],
      ["clock", status.clock === "good" ? "synchronized" : "not synchronized: times of messages are marked"],
      ["largest delay of the event loop", `${Math.round(1000 * (status.loop?.lag_s ?? 0))} ms in the last minute, ${Math.round(1000 * (status.loop?.lag_s_max ?? 0))} ms since the start`],
      ["log lines dropped", number(status.log?.dropped)],
    ]} /><//>
    <${Panel} title="Memory" span=${6}>${memory && html`<div class="stack">
      <div><p class="label"><span>${bytes(memory.resident)} of ${bytes(memory.resident_max)}</span></p>
        <${Meter} parts=${[[memory.resident / memory.resident_max, "m1"]]} label="memory used" /></div>
      <${Pairs} pairs=${[
        ...Object.entries(memory.pools).map(([name, pool]) => [`held by ${plain(name)}`, `${bytes(pool.held)} of ${bytes(pool.held_max)}`]),
        ["connections closed for want of memory", number(memory.shed)],
        ["connections refused by a limit", number(memory.refused)],
      ]} /></div>`}<//>
    ${setUp.length > 0 && html`<${Panel} title="Set up from its card"><${Pairs} pairs=${setUp.map(([name, value]) => [plain(name), plain(typeof value === "object" ? JSON.stringify(value) : value)])} /><//>`}
    <${Panel} title="For programs"><p><a href="/api/v1/status">Status as JSON</a> · <a href="/metrics">Metrics for Prometheus</a></p>
      <p class="soft small">A complete check of network, certificates, card and configuration: <code>waypost doctor</code>.</p><//>
  </div>`;
}
