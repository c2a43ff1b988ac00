"""What the kernel knows of the way to the peer of a TCP connection: what has not arrived, and how long it takes."""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
import termios
from typing import Any, Final, NamedTuple, Protocol

from bridge.transport.borrowed import socket_of

_KNOWS: Final = sys.platform == "linux"
"""SIOCOUTQ and TCP_INFO as here are Linux's (tcp(7), linux/tcp.h)."""

_INFO: Final = struct.Struct("<148xI")
"""Of struct tcp_info: tcpi_min_rtt (us); since Linux 4.6."""


class TcpPath(NamedTuple):
    """Zeros where nothing is known."""

    unsent_bytes: int = 0
    """Written, and not yet at the peer's kernel."""
    round_trip_s: float = 0.0
    """The shortest of late: what is beyond it is waiting."""


class PathTransport(Protocol):
    """As `asyncio.Transport`."""

    def get_extra_info(self, name: str, default: Any = None) -> Any: ...

    def get_write_buffer_size(self) -> int: ...


def path_of(transport: PathTransport) -> TcpPath:
    """The way from a transport; what waits in the transport itself counts as not sent."""
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
        return TcpPath(waiting)  # closed meanwhile, no TCP, or an older kernel
    return TcpPath(waiting + int.from_bytes(queued, sys.byteorder), round_trip_us / 1e6)
