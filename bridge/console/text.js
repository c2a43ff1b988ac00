// Numbers, times and names as people read them.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0, useGrouping: true });
const FINE = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const PLURALS = new Intl.PluralRules("en");
const BYTE_UNITS = ["B", "kB", "MB", "GB", "TB"];
const NOT_KNOWN = "–";

/** Show characters that are invisible or change the direction of text as escapes: peers choose their names. */
export function plain(text) {
  return String(text ?? "").replace(/[\p{C}\u2028\u2029]/gu, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);
}

/** Return a count, as everywhere in the product: 13,719; a dash if it is not known. */
export function number(value) {
  return typeof value === "number" ? WHOLE.format(value) : NOT_KNOWN;
}

/** Return a measured value with four digits, as its unit may be anything: 0.0123; 21.5; 13,719. */
export function measure(value) {
  if (typeof value !== "number") return NOT_KNOWN;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(3);
  const decimals = size >= 1000 || size === 0 ? 0 : Math.min(6, 3 - Math.floor(Math.log10(size)));
  return new Intl.NumberFormat("en", { maximumFractionDigits: decimals }).format(value);
}

/** Return a share in percent. It is 100 % only if nothing is missing. */
export function percent(part, whole) {
  if (typeof part !== "number" || !whole) return NOT_KNOWN;
  if (part >= whole) return "100 %";
  const share = Math.floor((1e5 * part) / whole) / 1e3;
  return `${share > 99 ? share : Math.floor(10 * share) / 10} %`;
}

/** Return a rate or a ratio with one decimal below ten. */
export function rate(value) {
  if (typeof value !== "number") return NOT_KNOWN;
  return value > 0 && value < 10 ? FINE.format(value) : number(Math.round(value));
}

/** Return an amount of bytes in decimal units. */
export function bytes(value) {
  if (typeof value !== "number") return NOT_KNOWN;
  let unit = 0;
  while (value >= 1000 && unit < BYTE_UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit > 0 && value < 10 ? FINE.format(value) : WHOLE.format(value)} ${BYTE_UNITS[unit]}`;
}

/** Return a duration of seconds in its two largest units. */
export function duration(seconds) {
  if (typeof seconds !== "number") return NOT_KNOWN;
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  const [large, unit, small, smaller] =
    s < 3_600 ? [60, "min", 1, "s"] : s < 86_400 ? [3_600, "h", 60, "min"] : [86_400, "d", 3_600, "h"];
  const rest = Math.floor((s % large) / small);
  const whole = Math.floor(s / large);
  return rest && whole < 10 ? `${whole} ${unit} ${rest} ${smaller}` : `${whole} ${unit}`;
}

/** Return a Date of an ISO text, of milliseconds or of a Date. */
export function dateOf(value) {
  return value instanceof Date ? value : new Date(value);
}

/** Return how long ago a time was. */
export function ago(value, now = Date.now()) {
  if (value === null || value === undefined) return "never";
  const seconds = (now - dateOf(value).getTime()) / 1000;
  return seconds < 2 ? "now" : `${duration(seconds)} ago`;
}

/** Return the time of day, with the day unless it is today. */
export function clock(value, now = new Date()) {
  if (value === null || value === undefined) return NOT_KNOWN;
  const at = dateOf(value);
  const time = at.toLocaleTimeString("en-GB");
  const days = Math.round((new Date(now).setHours(0, 0, 0, 0) - new Date(at).setHours(0, 0, 0, 0)) / 86_400_000);
  if (days === 0) return time;
  return `${days === 1 ? "yesterday" : at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time.slice(0, 5)}`;
}

/** Return a text as one word of a shell. */
export function shellWord(text) {
  return /^[\w./+:@%-]+$/.test(text) ? text : `'${plain(text).replaceAll("'", "'\\''")}'`;
}

/** Return `count` and the noun, in the right number. */
export function counted(count, noun, plural = `${noun}s`) {
  return `${number(count)} ${PLURALS.select(count) === "one" ? noun : plural}`;
}
