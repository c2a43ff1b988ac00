// One configuration for selected gateways: the plan first, then a roll-out in waves.

import { sendYaml, withQuery } from "./api.js";
import { Plan } from "./configuration.js";
import { html, useState } from "./html.js";
import { ActionButton, Dialog, ErrorNote } from "./parts.js";
import { address, go } from "./route.js";
import { useSession } from "./session.js";
import { counted, shellWord } from "./text.js";

const EXAMPLE = "# Resources as `waypost apply` takes them; an empty text gives gateways their own configuration.\n";
/** Characters that mean something in a pattern of names. */
const SPECIAL = /[,*?[\]]/;

/** @param {{gateways: {name: string, tenant: string}[], close: () => void}} properties */
export function Configure({ gateways, close }) {
  const [draft, setDraft] = useState({ text: EXAMPLE, note: "", waves: "1,10%,100%" });
  const [plan, setPlan] = useState(null);
  const [error, setError] = useState(null);
  const { manage } = useSession();
  const tenants = [...new Set(gateways.map((one) => one.tenant))];
  const strange = gateways.find((one) => SPECIAL.test(one.name));
  const names = gateways.map((one) => one.name).join(",");
  const query = { tenant: tenants[0], gateways: names, why: draft.note };
  const change = (field) => (event) => {
    setDraft({ ...draft, [field]: event.target.value });
    if (field === "text") setPlan(null);
  };
  async function check(event) {
    event.preventDefault();
    setError(null);
    try {
      setPlan(await sendYaml(withQuery("/api/v1/plans", query), draft.text));
    } catch (failed) {
      setPlan(null);
      setError(failed);
    }
  }
  const title = `Configure ${counted(gateways.length, "gateway")}`;
  const refused = tenants.length > 1 ? "They belong to several tenants: choose those of one." : strange ? `${strange.name} has a character that means something in a pattern: configure it by its labels.` : "";
  if (refused) return html`<${Dialog} title=${title} close=${close}><p>${refused}</p><div class="do"><button class="button main" onClick=${close}>Close</button></div><//>`;
  return html`<${Dialog} title=${title} close=${close}><form class="stack" onSubmit=${check}>
      <label class="field">Resources<textarea class="input mono code" rows="10" spellcheck="false" value=${draft.text} onInput=${change("text")}></textarea></label>
      <label class="field">Note<input class="input" maxlength="200" value=${draft.note} onInput=${change("note")} /></label>
      <${ErrorNote} error=${error} />
      <div class="do"><button class="button ${plan ? "" : "main"}">Show what changes</button><button type="button" class="button" onClick=${close}>Cancel</button></div></form>
    ${plan && html`<${Plan} plan=${plan} /><label class="field">Waves: numbers or shares; 100% is all at once<input class="input" value=${draft.waves} onInput=${change("waves")} /></label>
      <div class="do"><${ActionButton} label="Start a roll-out" main allowed=${manage && plan.chosen > 0} onDone=${(made) => go(address("rollouts", made.id))}
        action=${() => sendYaml(withQuery("/api/v1/rollouts", { ...query, waves: draft.waves }), draft.text)} /></div>`}
    <p class="soft small">The same: <code class="name">waypost rollout start -f FILE ${gateways.slice(0, 3).map((one) => shellWord(one.name)).join(" ")}${gateways.length > 3 ? " …" : ""}</code></p><//>`;
}
