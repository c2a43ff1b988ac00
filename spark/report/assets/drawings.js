"use strict";
// Small drawings in cells: sparklines, as in spark/report/drawings.py, and strips of hours.
const drawings = (() => {
  const meanings = { ".": "no messages", l: "late", u: "unexplained" };

  // Top of the cells of each kind: a late hour has half the height, so that it differs not only by colour.
  const tops = { ".": 0.85, l: 0.45 };
  const told = (cell) => meanings[cell] ?? "in time";

  function made(tag, attributes) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }

  function spark(levels) {
    if (!levels) return [];
    const svg = made("svg", { viewBox: `0 0 ${levels.length} 37`, preserveAspectRatio: "none", class: "spark", "aria-hidden": "true" });
    const steps = levels.match(/(.)\1*/g).map((same) => `V${37 - parseInt(same[0], 36)}h${same.length}`);
    svg.append(made("path", { d: `M0 37${steps.join("")}V37z` }));
    return [svg];
  }

  // One path per kind of hour; adjacent cells are joined.
  function heat(cells, start) {
    if (!cells) return [];
    const svg = made("svg", { viewBox: `0 0 ${cells.length} 1`, preserveAspectRatio: "none", class: "heat", role: "img" });
    const paths = {};
    for (let at = 0; at < cells.length; ) {
      let end = at;
      while (cells[end] === cells[at]) end += 1;
      const top = tops[cells[at]] ?? 0;
      paths[cells[at]] = `${paths[cells[at]] ?? ""}M${at} ${top}h${end - at}V1h-${end - at}z`;
      at = end;
    }
    for (const [kind, d] of Object.entries(paths)) svg.append(made("path", { d, class: kind === "." ? "h0" : `h${kind}` }));
    const midnights = [...cells].map((_, at) => at).filter((at) => at && (start + at * 3600) % 86400 === 0);
    svg.append(made("path", { class: "day", d: midnights.map((at) => `M${at} 0v1`).join("") }));
    const title = made("title", {});
    const of = (kind) => [...cells].filter((cell) => cell === kind).length;
    const parts = Object.entries(meanings).map(([kind, name]) => [of(kind), name]).filter(([count]) => count);
    svg.setAttribute("aria-label", `${cells.length} hours${parts.map(([count, name]) => `, ${count} ${name}`).join("")}`);
    svg.append(title);
    svg.addEventListener("pointermove", (event) => {
      const { left, width } = svg.getBoundingClientRect();
      const at = Math.min(cells.length - 1, Math.max(0, Math.floor(((event.clientX - left) / width) * cells.length)));
      title.textContent = `${words.moment(start + at * 3600)} UTC: ${told(cells[at])}`;
    });
    return [svg];
  }

  return { spark, heat, told };
})();
