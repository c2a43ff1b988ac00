"""Accepting with TLS: one handshake a task, so many at a time, each with the certificates of its moment.

`asyncio.Server` keeps one context for its life and tells nobody of a handshake that fails. Here each connection is
accepted, gets its handshake in a time, and only then something of ours is made for it: who sends nothing costs little.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final, cast

from edge.broker.limits import TLS_HANDSHAKES_MAX, TLS_SHUTDOWN_S
from edge.broker.listeners.tls import Certificates, subject_name

log = logging.getLogger(__name__)

NO_DESCRIPTOR_WAIT_S: Final = 0.5
"""Pause when a connection cannot be accepted because the process has no file descriptor left: some will be freed."""


class SecureAcceptor:
    """Accepts on a listening socket until it is stopped."""

    def __init__(
        self,
        name: str,
        listening: socket.socket,
        certificates: Certificates,
        admit: Callable[[str | None], asyncio.Protocol | None],
        *,
        handshake_s: float,
    ) -> None:
        """Takes ownership of the socket, which is non-blocking. `admit` gets the name in the verified client
        certificate, if any, and makes who gets the connection; None when there is no room. `handshake_s`: from accept
        to the end of the handshake."""
        self.handshakes: set[asyncio.Task[None]] = set()
        """Under way."""
        self._name = name
        self._listening = listening
        self._certificates = certificates
        self._admit = admit
        self._handshake_s = handshake_s
        self._room = asyncio.Semaphore(TLS_HANDSHAKES_MAX)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(), name=f"{name} accepts")

    async def stop(self) -> None:
        """Accept no more, and drop the handshakes under way."""
        tasks = [self._accepting, *self.handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()  # who comes meanwhile waits in the kernel's queue
            try:
                connection, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                self._room.release()
                if not isinstance(error, ConnectionError):  # the client went away again: nothing to wait for
                    log.warning("%s: cannot accept: %s", self._name, error.strerror)
                    await asyncio.sleep(NO_DESCRIPTOR_WAIT_S)
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = loop.create_task(self._shake_hands(connection), name=f"{self._name} handshake")
            self.handshakes.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.handshakes.discard(task)
        self._room.release()

    async def _shake_hands(self, connection: socket.socket) -> None:
        peer = connection.getpeername() if connection.fileno() >= 0 else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Arriving(self._admit),
                connection,
                ssl=self._certificates.context,
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=TLS_SHUTDOWN_S,
            )
        except OSError as error:  # ConnectionError, TimeoutError and SSLError are OSErrors
            log.info("%s: no TLS with %s: %s", self._name, peer, error)


class _Arriving(asyncio.Protocol):
    """What a connection belongs to during its handshake; then it belongs to whom `admit` makes."""

    def __init__(self, admit: Callable[[str | None], asyncio.Protocol | None]) -> None:
        self._admit = admit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        secure = cast(asyncio.Transport, transport)
        owner = self._admit(subject_name(secure.get_extra_info("peercert")))
        if owner is None:
            secure.close()
            return
        secure.set_protocol(owner)
        owner.connection_made(secure)


async def listening_socket(host: str, port: int, backlog: int) -> socket.socket:
    """A non-blocking socket that listens on the first address of `host`. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(address)
        listening.listen(backlog)
    except OSError:
        listening.close()
        raise
    return listening
