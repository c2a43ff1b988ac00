"""Names by which clients choose their address space, and the choice of one connection.

A connection belongs to the gateway's own space unless its client names another one. The first of these that names a
space counts: the server name of TLS (RFC 6066 section 3), the host name of AMQP (sasl-init), the part of the user name
after its last ``@``. The choice is made before the client authenticates, and only the users of the chosen space are
asked: a wrong name is answered like a wrong password, and so is that of a space which is configured but not served. A
connection with the server name of another space never falls back to the own one.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from bridge.transport.driver import ConnectionDriver
from edge.broker.served_space import ServedSpace
from edge.broker.spaces.closed_space import ClosedSpace
from edge.broker.spaces.host_names import host_key


class SpaceChoice(NamedTuple):
    """Address space of a connection, and the name of its user there."""

    space: ServedSpace | ClosedSpace
    user: str | None


class VirtualHosts:
    """Address spaces of one broker by the names of their hosts."""

    def __init__(
        self, own: ServedSpace, closed: ClosedSpace, entered: Callable[[ConnectionDriver, ServedSpace], None]
    ) -> None:
        """`own`: the gateway's own space. `closed` refuses the clients of configured spaces that are not served.
        `entered` is called with each connection that has chosen its space."""
        self.own: Final = own
        self.further: list[ServedSpace] = []
        """Further spaces that are served."""
        self._closed = closed
        self._entered = entered
        self._by_host: dict[str, ServedSpace | ClosedSpace] = {}
        self._server_names: WeakKeyDictionary[ssl.SSLObject, str] = WeakKeyDictionary()
        """Server names of open connections that name a space."""

    @property
    def shared(self) -> bool:
        """False while every connection is of the own space."""
        return bool(self._by_host)

    def follow(self, further: Iterable[ServedSpace], configured: Iterable[str]) -> None:
        """Serve these further spaces, by the present names of their hosts, to new connections. `configured`: names of
        the hosts of all configured ones."""
        self.further = list(further)
        self._by_host = dict.fromkeys(map(host_key, configured), self._closed)
        self._by_host.update({host_key(host): space for space in self.further for host in space.hosts})

    def tick(self) -> None:
        """Answer the logins at spaces that are not served which have waited too long for their refusal."""
        self._closed.gate.expire()

    def serves(self, space: ServedSpace) -> bool:
        """Return False for a space that was removed."""
        return space is self.own or space in self.further

    def note_server_name(self, secured: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        """Note the server name of a handshake (`ssl.SSLContext.sni_callback`)."""
        if name is not None and host_key(name) in self._by_host:
            self._server_names[secured] = host_key(name)

    def choose(self, driver: ConnectionDriver, hostname: str, username: str | None) -> SpaceChoice:
        """Return the choice of a client that requests this host (empty: none), with this user name."""
        noted = self.server_name(driver)
        shown = self._by_host.get(noted, self._closed) if noted else self._by_host.get(host_key(hostname))
        user, _, suffix = (username or "").rpartition("@")
        named = self._by_host.get(host_key(suffix)) if user else None
        space = shown or named or self.own
        return SpaceChoice(space, user if named is space else username)

    def enter(self, driver: ConnectionDriver, space: ServedSpace | ClosedSpace) -> None:
        """Count the connection for this space from now on; one that is refused stays unauthenticated."""
        if isinstance(space, ServedSpace):
            self._entered(driver, space)

    def server_name(self, driver: ConnectionDriver) -> str:
        """Return the server name of the connection if it named a further space; otherwise nothing."""
        secured = driver.transport.get_extra_info("ssl_object") if driver.transport is not None else None
        return "" if secured is None else self._server_names.get(secured, "")
