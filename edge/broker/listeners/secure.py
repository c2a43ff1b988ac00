"""Accepting with TLS: one handshake a task, so many at a time, each with the certificates of its moment.

`asyncio.Server` keeps one context for its life and tells nobody of a handshake that fails. Here each connection is
accepted, gets its handshake in a time, and only then something of ours is made for it: who sends nothing costs little.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, cast

from edge.broker.limits import ACCOUNT_SHARE_MAX, TLS_HANDSHAKES_MAX, TLS_PARKED_MAX, TLS_SHUTDOWN_S, TLS_STALLED_S
from edge.broker.listeners.alerts import SHAKES_HANDS
from edge.broker.listeners.heap import map_large_blocks
from edge.broker.listeners.tls import Certificates, subject_name
from edge.broker.model.remote import remote_of

log = logging.getLogger(__name__)

NO_DESCRIPTOR_WAIT_S: Final = 0.5
"""Pause when a connection cannot be accepted because the process has no file descriptor left: some will be freed."""


Identify: TypeAlias = Callable[[Mapping[str, Any] | None], str | None]
"""Who a verified client certificate, as `ssl` gives it, says that a peer is; None: nobody we know."""
Admit: TypeAlias = Callable[[str | None], asyncio.Protocol | None]
"""Makes who gets a connection of that identity; None when there is no room."""


class Parked:
    """Sockets that wait for their handshake, in the order they came, by remote address."""

    def __init__(self) -> None:
        self.count = 0
        self._by_remote: dict[str, deque[socket.socket]] = {}

    def add(self, remote: str, connection: socket.socket) -> None:
        self._by_remote.setdefault(remote, deque()).append(connection)
        self.count += 1

    def next(self, under_way: Mapping[str, int], each_max: int) -> tuple[str, socket.socket] | None:
        """Of the address with the fewest handshakes under way the one that came first; None where all have
        `each_max`."""
        remote = min(self._by_remote, key=lambda each: under_way.get(each, 0), default=None)
        if remote is None or under_way.get(remote, 0) >= each_max:
            return None
        return remote, self._pop(remote, first=True)

    def drop_last(self) -> None:
        """Close the one that came last of the address with most."""
        remote = max(self._by_remote, key=lambda each: len(self._by_remote[each]))
        self._pop(remote, first=False).close()

    def close(self) -> None:
        for waiting in self._by_remote.values():
            for connection in waiting:
                connection.close()

    def _pop(self, remote: str, *, first: bool) -> socket.socket:
        waiting = self._by_remote[remote]
        connection = waiting.popleft() if first else waiting.pop()
        self.count -= 1
        if not waiting:
            del self._by_remote[remote]
        return connection


class SecureAcceptor:
    """Accepts on a listening socket until it is stopped."""

    def __init__(
        self,
        name: str,
        listening: socket.socket,
        certificates: Certificates,
        admit: Admit,
        *,
        handshake_s: float,
        identify: Identify = subject_name,
        others: Mapping[str, Admit] | None = None,
    ) -> None:
        """Takes ownership of the socket, which is non-blocking. `admit` gets what `identify` makes of the verified
        client certificate. `others` get connections whose client asked for their protocol by name (ALPN, RFC 7301),
        which the certificates have to offer. `handshake_s`: the time a handshake has, less while others wait."""
        self.handshakes: dict[asyncio.Task[None], tuple[str, float]] = {}
        """Under way: of which remote address, since when."""
        self._under_way: Counter[str] = Counter()
        self._parked = Parked()
        self._name = name
        self._listening = listening
        self._certificates = certificates
        self._admit = admit
        self._identify = identify
        self._others = others or {}
        self._handshake_s = handshake_s
        self._loop = asyncio.get_running_loop()
        map_large_blocks()
        self._accepting = self._loop.create_task(self._accept(), name=f"{name} accepts")

    async def stop(self) -> None:
        """Accept no more, and drop the handshakes under way."""
        self._parked.close()
        self._parked = Parked()
        tasks = [self._accepting, *self.handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()

    async def _accept(self) -> None:
        while True:
            try:
                connection, peer = await self._loop.sock_accept(self._listening)
            except OSError as error:
                if not isinstance(error, ConnectionError):  # the client went away again: nothing to wait for
                    log.warning("%s: cannot accept: %s", self._name, error.strerror)
                    await asyncio.sleep(NO_DESCRIPTOR_WAIT_S)
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._parked.add(remote_of(peer[0]), connection)
            self._begin()
            if self._parked.count > TLS_PARKED_MAX:
                self._parked.drop_last()
            if self._parked.count:
                self._end_the_stalled()

    def _begin(self) -> None:
        """Begin what there is room for, in turns of the addresses: one that stalls delays itself."""
        each_max = TLS_HANDSHAKES_MAX // ACCOUNT_SHARE_MAX
        while len(self.handshakes) < TLS_HANDSHAKES_MAX:
            found = self._parked.next(self._under_way, each_max)
            if found is None:
                return
            remote, connection = found
            task = self._loop.create_task(self._shake_hands(connection), name=f"{self._name} handshake")
            self.handshakes[task] = remote, self._loop.time()
            self._under_way[remote] += 1
            task.add_done_callback(self._done)

    def _end_the_stalled(self) -> None:
        """Others wait: who has had the time for a handshake over a slow link has no more of it."""
        begun_before = self._loop.time() - TLS_STALLED_S
        for task, (_, begun_at) in self.handshakes.items():
            if begun_at > begun_before:
                return
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        remote, _ = self.handshakes.pop(task)
        self._under_way[remote] -= 1
        if not self._under_way[remote]:
            del self._under_way[remote]
        self._begin()

    async def _shake_hands(self, connection: socket.socket) -> None:
        peer = connection.getpeername() if connection.fileno() >= 0 else None
        SHAKES_HANDS.set(connection)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Arriving(self._owner),
                connection,
                ssl=self._certificates.context,
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=TLS_SHUTDOWN_S,
            )
        except OSError as error:  # ConnectionError, TimeoutError and SSLError are OSErrors
            log.info("%s: no TLS with %s: %s", self._name, peer, error)

    def _owner(self, secure: asyncio.Transport) -> asyncio.Protocol | None:
        """Who gets a connection whose handshake is done."""
        identity = self._identify(secure.get_extra_info("peercert"))
        admit = self._admit
        if self._others:
            admit = self._others.get(secure.get_extra_info("ssl_object").selected_alpn_protocol() or "", admit)
        return admit(identity)


class _Arriving(asyncio.Protocol):
    """What a connection belongs to during its handshake; then it belongs to whom `owner` makes."""

    def __init__(self, owner: Callable[[asyncio.Transport], asyncio.Protocol | None]) -> None:
        self._owner = owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        secure = cast(asyncio.Transport, transport)
        owner = self._owner(secure)
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
