"""The notice that a device has been silent for longer than usual."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from edge.health.problems import FoundProblem, Severity
from edge.output.amounts import span
from edge.output.text import line, word

SILENT_NAMED_MAX: Final = 10
"""Silent devices that become problems at a time; `waypost client list --state silent` lists all."""


class SilentClient(NamedTuple):
    """Client that has been silent for longer than usual."""

    name: str
    lost: bool
    """Its connection was lost, and it has not connected since."""
    last_at: float
    """Its last message, UTC seconds."""
    interval_s: int
    """Usual seconds between its messages."""


def silence_problems(silent: Sequence[SilentClient]) -> Iterator[FoundProblem]:
    """Yield a notice for each of these clients."""
    for each in silent:
        since = datetime.datetime.fromtimestamp(round(each.last_at), datetime.UTC)
        how = "its connection was lost" if each.lost else "it is connected"
        usual = f"it usually sends every {span(each.interval_s)}; {how}"
        what = f"{line(each.name)}: no message since {since:%Y-%m-%d %H:%M} UTC, {usual}"
        name = word(line(each.name))
        step = (
            f"check its power and network: waypost client show {name}; if it is gone: waypost client disconnect {name}"
        )
        yield FoundProblem("device silent", what, step, Severity.NOTICE)
