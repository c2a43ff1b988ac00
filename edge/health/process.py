"""Problems of any Waypost process: unread log, data directory open to other users, no file descriptors left."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from edge.health.problems import FoundProblem, Severity
from edge.output.logs import figures
from edge.output.text import word

STUCK_S: Final = 5.0
"""Time without progress after which stderr counts as unread."""

FILES_CHECK_S: Final = 10.0
"""Interval of checks of certificates, directories and descriptors: with 10 000 connections one takes 5 ms."""

DESCRIPTORS_LEFT_MIN: Final = 16
"""Free file descriptors below which it is a problem: a commit, a read and a check of certificates need a few."""


def allow_files(wanted: int) -> int:
    """Raise the limit of open files to `wanted`, as far as the hard limit allows; the usual soft limit is 1 024. Return
    the number of files that the process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(soft, allowed)


def count_open_files() -> int:
    """Return the number of open files of this process."""
    return len(os.listdir("/proc/self/fd"))


def log_problems() -> Iterator[FoundProblem]:
    """Yield the problem of a log that is not read, which the log itself cannot show."""
    written = figures()
    if written.stuck_s > STUCK_S:
        what = "stderr is not read: lines are dropped, and counted in waypost_log_lines_dropped_total"
        yield FoundProblem(
            "log",
            what,
            "check the program that reads the process's stderr; messages are still served",
            Severity.WARNING,
        )


def directory_problems(directory: Path) -> Iterator[FoundProblem]:
    """Yield problems of a data directory that other users can access, or that cannot be written."""
    try:
        mode = directory.stat().st_mode
    except OSError as error:
        yield FoundProblem("data directory", f"{directory}: {error.strerror}", "restore it, and start again")
        return
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        what = f"{directory} has mode {stat.S_IMODE(mode):04o}: other users may read or change its files"
        yield FoundProblem("data directory", what, f"chmod 0700 {word(directory)}", Severity.WARNING)
    if not os.access(directory, os.W_OK):
        what = f"{directory} cannot be written (is its filesystem mounted read-only?)"
        yield FoundProblem("data directory", what, "see dmesg, and remount it writable")


def descriptor_problems(open_files: int, limit: int) -> Iterator[FoundProblem]:
    """Yield the problem if `open_files` is near the `limit` of the process (RLIMIT_NOFILE)."""
    if limit - open_files < DESCRIPTORS_LEFT_MIN:
        what = f"nearly all of the {limit} files that the process may open are in use: connections are not accepted"
        yield FoundProblem(
            "open files",
            what,
            "raise the limit (LimitNOFILE of the unit, ulimit -n), or find clients with many connections",
        )
