"""A log nobody reads: a pipe that is full after a few lines."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

F_SETPIPE_SZ = 1031
PIPE_BYTES = 4096


@contextmanager
def unread_log(path: Path) -> Iterator[Path]:
    """Make the pipe, for `tests.support.processes.Waypost` to log to."""
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR)  # so that opening it to write waits for nobody
    try:
        fcntl.fcntl(end, F_SETPIPE_SZ, PIPE_BYTES)
        yield path
    finally:
        os.close(end)
