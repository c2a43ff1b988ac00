"use strict";
// Sections can be folded. The page stores which are closed; a link to a section opens it, and printing opens all.
(() => {
  const folds = [...document.querySelectorAll("details.fold")];
  const place = `waypost.folded ${location.pathname}`;
  const button = document.querySelector("button.fold-all");

  // A browser may refuse storage for a local file: then nothing is stored.
  function stored() {
    try {
      return new Set(JSON.parse(localStorage.getItem(place)) ?? []);
    } catch {
      return new Set();
    }
  }

  // Browsers report a fold late, and not at all while the page is unloaded: so this also runs on unload.
  function keep() {
    const now = JSON.stringify(closedNow());
    if (now === kept) return;
    kept = now;
    try {
      localStorage.setItem(place, now);
    } catch {
      // no storage
    }
  }

  function closedNow() {
    return folds.filter((fold) => !fold.open).map((fold) => fold.parentElement.id);
  }

  function label() {
    if (button) button.textContent = folds.some((fold) => fold.open) ? "Fold all" : "Open all";
  }

  function reveal(hash) {
    const fold = hash.length > 1 ? document.getElementById(decodeURIComponent(hash.slice(1)))?.querySelector("details.fold") : null;
    if (!fold || fold.open) return;
    fold.open = true;
    fold.scrollIntoView();
  }

  const closed = stored();
  for (const fold of folds) {
    if (closed.has(fold.parentElement.id)) fold.open = false;
    fold.addEventListener("toggle", () => {
      keep();
      label();
    });
  }
  let kept = JSON.stringify(closedNow());
  addEventListener("pagehide", keep);
  if (button && folds.length) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const open = !folds.some((fold) => fold.open);
      for (const fold of folds) fold.open = open;
    });
  }
  label();
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link) reveal(link.getAttribute("href"));
  });
  addEventListener("hashchange", () => reveal(location.hash));
  reveal(location.hash);

  let shut = [];
  addEventListener("beforeprint", () => {
    shut = folds.filter((fold) => !fold.open);
    for (const fold of shut) fold.open = true;
  });
  addEventListener("afterprint", () => {
    for (const fold of shut) fold.open = false;
    shut = [];
  });
})();
