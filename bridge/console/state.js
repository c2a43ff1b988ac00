// Values that components share and follow.

import { useEffect, useState } from "./html.js";

/** Value with followers. */
export class Shared {
  #value;
  #followers = new Set();

  constructor(value) {
    this.#value = value;
  }

  get value() {
    return this.#value;
  }

  set(value) {
    if (value === this.#value) return;
    this.#value = value;
    for (const follow of [...this.#followers]) follow(value);
  }

  /** Call `follow` at each change. Returns a function that ends this. */
  follow(follow) {
    this.#followers.add(follow);
    return () => this.#followers.delete(follow);
  }
}

/** Return the current value, in a component that is drawn again at each change. */
export function useShared(shared) {
  const [value, setValue] = useState(shared.value);
  useEffect(() => {
    setValue(shared.value);
    return shared.follow(setValue);
  }, [shared]);
  return value;
}

/** Call `action` now and every `seconds` while the page is visible; also when one of `inputs` changes. */
export function useEvery(seconds, action, inputs = []) {
  useEffect(() => {
    let timer = 0;
    let over = false;
    async function run() {
      clearTimeout(timer);
      if (!document.hidden) await action();
      if (!over) timer = setTimeout(run, seconds * 1000);
    }
    run();
    const shown = () => document.hidden || run();
    document.addEventListener("visibilitychange", shown);
    return () => {
      over = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", shown);
    };
  }, inputs);
}

/** Return the time of a clock that ticks once a second while the page is visible, in milliseconds. */
export function useNow() {
  const [now, setNow] = useState(Date.now());
  useEvery(1, () => setNow(Date.now()));
  return now;
}
