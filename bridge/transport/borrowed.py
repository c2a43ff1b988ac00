"""The socket of a descriptor, for what is seldom asked of one (its name, its options, to close its half).

Connections are descriptors and no objects of `socket` (`bridge.transport.tcp`).
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def socket_of(descriptor: int) -> Iterator[socket.socket]:
    """It stays open. Raises OSError where it is closed already (-1), or is no socket."""
    if descriptor < 0:
        raise OSError(errno.EBADF, "the socket is closed")
    borrowed = socket.socket(fileno=descriptor)
    try:
        yield borrowed
    finally:
        borrowed.detach()
