// Messages: try an address, browse what it keeps, and deal with dead letters.

import { Browse } from "./browse.js";
import { DeadLetters } from "./dead_letters.js";
import { html } from "./html.js";
import { Choice } from "./parts.js";
import { address, go } from "./route.js";
import { TryIt } from "./try_it.js";

const SHOWN = [["dead", "Dead letters"], ["browse", "Browse"], ["try", "Try it"]];
const VIEWS = { dead: DeadLetters, browse: Browse, try: TryIt };

export function Messages({ query }) {
  const shown = query.show in VIEWS ? query.show : SHOWN[0][0];
  const choice = html`<${Choice} label="Show" options=${SHOWN} value=${shown} choose=${(value) => go(address("messages", "", { show: value }))} />`;
  return html`<${VIEWS[shown]} query=${query} choice=${choice} />`;
}
