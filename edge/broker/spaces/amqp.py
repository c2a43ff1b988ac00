"""AMQP connections of a broker with several address spaces: sasl-init chooses the space.

Clients without a name and a secret (EXTERNAL, ANONYMOUS) belong to the gateway's own space: a certificate names a user
of one space only. The host name of the later open chooses nothing, as the client has authenticated by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bridge.engine import Engine
from bridge.sasl import CredentialAnswer, SaslServer
from bridge.sasl.scram import ScramVerifier
from bridge.transport.connection import ConnectionMachine
from bridge.transport.driver import ConnectionDriver, MemoryMeter
from edge.broker.listeners.tcp import Gone
from edge.broker.security.sasl_credentials import SaslCredentials
from edge.broker.served_space import ServedSpace
from edge.broker.spaces.closed_space import ClosedSpace
from edge.broker.spaces.virtual_hosts import VirtualHosts


class SpaceLogin:
    """Login of one AMQP connection, in the space that its client chooses (`bridge.sasl.CredentialChecker`)."""

    def __init__(self, hosts: VirtualHosts) -> None:
        self._hosts = hosts
        self._driver: ConnectionDriver | None = None
        self._hostname: Callable[[], str] = str
        self._user = ""
        """Name of the user in the chosen space."""
        self.space: ServedSpace | ClosedSpace = hosts.own
        """Chosen space; the gateway's own one before the choice."""
        self.credentials = SaslCredentials(hosts.own.gate)
        """Credentials of the client in the chosen space."""

    def connected(self, driver: ConnectionDriver, hostname: Callable[[], str]) -> None:
        """Set the driver. `hostname` returns the name of the host in sasl-init."""
        self._driver, self._hostname = driver, hostname

    @property
    def mechanisms(self) -> frozenset[str]:
        """SASL mechanisms that clients of any space may use: the choice follows them."""
        spaces = (self._hosts.own, *self._hosts.further)
        return frozenset().union(*(SaslCredentials(space.gate).mechanisms for space in spaces))

    def plain(self, username: str, password: bytes, answer: CredentialAnswer) -> None:
        self._choose(username)
        self.credentials.plain(self._user, password, answer)

    def bearer(self, message: bytes, answer: CredentialAnswer) -> None:
        self._choose("")
        self.credentials.bearer(message, answer)

    def scram(self, username: str) -> ScramVerifier | None:
        self._choose(username)
        return self.credentials.scram(self._user)

    def failed(self, username: str) -> None:
        self.credentials.failed(self._user)

    def succeeded(self, username: str) -> str:
        return self.credentials.succeeded(self._user)

    def _choose(self, username: str) -> None:
        """Choose the space, and the name of the user there."""
        driver = self._driver
        if driver is None:
            raise LookupError("sasl-init before the connection was made")
        self.space, chosen = self._hosts.choose(driver, self._hostname(), username)
        self.credentials = SaslCredentials(self.space.gate)
        self.credentials.connected(driver.wake, driver.address)
        self._user = chosen or ""


class AmqpArrival:
    """Owner of a connection until its open, which it passes to a session of the chosen space."""

    def __init__(
        self, hosts: VirtualHosts, login: SpaceLogin, sasl: SaslServer, engine: Engine, driver: ConnectionDriver
    ) -> None:
        self._hosts = hosts
        self._login = login
        self._sasl = sasl
        self._engine = engine
        self._driver = driver

    def handle(self, events: Sequence[Any]) -> None:
        login, hosts, space = self._login, self._hosts, self._login.space
        if isinstance(space, ClosedSpace):
            space = hosts.own  # its session only ends the connection of the refused client
        elif not hosts.serves(space) or self._is_elsewhere(space):
            self._driver.abort()
            return
        hosts.enter(self._driver, space)
        session = space.amqp.session(login.credentials, self._engine, self._driver)
        self._driver.hand_over(session)
        session.handle(events)

    def _is_elsewhere(self, space: ServedSpace) -> bool:
        """Return True if the space is the gateway's own one by a certificate, and the server name that of another."""
        return self._sasl.done and space is self._hosts.own and bool(self._hosts.server_name(self._driver))

    def writable(self) -> None:
        """Do nothing: no data is pending."""


class AmqpSpaceDrivers:
    """Creates the drivers of AMQP connections (`edge.broker.listeners.listeners.Drivers`)."""

    def __init__(self, hosts: VirtualHosts) -> None:
        self._hosts = hosts

    def serve(
        self,
        gone: Gone,
        identity: str | None,
        around: Callable[[ConnectionMachine], ConnectionMachine],
        meter: MemoryMeter,
    ) -> ConnectionDriver:
        """Create the driver of an accepted connection."""
        own = self._hosts.own
        if not self._hosts.shared:
            return own.amqp.serve(gone, identity, around, meter)
        login = SpaceLogin(self._hosts)
        sasl = SaslServer(credentials=login, external=identity)
        return own.amqp.drive(sasl, partial(self._arrive, login, sasl), gone, identity, around, meter)

    def refuse(self, gone: Gone, around: Callable[[ConnectionMachine], ConnectionMachine]) -> ConnectionDriver:
        """Create the driver of a connection that is refused at the limit."""
        return self._hosts.own.amqp.refuse(gone, around)

    def _arrive(self, login: SpaceLogin, sasl: SaslServer, engine: Engine, driver: ConnectionDriver) -> AmqpArrival:
        login.connected(driver, lambda: sasl.hostname)
        return AmqpArrival(self._hosts, login, sasl, engine, driver)
