"""Problems that a gateway, a hub and `waypost doctor` report, with next steps, from the calls that make them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final, NamedTuple

from docs.generate import markdown, source

PROBLEM: Final = source.class_with("edge/health/problems.py", {"name", "what", "next_step", "severity"})
"""Class of which each problem is an instance."""
CHECKS: Final = ("warn", "fail")
FOLDERS: Final = {
    "Problems of a gateway": ("edge/appliance",),
    "Problems of a hub": ("cloud/hub",),
    "Problems of both": ("edge/health",),
}
"""Folders by the section their problems are in."""
DOCTOR: Final = "edge/appliance/doctor"


class Reported(NamedTuple):
    """Problem that one place of the code can report."""

    names: list[str]
    whats: list[str]
    next_steps: list[str]
    severities: list[str]
    place: str
    """Path and line in the checkout."""


def problems(*folders: str) -> Iterator[Reported]:
    """Yield the problems that the code of these folders reports."""
    for path in source.sources(*folders):
        for call in source.calls(path, PROBLEM):
            arguments = _arguments(call.node, ("name", "what", "next_step", "severity"))
            severities = _severities(arguments.get("severity"), call.names)
            yield _reported(call, arguments, "what", severities, path)


def findings() -> Iterator[Reported]:
    """Yield the problems that `waypost doctor` finds."""
    for path in source.sources(DOCTOR):
        for call in source.calls(path, *CHECKS):
            arguments = _arguments(call.node, ("name", "seen", "next_step"))
            level = call.node.func.id if isinstance(call.node.func, ast.Name) else ""
            yield _reported(call, arguments, "seen", [level], path)


def _reported(
    call: source.Call, arguments: dict[str, ast.expr], what: str, severities: list[str], path: str
) -> Reported:
    name, said, step = (source.texts(arguments.get(each), call.names) for each in ("name", what, "next_step"))
    return Reported(name, said, step, severities, f"{path}:{call.node.lineno}")


def _arguments(call: ast.Call, names: tuple[str, ...]) -> dict[str, ast.expr]:
    given = dict(zip(names, call.args, strict=False))
    return {**given, **{each.arg: each.value for each in call.keywords if each.arg is not None}}


def _severities(node: ast.expr | None, names: source.Names) -> list[str]:
    match node:
        case None:
            return ["error"]
        case ast.Attribute(attr=name):
            return [name.lower()]
        case ast.IfExp(body=body, orelse=other):
            return [*_severities(body, names), *_severities(other, names)]
        case ast.Name(id=name) if name in names:
            return _severities(names[name], names)
    return ["error", "warning", "notice"]


def page() -> str:
    """Return the reference of problems."""
    parts = []
    for title, folders in FOLDERS.items():
        parts.append(markdown.heading(2, title, markdown.anchor(title)))
        found = [each for each in problems(*folders) if not each.place.startswith(f"{DOCTOR}/")]
        parts.append(_table(found, "severity"))
    parts.append(markdown.heading(2, "Findings of `waypost doctor`", "doctor-findings"))
    parts.append("`fail` ends the command with exit code 1; `warn` works, and something should be done.\n")
    parts.append(_table(list(findings()), "level"))
    return "\n".join(parts)


def _table(found: list[Reported], level: str) -> str:
    rows = [
        (
            _lines(each.names),
            ", ".join(dict.fromkeys(each.severities)),
            _lines(each.whats),
            _lines(each.next_steps),
        )
        for each in found
    ]
    return markdown.table(("name", level, "what is reported", "next step"), rows)


def _lines(texts: list[str]) -> str:
    return "\n".join(filter(None, (markdown.prose(text) for text in texts)))
