// Configuration of gateways by labels: order and overlap, editor with check and plan, start of a roll-out.

import { NEW, del, get, sendYaml, withQuery } from "./api.js";
import { Diff } from "./diff.js";
import { html, useState } from "./html.js";
import { ActionButton, Empty, ErrorNote, Name, Panel, Pill, Time } from "./parts.js";
import { address, go } from "./route.js";
import { useSession } from "./session.js";
import { useEvery } from "./state.js";
import { counted, number, plain } from "./text.js";

const PATH = "/api/v1/configurations";
const TONES = { confirmed: "good", trying: "warn", updating: "warn", waiting: "warn", refused: "bad", "rolled-back": "bad", none: "idle" };

export function Configuration({ query, figures: status }) {
  if (status === null) return null;
  if (status.dev) {
    return html`<${Panel} title="Configuration"><${Empty} title="This hub configures no gateways">In development mode it has no authority that could sign
      configurations. Run the hub without <code>--dev</code>.<//><//>`;
  }
  return query.edit !== undefined ? html`<${Editor} key=${query.edit} selector=${query.edit} />` : html`<${Selectors} /><${States} />`;
}

function useLoaded(path) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  async function load() {
    try {
      setFound(await get(path));
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }
  useEvery(5, load, [path]);
  return { found, error, load };
}

function Selectors() {
  const { found, error, load } = useLoaded("/api/v1/selectors");
  const { manage } = useSession();
  const selectors = found?.selectors ?? [];
  const fresh = html`<a class="button main" href=${address("configuration", "", { edit: "new" })}>New configuration…</a>`;
  return html`<${Panel} title="By labels, the latest first" flush extra=${selectors.length > 0 && fresh}><${ErrorNote} error=${error} retry=${load} />
    ${found && selectors.length === 0 && html`<div class="body"><${Empty} title="No labels have a configuration">A configuration for labels, as in site=lyon, goes to every gateway with them, now and later. ${fresh}<//></div>`}
    ${selectors.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Table of selectors"><table class="cards">
      <thead><tr><th scope="col">Labels</th><th scope="col" class="n">Gateways</th><th scope="col">Contents</th><th scope="col">Set</th><th scope="col"><span class="skip">Action</span></th></tr></thead>
      <tbody>${selectors.map((one) => html`<tr key=${one.selector}><th scope="row"><a href=${address("configuration", "", { edit: one.selector })}><span class="tag">${plain(one.selector)}</span></a></th>
        <td class="n" data-label="Gateways"><a href=${address("fleet", "", { show: "all", selector: one.selector })}>${number(one.effective)}</a>${one.matches > one.effective
          ? html`<small>of ${number(one.matches)}: ${Object.entries(one.hidden_by).map(([other, count]) => html`${number(count)} take <span class="tag">${plain(other)}</span> `)}</small>` : null}</td>
        <td class="what">${Object.entries(one.kinds).map(([kind, count]) => `${number(count)} ${plain(kind)}`).join(", ") || "nothing"}${one.note ? html`<small>${plain(one.note)}</small>` : null}</td>
        <td data-label="Set"><${Time} at=${one.said_at} /><small><${Name}>${one.made_by}<//></small></td>
        <td><${ActionButton} label="End" danger allowed=${manage} onDone=${load} action=${() => del(withQuery(PATH, { selector: one.selector }), one.etag)}
          confirm=${`${counted(one.effective, "gateway")} with ${plain(one.selector)} get the configuration of the next row that chooses them, or their own again.`} /></td></tr>`)}</tbody></table></div>`}
    <p class="table-bar soft small">A gateway gets the first row that chooses it.</p><//>`;
}

function States() {
  const { found, error, load } = useLoaded(withQuery(PATH, { state: "unconfirmed", limit: 100 }));
  const bad = found?.gateways ?? [];
  return html`<${Panel} title="Gateways without their newest version" flush><${ErrorNote} error=${error} retry=${load} />
    ${found && bad.length === 0 && html`<div class="body"><${Empty} title="Every gateway has its newest version">${counted(found.configured, "gateway")} ${found.configured === 1 ? "has" : "have"} a configuration from this hub.<//></div>`}
    ${bad.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Table of gateways"><table class="cards">
      <thead><tr><th scope="col">Gateway</th><th scope="col">State</th><th scope="col" class="n">Wanted</th><th scope="col" class="n">In force</th></tr></thead>
      <tbody>${bad.map((one) => html`<tr key=${`${one.tenant}/${one.gateway}`}><th scope="row"><a href=${address("fleet", `${one.tenant}/${one.gateway}`)}><${Name}>${one.gateway}<//></a></th>
        <td class="what"><${Pill} tone=${TONES[one.state]}>${one.state}<//>${one.why ? html` <span class="small">${plain(one.why)}</span>` : null}</td>
        <td class="n" data-label="Wanted">${one.wanted}</td><td class="n" data-label="In force">${one.version || "–"}</td></tr>`)}</tbody></table></div>
      ${found.total > bad.length && html`<p class="table-bar soft small">${number(bad.length)} of ${number(found.total)}</p>`}`}<//>`;
}

const EXAMPLE = "# Resources as `waypost apply` takes them; an empty text gives gateways their own configuration.\n";

function Editor({ selector }) {
  const fresh = selector === "new";
  const [draft, setDraft] = useState({ selector: fresh ? "" : selector, text: fresh ? EXAMPLE : null, etag: "", note: "", waves: "1,10%,100%" });
  const [plan, setPlan] = useState(null);
  const [error, setError] = useState(null);
  const { manage } = useSession();
  useEvery(3_600, async () => {
    if (draft.text !== null) return;
    try {
      const known = await get(withQuery("/api/v1/selectors", { selector }));
      setDraft({ ...draft, text: known.yaml, etag: known.etag });
    } catch (failed) {
      setError(failed);
    }
  });
  const change = (field) => (event) => {
    setDraft({ ...draft, [field]: event.target.value });
    if (field !== "note" && field !== "waves") setPlan(null);
  };
  const query = { selector: draft.selector, why: draft.note };
  const hidden = (draft.text ?? "").includes("(hidden)");
  async function check() {
    setError(null);
    try {
      setPlan(await sendYaml(withQuery("/api/v1/plans", query), draft.text));
    } catch (failed) {
      setPlan(null);
      setError(failed);
    }
  }
  const back = html`<p><a href=${address("configuration")}>All configurations</a></p>`;
  if (draft.text === null) return html`${back}<${ErrorNote} error=${error} />`;
  return html`${back}<${Panel} title=${fresh ? "New configuration" : plain(selector)}><form class="stack" onSubmit=${(event) => { event.preventDefault(); check(); }}>
      <label class="field">Gateways with labels, as in site=lyon,ring!=canary<input class="input" required value=${draft.selector} readonly=${!fresh} onInput=${change("selector")} /></label>
      <label class="field">Resources<textarea class="input mono code" rows="16" spellcheck="false" onInput=${change("text")}>${draft.text}</textarea></label>
      <label class="field">Note<input class="input" maxlength="200" value=${draft.note} onInput=${change("note")} /></label>
      ${hidden && html`<p class="note-warn">Secrets are hidden. Write them again before you send this.</p>`}
      <${ErrorNote} error=${error} />
      <div class="do"><button class="button ${plan ? "" : "main"}">Check</button></div></form>
    ${plan && html`<hr class="line" /><${Plan} plan=${plan} /><hr class="line" /><div class="stack">
      <label class="field">Waves of a roll-out: numbers, shares or labels<input class="input" value=${draft.waves} onInput=${change("waves")} /></label>
      <div class="do"><${ActionButton} label="Start a roll-out" main allowed=${manage && plan.chosen > 0} onDone=${(made) => go(address("rollouts", made.id))}
          action=${() => sendYaml(withQuery("/api/v1/rollouts", { ...query, waves: draft.waves }), draft.text)} />
        <${ActionButton} label=${`Send to all ${number(plan.chosen)} at once`} allowed=${manage} onDone=${() => go(address("configuration"))}
          confirm=${`${counted(plan.changed, "gateway")} would change at once. A gateway that loses the hub by it goes back by itself.`}
          action=${() => sendYaml(withQuery(PATH, query), draft.text, fresh ? NEW : draft.etag)} /></div>
      <p class="soft small">The same: <code>waypost rollout start --selector ${draft.selector} -f FILE</code></p></div>`}<//>`;
}

export function Plan({ plan }) {
  const cannot = plan.excluded ? `, ${number(plan.excluded)} cannot` : "";
  return html`<section class="stack" aria-label="Plan" role="status">
    <p><b>${counted(plan.changed, "gateway")} would change${cannot}.</b> <span class="soft">${number(plan.unchanged)} ${plan.unchanged === 1 ? "has" : "have"} these resources already.${" "}
      ${number(plan.connected)} of ${number(plan.changed + plan.unchanged)} ${plan.connected === 1 ? "is" : "are"} connected; the others get it when they connect.</span></p>
    ${Object.keys(plan.overlaps).length > 0 && html`<p class="small">Takes precedence over ${Object.entries(plan.overlaps).map(([other, count]) => html`<span class="tag">${plain(other)}</span> at ${counted(count, "gateway")} `)}</p>`}
    ${plan.excluded_gateways.map((one) => html`<p key=${one.gateway} class="small"><${Name}>${one.gateway}<//>: ${plain(one.why)}</p>`)}
    ${plan.differences.map((one) => html`<details key=${one.example} open=${plan.differences.length === 1}><summary class="small">${counted(one.gateways, "gateway")}, as <${Name}>${one.example}<//></summary>
      <${Diff} text=${one.diff} label=${`Difference at ${plain(one.example)}`} /></details>`)}
  </section>`;
}
