// Devices: who is connected, who is silent, and who is refused and why.

import { del, get, withQuery } from "./api.js";
import { html, useState } from "./html.js";
import { ActionButton, Choice, Empty, ErrorNote, Name, Pairs, Panel, Pill, Time } from "./parts.js";
import { address, go } from "./route.js";
import { useSession } from "./session.js";
import { useEvery } from "./state.js";
import { PacketTrace } from "./packet_trace.js";
import { PagedTable } from "./table.js";
import { duration, number, plain } from "./text.js";
import { AllowRight, NewPassword } from "./user_changes.js";

const SHOWN = [["connected", "Connected"], ["silent", "Silent"], ["refused", "Refused"], ["absent", "Absent"]];
const TONES = { connected: "good", silent: "warn", absent: "idle" };

/** Milliseconds of a time that the API gives in seconds. */
const ms = (seconds) => (typeof seconds === "number" ? seconds * 1000 : null);

/** Address of the packet trace of a client, which need not be connected. */
const follow = (name) => address("devices", "", { follow: name });

const CLIENTS = [
  { name: "Device", sort: "name", order: "ascending", cell: (row) => html`<a href=${address("devices", row.id)}><${Name}>${row.name}<//></a><small><${Name}>${row.user}<//></small>` },
  { name: "State", wide: true, cell: (row) => html`<${Pill} tone=${TONES[row.state]}>${row.state}<//>${row.why ? html` <span class="small soft">${plain(row.why)}</span>` : null}` },
  { name: "From", optional: true, cell: (row) => html`<span class="mono">${plain(row.remote || "–")}</span><small>${plain(row.protocol)}${row.tls ? `, ${plain(row.tls)}` : ""}</small>` },
  { name: "In", sort: "in", order: "descending", numeric: true, cell: (row) => number(row.in) },
  { name: "Out", sort: "out", order: "descending", numeric: true, cell: (row) => number(row.out) },
  { name: "Waiting", sort: "queued", order: "descending", numeric: true, cell: (row) => number(row.queued) },
  { name: "Last message", sort: "last", order: "descending", numeric: true, cell: (row) => html`<${Time} at=${ms(row.last_at)} relative />` },
];

const REFUSALS = [
  { name: "Device", cell: (row) => html`<${Name}>${row.user || row.client || "unknown"}<//><small class="mono">${plain(row.remote)}</small>` },
  { name: "Reason", wide: true, cell: (row) => html`<span class="bad-t">${plain(row.what)}</span>${row.address ? html` <${Name} mono>${row.address}<//>` : null}
    <small>Next: ${plain(row.next_step)}</small><span class="do"><${Fix} refusal=${row} /><a class="button" href=${follow(row.client || row.user || row.remote)}>Follow its packets</a></span>` },
  { name: "Times", numeric: true, cell: (row) => number(row.count) },
  { name: "First", numeric: true, optional: true, cell: (row) => html`<${Time} at=${ms(row.first_at)} />` },
  { name: "Last", numeric: true, cell: (row) => html`<${Time} at=${ms(row.last_at)} relative />` },
];

/** Button that removes the cause of a refusal. */
function Fix({ refusal }) {
  const { manage } = useSession();
  const [open, setOpen] = useState(false);
  const close = () => setOpen(false);
  const missing = manage ? "" : "needs the right manage:#";
  if (refusal.reason === "unknown-user" && refusal.user) {
    return manage && html`<a class="button" href=${address("users", "", { add: refusal.user })}>Add this user…</a>`;
  }
  if (refusal.reason === "wrong-password") {
    return html`<button class="button" disabled=${!manage} title=${missing} onClick=${() => setOpen(true)}>New password…</button>
      ${open && html`<${NewPassword} name=${refusal.user} close=${close} />`}`;
  }
  return refusal.right ? html`<button class="button" disabled=${!manage} title=${missing} onClick=${() => setOpen(true)}>Allow this…</button>
    ${open && html`<${AllowRight} name=${refusal.user} right=${refusal.right} close=${close} />`}` : null;
}

export function Devices({ rest, query }) {
  if (query.follow !== undefined) return html`<${PacketTrace} key=${query.follow} client=${query.follow} />`;
  if (rest) return html`<${Device} id=${rest} />`;
  const shown = query.show ?? "connected";
  const choice = html`<${Choice} label="Show" options=${SHOWN} value=${shown} choose=${(value) => go(address("devices", "", { show: value }), true)} />`;
  return html`<${Panel} title="Devices" extra=${choice} flush>
    ${shown === "refused"
      ? html`<${PagedTable} key="refused" label="refusals" path="/api/v1/refusals" items="refusals" columns=${REFUSALS}
          id=${(row) => row.number} empty=${html`<${Empty} title="Nobody was refused">A wrong password, a missing right or a limit
          shows up here, with where it came from and what to do.<//>`} />`
      : html`<${PagedTable} key=${shown} label="devices" path="/api/v1/clients" items="clients" query=${{ state: shown }} columns=${CLIENTS}
          id=${(row) => row.id} empty=${nobody(shown)} />`}
  <//>`;
}

function nobody(shown) {
  if (shown === "silent") return html`<${Empty} title="No device is silent">A device is silent when five times its usual pause has passed.<//>`;
  if (shown === "absent") return html`<${Empty} title="No device has a session without a connection">Sessions of devices that are away are listed here, with what waits for them.<//>`;
  return html`<${Empty} title="No device is connected">Add one: <code>waypost user add pump7 --allow send:plant/#</code>. A device that is
    refused is under <a href=${address("devices", "", { show: "refused" })}>Refused</a>.<//>`;
}

function Device({ id }) {
  const [device, setDevice] = useState(null);
  const [error, setError] = useState(null);
  const { manage } = useSession();
  const path = `/api/v1/clients/${encodeURIComponent(id)}`;
  async function load() {
    try {
      setDevice(await get(path));
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }
  useEvery(2, load, [id]);
  const back = html`<p><a href=${address("devices")}>All devices</a></p>`;
  if (error?.status === 404) {
    return html`${back}<${Panel} title="Device"><${Empty} title="This device is not connected, and has no session">It is listed again when it
      connects.<//><//>`;
  }
  if (device === null) return html`${back}<${ErrorNote} error=${error} retry=${load} />`;
  const absent = device.state === "absent";
  return html`${back}<${ErrorNote} error=${error} />
    <div class="grid">
      <${Panel} title=${plain(device.name)} span=${6} extra=${html`<${Pill} tone=${TONES[device.state]}>${device.state}<//>`}>
        ${device.why && html`<p class="soft">${plain(device.why)}</p>`}
        <${Pairs} pairs=${[
          ["user", html`<${Name}>${device.user || "–"}<//>`],
          ["from", html`<span class="mono">${plain(device.remote || "–")}</span>`],
          ["protocol", `${plain(device.protocol)}${device.tls ? `, ${plain(device.tls)}` : ""}`],
          ["connected", html`<${Time} at=${ms(device.connected_at)} />`],
          ["messages in, out", `${number(device.in)}, ${number(device.out)}`],
          ["waiting for it", number(device.queued)],
          ["last message", html`<${Time} at=${ms(device.last_at)} relative />`],
          ["usually sends every", duration(device.usual_interval_s)],
        ]} />
        <div class="do">
          <a class="button" href=${follow(device.name)}>Follow its packets</a>
          ${!absent && html`<${ActionButton} label="Disconnect" allowed=${manage} onDone=${load}
            confirm="The connection is closed. A device usually connects again at once; its session and what waits for it stay."
            action=${() => del(withQuery(path, { session: "keep" }))} />`}
          ${device.id.startsWith("mqtt/") && html`<${ActionButton} label="End its session" danger allowed=${manage} onDone=${() => go(address("devices"))}
            confirm=${`The session ends: its subscriptions and ${number(device.queued)} waiting messages are given up, and entered in the ledger.`}
            action=${() => del(withQuery(path, { session: "end" }))} />`}
        </div>
      <//>
      <${Panel} title="Subscriptions" span=${6}>${device.filters.length === 0
        ? html`<p class="soft">It subscribes to nothing.</p>`
        : html`<${Pairs} pairs=${device.filters.map((each) => [html`<${Name} mono>${each.filter}<//>`,
            `${each.qos === null ? "" : `QoS ${each.qos}`}${each.queued ? `, ${number(each.queued)} wait` : ""}`])} />`}<//>
      ${device.rights.length > 0 && html`<${Panel} title="Rights of its user" span=${6}><p>${device.rights.map((right) => html`<span class="tag">${plain(right)}</span> `)}</p><//>`}
      ${device.refusals.length > 0 && html`<${Panel} title="What was refused" span=${6}><${Pairs} pairs=${device.refusals.map((each) => [
        html`<span class="bad-t">${plain(each.what)}</span><br /><span class="small">Next: ${plain(each.next_step)}</span>`,
        html`${number(each.count)} times, last <${Time} at=${ms(each.last_at)} relative />`])} /><//>`}
    </div>`;
}
