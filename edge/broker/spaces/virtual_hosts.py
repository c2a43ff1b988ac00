"""Names by which clients choose their address space, and the choice of one connection.

A connection belongs to the gateway's own space unless its client names another one. The first of these that names a
space counts: the server name of TLS (RFC 6066 section 3), the host name of AMQP (sasl-init), the part of the user name
after its last ``@``. The choice is made before the client authenticates, and only the users of the chosen space are
asked: a wrong name is answered like a wrong password.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from bridge.transport.driver import ConnectionDriver
from edge.broker.served_space import ServedSpace


class SpaceChoice(NamedTuple):
    """Address space of a connection, and the name of its user there."""

    space: ServedSpace
    user: str | None


class VirtualHosts:
    """Address spaces of one broker by the names of their hosts."""

    def __init__(self, own: ServedSpace, entered: Callable[[ConnectionDriver, ServedSpace], None]) -> None:
        """`own`: the gateway's own space. `entered` is called with each connection that has chosen its space."""
        self.own: Final = own
        self.further: list[ServedSpace] = []
        """Further spaces; without one, every connection is of the own space."""
        self._entered = entered
        self._by_host: dict[str, ServedSpace] = {}
        self._server_names: WeakKeyDictionary[ssl.SSLObject, str] = WeakKeyDictionary()
        """Server names of open connections that name a space."""

    def follow(self, further: Iterable[ServedSpace]) -> None:
        """Serve these further spaces, by the present names of their hosts, to new connections."""
        self.further = list(further)
        self._by_host = {host_key(host): space for space in self.further for host in space.hosts}

    def serves(self, space: ServedSpace) -> bool:
        """Return False for a space that was removed."""
        return space is self.own or space in self.further

    def note_server_name(self, secured: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        """Note the server name of a handshake (`ssl.SSLContext.sni_callback`)."""
        if name is not None and host_key(name) in self._by_host:
            self._server_names[secured] = host_key(name)

    def choose(self, driver: ConnectionDriver, hostname: str, username: str | None) -> SpaceChoice:
        """Return the choice of a client that requests this host (empty: none), with this user name."""
        shown = self._by_host.get(self._server_name(driver)) or self._by_host.get(host_key(hostname))
        user, _, suffix = (username or "").rpartition("@")
        named = self._by_host.get(host_key(suffix)) if user else None
        space = shown or named or self.own
        return SpaceChoice(space, user if named is space else username)

    def enter(self, driver: ConnectionDriver, space: ServedSpace) -> None:
        """Count the connection for this space from now on."""
        self._entered(driver, space)

    def _server_name(self, driver: ConnectionDriver) -> str:
        secured = driver.transport.get_extra_info("ssl_object") if driver.transport is not None else None
        return "" if secured is None else self._server_names.get(secured, "")


def host_key(host: str) -> str:
    """Return the form in which names of hosts are compared (RFC 4343: without case)."""
    return host.lower().rstrip(".")
