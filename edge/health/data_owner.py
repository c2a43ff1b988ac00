"""Checks that a data directory is its user's own, and that no core dump holds keys and passwords."""

from __future__ import annotations

import contextlib
import os
import resource
import stat
from pathlib import Path
from typing import Final

from edge.output.text import word

OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_DUMPED_MEMORY: Final = Path("/proc/self/coredump_filter")


def directory_fault(directory: Path) -> str | None:
    """Return why a data directory must not be used, with the next step; None if it may.

    A user who can write there could replace files by links or by another store. The root of a mounted volume is
    accepted: the orchestrator (Kubernetes, Docker) decides its owner, mode and access. Raises OSError.
    """
    found = directory.stat()
    if os.path.ismount(directory):
        return None
    named = word(directory)
    if found.st_uid != os.geteuid():
        words = f"{directory} belongs to user {found.st_uid}, and this process is user {os.geteuid()}"
        return f"{words}: run it as that user, or give it the directory (chown -R {os.geteuid()} {named})"
    if found.st_mode & OTHERS_WRITE:
        words = f"{directory} has mode {stat.S_IMODE(found.st_mode):04o}: other users can write there"
        return f"{words}. See what is in it, then: chmod 0700 {named}"
    return None


def forbid_core_dumps() -> None:
    """Keep the memory of this process out of core dumps.

    The limit keeps the kernel from writing a file; the filter leaves no memory to a handler behind a pipe
    (systemd-coredump). PR_SET_DUMPABLE is not changed: without it the process cannot read ``/proc/self/io``.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # a kernel without core dumps
        _DUMPED_MEMORY.write_text("0")
