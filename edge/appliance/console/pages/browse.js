// Messages that a queue or a topic keeps, without consuming them.

import { html, useState } from "./html.js";
import { MessageBody } from "./message_body.js";
import { MessageFilters } from "./message_filters.js";
import { CommandLine } from "./command_line.js";
import { Empty, Name, Panel, Time } from "./parts.js";
import { address, go } from "./route.js";
import { PagedTable } from "./table.js";
import { number } from "./text.js";

const COLUMNS = [
  { name: "Address", cell: (row) => html`<${Name} mono>${row.address}<//><small><${Name}>${row.device}<//>${row.retain ? ", retained" : ""}</small>` },
  { name: "Body", wide: true, cell: (row) => html`<${MessageBody} message=${row} />` },
  { name: "Number", numeric: true, optional: true, cell: (row) => number(row.sequence) },
  { name: "Arrived", numeric: true, cell: (row) => html`<${Time} at=${row.received_at * 1000} />` },
];

export function Browse({ query, choice }) {
  const [wanted, setWanted] = useState(query.address ?? "");
  const { address: shown = "", order = "newest", since = "", where = "", json = "" } = query;
  const open = (change) => go(address("messages", "", { show: "browse", address: shown, order, since, where, json, ...change }), true);
  function submit(event) {
    event.preventDefault();
    open({ address: wanted.trim() });
  }
  const filters = html`<select class="input" aria-label="Order" value=${order} onChange=${(event) => open({ order: event.target.value })}>
      <option value="newest">Newest first</option><option value="oldest">Oldest first</option></select>
    <${MessageFilters} query=${query} change=${open} />`;
  return html`<${Panel} title="Browse" extra=${choice} flush>
    <form class="table-bar" onSubmit=${submit}>
      <input class="input mono" name="address" aria-label="Address or filter" placeholder="plant/# or the name of a queue" required autocapitalize="none" spellcheck="false"
        value=${wanted} onInput=${(event) => setWanted(event.target.value)} />
      <button class="button main">Browse</button>
      <span class="soft small">Nothing is consumed.</span>
    </form>
    ${shown === ""
      ? html`<div class="body"><${Empty} title="Which address?">A queue shows the messages that no consumer has accepted yet. A topic shows what its log
          still keeps: messages of QoS 1 or 2 for durable subscriptions and forwarders.<//></div>`
      : html`<${PagedTable} key=${[shown, order, since, where, json].join("\n")} label="messages" path="/api/v1/messages" items="messages" every=${3_600} query=${{ address: shown, order, since, where, json }}
          columns=${COLUMNS} id=${(row) => row.position} filters=${filters}
          empty=${html`<${Empty} title="No message is kept here">Nothing arrived in this time, everything was accepted, or no durable subscription and no forwarder
            wants it. <a href=${address("messages", "", { show: "try", filter: shown })}>Follow it live</a>.<//>`} />
        <div class="body"><${CommandLine} words=${["waypost", "message", "browse", shown, ...(order === "oldest" ? ["--oldest"] : []), ...(since ? ["--since", since] : []),
          ...(where ? ["--where", where] : []), ...(json ? ["--body-json", json] : [])]} /></div>`}
  <//>`;
}
