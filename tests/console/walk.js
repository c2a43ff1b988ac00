// Notes what a walk by Tab reaches. Evaluated in a page; called again, it begins anew.
() => {
  const WANTED = `a[href], button:not(:disabled), input:not(:disabled), select:not(:disabled), textarea:not(:disabled),
    summary, [tabindex="0"]`;
  const walk = (window.walk ??= { reached: new Set(), unseen: new Set(), covered: new Set() });
  const shown = (element) => element.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true });
  const name = (element) => (element.getAttribute("aria-label") ?? element.innerText ?? "").trim().slice(0, 40);
  walk.describe = (element) => `${element.localName} "${name(element)}"`;
  walk.wanted = () => [...document.querySelectorAll(WANTED)].filter(shown);
  walk.left = () => walk.wanted().filter((element) => !walk.reached.has(element)).map(walk.describe);
  for (const each of [walk.reached, walk.unseen, walk.covered]) each.clear();
  if (!walk.listens) document.addEventListener("focusin", (event) => note(event.target));
  walk.listens = true;

  function note(element) {
    walk.reached.add(element);
    const style = getComputedStyle(element);
    const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
    if (!outlined && style.boxShadow === "none") walk.unseen.add(walk.describe(element));
    // The browser scrolls to an element after the event.
    requestAnimationFrame(() => {
      const box = element.getBoundingClientRect();
      if (document.activeElement !== element || box.width === 0 || box.height > innerHeight / 2) return;
      const x = Math.min(Math.max(box.x + box.width / 2, 1), innerWidth - 1);
      const over = document.elementFromPoint(x, box.y + box.height / 2);
      if (over && !element.contains(over) && !over.contains(element)) walk.covered.add(walk.describe(element));
    });
  }

  document.activeElement.blur();
  return walk.wanted().length;
}
