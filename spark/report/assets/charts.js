"use strict";
// Charts: uPlot draws the JSON of each figure when it scrolls into view, in the colours of the page.
(() => {
  // Steps of a time axis in seconds: whole minutes, hours and days.
  const durations = [1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000];
  const shares = [1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5];
  const counts = [1, 2, 5].flatMap((digit) => Array.from({ length: 15 }, (_, power) => digit * 10 ** power)).sort((one, other) => one - other);
  // Steps of an axis of values: round numbers; a chart from zero without a unit counts messages.
  const incrs = ({ unit, zero }) => ({ s: durations, share: shares })[unit] ?? (unit === "" && zero ? counts : undefined);
  const printed = { wide: 330, narrow: 215 };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const wash = (name, share) => `color-mix(in srgb, ${colour(name)} ${share}%, transparent)`;

  function said({ unit, measured }, value) {
    if (value === null || value === undefined) return "\u2013";
    if (unit === "s") return words.duration(value);
    if (unit === "share") return words.percent(value);
    return words.number(value) + (measured ?? unit);
  }

  function series(line, chart) {
    const made = { label: line.label, stroke: colour(line.style), width: 1.6, points: { show: false }, value: (_, value) => said(chart, value) };
    const stepped = uPlot.paths.stepped({ align: 1 });
    switch (line.kind) {
      case "area":
        return { ...made, paths: stepped, width: 0, fill: wash(line.style, 70) };
      case "steps":
        return { ...made, paths: stepped };
      case "line":
        return { ...made, width: 1, spanGaps: true };
      case "ticks": // drawn separately, between the expected and the actual value
        return { ...made, paths: () => null, width: 0 };
      case "low":
      case "high":
        return { ...made, paths: stepped, width: 0 };
      default: {
        const size = line.kind === "marks" ? 9 : 5;
        const notes = line.notes;
        const value = notes ? (_, value, __, at) => (value === null || at === null || value === undefined ? "\u2013" : `${said(chart, value)} (${notes.get(at)})`) : made.value;
        return { ...made, value, paths: () => null, width: 0, points: { show: true, size, width: line.kind === "marks" ? 2 : 0, stroke: colour(line.style), fill: line.kind === "marks" ? "transparent" : colour(line.style) } };
      }
    }
  }

  // uPlot needs one column of times: joining series leaves holes that are not gaps in the data.
  function joined(chart) {
    const lines = chart.lines.flatMap((line) => line.kind === "range"
      ? [{ ...line, kind: "low", label: "lowest" }, { ...line, kind: "high", label: "highest", y: line.y2 }]
      : [line]);
    const columns = lines.map((line) => [line.x.map((at) => at + chart.from), line.y]);
    return { lines, data: columns.length > 1 ? uPlot.join(columns) : columns[0] };
  }

  function bands(chart) {
    return (plot) => {
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      for (const band of chart.bands) {
        const [start, end] = [band.start, band.end].map((at) => plot.valToPos(at, "x", true));
        ctx.fillStyle = wash("band", 14);
        if (end - start > 1) ctx.fillRect(start, bbox.top, end - start, bbox.height);
        else {
          ctx.fillStyle = colour("band");
          ctx.fillRect(start - 0.5, bbox.top, 1.5, bbox.height);
        }
        if (!band.number) continue;
        const side = (chart.small ? 9 : 14) * devicePixelRatio, middle = Math.min(Math.max((start + end) / 2, bbox.left + side / 2), bbox.left + bbox.width - side / 2);
        ctx.fillStyle = colour("band");
        ctx.fillRect(middle - side / 2, bbox.top, side, side);
        ctx.fillStyle = colour("paper");
        ctx.font = `600 ${(chart.small ? 7 : 10) * devicePixelRatio}px system-ui, sans-serif`;
        ctx.textAlign = "center";
        ctx.textBaseline = "middle";
        ctx.fillText(band.number, middle, bbox.top + side / 2 + devicePixelRatio / 2);
      }
      ctx.restore();
    };
  }

  // A line from the expected to the actual value of each anomaly, with a tick at the expected value.
  function deviations(lines, data) {
    const [expected, came] = ["ticks", "marks"].map((kind) => lines.findIndex((line) => line.kind === kind) + 1);
    return (plot) => {
      if (!expected) return;
      const { ctx } = plot, half = 4 * devicePixelRatio;
      ctx.save();
      data[0].forEach((second, index) => {
        const [low, high] = [data[expected][index], data[came][index]];
        if (low === null || low === undefined || high === null || high === undefined) return;
        const at = plot.valToPos(second, "x", true), [from, to] = [low, high].map((value) => plot.valToPos(value, "y", true));
        ctx.fillStyle = wash("bad", 22);
        ctx.fillRect(at - half, Math.min(from, to), 2 * half, Math.abs(to - from));
        ctx.fillStyle = colour("good");
        ctx.fillRect(at - half, from - devicePixelRatio, 2 * half, 2 * devicePixelRatio);
      });
      ctx.restore();
    };
  }

  class Drawing {
    constructor(figure) {
      this.figure = figure;
      this.canvas = figure.querySelector(".canvas");
      this.note = figure.querySelector(".note");
      this.noted = this.note.textContent;
      this.chart = JSON.parse(figure.querySelector("script.chart").textContent);
      this.canvas.addEventListener("keydown", (event) => this.step(event));
      this.canvas.addEventListener("blur", () => this.plot?.setCursor({ left: -10, top: -10 }));
      figure.querySelector("details").addEventListener("toggle", (event) => this.#tell(event.target), { once: true });
    }

    options(width) {
      const { chart } = this;
      const axis = { stroke: colour("soft"), grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false }, font: "11.5px system-ui, sans-serif" };
      const range = (_, low, high) => {
        if (low === null) return [0, 1];
        if (chart.unit === "share") return [Math.min(low - (1 - low) * 0.2, 0.99), 1];
        if (chart.zero) return [0, high > 0 ? high * 1.08 : 1];
        const air = high > low ? (high - low) * 0.1 : Math.abs(low) * 0.1 || 1;
        return [low - air, high + air];
      };
      const at = this.lines.findIndex((line) => line.kind === "low") + 1;
      return {
        width, height: chart.small ? 104 : 210, padding: [10, 28, 0, 0], // at the right half a time's text
        tzDate: (second) => uPlot.tzDate(new Date(second * 1e3), "Etc/UTC"),
        scales: { x: { range: [chart.from, Math.max(chart.to, chart.from + 1)] }, y: { range } },
        axes: [
          { ...axis, size: 28, space: chart.small ? 62 : 70, values: clock },
          { ...axis, ...(incrs(chart) ? { incrs: incrs(chart) } : {}), size: chart.small ? 46 : 62, space: chart.small ? 28 : 36, values: (_, values) => values.map((value) => said({ unit: chart.unit === "/s" ? "" : chart.unit }, value)) },
        ],
        series: [{ label: "at", value: (_, second) => (second === null ? "\u2013" : words.moment(second) + (words.local(second) && ` (${words.local(second)})`)) }, ...this.lines.map((line) => series(line, chart))],
        bands: at ? [{ series: [at + 1, at], fill: wash("reading", 25) }] : [],
        legend: { show: !chart.small, markers: { width: 0, fill: (_, index) => colour(this.lines[index - 1].style) } },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
        hooks: { drawClear: [bands(chart)], draw: [deviations(this.lines, this.data)], setCursor: [(plot) => this.#read(plot)] },
      };
    }

    draw(width) {
      const { lines, data } = joined(this.chart);
      for (const line of lines) {
        if (!line.notes) continue;
        const places = new Map(line.x.map((at, index) => [at + this.chart.from, line.notes[index]]));
        line.notes = { get: (index) => places.get(data[0][index]) };
      }
      this.lines = lines;
      this.data = data;
      this.plot?.destroy();
      this.plot = new uPlot(this.options(width ?? this.canvas.clientWidth), data, this.canvas);
    }

    // A small chart has no legend: the value under the cursor replaces its last value.
    #read(plot) {
      if (!this.chart.small) return;
      const at = plot.cursor.idx;
      if (at === null || at === undefined || plot.cursor.left < 0) {
        this.note.textContent = this.noted;
        return;
      }
      const found = this.lines.map((line, index) => [line, this.data[index + 1][at]]).filter(([, value]) => value !== null && value !== undefined);
      const [line, value] = found.find(([line]) => line.notes) ?? found.at(-1) ?? [];
      const clock = words.moment(this.data[0][at]).slice(11);
      this.note.textContent = line ? `${clock} ${said(this.chart, value)}${line.notes ? ` ${line.notes.get(at)}` : ""}` : clock;
    }

    step(event) {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by || !this.plot) return;
      event.preventDefault();
      const { length } = this.data[0];
      const at = Math.max(0, Math.min(length - 1, (this.plot.cursor.left < 0 ? (by > 0 ? -1 : length) : this.plot.cursor.idx ?? 0) + by));
      this.plot.setCursor({ left: this.plot.valToPos(this.data[0][at], "x"), top: 10 });
    }

    #tell(details) {
      const { lines, data } = this.plot ? this : joined(this.chart);
      const make = (tag, ...children) => {
        const made = document.createElement(tag);
        made.append(...children);
        return made;
      };
      const head = make("tr", make("th", "at"), ...lines.map((line) => make("th", line.label)));
      const rows = data[0].map((second, index) => make("tr", make("td", words.moment(second)), ...lines.map((_, place) => {
        const value = data[place + 1][index];
        return make("td", value === null || value === undefined ? "" : said(this.chart, value));
      })));
      const table = make("table", make("thead", head), make("tbody", ...rows));
      const scroll = make("div", table);
      scroll.className = "scroll";
      scroll.tabIndex = 0;
      scroll.setAttribute("role", "region");
      scroll.setAttribute("aria-label", this.canvas.getAttribute("aria-label"));
      details.append(scroll);
    }
  }

  // Round times of the day; at the begin of a day its date.
  function clock(plot, seconds, _, __, step) {
    return seconds.map((second) => {
      const text = words.moment(second);
      const day = new Date(second * 1e3).toLocaleDateString("en-GB", { day: "2-digit", month: "short", timeZone: "UTC" });
      if (step >= 86400 || second % 86400 === 0) return day;
      return step < 60 ? text.slice(11) : text.slice(11, 16);
    });
  }

  const drawings = new Map([...document.querySelectorAll("figure.plot")].map((figure) => [figure, new Drawing(figure)]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      drawings.get(entry.target).draw();
      resized.observe(drawings.get(entry.target).canvas);
    }
  }, { rootMargin: "400px" });
  const resized = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) {
      const { plot } = drawings.get(target.closest("figure"));
      if (plot && contentRect.width && Math.abs(plot.width - contentRect.width) > 1) plot.setSize({ width: contentRect.width, height: plot.height });
    }
  });
  for (const figure of drawings.keys()) seen.observe(figure);
  const again = () => drawings.forEach((drawing) => drawing.plot && drawing.draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.print = "";
    drawings.forEach((drawing) => drawing.draw(drawing.chart.small ? printed.narrow : printed.wide));
  });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.print;
    again();
  });
})();
