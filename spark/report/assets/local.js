"use strict";
// The reader's local time next to UTC, if the two differ.
(() => {
  for (const time of document.querySelectorAll("time[datetime]")) {
    const local = words.local(Date.parse(time.dateTime) / 1e3);
    if (!local) continue;
    const made = document.createElement("small");
    made.className = "local";
    made.textContent = ` (${local})`;
    time.append(made);
  }
  const zone = document.querySelector(".zone");
  if (zone && document.querySelector("time .local")) zone.textContent = ` In brackets: ${Intl.DateTimeFormat().resolvedOptions().timeZone}.`;
})();
