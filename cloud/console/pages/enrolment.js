// Enrolment: tokens with QR codes, a sheet to print, and what became of them.

import { del, post } from "./api.js";
import { lazy } from "./frame.js";
import { html, useState } from "./html.js";
import { ActionButton, Choice, Dialog, Empty, ErrorNote, Name, Panel, Pill, Time } from "./parts.js";
import { address, go } from "./route.js";
import { useSession } from "./session.js";
import { PagedTable } from "./table.js";
import { counted, plain } from "./text.js";

const Scan = lazy(() => import("./scan.js"), "Scan");
const SHOWN = [["", "all"], ["open", "waiting"], ["spent", "used"], ["expired", "expired"], ["revoked", "revoked"]];
const STATES = { open: ["warn", "waiting"], spent: ["good", "used"], expired: ["idle", "expired"], revoked: ["idle", "revoked"] };
const TIMES = [["1", "1 h"], ["24", "1 d"], ["168", "7 d"], ["720", "30 d"]];

function labelsOf(row) {
  return Object.entries(row.labels).map(([label, value]) => html`<span class="tag">${plain(label)}=${plain(value)}</span> `);
}

function columns(manage, reload) {
  return [
    { name: "Token", cell: (row) => html`<span class="mono">${row.id}</span><small>${row.tenant === "default" ? "" : plain(row.tenant)}</small>` },
    { name: "Gateway", wide: true, cell: (row) => html`${row.gateway
      ? row.state === "spent" ? html`<a href=${address("fleet", `${row.tenant}/${row.gateway}`)}><${Name}>${row.gateway}<//></a>` : html`<${Name}>${row.gateway}<//>`
      : html`<span class="soft">any new name</span>`} ${labelsOf(row)}` },
    { name: "State", cell: (row) => html`<${Pill} tone=${STATES[row.state][0]}>${STATES[row.state][1]}<//>` },
    { name: "Made", numeric: true, optional: true, cell: (row) => html`<${Time} at=${row.created_at} />` },
    { name: "Until", numeric: true, cell: (row) => html`<${Time} at=${row.spent_at ?? row.revoked_at ?? row.expires_at} />` },
    { name: "Action", cell: (row) => row.state === "open" && html`<${ActionButton} label="Revoke" danger allowed=${manage} onDone=${reload}
      confirm=${`Token ${row.id} enrols no gateway any longer. Gateways that are enrolled stay.`} action=${() => del(`/api/v1/tokens/${row.id}`)} />` },
  ];
}

export function Enrolment({ query, figures: status }) {
  const [making, setMaking] = useState(false);
  const [scanning, setScanning] = useState(false);
  const [sheet, setSheet] = useState(null);
  const [turn, setTurn] = useState(0);
  const { manage } = useSession();
  if (status === null) return null;
  if (status.dev) {
    return html`<${Panel} title="Enrolment"><${Empty} title="This hub enrols no gateways">In development mode gateways connect without certificates. Run the hub
      without <code>--dev</code>.<//><//>`;
  }
  if (sheet) return html`<${Sheet} sheet=${sheet} close=${() => setSheet(null)} />`;
  const shown = query.show ?? "";
  const made = () => {
    setMaking(false);
    if (query.gateway) go(address("enrolment"), true);
  };
  const choose = (value) => go(address("enrolment", "", { show: value }), true);
  return html`<${Panel} title="Enrolment tokens" flush extra=${html`<${Choice} label="Show" options=${SHOWN} value=${shown} choose=${choose} />`}>
    ${query.token && html`<p class="table-bar small">Only token <span class="mono">${plain(query.token)}</span>. <a href=${address("enrolment")}>All tokens</a></p>`}
    <${PagedTable} key=${shown + turn} label="tokens" path="/api/v1/tokens" items="tokens" query=${{ state: shown, id: query.token ?? "" }} search=${false} columns=${columns(manage, () => setTurn(turn + 1))}
      id=${(row) => row.id} filters=${html`<button class="button main" disabled=${!manage} onClick=${() => setMaking(true)}>Make tokens…</button>
        <button class="button" onClick=${() => setScanning(true)}>Scan a code…</button>`}
      empty=${html`<${Empty} title=${shown ? "No token is in this state" : "No token was made yet"}>A token enrols one gateway, once. Make some, print the sheet, and scan a code at each gateway.<//>`} />
    ${scanning && html`<${Scan} close=${() => setScanning(false)} />`}
    ${(making || query.gateway) && html`<${NewTokens} gateway=${query.gateway ?? ""} close=${made} done=${(sheet) => { made(); setSheet(sheet); }} />`}
  <//>`;
}

/** Parse `site=lyon ring=1` into labels. */
function parseLabels(text) {
  return Object.fromEntries(text.split(/[\s,]+/).filter(Boolean).map((word) => {
    const [label, ...rest] = word.split("=");
    if (!rest.length) throw new Error(`“${word}” is not a label: write label=value`);
    return [label, rest.join("=")];
  }));
}

function NewTokens({ gateway, close, done }) {
  const [draft, setDraft] = useState({ count: "1", names: gateway, labels: "", hours: "24" });
  const [error, setError] = useState(null);
  const [running, setRunning] = useState(false);
  const change = (field) => (event) => setDraft({ ...draft, [field]: event.target.value });
  const names = draft.names.split(/\n/).map((name) => name.trim()).filter(Boolean);
  async function submit(event) {
    event.preventDefault();
    setRunning(true);
    try {
      const wanted = { labels: parseLabels(draft.labels), expires_s: Number(draft.hours) * 3600 };
      done(await post("/api/v1/tokens", names.length ? { ...wanted, gateways: names } : { ...wanted, count: Number(draft.count) }));
    } catch (failed) {
      setError(failed);
      setRunning(false);
    }
  }
  return html`<${Dialog} title="Make tokens" close=${close}><form class="stack" onSubmit=${submit}>
    <p>Each token enrols one gateway, once. They are shown once: print the sheet at once.</p>
    <label class="field">Number, 1 to 500<input class="input" type="number" min="1" max="500" required disabled=${names.length > 0} value=${names.length || draft.count} onInput=${change("count")} /></label>
    <label class="field">Or names of gateways, one a line<textarea class="input mono" rows="3" onInput=${change("names")}>${draft.names}</textarea></label>
    <label class="field">Labels, as in site=lyon<input class="input" value=${draft.labels} onInput=${change("labels")} /></label>
    <fieldset class="plain"><legend class="small">Valid for</legend><${Choice} label="Valid for" options=${TIMES} value=${draft.hours} choose=${(hours) => setDraft({ ...draft, hours })} /></fieldset>
    <${ErrorNote} error=${error} />
    <div class="do"><button class="button main" disabled=${running}>Make ${counted(names.length || Number(draft.count) || 0, "token")}</button>
      <button class="button" type="button" onClick=${close}>Cancel</button></div>
    <p class="soft small">The same: <code>waypost token create --count ${names.length || draft.count} --expires ${draft.hours}h</code></p>
  </form><//>`;
}

/** Sheet of new tokens, one card each: their texts are known to this page only. */
function Sheet({ sheet, close }) {
  return html`<${Panel} title=${counted(sheet.tokens.length, "new token")} extra=${html`<span class="do no-print"><button class="button main" onClick=${() => print()}>Print</button>
      <button class="button" onClick=${close}>Done</button></span>`}>
    <p class="note-warn no-print">These texts are shown once. At the gateway: scan the code, or <code>WAYPOST_TOKEN=… waypost init --data DIR --hub ${plain(sheet.hub)} --forward 'plant/#'</code></p>
    <div class="sheet">${sheet.tokens.map((one) => html`<article key=${one.id} class="card" aria-label=${`Token ${one.id}`}>
      <svg viewBox=${`0 0 ${one.qr_size} ${one.qr_size}`} role="img" aria-label=${`QR code of token ${one.id}`}><rect class="paper" width=${one.qr_size} height=${one.qr_size} /><path class="dark" d=${one.qr_path} /></svg>
      <div><p><b>${one.gateway ? html`<${Name}>${one.gateway}<//>` : "any new name"}</b></p><p>${labelsOf(one)}</p>
        <p class="small">valid until <${Time} at=${one.expires_at} /></p><p class="small mono">${plain(sheet.hub)}</p><p class="token mono">${one.token}</p></div></article>`)}</div>
  <//>`;
}
