// Campaigns: software updates of devices in waves, what failed and why.

import { get, post } from "./api.js";
import { html, useState } from "./html.js";
import { ActionButton, Choice, Empty, ErrorNote, Meter, Name, Pairs, Panel, Pill, Time } from "./parts.js";
import { address } from "./route.js";
import { useSession } from "./session.js";
import { useEvery } from "./state.js";
import { PagedTable } from "./table.js";
import { counted, number, plain } from "./text.js";

const TONES = { running: "good", done: "good", halted: "bad", paused: "warn", aborted: "idle" };
const SHADES = { done: "mg", confirmed: "mg", failed: "mb", "left-out": "mb", sent: "m2", waiting: "mi", away: "mi" };
const PHASES = [["", "All"], ["failed", "Failed"], ["waiting", "Waiting"], ["sent", "Offered"], ["away", "Away"], ["confirmed", "Confirmed"], ["done", "Done"],
  ["superseded", "Superseded"], ["forgotten", "Forgotten"], ["left-out", "Left out"]];

export function Campaigns({ rest }) {
  return rest ? html`<${Campaign} id=${rest} />` : html`<${List} />`;
}

const COLUMNS = [
  { name: "Campaign", cell: (row) => html`<a href=${address("campaigns", row.id)}><${Name}>${`${row.artefact} ${row.version}`}<//></a><small>${plain(row.note || row.selector || "")}</small>` },
  { name: "State", cell: (row) => html`<${Pill} tone=${TONES[row.state]}>${row.state}<//>` },
  { name: "Devices", wide: true, cell: (row) => html`<${Devices} devices=${row.devices} label=${`wave ${row.wave} of ${row.stages.length}`} />` },
  { name: "Failed", numeric: true, optional: true, cell: (row) => html`<span class=${row.devices.failed ? "bad-t" : ""}>${number(row.devices.failed ?? 0)}</span>` },
  { name: "Started", numeric: true, cell: (row) => html`<${Time} at=${row.made_at} /><small><${Name}>${row.made_by}<//></small>` },
];

function List() {
  return html`<${Panel} title="Campaigns" flush><${PagedTable} label="campaigns" path="/api/v1/campaigns" items="campaigns" columns=${COLUMNS} id=${(row) => row.id} search=${false}
    empty=${html`<${Empty} title="No campaign yet">A campaign updates the devices behind gateways in waves, and stops by itself when devices fail. Start one with${" "}
      <code>waypost campaign start NAME VERSION</code>.<//>`} /><//>`;
}

/** Devices by phase, as a bar with its numbers. */
function Devices({ devices, label }) {
  const total = Object.values(devices).reduce((sum, count) => sum + count, 0);
  const text = Object.entries(devices).map(([phase, count]) => `${number(count)} ${phase}`).join(" · ");
  return html`<div><p class="label"><span>${label}</span><span>${text}</span></p>
    <${Meter} parts=${Object.entries(devices).map(([phase, count]) => [total ? count / total : 0, SHADES[phase] ?? "m2"])} label=${text} /></div>`;
}

function Campaign({ id }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const { manage } = useSession();
  const path = `/api/v1/campaigns/${encodeURIComponent(id)}`;
  async function load() {
    try {
      setFound(await get(path));
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }
  useEvery(3, load, [id]);
  const back = html`<p><a href=${address("campaigns")}>All campaigns</a></p>`;
  if (found === null) return html`${back}<${ErrorNote} error=${error} retry=${load} />`;
  const act = (verb) => () => post(`${path}/${verb}`);
  const waits = ["paused", "halted"].includes(found.state);
  const failed = found.devices.failed ?? 0;
  return html`${back}<${ErrorNote} error=${error} />
    <${Panel} title=${`${found.artefact} ${found.version}`} extra=${html`<${Pill} tone=${TONES[found.state]}>${found.state}<//>`}>
      <div class="stack">${found.stages.map((stage) => html`<${Devices} devices=${stage.devices}
        label=${`wave ${stage.wave} of ${found.stages.length}${stage.text ? `: ${plain(stage.text)}` : ""}`} />`)}
        ${found.why && html`<p class="note-warn">${plain(found.why)}</p>`}</div>
      ${failed > 0 && html`<p class="small"><span class="bad-t">${counted(failed, "device")} failed.</span> ${waits ? html`Go on leaves ${failed === 1 ? "it" : "them"} out; the reason is below.` : ""}</p>`}
      <${Pairs} pairs=${facts(found)} />
      ${found.offering && html`<div class="do">
        ${found.state === "running" && html`<${ActionButton} label="Pause" allowed=${manage} action=${act("pause")} onDone=${load} />`}
        ${waits && html`<${ActionButton} label="Go on" main allowed=${manage} action=${act("resume")} onDone=${load} />`}
        <${ActionButton} label="Stop" danger allowed=${manage} action=${act("stop")} onDone=${load}
          confirm="Its offers are withdrawn for good. Devices keep what they have installed." /></div>`}
    <//>
    <${Members} path=${path} devices=${found.devices} />`;
}

function facts(found) {
  return [
    ["Devices", found.selector ? plain(found.selector) : "by name"],
    ["Waits for a device", `${number(Math.round(found.away_s / 3600))} h without a report`],
    ["Halts after more than", counted(found.failures_max, "failure")],
    ["Ends", found.ends_at ? html`<${Time} at=${found.ends_at} />` : "when a later one takes over, or it is stopped"],
    ["Note", found.note ? plain(found.note) : "none"],
  ];
}

const DEVICES = [
  { name: "Device", cell: (row) => html`<${Name}>${row.device}<//>` },
  { name: "Wave", numeric: true, cell: (row) => number(row.wave) },
  { name: "Phase", cell: (row) => html`<span class=${row.phase === "failed" ? "bad-t" : ""}>${row.phase}</span>` },
  { name: "Last report", cell: (row) => (row.report ? html`${row.report}<small><${Time} at=${row.reported_at} /></small>` : "none") },
  { name: "Reason", wide: true, cell: (row) => plain(row.why) },
];

function Members({ path, devices }) {
  const [phase, setPhase] = useState("");
  const options = PHASES.filter(([key]) => key === phase || key === "" || devices[key] > 0);
  return html`<${Panel} title="Devices" flush><${PagedTable} key=${phase} label="devices" path=${`${path}/devices`} items="devices" query=${{ phase }} columns=${DEVICES} id=${(row) => row.device}
    search=${false} filters=${html`<${Choice} label="Phase" options=${options} value=${phase} choose=${setPhase} />`} empty=${html`<p class="soft">No device is in this phase.</p>`} /><//>`;
}
