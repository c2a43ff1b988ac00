"""Log without a reader: a pipe that is full after a few lines."""

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
    """Create the pipe as the log of `tests.support.processes.Waypost`."""
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR)  # so that opening it to write does not block
    try:
        fcntl.fcntl(end, F_SETPIPE_SZ, PIPE_BYTES)
        yield path
    finally:
        os.close(end)
