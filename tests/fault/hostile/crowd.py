"""Many sockets that send given data as fast as possible, and read only on request."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from typing import Final, Self

CHUNK_BYTES: Final = 256 * 1024
WAIT_S: Final = 20.0


class Crowd:
    """Sockets of one attacker."""

    def __init__(self, port: int, *, receive_bytes: int = 0) -> None:
        """Create the crowd.

        `receive_bytes` is the size of each socket's kernel buffer, for sockets that stop reading early.
        """
        self._port = port
        self._receive_bytes = receive_bytes
        self.sockets: list[socket.socket] = []

    def open(self, count: int) -> Self:
        for _ in range(count):
            made = socket.socket()
            if self._receive_bytes:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_bytes)
            made.settimeout(WAIT_S)
            with contextlib.suppress(ConnectionError):
                made.connect(("127.0.0.1", self._port))
            made.setblocking(False)
            self.sockets.append(made)
        return self

    def send(self, what: Callable[[int], Iterator[bytes]], *, seconds: float, rejoin: bool = False) -> int:
        """Send the data of each socket's number, all in parallel, for at most this time; return how many were cut off.

        With `rejoin`, a socket that was cut off reconnects and starts again.
        """
        left = {number: what(number) for number in range(len(self.sockets))}
        pending: dict[int, memoryview] = {}
        cut = 0
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            for number in left:
                selector.register(self.sockets[number], selectors.EVENT_WRITE, number)
            while left and time.monotonic() < deadline:
                for key, _ in selector.select(0.1):
                    number = key.data
                    try:
                        if self._send_some(number, left[number], pending):
                            continue
                    except OSError:
                        cut += 1
                        selector.unregister(self.sockets[number])
                        self.sockets[number].close()
                        if rejoin:
                            pending.pop(number, None)
                            self._rejoin(number)
                            left[number] = what(number)
                            selector.register(self.sockets[number], selectors.EVENT_WRITE, number)
                        else:
                            del left[number]
                        continue
                    selector.unregister(self.sockets[number])
                    del left[number]
        return cut

    def _send_some(self, number: int, what: Iterator[bytes], pending: dict[int, memoryview]) -> bool:
        """Send a piece; return False at the end of the data. Raise OSError."""
        data = pending.pop(number, None)
        if data is None:
            following = next(what, None)
            if following is None:
                return False
            data = memoryview(following)
        with contextlib.suppress(BlockingIOError):
            data = data[self.sockets[number].send(data[:CHUNK_BYTES]) :]
        if data:
            pending[number] = data
        return True

    def _rejoin(self, number: int) -> None:
        """Replace a socket that was cut off."""
        [self.sockets[number]] = Crowd(self._port, receive_bytes=self._receive_bytes).open(1).sockets

    def wait_for(self, answer: bytes) -> None:
        """Wait until each socket has received this."""
        deadline = time.monotonic() + WAIT_S
        for number, each in enumerate(self.sockets):
            seen = b""
            while answer not in seen:
                assert time.monotonic() < deadline, f"socket {number} has {seen!r}"
                with contextlib.suppress(BlockingIOError):
                    data = each.recv(1 << 16)
                    assert data, f"socket {number} is closed after {seen!r}"
                    seen += data
                    continue
                time.sleep(0.005)

    def drain(self) -> None:
        """Read and discard all received data, so that it does not block later data."""
        for each in self.sockets:
            with contextlib.suppress(OSError):
                while each.recv(1 << 16):
                    pass

    def close(self) -> None:
        for each in self.sockets:
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
