"""Aliases of commands, for scripts that rely on them, and another spelling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

ALIASES: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    ("analytics", "report"): ("report",),
    ("analytics",): ("lake",),
    ("edge",): (),
    ("enroll",): ("enrol",),
}
"""Words of a command by those of its alias; the first match counts. `waypost edge run` is `waypost run`."""


def without_aliases(arguments: Sequence[str]) -> list[str]:
    """Return the words of a command line with the names of commands in place of aliases."""
    first = next((place for place, each in enumerate(arguments) if not each.startswith("-")), len(arguments))
    words = tuple(arguments[first:])
    for alias, name in ALIASES.items():
        if words[: len(alias)] == alias:
            return [*arguments[:first], *name, *words[len(alias) :]]
    return list(arguments)
