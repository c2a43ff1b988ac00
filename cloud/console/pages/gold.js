// Tables that analytics made: requests, age, and what is shown before a job has run.

import { get, withQuery } from "./api.js";
import { html, useState } from "./html.js";
import { Empty, ErrorNote } from "./parts.js";
import { useEvery } from "./state.js";
import { ago, number } from "./text.js";

const EVERY_S = 60;
const NOT_THERE = 404;

/** Rows of an answer that has columns. @param {{columns: Record<string, any[]>}} page */
export function rowsOf(page) {
  const names = Object.keys(page.columns);
  const length = names.length ? page.columns[names[0]].length : 0;
  return Array.from({ length }, (_, place) => Object.fromEntries(names.map((name) => [name, page.columns[name][place]])));
}

/** Path of a table, with a span and values of columns. */
export const goldPath = (table, query) => withQuery(`/api/v1/gold/${table}`, query);

/**
 * Answer of the API, asked for again each minute. `missing`: the table does not exist yet.
 *
 * @returns {{found: any, error: any, missing: boolean, load: () => Promise<void>}}
 */
export function useRead(path) {
  const [state, setState] = useState({ path: "", found: null, error: null });
  async function load() {
    if (!path) return;
    try {
      setState({ path, found: await get(path), error: null });
    } catch (error) {
      setState((before) => ({ path, found: before.path === path ? before.found : null, error }));
    }
  }
  useEvery(EVERY_S, load, [path]);
  const mine = state.path === path ? state : { found: null, error: null };
  const missing = Boolean(mine.found?.missing) || mine.error?.status === NOT_THERE;
  return { found: missing ? null : mine.found, error: missing ? null : mine.error, missing, load };
}

/** Shown where no job has made a table. */
export function NoJob({ what = "This page" }) {
  const { found, error } = useRead("/api/v1/gold");
  if (!found) return html`<${ErrorNote} error=${error} />`;
  return html`<${Empty} title="No job has run">${what} shows what analytics make of the lake. Run them once:${" "}
    <code class="name">${found.make}</code>; with <code>--follow</code> they keep on.<//>`;
}

/** Which table, in which version, how old. @param {{page: {table?: string, version: number, written_at: number, newest?: number}, table?: string}} properties */
export function Age({ page, table = "" }) {
  return html`<p class="soft small age">${table || page.table}, version ${number(page.version)}, written ${ago(page.written_at)}${
    page.newest ? html` · newest row ${ago(page.newest)}` : ""}</p>`;
}
