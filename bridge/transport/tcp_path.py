"""The kernel's data about the path of a TCP connection: bytes that have not arrived, and the round trip."""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
import termios
from typing import Any, Final, NamedTuple, Protocol

from bridge.transport.borrowed import socket_of

_KNOWS: Final = sys.platform == "linux"
"""True when SIOCOUTQ and TCP_INFO are those of Linux (tcp(7), linux/tcp.h)."""

_INFO: Final = struct.Struct("<148xI")
"""tcpi_min_rtt (us) of struct tcp_info; since Linux 4.6."""


class TcpPath(NamedTuple):
    """Path of a connection; zeros where nothing is known."""

    unsent_bytes: int = 0
    """Bytes written that have not reached the peer's kernel."""
    round_trip_s: float = 0.0
    """Shortest recent round trip; any longer time is queueing."""


class PathTransport(Protocol):
    """The methods of `asyncio.Transport` that are used here."""

    def get_extra_info(self, name: str, default: Any = None) -> Any: ...

    def get_write_buffer_size(self) -> int: ...


def path_of(transport: PathTransport) -> TcpPath:
    """Return the path of a transport; bytes in the transport's own buffer count as unsent."""
    waiting = transport.get_write_buffer_size()
    descriptor: int = transport.get_extra_info("descriptor", -1) if _KNOWS else -1
    if descriptor < 0:
        return TcpPath(waiting)
    try:
        queued = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4))
        with socket_of(descriptor) as connection:
            information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        (round_trip_us,) = _INFO.unpack(information)
    except (OSError, ValueError, struct.error):
        return TcpPath(waiting)  # already closed, not TCP, or an older kernel
    return TcpPath(waiting + int.from_bytes(queued, sys.byteorder), round_trip_us / 1e6)
