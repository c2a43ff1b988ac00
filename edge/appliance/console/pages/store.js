// Store and card: room by address, wear, and what was given up.

import { get } from "./api.js";
import { html, useState } from "./html.js";
import { Empty, Meter, Name, Pairs, Panel } from "./parts.js";
import { Room } from "./room.js";
import { useEvery } from "./state.js";
import { bytes, number, plain } from "./text.js";

export function Store({ figures: status }) {
  const [bridge, setBridge] = useState(null);
  useEvery(10, async () => setBridge(await get("/api/v1/bridge").catch(() => null)));
  if (status === null) return null;
  const rooms = status.store?.room ?? [];
  const ledger = Object.entries(status.ledger ?? {});
  return html`<div class="grid">
    <${Panel} title="Store and card" span=${6}><${Room} status=${status} bridge=${bridge} /><//>
    <${Panel} title="Given up since the start" span=${6}>${ledger.length === 0
      ? html`<${Empty} title="Nothing was given up">Messages that expire or are dropped for others are entered in the loss
          ledger with their reason, which goes to the hub first.<//>`
      : html`<${Pairs} pairs=${ledger.map(([reason, count]) => [plain(reason), number(count)])} />`}<//>
    <${Panel} title="Room by address" flush>${rooms.length === 0
      ? html`<div class="body"><${Empty} title="No address has a quota">Messages may fill the card up to its free-space limit.<//></div>`
      : html`<div class="scroll" tabindex="0" role="region" aria-label="Table of addresses"><table class="cards">
        <thead><tr><th scope="col">Address</th><th scope="col">Used</th><th scope="col">When full</th><th scope="col" class="n">Refused</th></tr></thead>
        <tbody>${rooms.map((room) => html`<tr key=${room.address}><th scope="row"><${Name} mono>${room.address}<//></th>
          <td class="what">${bytes(room.used)}${room.quota ? ` of ${bytes(room.quota)}` : ""}
            ${room.quota ? html`<${Meter} parts=${[[room.used / room.quota, room.used >= room.quota ? "mb" : "m1"]]} label=${`${Math.round((100 * room.used) / room.quota)} percent used`} />` : null}</td>
          <td data-label="When full">${whenFull(room.when_full)}</td><td class="n" data-label="Refused">${number(room.refused)}</td></tr>`)}</tbody></table></div>`}<//>
  </div>`;
}

function whenFull(rule) {
  return { reject: "refuses new messages", dropOldest: "drops the oldest", thin: "keeps some of the old ones" }[rule] ?? rule;
}
