// Difference between two configurations, line by line.

import { html } from "./html.js";
import { plain } from "./text.js";

const SIGNS = { "+": "plus", "-": "minus" };

/** @param {{text: string, label: string}} properties `text`: unified diff */
export function Diff({ text, label }) {
  return html`<pre class="diff mono" tabindex="0" role="region" aria-label=${label}>${text.split("\n").map((line) => html`<span class=${SIGNS[line[0]] ?? ""}>${plain(line)}${"\n"}</span>`)}</pre>`;
}
