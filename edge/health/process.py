"""Problems every process of ours may have: a log nobody reads, a data directory others may read, no descriptor left."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from edge.health.problems import FoundProblem, Severity
from edge.output.logs import figures
from edge.output.text import word

STUCK_S: Final = 5.0
"""A stderr that takes no line for so long is read by nobody."""

FILES_LOOKED_AT_S: Final = 10.0
"""Certificates, directories and descriptors are looked at this often: with 10 000 connections it takes 5 ms."""

DESCRIPTORS_LEFT_MIN: Final = 16
"""Files the process may still open: a commit, a read and a check of certificates need a few."""


def log_problems() -> Iterator[FoundProblem]:
    """What the log cannot say itself."""
    written = figures()
    if written.stuck_s > STUCK_S:
        what = "nobody reads it (stderr): lines are dropped, and counted in waypost_log_lines_dropped_total"
        yield FoundProblem(
            "log", what, "see who reads the process's stderr; messages go on meanwhile", Severity.WARNING
        )


def directory_problems(directory: Path) -> Iterator[FoundProblem]:
    """The data directory is its owner's alone, and can be written."""
    try:
        mode = directory.stat().st_mode
    except OSError as error:
        yield FoundProblem("data directory", f"{directory}: {error.strerror}", "put it back, and start again")
        return
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        what = f"{directory} has mode {stat.S_IMODE(mode):04o}: others of this machine may read or change what is in it"
        yield FoundProblem("data directory", what, f"chmod 0700 {word(directory)}", Severity.WARNING)
    if not os.access(directory, os.W_OK):
        what = f"{directory} cannot be written (is its filesystem mounted read-only?)"
        yield FoundProblem("data directory", what, "see dmesg, and mount it for writing again")


def descriptor_problems(open_files: int, limit: int) -> Iterator[FoundProblem]:
    """`open_files` of the `limit` the process may have (RLIMIT_NOFILE)."""
    if limit - open_files < DESCRIPTORS_LEFT_MIN:
        what = f"all but a few of the {limit} files the process may open are in use: connections are not accepted"
        yield FoundProblem(
            "open files", what, "raise the limit (LimitNOFILE of the unit, ulimit -n), or see who connects"
        )
