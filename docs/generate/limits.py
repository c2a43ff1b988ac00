"""Limits of the program: every bound with its value and its reason, from the modules named `limits`."""

from __future__ import annotations

import ast
import importlib
from typing import Final, NamedTuple

from docs.generate import markdown, source

FOLDERS: Final = ("bridge", "edge", "cloud", "spark", "images", "simulator")


class Limit(NamedTuple):
    """One bound."""

    name: str
    value: str
    written: str
    """The expression in the source, where it says more than the value."""
    about: str


def modules() -> list[str]:
    """Return the paths of all modules of limits."""
    return source.sources(*FOLDERS, name="limits.py")


def limits(path: str) -> list[Limit]:
    """Return the limits of one module. Classes and private names are left out."""
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    found = []
    for each in source.constants(path):
        if not each.name.isupper() or each.name.startswith("_"):
            continue
        value = getattr(module, each.name)
        written = ast.unparse(each.value)
        found.append(Limit(each.name, _value(value), written if written != repr(value) else "", each.about))
    return found


def _value(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value) if not isinstance(value, frozenset | set) else ", ".join(sorted(map(str, value)))
    return f"{value:,}".replace(",", " ")


def page() -> str:
    """Return the reference of limits."""
    parts = []
    for path in modules():
        found = limits(path)
        if not found:
            continue
        about = (ast.get_docstring(source.tree(path)) or "").partition("\n\n")[0]
        parts.append(markdown.heading(2, f"`{path.removesuffix('.py')}`", markdown.anchor(f"limits {path}")))
        parts.append(markdown.prose(about) + "\n")
        rows = [
            (
                markdown.code(each.name),
                "\n".join(filter(None, (markdown.code(each.value), _formula(each)))),
                markdown.prose(each.about),
            )
            for each in found
        ]
        parts.append(markdown.table(("limit", "value", "meaning and reason"), rows))
    return "\n".join(parts)


def _formula(limit: Limit) -> str:
    plain = limit.written.replace("_", "").replace(" ", "")
    return markdown.code(limit.written) if 0 < len(limit.written) < 60 and not plain.isdigit() else ""
