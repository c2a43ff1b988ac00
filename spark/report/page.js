"use strict";
// A crosshair over the plots and a reading of the values under it; with the arrow keys too. Plots of one page share
// their time axis, so the hair is shown in all of them and the reading in the one that is pointed at.
(() => {
  const plots = [...document.querySelectorAll(".plot")].map((figure) => ({
    canvas: figure.querySelector(".canvas"),
    numbers: JSON.parse(figure.querySelector(".numbers").textContent),
  }));
  const two = (n) => String(n).padStart(2, "0");
  const clock = (seconds) => {
    const t = new Date(seconds * 1000);
    const day = `${t.getUTCFullYear()}-${two(t.getUTCMonth() + 1)}-${two(t.getUTCDate())}`;
    return `${day} ${two(t.getUTCHours())}:${two(t.getUTCMinutes())}:${two(t.getUTCSeconds())} UTC`;
  };
  const amount = (value) => {
    if (value === null || value === undefined) return "–";
    const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
    return value.toLocaleString("en", { maximumFractionDigits: digits }).replaceAll(",", "\u202f");
  };
  const nearest = (series, at) => {
    const times = series.at;
    let low = 0, high = times.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (times[middle] <= at) low = middle; else high = middle - 1;
    }
    if (series.width) return times.length && at >= times[low] && at < times[low] + series.width ? low : -1;
    if (low + 1 < times.length && times[low + 1] - at < at - times[low]) low += 1;
    return times.length ? low : -1;
  };
  const make = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const clear = () => document.querySelectorAll(".hair, .tip").forEach((node) => node.remove());
  const show = (plot, share) => {
    clear();
    const { numbers, canvas } = plot;
    const at = share * (numbers.to - numbers.from);
    for (const other of plots) {
      const place = (numbers.from + at - other.numbers.from) / (other.numbers.to - other.numbers.from);
      if (place < 0 || place > 1) continue;
      const hair = make("div", "hair");
      hair.style.left = `${place * 100}%`;
      other.canvas.append(hair);
    }
    const tip = make("div", "tip");
    tip.append(make("b", "", clock(numbers.from + at)));
    for (const series of numbers.series) {
      const index = nearest(series, at);
      const line = make("div", series.style);
      const value = index < 0 ? "–" : amount(series.values[index]);
      line.append(series.name, make("em", "", numbers.unit && index >= 0 ? `${value} ${numbers.unit}` : value));
      tip.append(line);
    }
    canvas.append(tip);
    const room = canvas.clientWidth - tip.offsetWidth - 12;
    const x = share * canvas.clientWidth;
    tip.style.left = `${x < room ? x + 12 : Math.max(-40, x - tip.offsetWidth - 12)}px`;
  };
  for (const plot of plots) {
    let share = 0;
    const point = (event) => {
      const box = plot.canvas.getBoundingClientRect();
      share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      show(plot, share);
    };
    plot.canvas.addEventListener("pointermove", point);
    plot.canvas.addEventListener("pointerdown", point);
    plot.canvas.addEventListener("pointerleave", clear);
    plot.canvas.addEventListener("blur", clear);
    plot.canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -0.01, ArrowRight: 0.01 }[event.key];
      if (event.key === "Escape") clear();
      if (!step) return;
      event.preventDefault();
      share = Math.min(1, Math.max(0, share + step));
      show(plot, share);
    });
  }
})();
