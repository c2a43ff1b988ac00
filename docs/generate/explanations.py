"""Entries of `waypost explain`, from the same code as the reference: `python -m docs.generate.explanations`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from docs.generate import errors, problems, reasons, source

FILE: Final = source.ROOT / "edge/appliance/explaining/entries.json"


def entries() -> list[dict[str, Any]]:
    """Return the entries: `code`, `kind`, and cases with `what`, `next` and `severity`."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {}

    def add(code: str, kind: str, what: str, next_step: str = "", severity: str = "") -> None:
        case = {"what": _plain(what), "next": _plain(next_step), "severity": severity}
        cases = found.setdefault((_plain(code), kind), [])
        if case not in cases and any(case.values()):
            cases.append(case)

    kinds = {title: title.replace("Problems", "problem").lower() for title in problems.FOLDERS}
    for title, folders in problems.FOLDERS.items():
        for each in problems.problems(*folders):
            if not each.place.startswith(f"{problems.DOCTOR}/"):
                _add_reported(add, each, kinds[title])
    for each in problems.findings():
        _add_reported(add, each, "finding of `waypost doctor`")
    for row in reasons.refusals():
        codes = ", ".join(f"{name}: {row[name]}" for name in reasons.ANSWERS if row[name])
        add(row["refusal"], "message that is refused", f"{row['about']} Answer: {codes}.")
    for vocabulary in reasons.VOCABULARIES:
        for code, about in reasons.members(vocabulary):
            add(code, vocabulary.title, about)
    for error in errors.errors():
        add(error.code, "error of a command", error.cause, error.next_step)
    for word, next_step in reasons.rejects():
        add(word, "payload that could not be read", "", next_step)
    return [{"code": code, "kind": kind, "cases": cases} for (code, kind), cases in found.items()]


def _add_reported(add: Any, each: problems.Reported, kind: str) -> None:
    """Add a problem under each of its names. Variants of text and next step that belong together stand in a row."""
    for name in each.names:
        for place, what in enumerate(each.whats):
            step = each.next_steps[place] if len(each.next_steps) == len(each.whats) else " / ".join(each.next_steps)
            severity = ", ".join(dict.fromkeys(each.severities))
            add(name, kind, what, step, severity)


def _plain(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def encoded() -> str:
    """Return the file: one entry a line, so that a change is a small difference."""
    return "[\n" + ",\n".join(json.dumps(each, ensure_ascii=False) for each in entries()) + "\n]\n"


def write(path: Path = FILE) -> None:
    """Write the file of the product."""
    path.write_text(encoded())


if __name__ == "__main__":
    write()
    sys.stdout.write(f"{FILE}: {len(entries())} entries\n")
