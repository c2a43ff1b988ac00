"""A link of adjustable bandwidth between a gateway and its hub; it counts bytes and can be cut.

The sender's kernel holds data that is not forwarded: the link's own buffers are small, as a modem's driver would not
report its own.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from typing import Final, Self

SEGMENT_BYTES: Final = 1_448
"""Segment size of Ethernet; the loopback's 64 KiB would never fit a small buffer."""
BUFFER_BYTES: Final = 8 * 1024
CHUNK_BYTES: Final = 256 * 1024


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
        self.port: int = self._listener.getsockname()[1]
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
        self._listener.settimeout(0.05)
        while not self._ended:
            try:
                ours, _ = self._listener.accept()
            except TimeoutError:
                continue
            if self.cut:
                ours.close()
                continue
            with ours, socket.create_connection(("127.0.0.1", self._target_port)) as theirs:
                ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._pass(ours, theirs)

    def _pass(self, ours: socket.socket, theirs: socket.socket) -> None:
        """Forward until either side ends or the link is cut."""
        ready = selectors.DefaultSelector()
        due = {ours: 0.0, theirs: 0.0}
        for one in due:
            one.settimeout(5.0)
            ready.register(one, selectors.EVENT_READ)
        while not (self.cut or self._ended):
            for key, _ in ready.select(0.05):
                source = ours if key.fileobj is ours else theirs
                rate = self.bytes_s
                if rate is not None and (wait_s := due[source] - time.monotonic()) > 0:
                    time.sleep(min(wait_s, 0.05))
                    continue
                try:
                    data = source.recv(CHUNK_BYTES if rate is None else SEGMENT_BYTES)
                    (theirs if source is ours else ours).sendall(data)
                except OSError:
                    return
                if not data:
                    return
                if source is ours:
                    self.up_bytes += len(data)
                else:
                    self.down_bytes += len(data)
                if rate is not None:
                    due[source] = max(due[source], time.monotonic() - 0.01) + len(data) / rate
