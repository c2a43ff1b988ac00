"""People without a mouse: what Tab reaches, whether the focus is seen, and dialogs that keep it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from playwright.sync_api import Locator, Page, expect

from tests.console.visit import Visit

PRESSES_MAX: Final = 400
"""Places that are reached on one page; more would take minutes to walk through."""
WALK: Final = Path(__file__).with_name("walk.js").read_text()
"""Begins a walk; returns the number of places that are to be reached."""
FAULTS: Final = """() => [
  ...[...walk.unseen].map(name => `focus is not seen: ${name}`),
  ...[...walk.covered].map(name => `focus is covered: ${name}`),
]"""
INSIDE: Final = """() => {
  const element = document.activeElement;
  return element === document.body || element.closest("dialog") !== null;
}"""


def unreached(page: Page) -> list[str]:
    """Walk through a page with Tab; return what it does not reach, and where the focus is not seen."""
    wanted = int(page.evaluate(WALK))
    if wanted > PRESSES_MAX:
        return [f"{wanted} places"]
    left: list[str] = []
    for _ in range(3):  # a list that was reloaded in the meantime has new places
        for _ in range(wanted + 2):
            page.keyboard.press("Tab")
        left = page.evaluate("walk.left()")
        if not left:
            break
    faults: list[str] = page.evaluate(FAULTS)
    return [*(f"not reached: {name}" for name in left), *faults]


def dialog_buttons(visit: Visit) -> list[str]:
    """Return the names of the page's buttons that open a dialog: they end with "…"."""
    names = visit.page.locator("main button:enabled", has_text="…").all_inner_texts()
    return [name for name in dict.fromkeys(each.strip() for each in names) if name.endswith("…")]


def faults_of_dialog(visit: Visit, name: str) -> Iterator[str]:
    """Open a dialog by keyboard, and close it in both ways; yield what is wrong. `name`: of its button."""
    page = visit.page
    button = page.locator("main button:enabled", has_text=re.compile(f"^{re.escape(name)}$")).first
    button.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    visit.settle()
    yield from visit.violations()
    yield from outside(page)
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    if not is_focused(button):
        yield "Escape does not return the focus"
    button.press("Enter")
    expect(dialog).to_be_visible()
    cancel = dialog.get_by_role("button", name="Cancel").or_(dialog.get_by_role("button", name="Close")).first
    cancel.press("Enter")
    expect(page.locator("dialog")).to_have_count(0)
    if not is_focused(button):
        yield "Cancel does not return the focus"


def outside(page: Page) -> Iterator[str]:
    """Press Tab in a dialog until it is round; yield a message when the focus leaves it."""
    for _ in range(2 + page.get_by_role("dialog").locator("a, button, input, select, textarea").count()):
        page.keyboard.press("Tab")
        if not page.evaluate(INSIDE):
            yield "the focus leaves the dialog"
            return


def is_focused(button: Locator) -> bool:
    """Return True when a button gets the focus within a second."""
    try:
        expect(button).to_be_focused(timeout=1_000)
    except AssertionError:
        return False
    return True
