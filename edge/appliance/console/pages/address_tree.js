// Addresses as a tree of their levels. A branch is read when it is opened, a page at a time.

import { get, withQuery } from "./api.js";
import { html, useEffect, useState } from "./html.js";
import { Empty, ErrorNote, Name } from "./parts.js";
import { address } from "./route.js";
import { counted, number, plain, rate } from "./text.js";

const LIMIT = 100;

export function AddressTree() {
  return html`<${Level} under="" />`;
}

/** Names below an address. */
function Level({ under }) {
  const [levels, setLevels] = useState(/** @type {any[] | null} */ (null));
  const [next, setNext] = useState(null);
  const [left, setLeft] = useState(0);
  const [error, setError] = useState(null);
  async function load(after) {
    try {
      const page = await get(withQuery("/api/v1/address-tree", { under, after, limit: LIMIT }));
      setLevels((before) => [...(after ? before ?? [] : []), ...page.levels]);
      setNext(page.next);
      setLeft(page.left_out);
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }
  useEffect(() => {
    load("");
  }, [under]);
  if (levels === null) return html`<${ErrorNote} error=${error} retry=${() => load("")} />`;
  if (levels.length === 0) return html`<${Empty} title="Nothing is kept here yet">A queue appears with its first message or consumer.<//>`;
  return html`<ul class="tree">${levels.map((level) => html`<${Branch} key=${level.path} level=${level} />`)}</ul>
    <${ErrorNote} error=${error} />
    ${next !== null && html`<p><button class="button" onClick=${() => load(next)}>Show more below ${plain(under) || "the top"}</button></p>`}
    ${under === "" && left > 0 && html`<p class="soft small">${counted(left, "further address", "further addresses")} are not in this tree: search for them in the list.</p>`}`;
}

function Branch({ level }) {
  const [open, setOpen] = useState(false);
  const own = level.rows > level.deeper;
  const figures = html`<span class="soft small">${counted(level.rows, "row")} · ${rate(level.received_per_s)}/s · ${number(level.waiting)} waiting</span>`;
  const name = own ? html`<a href=${address("addresses", level.path)}><${Name} mono>${level.name || "(empty)"}<//></a>` : html`<${Name} mono>${level.name || "(empty)"}<//>`;
  if (level.deeper === 0) return html`<li><span class="leaf">${name} ${figures}</span></li>`;
  return html`<li><span class="leaf"><button class="button" aria-expanded=${open} aria-label=${`Levels below ${plain(level.path)}`} onClick=${() => setOpen(!open)}>
      <span aria-hidden="true">${open ? "▾" : "▸"}</span></button> ${name} ${figures}</span>
    ${open && html`<${Level} under=${level.path} />`}</li>`;
}
