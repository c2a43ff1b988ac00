"""A `socket.socket` for a descriptor, for rare calls: its name, its options, shutdown.

Connections are plain descriptors, not `socket` objects (`bridge.transport.tcp`).
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def socket_of(descriptor: int) -> Iterator[socket.socket]:
    """Yield a socket object; the descriptor stays open. Raises OSError when it is closed (-1) or not a socket."""
    if descriptor < 0:
        raise OSError(errno.EBADF, "the socket is closed")
    borrowed = socket.socket(fileno=descriptor)
    try:
        yield borrowed
    finally:
        borrowed.detach()
