"""Openings that a slow client sends over HTTP, and limits of what a crowd of such clients may cost."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

HEALTH_S_MAX: Final = 10.0
"""Time to the first answer, after the crowd was accepted, on a machine with other work."""
GROWTH_MIB_MAX: Final = 60.0
"""Memory of 256 places with some 40 KiB, their sockets, and Python's own reserve."""
CLOSED_S: Final = 10.0
"""Time until the sockets of a crowd that has left are closed."""

HEAD: Final = b"POST /t/queue/a HTTP/1.1\r\nHost: 127.0.0.1\r\n"
OPENINGS: Final = {
    "nothing": b"",
    "half a line": b"GET /heal",
    "half a head": HEAD + b"X: " + b"a" * 8_000,
    "half a body": HEAD + b"Content-Length: 100000\r\n\r\n" + b"a" * 1_000,
    "chunks without end": HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
    "no answer read": b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 50,
}


def sockets_of(pid: int) -> int:
    """Return the number of its sockets. Other files come and go, as databases are opened when they are needed."""
    found = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            found += str(descriptor.readlink()).startswith("socket:")
    return found
