// Table that the server sorts, filters and cuts into pages. A page follows the last row of the one before it.

import { get, withQuery } from "./api.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { ErrorNote, Time } from "./parts.js";
import { useEvery } from "./state.js";
import { number } from "./text.js";

const PAGE = 50;
const TYPING_MS = 300;

/**
 * @typedef {object} Column
 * @property {string} name of the column
 * @property {(row: any) => any} cell content
 * @property {string} [sort] key by which the server sorts
 * @property {"ascending" | "descending"} [order] only order of that key; else the server takes `-KEY` for the reverse
 * @property {boolean} [numeric]
 * @property {boolean} [wide] takes a line of its own on a phone
 * @property {boolean} [optional] is left out on a phone
 */

/**
 * @param {object} properties
 * @param {string} properties.label what the rows are
 * @param {string} properties.path of the API
 * @param {string} [properties.items] key of the rows in its answers
 * @param {Record<string, string>} [properties.query] further parameters
 * @param {Column[]} properties.columns the first is the row's header
 * @param {(row: any) => string} properties.id unique key of a row
 * @param {any} properties.empty shown without rows
 * @param {number} [properties.every] seconds between two requests
 * @param {boolean} [properties.search]
 * @param {any} [properties.filters] chips beside the search
 * @param {(rows: any[], clear: () => void) => any} [properties.actions] bar for selected rows; with it rows can be selected
 * @param {(page: any) => any[]} [properties.unpack] rows of an answer, if they are not a list with the key `items`
 */
export function PagedTable({ label, path, items = "", query = {}, columns, id, empty, every = 5, search = true, filters = null, actions = null, unpack = null }) {
  const [text, setText] = useState("");
  const [wanted, setWanted] = useState("");
  const [sort, setSort] = useState("");
  const [starts, setStarts] = useState([""]);
  const [page, setPage] = useState(null);
  const [error, setError] = useState(null);
  const typing = useRef(0);
  const [selected, setSelected] = useState(/** @type {Map<any, any>} */ (new Map()));
  const shape = JSON.stringify([path, query, wanted, sort]);
  const after = starts[starts.length - 1];
  const latest = useRef("");
  latest.current = shape + after;

  useEffect(() => setStarts([""]), [shape]);
  useEffect(() => setSelected(new Map()), [path, JSON.stringify(query)]);
  function select(some, on) {
    const next = new Map(selected);
    for (const row of some) on ? next.set(id(row), row) : next.delete(id(row));
    setSelected(next);
  }

  async function load() {
    const asked = latest.current;
    try {
      const found = await get(withQuery(path, { ...query, q: wanted, sort, after, limit: PAGE }));
      if (asked === latest.current) {
        setPage(found);
        setError(null);
      }
    } catch (failed) {
      if (asked === latest.current) setError(failed);
    }
  }
  useEvery(every, load, [shape, after]);

  function type(value) {
    setText(value);
    clearTimeout(typing.current);
    typing.current = setTimeout(() => setWanted(value.trim()), TYPING_MS);
  }

  const rows = (page && (unpack ? unpack(page) : page[items])) || [];
  const first = (starts.length - 1) * PAGE;
  return html`
    <div class="table-bar">
      ${search && html`<input type="search" class="input" placeholder="Search" aria-label=${`Search ${label}`} value=${text}
        onInput=${(event) => type(event.target.value)} />`}
      ${filters}
      <span class="grow"></span>
      <span class="soft small" role="status">${page && count(first, rows.length, page.total, Boolean(page.next))}</span>
    </div>
    <${ErrorNote} error=${error} retry=${load} />
    ${actions && selected.size > 0 && html`<div class="table-bar selected" role="group" aria-label="Selected rows"><b class="small">${number(selected.size)} selected</b>
      ${actions([...selected.values()], () => setSelected(new Map()))}<span class="grow"></span><button class="button" onClick=${() => setSelected(new Map())}>Clear</button></div>`}
    ${page && rows.length === 0 && !error && page.next && html`<div class="body"><p class="soft">Nothing matches${page.searched_to ? html` back to <${Time} at=${page.searched_to} />` : " so far"}. Next searches on.</p></div>`}
    ${page && rows.length === 0 && !error && !page.next && html`<div class="body">${wanted ? html`<p class="soft">Nothing matches “${wanted}”.</p>` : empty}</div>`}
    ${rows.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label=${`Table of ${label}`}>
      <table class="cards"><thead><tr>${actions && html`<th scope="col" class="select"><input type="checkbox" aria-label=${`Select all ${label} shown`}
        checked=${rows.every((row) => selected.has(id(row)))} onChange=${(event) => select(rows, event.target.checked)} /></th>`}${columns.map((column) => header(column, sort, setSort))}</tr></thead>
        <tbody>${rows.map((row) => html`<tr key=${id(row)}>${actions && html`<td class="select"><input type="checkbox" aria-label=${`Select ${id(row)}`}
          checked=${selected.has(id(row))} onChange=${(event) => select([row], event.target.checked)} /></td>`}${columns.map((column, place) => cell(column, row, place))}</tr>`)}</tbody>
      </table></div>`}
    ${(starts.length > 1 || page?.next) && html`<nav class="pages" aria-label=${`Pages of ${label}`}>
      <button class="button" disabled=${starts.length < 2} onClick=${() => setStarts(starts.slice(0, -1))}>Previous</button>
      <button class="button" disabled=${!page?.next} onClick=${() => setStarts([...starts, page.next])}>Next</button>
    </nav>`}`;
}

function count(first, shown, total, more) {
  if (typeof total !== "number" || total < first + shown) return `${number(first + shown)}${more ? " and more" : ""}`;
  return shown === total ? number(total) : `${number(first + 1)}–${number(first + shown)} of ${number(total)}`;
}

function header(column, sort, setSort) {
  const classes = `${column.numeric ? "n" : ""}${column.optional ? " drop" : ""}`;
  if (!column.sort) return html`<th scope="col" class=${classes}>${column.name}</th>`;
  const key = column.sort;
  const orders = column.order ? { [key]: column.order } : { [`-${key}`]: "descending", [key]: "ascending" };
  const choices = ["", ...Object.keys(orders)];
  const next = choices[(choices.indexOf(sort) + 1) % choices.length];
  const mark = { ascending: " ▲", descending: " ▼" }[orders[sort]] ?? "";
  return html`<th scope="col" class=${classes} aria-sort=${orders[sort] ?? "none"}>
    <button class="sort" onClick=${() => setSort(next)}>${column.name}<span aria-hidden="true">${mark}</span></button>
  </th>`;
}

function cell(column, row, place) {
  const classes = `${column.numeric ? "n" : ""}${column.wide ? " what" : ""}${column.optional ? " drop" : ""}`;
  return place === 0
    ? html`<th scope="row" class=${classes}>${column.cell(row)}</th>`
    : html`<td class=${classes} data-label=${column.name}>${column.cell(row)}</td>`;
}
