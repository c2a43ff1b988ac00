"use strict";
// Tables as CSV (RFC 4180), escaped so that spreadsheets read no text as a formula.
const csv = (() => {
  const units = { seconds: " (s)", share: " (share)", bytes: " (bytes)", time: " (UTC)" };
  // Characters that begin a formula in spreadsheets, also after blanks and as full-width letters.
  const formula = /^[\s\u0000]*[=+\-@\uff1d\uff0b\uff0d\uff20]|^[\t\r\n]/;

  const plain = (text) => (formula.test(text) ? `'${text}` : text);
  const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

  function field(kind, value) {
    if (value === null || value === undefined) return "";
    if (kind === "time") return new Date(value * 1e3).toISOString().replace(".000Z", "Z");
    if (typeof value === "number") return String(value); // not text: its minus is a sign
    return quoted(plain(words.cell(kind, value)));
  }

  function text(columns, rows) {
    const hours = (cells) => [...(cells ?? "")];
    // A sparkline repeats other figures and is left out; each hour of a strip is a column.
    const kept = columns.map((column, index) => [column, index]).filter(([column]) => column.kind !== "spark");
    const head = kept.flatMap(([column, index]) => column.kind === "heat"
      ? hours(rows[0]?.[index]).map((_, at) => field("time", column.start + at * 3600))
      : [quoted(plain(column.head + (units[column.kind] ?? "")))]);
    const lines = rows.map((row) => kept.flatMap(([column, index]) => column.kind === "heat"
      ? hours(row[index]).map(drawings.told)
      : [field(column.kind, row[index])]));
    return [head, ...lines].map((fields) => `${fields.join(",")}\r\n`).join("");
  }

  const slug = (name) => name.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "table";

  function download(label, columns, rows) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text(columns, rows)], { type: "text/csv;charset=utf-8" }));
    link.download = `${slug(document.title)}-${slug(label)}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }

  return { text, download };
})();
