"use strict";
// Tables: search, sort by column, and leaf through. Cells are set as text, never as HTML.
(() => {
  const numeric = new Set(["count", "seconds", "share", "number", "bytes", "time"]);
  const few = 10;
  const narrow = matchMedia("(max-width: 620px)").matches;

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function marks(column, value) {
    if (column.kind === "state") return `${["good", "look", "bad"][value[0]]} wide`;
    const names = numeric.has(column.kind) ? ["n"] : ["name", "gateway"].includes(column.kind) ? ["name"] : [];
    if (column.kind === "time") names.push("wide");
    if (column.kind === "spark") names.push("spark");
    if (column.kind === "heat") names.push("heat", "wide");
    if (column.alarm && value !== null) names.push(value > 0 ? "bad" : "good");
    return names.join(" ");
  }

  // A name may break after each / and . in it.
  const breakable = (text) => text.split(/(?<=[/.])/).flatMap((part, index) => (index ? [element("wbr", {}), part] : [part]));

  function cell(column, value) {
    const text = words.cell(column.kind, value);
    const made = element("td", { role: "cell", class: marks(column, value) });
    if (column.head) made.dataset.head = column.head;
    if (column.kind === "gateway" && value[1]) made.append(element("a", { href: value[1] }, ...breakable(text)));
    else if (["name", "gateway"].includes(column.kind)) made.append(...breakable(text));
    else if (column.kind === "spark") made.append(...drawings.spark(value));
    else if (column.kind === "heat") made.append(...drawings.heat(value, column.start));
    else if (column.kind === "time" && value !== null) {
      const local = words.local(value);
      made.append(element("time", { datetime: new Date(value * 1e3).toISOString() }, text, ...(local ? [element("small", { class: "local" }, ` (${local})`)] : [])));
    }
    else made.append(text);
    return made;
  }

  function key(column, value) {
    if (column.kind === "state") return value[0];
    return numeric.has(column.kind) ? value : words.cell(column.kind, value).toLowerCase();
  }

  class Sheet {
    constructor(root) {
      const { columns, rows, leaf } = JSON.parse(root.querySelector("script.rows").textContent);
      // On a phone a row is a card.
      Object.assign(this, { root, columns, rows, leaf: narrow ? few : leaf, order: rows, at: 0, by: null, down: true });
      this.body = root.querySelector("tbody");
      this.heads = [...root.querySelectorAll("th")];
      this.heads.forEach((head, index) => this.#sortable(head, index));
      this.tools = root.querySelector(".tools");
      this.tools.hidden = !rows.length;
      this.tools.classList.toggle("few", rows.length <= few);
      const label = root.querySelector("table").getAttribute("aria-label");
      this.tools.querySelector(".csv").addEventListener("click", () => csv.download(label, this.columns, this.order));
      this.tools.querySelector("input").addEventListener("input", (event) => this.search(event.target.value));
      this.tools.querySelector(".before").addEventListener("click", () => this.turn(-this.leaf));
      this.tools.querySelector(".after").addEventListener("click", () => this.turn(this.leaf));
      // Only this script draws strips: as markup they would be larger than the rest of the page.
      if (narrow || columns.some((column) => column.kind === "heat")) this.draw();
      else this.#say();
    }

    #sortable(head, index) {
      if (!this.columns[index].head || this.rows.length < 2 || ["spark", "heat"].includes(this.columns[index].kind)) return;
      const button = element("button", { type: "button" }, this.columns[index].head);
      button.addEventListener("click", () => this.sort(index));
      head.replaceChildren(button);
    }

    search(text) {
      const wanted = text.trim().toLowerCase();
      this.texts ??= new Map(this.rows.map((row) => [row, this.columns.map((column, index) => words.cell(column.kind, row[index])).join("\n").toLowerCase()]));
      this.wanted = wanted;
      this.#arrange();
    }

    sort(index) {
      this.down = this.by === index ? !this.down : numeric.has(this.columns[index].kind) || this.columns[index].kind === "state";
      this.by = index;
      this.heads.forEach((head, place) => {
        if (place === index) head.setAttribute("aria-sort", this.down ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      this.#arrange();
    }

    #arrange() {
      this.order = this.wanted ? this.rows.filter((row) => this.texts.get(row).includes(this.wanted)) : [...this.rows];
      if (this.by !== null) {
        const column = this.columns[this.by], sign = this.down ? -1 : 1;
        const keyed = this.order.map((row) => [key(column, row[this.by]), row]);
        // Unknown values come last in both directions.
        keyed.sort(([a], [b]) => (a === b ? 0 : a === null ? 1 : b === null ? -1 : a < b ? -sign : sign));
        this.order = keyed.map(([, row]) => row);
      }
      this.at = 0;
      this.draw();
    }

    turn(by) {
      this.at = Math.max(0, Math.min(this.at + by, Math.floor(Math.max(0, this.order.length - 1) / this.leaf) * this.leaf));
      this.draw();
    }

    draw() {
      const shown = this.order.slice(this.at, this.at + this.leaf);
      this.body.replaceChildren(...shown.map((row) => element("tr", { role: "row" }, ...this.columns.map((column, index) => cell(column, row[index])))));
      this.#say();
    }

    #say() {
      const total = this.order.length, end = Math.min(this.at + this.leaf, total);
      const [before, after] = [".before", ".after"].map((name) => this.tools.querySelector(name));
      before.disabled = this.at === 0;
      after.disabled = end >= total;
      before.hidden = after.hidden = total <= this.leaf;
      this.tools.querySelector(".leaf").textContent = total ? `${words.count(this.at + 1)}\u2013${words.count(end)} of ${words.count(total)}` : "nothing found";
    }
  }

  document.querySelectorAll(".sheet:not(.facts)").forEach((root) => new Sheet(root));
})();
