// The command below a dialog that does the same.

import { html } from "./html.js";
import { plain } from "./text.js";

/** Command that does the same, to learn it and for scripts. @param {{words: string[]}} properties */
export function CommandLine({ words }) {
  const text = words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
  return html`<p class="soft small">The same from a terminal: <code class="name">${plain(text)}</code></p>`;
}
