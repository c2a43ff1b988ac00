// Roll-outs of configurations: waves, what failed and why.

import { get, post } from "./api.js";
import { html, useState } from "./html.js";
import { ActionButton, Empty, ErrorNote, Meter, Name, Pairs, Panel, Pill, Time } from "./parts.js";
import { address } from "./route.js";
import { useSession } from "./session.js";
import { useEvery } from "./state.js";
import { PagedTable } from "./table.js";
import { counted, number, plain } from "./text.js";

const TONES = { running: "good", done: "good", halted: "bad", paused: "warn", aborted: "idle" };
const SHADES = { done: "mg", confirmed: "mg", failed: "mb", waiting: "mi", sent: "m2", trying: "m2" };

const ORDER = { failed: 0, done: 2, confirmed: 2 };
const SHOWN_MAX = 200;

export function Rollouts({ rest, figures: status }) {
  if (status === null) return null;
  if (status.dev) {
    return html`<${Panel} title="Roll-outs"><${Empty} title="This hub configures no gateways">In development mode it has no authority that could sign
      configurations. Run the hub without <code>--dev</code>.<//><//>`;
  }
  return rest ? html`<${Rollout} id=${rest} />` : html`<${List} />`;
}

const COLUMNS = [
  { name: "Roll-out", cell: (row) => html`<a href=${address("rollouts", row.id)}>${row.note ? html`<${Name}>${row.note}<//>` : `Roll-out ${row.id.slice(0, 8)}`}</a><small>${row.selector ? plain(row.selector) : ""}</small>` },
  { name: "State", cell: (row) => html`<${Pill} tone=${TONES[row.state]}>${row.state}<//>` },
  { name: "Waves", wide: true, cell: (row) => html`<${Waves} rollout=${row} />` },
  { name: "Failed", numeric: true, optional: true, cell: (row) => html`<span class=${row.gateways.failed ? "bad-t" : ""}>${number(row.gateways.failed ?? 0)}</span>` },
  { name: "Started", numeric: true, cell: (row) => html`<${Time} at=${row.made_at} /><small><${Name}>${row.made_by}<//></small>` },
];

function List() {
  return html`<${Panel} title="Roll-outs" flush><${PagedTable} label="roll-outs" path="/api/v1/rollouts" items="rollouts" columns=${COLUMNS} id=${(row) => row.id} search=${false}
    empty=${html`<${Empty} title="No roll-out yet">A roll-out brings a configuration to many gateways in
      waves, and stops by itself when gateways fail. <a href=${address("configuration", "", { edit: "new" })}>Start from a configuration</a><//>`} /><//>`;
}

function Waves({ rollout }) {
  return html`<div class="stack">${rollout.stages.map((stage) => {
    const total = Object.values(stage.gateways).reduce((sum, count) => sum + count, 0);
    const text = Object.entries(stage.gateways).map(([phase, count]) => `${number(count)} ${phase}`).join(" · ");
    return html`<div><p class="label"><span>wave ${stage.wave} of ${rollout.waves}${stage.for ? `: ${plain(stage.for)}` : ""}</span><span>${text}</span></p>
      <${Meter} parts=${Object.entries(stage.gateways).map(([phase, count]) => [count / total, SHADES[phase] ?? "m2"])} label=${text} /></div>`;
  })}${rollout.why && html`<p class="note-warn">${plain(rollout.why)}</p>`}</div>`;
}

function Rollout({ id }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const { manage } = useSession();
  const path = `/api/v1/rollouts/${encodeURIComponent(id)}`;
  async function load() {
    try {
      setFound(await get(path));
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }
  useEvery(3, load, [id]);
  const back = html`<p><a href=${address("rollouts")}>All roll-outs</a></p>`;
  if (found === null) return html`${back}<${ErrorNote} error=${error} retry=${load} />`;
  const act = (verb) => () => post(`${path}/${verb}`);
  const open = ["running", "paused", "halted"].includes(found.state);
  const members = [...(found.members ?? [])].sort((one, other) => (ORDER[one.phase] ?? 1) - (ORDER[other.phase] ?? 1) || one.wave - other.wave);
  const failed = members.filter((one) => one.phase === "failed");
  return html`${back}<${ErrorNote} error=${error} />
    <${Panel} title=${found.note || `Roll-out ${found.id}`} extra=${html`<${Pill} tone=${TONES[found.state]}>${found.state}<//>`}>
      <${Waves} rollout=${found} />
      ${failed.length > 0 && html`<p class="small"><span class="bad-t">${counted(failed.length, "gateway")} failed.</span> ${open ? html`Go on leaves ${failed.length === 1 ? "it" : "them"} out; the reason is below.` : ""}</p>`}
      ${open && html`<div class="do">
        ${found.state === "running"
          ? html`<${ActionButton} label="Pause" allowed=${manage} action=${act("pause")} onDone=${load} />`
          : html`<${ActionButton} label="Go on" main allowed=${manage} action=${act("resume")} onDone=${load} />`}
        <${ActionButton} label="Abort" danger allowed=${manage} action=${act("abort")} onDone=${load}
          confirm="No further gateway gets this configuration. Gateways that have it keep it." /></div>`}
    <//>
    <${Panel} title="Gateways" flush><div class="scroll" tabindex="0" role="region" aria-label="Table of gateways"><table class="cards">
      <thead><tr><th scope="col">Gateway</th><th scope="col" class="n">Wave</th><th scope="col">Phase</th><th scope="col">Reason</th></tr></thead>
      <tbody>${members.slice(0, SHOWN_MAX).map((one) => html`<tr key=${one.gateway}><th scope="row"><a href=${address("fleet", `${found.tenant}/${one.gateway}`)}><${Name}>${one.gateway}<//></a></th><td class="n" data-label="Wave">${one.wave}</td>
        <td data-label="Phase" class=${one.phase === "failed" ? "bad-t" : ""}>${one.phase}</td><td class="what">${plain(one.why ?? "")}</td></tr>`)}</tbody></table></div>
      ${members.length > SHOWN_MAX && html`<p class="table-bar soft small">${number(SHOWN_MAX)} of ${number(members.length)}, failed ones first</p>`}<//>`;
}
