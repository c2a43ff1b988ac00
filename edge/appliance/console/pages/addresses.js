// Addresses: queues and durable subscriptions, busy first.

import { html } from "./html.js";
import { Empty, Name, Panel } from "./parts.js";
import { PagedTable } from "./table.js";
import { number, rate } from "./text.js";

const COLUMNS = [
  { name: "Address", sort: "address", cell: (row) => html`<${Name} mono>${row.address}<//>${row.subscription ? html`<small>subscription <${Name} mono>${row.subscription}<//></small>` : null}` },
  { name: "Type", cell: (row) => row.type },
  { name: "Waiting", sort: "stored", numeric: true, cell: (row) => number(row.stored) },
  { name: "Received", sort: "received", numeric: true, cell: (row) => number(row.received) },
  { name: "Consumers", sort: "subscribers", numeric: true, cell: (row) => number(row.subscribers) },
];

export function Addresses() {
  return html`<${Panel} title="Queues and durable subscriptions" flush>
    <${PagedTable} label="addresses" path="/api/v1/addresses" items="addresses" columns=${COLUMNS} every=${5}
      id=${(row) => `${row.address}\n${row.subscription ?? ""}`}
      empty=${html`<${Empty} title="Nothing is kept here yet">A queue appears with its first message or consumer, a durable
        subscription when a device with a session subscribes.<//>`} />
  <//>`;
}
