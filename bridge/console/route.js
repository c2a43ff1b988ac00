// Addresses of pages: `#/NAME/REST?KEY=VALUE`. The part after # is never sent to the server.

import { Shared, useShared } from "./state.js";

/** @typedef {{page: string, rest: string, query: Record<string, string>}} Route */

/** @returns {Route} */
function parse() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [page, ...rest] = path.split("/");
  return { page, rest: decodeURIComponent(rest.join("/")), query: Object.fromEntries(new URLSearchParams(search ?? "")) };
}

const current = new Shared(parse());
addEventListener("hashchange", () => current.set(parse()));

export const useRoute = () => useShared(current);

/** Return the address of a page. */
export function address(page, rest = "", query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return `#/${page}${rest && `/${encodeURIComponent(rest)}`}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

/** Go to a page. `replace`: without an entry in the history, for filters. */
export function go(target, replace = false) {
  if (replace) location.replace(target);
  else location.hash = target;
}
