// Icons of pages and states: paths on a grid of 24, drawn with lines.

import { html } from "./html.js";

export const PATHS = {
  alerts: "M6 17V11a6 6 0 0 1 12 0v6l2 2H4zM10 21h4",
  analytics: "M4 20V4M4 20h16M8 16v-4M12 16V8M16 16v-6",
  bridge: "M3 16c4-9 14-9 18 0M3 16h18M8 12v4M12 10v6M16 12v4",
  check: "M5 13l4 4L19 7",
  commands: "M4 17l6-5-6-5M12 18h8",
  completeness: "M12 3l8 3v6c0 5-4 8-8 9-4-1-8-4-8-9V6zM9 12l2 2 4-4",
  configuration: "M4 7h10M18 7h2M16 5v4M4 17h4M12 17h8M10 15v4",
  cross: "M6 6l12 12M18 6 6 18",
  enrolment: "M8 15a4 4 0 1 1 3-6l9 0v3h-2v3h-3v-3h-4",
  home: "M4 11 12 4l8 7v9h-5v-6H9v6H4z",
  list: "M4 6h16M4 12h16M4 18h10",
  log: "M6 3h12v18H6zM9 8h6M9 12h6M9 16h4",
  messages: "M4 5h16v11H9l-5 4z",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  person: "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM4 21c1-8 15-8 16 0",
  phone: "M7 3h10v18H7zM11 18h2",
  pulse: "M3 12h4l2-6 4 12 3-8 1 2h4",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM16 16l5 5",
  sites: "M4 6l5-2 6 2 5-2v14l-5 2-6-2-5 2zM9 4v14M15 6v14",
  store: "M5 6c0-3 14-3 14 0v12c0 3-14 3-14 0zM5 6c0 3 14 3 14 0M5 12c0 3 14 3 14 0",
  system: "M12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM12 3v3M12 18v3M3 12h3M18 12h3M6 6l2 2M16 16l2 2M18 6l-2 2M8 16l-2 2",
};

/** @param {{name: keyof typeof PATHS, size?: number}} properties */
export function Icon({ name, size = 18 }) {
  return html`<svg width=${size} height=${size} viewBox="0 0 24 24" fill="none" stroke="currentColor"
    stroke-width=${name === "more" ? 3 : 1.8} stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
    <path d=${PATHS[name]} />
  </svg>`;
}

export function Mark() {
  return html`<svg viewBox="0 0 32 32" aria-hidden="true">
    <path class="mark-post" d="M14 3h4v26h-4z" /><path class="mark-sign" d="M5 6h18l5 5-5 5H5z" />
  </svg>`;
}
