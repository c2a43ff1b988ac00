// Body of a message as text, folded JSON or hexadecimal digits. What a device sent is shown as text, never as markup.

import { html } from "./html.js";
import { Name } from "./parts.js";
import { bytes, plain } from "./text.js";

const FOLD_CHARACTERS = 160;

/** @param {{message: {body?: string, form?: string, size?: number, shown?: number, properties?: [string, string][], content_type?: string | null}}} properties */
export function MessageBody({ message }) {
  const { body = "", form = "text", size = 0, shown = 0, properties = [] } = message;
  const cut = shown < size ? `, the first ${bytes(shown)} of ${bytes(size)}` : "";
  const text = form === "hex" ? grouped(body) : pretty(body, shown === size);
  const folded = text.length > FOLD_CHARACTERS || text.includes("\n");
  const whole = html`<pre class="payload" tabindex="0">${lines(text)}</pre>`;
  return html`<div class="message-body">
    ${size === 0 ? html`<span class="soft">empty</span>` : folded
      ? html`<details><summary><code>${plain(short(form === "hex" ? text : body))}</code></summary>${whole}</details>`
      : html`<code>${plain(text)}</code>`}
    ${(form === "hex" || cut || message.content_type) && html`<small>${[form === "hex" ? "not text: hexadecimal" : "", plain(message.content_type ?? "")].filter(Boolean).join(", ")}${cut}</small>`}
    ${properties.length > 0 && html`<details><summary class="small">${properties.length} properties</summary><dl class="rows">${properties.map(([name, value]) =>
      html`<dt><${Name} mono>${name}<//></dt><dd><${Name}>${value}<//></dd>`)}</dl></details>`}
  </div>`;
}

function short(text) {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > FOLD_CHARACTERS ? `${line.slice(0, FOLD_CHARACTERS)}…` : line;
}

/** Return lines, each with odd characters as escapes. */
const lines = (text) => text.split("\n").map(plain).join("\n");

function pretty(body, complete) {
  if (!complete || !/^\s*[[{]/.test(body)) return body;
  try {
    JSON.parse(body);
  } catch {
    return body;
  }
  return indented(body);
}

/** Indent JSON without reading its numbers, which may have more digits than JavaScript keeps. */
function indented(json) {
  let [depth, quoted, result] = [0, false, ""];
  for (let place = 0; place < json.length; place += 1) {
    const c = json[place];
    if (quoted) {
      result += c;
      if (c === "\\") result += json[(place += 1)] ?? "";
      else if (c === '"') quoted = false;
    } else if (c === '"') {
      quoted = true;
      result += c;
    } else if (c === "{" || c === "[") {
      const next = json.slice(place + 1).match(/^\s*[}\]]/);
      if (next) {
        result += c + next[0].trim();
        place += next[0].length;
      } else {
        depth += 1;
        result += `${c}\n${"  ".repeat(depth)}`;
      }
    } else if (c === "}" || c === "]") {
      depth -= 1;
      result += `\n${"  ".repeat(depth)}${c}`;
    } else if (c === ",") result += `,\n${"  ".repeat(depth)}`;
    else if (c === ":") result += ": ";
    else if (!/\s/.test(c)) result += c;
  }
  return result;
}

/** Return hexadecimal digits in bytes, 16 on a line. */
function grouped(digits) {
  const pairs = digits.match(/../g) ?? [];
  const rows = [];
  for (let at = 0; at < pairs.length; at += 16) rows.push(pairs.slice(at, at + 16).join(" "));
  return rows.join("\n");
}
