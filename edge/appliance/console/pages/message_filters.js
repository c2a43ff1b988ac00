// Filters of stored messages: time, properties and fields, JSON body. The address of the page has them.

import { html, useState } from "./html.js";

const SPANS = [["", "Any time"], ["15m", "15 minutes"], ["1h", "1 hour"], ["1d", "1 day"], ["7d", "7 days"]];

/** @param {{query: {since?: string, where?: string, json?: string}, change: (filters: Record<string, string>) => void}} properties */
export function MessageFilters({ query, change }) {
  const { since = "", where = "", json = "" } = query;
  const [draft, setDraft] = useState({ where, json });
  function submit(event) {
    event.preventDefault();
    change({ where: draft.where.trim(), json: draft.json.trim() });
  }
  return html`<select class="input" aria-label="Arrived within" value=${since} onChange=${(event) => change({ since: event.target.value })}>
      ${SPANS.map(([span, text]) => html`<option key=${span} value=${span}>${text}</option>`)}</select>
    <details open=${Boolean(where || json)}><summary class="small">Properties and JSON</summary>
      <form class="do" onSubmit=${submit}>
        <input class="input mono" name="where" aria-label="Condition on properties and fields" placeholder="unit = 'K' AND message.size > 100" autocapitalize="none" spellcheck="false"
          value=${draft.where} onInput=${(event) => setDraft({ ...draft, where: event.target.value })} />
        <input class="input mono" name="json" aria-label="Condition on a JSON body" placeholder="$.t > 30" autocapitalize="none" spellcheck="false"
          value=${draft.json} onInput=${(event) => setDraft({ ...draft, json: event.target.value })} />
        <button class="button">Apply</button>
        ${(where || json) && html`<button type="button" class="button" onClick=${() => { setDraft({ where: "", json: "" }); change({ where: "", json: "" }); }}>Clear</button>`}
      </form>
      <p class="soft small">Properties by name; <code>message.size</code>, <code>message.device</code>, <code>message.qos</code>, <code>message.retain</code>,${" "}
        <code>message.address</code>, <code>header.ttl</code>, <code>properties.content_type</code>. Text in single quotes.</p></details>`;
}
