// System: version, event loop, log.

import { html } from "./html.js";
import { Pairs, Panel } from "./parts.js";
import { duration, number } from "./text.js";

export function System({ figures: status }) {
  if (status === null) return null;
  const ms = (seconds) => `${Math.round(1000 * (seconds ?? 0))} ms`;
  return html`<div class="grid">
    <${Panel} title="Hub" span=${6}><${Pairs} pairs=${[
      ["version", status.version],
      ["running for", duration((status.now - status.started_at) / 1000)],
      ["gateways known", number(status.gateways.known)],
      ["gateways connected", number(status.gateways.connected)],
      ...(status.loop ? [["largest delay of the event loop", `${ms(status.loop.lag_s)} in the last minute, ${ms(status.loop.lag_s_max)} since the start`]] : []),
      ...(status.log ? [["log lines dropped", number(status.log.dropped)]] : []),
    ]} /><//>
    <${Panel} title="For programs" span=${6}><p><a href="/api/v1/status">Status as JSON</a> · <a href="/metrics">Metrics for Prometheus</a></p><//>
  </div>`;
}
