// Identity of a gateway: certificates, token, attestation; and their end.

import { post, withQuery } from "./api.js";
import { useRead } from "./gold.js";
import { html, useState } from "./html.js";
import { Dialog, Empty, ErrorNote, Name, Pairs, Panel, Pill, Time } from "./parts.js";
import { address, go } from "./route.js";
import { counted, duration, plain } from "./text.js";

const TONES = { valid: "good", ended: "idle", revoked: "bad" };
const SOON_MS = 14 * 86_400_000;
const DIGITS = 16;

/** @param {{tenant: string, gateway: string, manage: boolean, enrols: boolean, connected: boolean}} properties */
export function Identity({ tenant, gateway, manage, enrols, connected }) {
  const { found, error, missing, load } = useRead(enrols ? withQuery(`/api/v1/identities/${encodeURIComponent(gateway)}`, { tenant }) : "");
  const [doing, setDoing] = useState("");
  if (!enrols || missing) {
    return html`<${Panel} title="Identity"><${Empty} title="It has no certificate from this hub">${enrols ? "It enrols with a token." : "In development mode, and with certificates of another authority, gateways do not enrol."}<//><//>`;
  }
  if (!found) return html`<${ErrorNote} error=${error} retry=${load} />`;
  const valid = found.certificates.filter((one) => one.state === "valid");
  const button = (action, label, allowed, why) => html`<button class="button danger" disabled=${!manage || !allowed} title=${manage ? (allowed ? "" : why) : "needs the right manage:#"} onClick=${() => setDoing(action)}>${label}</button>`;
  return html`<div class="grid"><${Panel} title="Identity" span=${6}>
      <${Pairs} pairs=${[
        ["address", found.remote ? html`<span class="mono">${plain(found.remote)}</span>${connected ? "" : " (last)"}` : "–"],
        ["certificate", valid.length ? html`<span class="mono name">${valid[0].serial}</span>` : html`<span class="bad-t">none is valid</span>`],
        ["issued by", valid.length ? html`<${Name}>${valid[0].issuer || "unknown"}<//>` : "–"],
        ["valid until", valid.length ? html`<${Until} at=${valid[0].ends_at} />` : "–"],
        ["enrolled with token", html`<span class="mono">${found.certificates.find((one) => one.token)?.token ?? "–"}</span>`],
      ]} />
      <div class="do">${button("revoke", "Revoke…", valid.length > 0, "it has no valid certificate")}
        ${button("forget", "Forget…", valid.length === 0 && !connected, "revoke it first: it can connect")}
        <a class="button" href=${address("enrolment", "", { gateway })}>Replace it…</a></div><//>
    <${Attested} found=${found} />
    <${Panel} title="Certificates" flush><div class="scroll" tabindex="0" role="region" aria-label="Table of certificates"><table class="cards">
      <thead><tr><th scope="col">Serial number</th><th scope="col">State</th><th scope="col">For</th><th scope="col" class="n">Issued</th><th scope="col" class="n">Until</th></tr></thead>
      <tbody>${found.certificates.map((one) => html`<tr key=${one.serial}><th scope="row" class="mono" title=${one.serial}>${one.serial.slice(0, DIGITS)}…</th>
        <td class="what"><${Pill} tone=${TONES[one.state]}>${one.state}<//></td><td data-label="For">${one.token ? html`token <span class="mono">${one.token}</span>` : "renewal"}</td>
        <td class="n" data-label="Issued"><${Time} at=${one.begins_at} /></td><td class="n" data-label="Until"><${Time} at=${one.revoked_at ?? one.ends_at} /></td></tr>`)}</tbody></table></div><//></div>
    ${doing && html`<${Ending} action=${doing} tenant=${tenant} gateway=${gateway} count=${valid.length} close=${() => setDoing("")} done=${() => { setDoing(""); load(); }} />`}`;
}

function Until({ at }) {
  const left = at - Date.now();
  return html`<${Time} at=${at} /> <span class=${left < SOON_MS ? "warn-t" : "soft"}>${left > 0 ? `in ${duration(left / 1000)}; the gateway renews it by itself` : "it has ended"}</span>`;
}

function Attested({ found }) {
  const facts = found.attestation;
  if (!facts) {
    return html`<${Panel} title="Attestation" span=${6}><${Empty} title="It has not attested itself">A gateway that was set up by the file on its card says what it runs.<//><//>`;
  }
  const same = facts.root && facts.root === facts.root_expected;
  return html`<${Panel} title="Attestation" span=${6}><${Pairs} pairs=${[
    ["measured", html`<${Time} at=${found.attested_at} />`],
    ["system", facts.root ? html`<${Pill} tone=${same ? "good" : "bad"}>${same ? "as on its card" : "another one than on its card"}<//>` : "not an image of Waypost"],
    ["version", plain(facts.version)],
    ["name of the machine", plain(facts.hostname)],
    ["networks", facts.networks.map(plain).join(", ") || "–"],
    ["clock", plain(facts.clock)],
    ["settings", html`<span class="mono" title=${facts.settings}>${plain(facts.settings).slice(0, DIGITS)}…</span>`],
  ]} /><//>`;
}

const ENDINGS = {
  revoke: {
    label: "Revoke",
    text: (count) => `${counted(count, "certificate")} end${count === 1 ? "s" : ""} at once. The gateway is disconnected within a second and keeps what it has stored; a new token for its name lets it in again.`,
  },
  forget: {
    label: "Forget",
    text: () => "The hub forgets its labels, configuration and commands, and its name becomes free. Its messages stay in the lake. Do this when the gateway no longer exists.",
  },
};

function Ending({ action, tenant, gateway, count, close, done }) {
  const [typed, setTyped] = useState("");
  const [error, setError] = useState(null);
  const { label, text } = ENDINGS[action];
  async function submit(event) {
    event.preventDefault();
    try {
      await post(withQuery(`/api/v1/gateways/${encodeURIComponent(gateway)}/${action}`, { tenant }));
      if (action === "forget") go(address("fleet"));
      else done();
    } catch (failed) {
      setError(failed);
    }
  }
  return html`<${Dialog} title=${`${label} ${plain(gateway)}`} close=${close}><form class="stack" onSubmit=${submit}>
    <p>${text(count)}</p>
    <label class="field">Type the name <b>${plain(gateway)}</b><input class="input" autocomplete="off" value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label>
    <${ErrorNote} error=${error} />
    <div class="do"><button class="button danger" disabled=${typed !== gateway}>${label}</button><button type="button" class="button" onClick=${close}>Cancel</button></div>
    <p class="soft small">The same: <code class="name">waypost gateway ${action} ${plain(gateway)}</code></p></form><//>`;
}
