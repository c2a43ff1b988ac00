"""AMQP sender on a plain socket, driven step by step: sends any bytes as messages and records their outcomes."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Self

from bridge.engine import Closed, Condition, DeliveryState, Dispositions, Engine, Link
from bridge.sasl import SaslClient
from tests.support.machines import take_all

WAIT_S = 120.0
"""Longest wait for the outcomes of all messages."""
WAIT_MS = 200
"""Longest wait for the socket before the condition is checked again."""
SEND_BYTES = 1 << 18
LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""The socket has no data, or takes none, now."""


class AmqpSender:
    """One link of one connection."""

    def __init__(
        self,
        port: int,
        name: str,
        target: str,
        capabilities: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
        *,
        host: str = "127.0.0.1",
    ) -> None:
        """With `tls` the client presents the certificate of that context (SASL EXTERNAL)."""
        self.engine = Engine(container_id=name, server=False, sasl=None if tls is None else SaslClient(external=True))
        self.socket = socket.create_connection((host, port), WAIT_S)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.socket.setblocking(False)
        self.outcomes: dict[int, DeliveryState] = {}
        self.closed = False
        self.condition: Condition | None = None
        """Condition with which the peer closed the connection."""
        self._tags = 0
        self._unsent = bytearray()
        self.engine.open()
        self.link: Link = self.engine.attach_sender(target, target, desired_capabilities=capabilities)
        self.until(lambda: self.link.credit > 0 or self.closed, "credit")

    def send(self, *messages: bytes) -> Self:
        """Send the messages as credit allows, and wait for more credit."""
        for message in messages:
            self.until(lambda: self.link.credit > 0 or self.closed, "credit")
            self.engine.send(self.link, self._tags, message)
            self._tags += 1
        return self

    def flush(self) -> None:
        """Wait until the system has taken all bytes."""
        self._unsent += self.engine.data_to_send()
        self.until(lambda: not self._unsent or self.closed, "room in the socket")

    def settled(self) -> list[DeliveryState]:
        """Wait for the outcomes of all messages; return them in order."""
        self.until(lambda: len(self.outcomes) == self._tags or self.closed, "the peer's word")
        return [self.outcomes[tag] for tag in sorted(self.outcomes)]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Exchange bytes with the peer until the condition holds."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"no {what}"
            self._exchange()

    def _exchange(self) -> None:
        """Read or write, whichever is possible first: a peer that does not read may still write."""
        self._unsent += self.engine.data_to_send()
        poll = select.poll()
        poll.register(self.socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        decrypted = self.socket.pending() if isinstance(self.socket, ssl.SSLSocket) else 0
        if not decrypted and not poll.poll(WAIT_MS):
            return
        with contextlib.suppress(*LATER):
            del self._unsent[: self.socket.send(self._unsent[:SEND_BYTES])]
        received: bytes | None = None
        with contextlib.suppress(*LATER):
            received = self.socket.recv(1 << 16)
        now = time.monotonic()
        events = () if received is None else take_all(self.engine, received, now)
        for event in events or (self.engine.receive_eof(now) if received == b"" else ()):
            if isinstance(event, Dispositions):
                self.outcomes |= {tag: state for tag, state, _, _ in event.items}
            elif isinstance(event, Closed):
                self.closed, self.condition = True, event.condition

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
