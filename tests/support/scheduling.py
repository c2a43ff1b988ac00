"""Order of test files in a run, and their distribution to the workers of pytest-xdist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling

SESSION: Final = "files with a Spark session"
_FIXTURES: Final = re.compile(r"\b(spark: SparkSession|lake: SparkLake|frame: Make)\b")
"""Parameters of tests that take a fixture with the session."""

BUSY: Final = ("system", "property/test_sanitizers.py", "spark", "simulation", "unit/test_tidy.py", "property")
"""Files and folders with long tests that keep a processor busy, the longest first."""
WAITING: Final = ("console", "fault", "integration")
"""Folders with long tests that mostly wait for processes."""


def run_order(tests: Path, files: Iterable[Path]) -> dict[Path, float]:
    """Return the place of each file in a run, smaller ones first.

    Files with a Spark session begin, because they run in one worker. Busy and waiting files alternate, so that a
    processor is not idle while a test waits. Short files are last: a long one would keep one worker busy while the
    others have ended.
    """
    order: dict[Path, float] = {}
    busy: list[tuple[int, Path]] = []
    waiting: list[tuple[int, Path]] = []
    for file in files:
        if names_session(file):
            order[file] = -1.0
        elif (rank := _rank(file, tests, BUSY)) is not None:
            busy.append((rank, file))
        elif (rank := _rank(file, tests, WAITING)) is not None:
            waiting.append((rank, file))
        else:
            order[file] = 1.0
    for group in (busy, waiting):
        order |= {file: number / len(group) for number, (_, file) in enumerate(sorted(group))}
    return order


def _rank(file: Path, tests: Path, places: Sequence[str]) -> int | None:
    """Return the index of the first place that has the file."""
    return next((number for number, place in enumerate(places) if file.is_relative_to(tests / place)), None)


class SessionScheduling(LoadFileScheduling):
    """Schedule file by file, but all files with a Spark session to one worker.

    A session is a JVM of 1.5 GB that takes 10 s of processor time to start, and more to compile what jobs run. A second
    one would do this again, on the same processors.
    """

    def __init__(self, config: pytest.Config, root: Path) -> None:
        super().__init__(config)
        self._root = root

    def _split_scope(self, nodeid: str) -> str:
        """Return the unit of a test: all tests of a unit run in one worker."""
        file: str = super()._split_scope(nodeid)
        return SESSION if names_session(self._root / file) else file


@cache
def names_session(file: Path) -> bool:
    """Return whether tests of a file use the shared Spark session."""
    if file.parent.name != "spark" or not file.is_file():
        return False
    return _FIXTURES.search(file.read_text()) is not None
