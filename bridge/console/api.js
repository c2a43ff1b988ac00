// Requests to the API of this node. Every answer is JSON; an error has a status and a text.

const TIMEOUT_MS = 15_000;

/** Answer with an error, or none at all (status 0). `code` and `nextStep` as in the problem details of the answer. */
export class ApiError extends Error {
  /** @param {number} status @param {string} text @param {{code?: string, next_step?: string}} problem */
  constructor(status, text, problem = {}) {
    super(text);
    this.status = status;
    this.code = problem.code ?? "";
    this.nextStep = problem.next_step ?? "";
  }
}

let signedOut = () => {};

/** Call `action` when the server asks for authentication again. */
export function onSignedOut(action) {
  signedOut = action;
}

const APPLIED = "Waypost-Applied-Query";
/** Parameters that choose no rows. */
const NO_FILTERS = ["after", "limit", "sort"];
let namesFilters = false;

/** Refuse answers that do not name the filters of their request: this console's node names them, an earlier version does not. */
export function demandFilters() {
  namesFilters = true;
}

/** Throw ApiError unless an answer names the filters of its request: an earlier version answers with all rows. */
function checkFilters(url, answer) {
  const applied = (answer.headers.get(APPLIED) ?? "").split(", ");
  const missing = [...new Set(url.searchParams.keys())].filter((name) => !NO_FILTERS.includes(name) && !applied.includes(name));
  if (missing.length === 0) return;
  const text = `This hub is older than the filter ${missing.join(", ")}; its answer has all rows.`;
  throw new ApiError(answer.status, text, { code: "filter-ignored", next_step: "try again when all hubs are updated" });
}

/** Condition of a change: the thing must not exist yet. */
export const NEW = "*";

/** Fields of a condition: `etag` of the state that the person saw, `NEW`, or "" for none. */
const condition = (etag) => (etag === NEW ? { "If-None-Match": NEW } : etag ? { "If-Match": etag } : {});

async function request(method, path, body, etag = "", type = "application/json") {
  // A request of a script: the browser's own password dialog must not come up.
  const headers = { "X-Requested-With": "waypost", ...(body === undefined ? {} : { "Content-Type": type }), ...condition(etag) };
  // The address of the page may have a name and a password; those of a request must not.
  const url = new URL(path, location.origin);
  let answer;
  try {
    answer = await fetch(url, {
      method,
      headers,
      body: body === undefined || type !== "application/json" ? body : JSON.stringify(body),
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
  } catch {
    throw new ApiError(0, "no answer: is the connection to it cut?");
  }
  const text = await answer.text();
  let value = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    // The error below says what came.
  }
  if (answer.status === 401) signedOut();
  if (!answer.ok) throw new ApiError(answer.status, value?.detail ?? `${answer.status} ${answer.statusText}`, value ?? {});
  if (namesFilters && method === "GET") checkFilters(url, answer);
  return value;
}

export const get = (path) => request("GET", path);
export const post = (path, body, etag = "") => request("POST", path, body, etag);
export const put = (path, body, etag = "") => request("PUT", path, body, etag);
export const patch = (path, body, etag = "") => request("PATCH", path, body, etag);
/** POST a YAML text. */
export const sendYaml = (path, text, etag = "") => request("POST", path, text, etag, "application/yaml");
export const del = (path, etag = "") => request("DELETE", path, undefined, etag);

/** Return a path with a query, added to the one that it has; values that are empty are left out. */
export function withQuery(path, query) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return given.length ? `${path}${path.includes("?") ? "&" : "?"}${new URLSearchParams(given)}` : path;
}
