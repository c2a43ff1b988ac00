"""`./waypost test`: run pytest on all cores.

By default it runs the tests of a few minutes, with `--all` also the extended ones. `--suite NAME PATH` runs a suite of
another project (`docs/reference/interoperability.md`). Every other argument is pytest's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import DEFAULT_MARKS

EXTENDED = "extended"
"""Marker of tests that `./waypost test` leaves out."""
SUITES = "tests.conformance.suites"
"""Program that runs suites of other projects."""


def workers_for(processors: int) -> int:
    """Return the number of workers: two more than processors, as many tests wait for processes and time-outs."""
    return processors + 2


def arguments_of(words: Sequence[str]) -> list[str]:
    """Return pytest's arguments for those of `./waypost test`."""
    passed = [word for word in words if word != "--all"]
    selects = any(word == "-m" or Path(word.split("::")[0]).exists() for word in passed)
    if selects:
        return passed
    marks = DEFAULT_MARKS if "--all" in words else f"{DEFAULT_MARKS} and not {EXTENDED}"
    # Files stay together because they share servers. They keep the order of `tests/conftest.py`.
    workers = [] if "-n" in passed else ["-n", str(workers_for(os.cpu_count() or 1))]
    return [*workers, "--dist", "loadfile", "--no-loadscope-reorder", "-m", marks, *passed]


if __name__ == "__main__":
    # A process of its own: pytest has to be the first to import what it rewrites.
    words = sys.argv[1:]
    suite = ["-m", SUITES, *words[1:]] if words[:1] == ["--suite"] else ["-m", "pytest", *arguments_of(words)]
    os.execv(sys.executable, [sys.executable, *suite])
