// Live figures of this node: one stream of events a tab, closed while the tab is hidden.
//
// The server sends a snapshot, then what changed (JSON Merge Patch, RFC 7396). Where the stream is refused, because too
// many pages are open, the page asks every 10 s.

import { get } from "./api.js";
import { Shared } from "./state.js";

const RETRY_MS = 3_000;
const POLL_MS = 10_000;

/** Apply a merge patch: a null removes a key. Parts that did not change stay the same objects. */
export function merged(value, patch) {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  const result = value !== null && typeof value === "object" && !Array.isArray(value) ? { ...value } : {};
  for (const [name, change] of Object.entries(patch)) {
    if (change === null) delete result[name];
    else result[name] = merged(result[name], change);
  }
  return result;
}

/** Figures of one topic. `value` is null before the first; `problem` is a text while there are no new ones. */
export class LiveTopic {
  figures = new Shared(null);
  problem = new Shared("");
  #topic;
  #path;
  #stream = null;
  #timer = 0;

  /** @param {string} topic of the stream @param {string} path with the same figures, for pages without a stream */
  constructor(topic, path) {
    this.#topic = topic;
    this.#path = path;
  }

  /** Follow the topic while the page is visible. Returns a function that ends this. */
  start() {
    const shown = () => (document.hidden ? this.#close() : this.#open());
    const hidden = () => this.#close();
    document.addEventListener("visibilitychange", shown);
    addEventListener("pagehide", hidden);
    this.#open();
    return () => {
      document.removeEventListener("visibilitychange", shown);
      removeEventListener("pagehide", hidden);
      this.#close();
    };
  }

  #close() {
    clearTimeout(this.#timer);
    this.#stream?.close();
    this.#stream = null;
  }

  #open() {
    this.#close();
    if (document.hidden) return;
    const stream = new EventSource(new URL(`/api/v1/events?topics=${this.#topic}`, location.origin));
    this.#stream = stream;
    stream.addEventListener(this.#topic, (event) => this.#show(JSON.parse(event.data)));
    stream.addEventListener(`${this.#topic}-patch`, (event) =>
      this.#show(merged(this.figures.value, JSON.parse(event.data))),
    );
    stream.onerror = () => this.#lost();
  }

  #show(figures) {
    this.figures.set(figures);
    this.problem.set("");
  }

  async #lost() {
    this.#close();
    try {
      this.#show(await get(this.#path));
      this.#timer = setTimeout(() => this.#open(), POLL_MS);
    } catch (error) {
      this.problem.set(error.message);
      this.#timer = setTimeout(() => this.#open(), RETRY_MS);
    }
  }
}
