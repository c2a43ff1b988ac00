"use strict";
// Format numbers, times and durations, as spark/report/formatting.py does.
const words = (() => {
  const thin = "\u202f";
  const prefixes = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

  const count = (number) => Math.round(number).toString().replace(/\B(?=(\d{3})+$)/g, ",");

  function significant(value) {
    const magnitude = Math.abs(value);
    let decimals = magnitude >= 100 ? 0 : magnitude >= 10 ? 1 : 2;
    while (magnitude > 0 && magnitude < 10 ** (2 - decimals)) decimals += 1;
    let text = value.toFixed(decimals);
    if (decimals) text = text.replace(/\.?0+$/, "");
    return text === "-0" ? "0" : text.replace("-", "\u2212");
  }

  function number(value) {
    if (!Number.isFinite(value)) return "-";
    const magnitude = Math.abs(value);
    if (magnitude >= 1e15 || (magnitude > 0 && magnitude < 1e-3)) return value.toExponential(2).replace(/e([+-])(\d)$/, "e$10$2");
    if (magnitude >= 1e4) {
      const [size, prefix] = prefixes.find(([size]) => magnitude >= size);
      return significant(value / size) + thin + prefix;
    }
    return magnitude >= 1e3 ? count(value) : significant(value);
  }

  function size(bytes) {
    const found = prefixes.find(([size]) => bytes >= size);
    return found ? significant(bytes / found[0]) + thin + found[1] + "B" : significant(bytes) + thin + "B";
  }

  function percent(share) {
    if (share > 0 && share < 0.001) return `<${thin}0.1${thin}%`;
    if (share >= 0.9995 && share < 1) return `>${thin}99.9${thin}%`;
    return `${(share * 100).toFixed(1)}${thin}%`.replace(".0", "");
  }

  function duration(seconds) {
    if (seconds === null || !Number.isFinite(seconds)) return "-";
    if (seconds < 0) return "\u2212" + duration(-seconds);
    if (seconds > 0 && seconds < 1) return Math.round(seconds * 1e3) + thin + "ms";
    if (seconds < 120) return significant(seconds) + thin + "s";
    const units = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];
    const [size, unit, smaller, rest] = units.find(([size]) => seconds >= size);
    const all = Math.round(seconds / smaller), each = size / smaller;
    const whole = Math.floor(all / each), left = all % each;
    return whole + thin + unit + (left ? ` ${left}${thin}${rest}` : "");
  }

  const moment = (second) => new Date(second * 1e3).toISOString().slice(0, 19).replace("T", " ");

  // The reader's local time, with its date if that differs; empty if it equals UTC.
  function local(second) {
    const at = new Date(second * 1e3);
    if (!at.getTimezoneOffset()) return "";
    const [day, clock] = moment(second - at.getTimezoneOffset() * 60).split(" ");
    return day === moment(second).slice(0, 10) ? clock : `${day.slice(5)} ${clock}`;
  }

  function cell(kind, value) {
    if (value === null || kind === "spark" || kind === "heat") return "";
    const kinds = { count, seconds: duration, share: percent, number, bytes: size, time: moment };
    if (kinds[kind]) return kinds[kind](value);
    return String(kind === "state" ? value[1] : kind === "gateway" ? value[0] : value);
  }

  return { count, number, percent, duration, moment, local, cell };
})();
