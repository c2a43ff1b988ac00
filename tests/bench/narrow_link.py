"""A link of adjustable bandwidth between a gateway and its hub; it counts bytes and can be cut.

All connections share the bandwidth, segment by segment. The sender's kernel holds data that is not forwarded: the
link's own buffers are small, as a modem's driver would not report its own.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from typing import Final, NamedTuple, Self

SEGMENT_BYTES: Final = 1_448
"""Segment size of Ethernet; the loopback's 64 KiB would never fit a small buffer."""
BUFFER_BYTES: Final = 8 * 1024
CHUNK_BYTES: Final = 256 * 1024
WAIT_S: Final = 0.05
"""Longest wait for data, so that a changed bandwidth, a cut and the end are seen soon."""
SEND_S: Final = 5.0


class LinkEnd(NamedTuple):
    """One side of a connection through the link."""

    source: socket.socket
    target: socket.socket
    up: bool
    """The data goes to the hub."""


class NarrowLink:
    """Listens on a loopback port and forwards to another one, in its own thread."""

    def __init__(self, target_port: int) -> None:
        self.bytes_s: float | None = None
        """Bandwidth each way; None: unlimited."""
        self.up_bytes = self.down_bytes = 0
        """Bytes from the connecting side, and to it."""
        self.cut = False
        """End current connections and refuse new ones."""
        self._target_port = target_port
        self._listener = socket.socket()
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(16)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._due = {True: 0.0, False: 0.0}
        """Monotonic time at which the next segment may pass, up and down."""
        self._ready = selectors.DefaultSelector()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="narrow link", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._thread.join(5.0)
        self._listener.close()

    def _run(self) -> None:
        self._ready.register(self._listener, selectors.EVENT_READ)
        first = 0
        while not self._ended:
            if self.cut:
                self._close_all()
            found = [key for key, _ in self._ready.select(WAIT_S)]
            first = (first + 1) % max(1, len(found))  # each connection is the first one in its turn
            passed = [self._serve(each) for each in (*found[first:], *found[:first])]
            if found and not any(passed):
                due = min(self._due[each.data.up] for each in found)
                time.sleep(min(WAIT_S, max(0.0, due - time.monotonic())))
        self._close_all()

    def _serve(self, key: selectors.SelectorKey) -> bool:
        """Accept a connection, or pass one segment. Return False if the bandwidth does not allow it yet."""
        if key.data is None:
            self._accept()
            return True
        end: LinkEnd = key.data
        rate, now = self.bytes_s, time.monotonic()
        if rate is not None and self._due[end.up] > now:
            return False
        try:
            data = end.source.recv(CHUNK_BYTES if rate is None else SEGMENT_BYTES)
            end.target.sendall(data)
        except OSError:
            data = b""
        if not data:
            self._close(end)
        elif end.up:
            self.up_bytes += len(data)
        else:
            self.down_bytes += len(data)
        if rate is not None:
            self._due[end.up] = max(self._due[end.up], now - 0.01) + len(data) / rate
        return True

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            ours, _ = self._listener.accept()
            if self.cut:
                ours.close()
                return
            try:
                theirs = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                ours.close()
                return
            for source, target, up in ((ours, theirs, True), (theirs, ours, False)):
                source.settimeout(SEND_S)
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._ready.register(source, selectors.EVENT_READ, LinkEnd(source, target, up))

    def _close(self, end: LinkEnd) -> None:
        """Close both sides of a connection."""
        for each in (end.source, end.target):
            with contextlib.suppress(KeyError, ValueError):
                self._ready.unregister(each)
            each.close()

    def _close_all(self) -> None:
        ends = [key.data for key in self._ready.get_map().values() if key.data is not None]
        for end in ends:
            self._close(end)
