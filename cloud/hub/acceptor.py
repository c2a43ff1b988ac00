"""Admission of connections: identify the peer by certificate or credentials, and hand it to its handler.

A `PeerConnection` owns a connection until its peer has opened it. Its events then go to the owner that serves such
peers (`bridge.intake.Intake` for a gateway, `edge.broker.amqp.session.AmqpSession` for an application). The
`PeerConnection` gets them again only to end the connection.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from bridge.engine import Attached, Closed, Condition, Engine, Event, Link, PeerOpened
from bridge.hub_addresses import LEDGER, MANIFESTS, PROBE_SUFFIX, STATUS, TELEMETRY
from bridge.intake import Intake
from bridge.sasl import ANONYMOUS, SaslServer
from bridge.transport.driver import ConnectionDriver, ConnectionOwner
from cloud.hub.peers import (
    DEFAULT_TENANT,
    CertifiedGateway,
    HubPeer,
    InvalidPeer,
    PeerKind,
    gateway_fault,
    parse_user,
    read_certificate,
)
from cloud.hub.tenants import Tenants
from edge.broker.listeners.tls import subject_name
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.sasl_credentials import SaslCredentials

log = logging.getLogger(__name__)

UNAUTHORIZED: Final = "amqp:unauthorized-access"
_NOT_ESTABLISHED: Final = {"amqp:connection-establishment-failed": True}
"""Property of an open that a close follows."""
_LIMIT_REACHED: Final = Condition("amqp:resource-limit-exceeded", "connection limit reached")


class CertificatePolicy(Protocol):
    """Decides which certificates of gateways are accepted."""

    def refusal(self, peer: HubPeer, serial: int) -> str | None:
        """Return why the certificate of this serial number does not admit this gateway; None if it does.

        Called at each open and by `Acceptor.review`, on the loop's thread; returns at once.
        """
        ...

    def admitted(self, shown: CertifiedGateway) -> None:
        """Record that a gateway was admitted with this certificate. Returns at once."""
        ...


REMOVED: Final = "the tenant was removed"
"""Reason for paused reads, until what was read is answered."""


class PeerNotServed(Exception):
    """No handler can serve the peer now; the message says why."""


Serve = Callable[[HubPeer, Engine, ConnectionDriver, SaslCredentials | None], ConnectionOwner]
"""Makes the owner that serves a peer. Its first event is the peer's `PeerOpened`, which it answers with an open of its
own; for a user it also reports the identity by `ConnectionDriver.identified`. Raises PeerNotServed."""


class Acceptor:
    """Admits or refuses every connection of one hub."""

    def __init__(
        self,
        gate: Authenticator,
        serve: Mapping[PeerKind, Serve],
        *,
        dev: bool,
        authority: CertificatePolicy | None = None,
        tenants: Tenants | None = None,
        is_removed: Callable[[str], bool] = lambda _tenant: False,
    ) -> None:
        """`gate` authenticates users. `serve` makes the owner for each kind of peer. `tenants` has their quotas.
        `is_removed` returns whether a tenant was removed: its peers are refused.

        `dev`: every peer belongs to the default tenant and has the name of its certificate or its container-id. It is a
        gateway if its first link is for what gateways send, else an application. `authority` None: every certificate
        that TLS accepts is valid until it ends.
        """
        self.gate: Final = gate
        self.serve: Final = serve
        self.dev: Final = dev
        self.authority = authority
        self.is_removed: Final = is_removed
        self.admitted: dict[ConnectionDriver, PeerConnection] = {}
        """Admitted connections that are still open."""
        self._tenants = tenants or Tenants()
        self._of_tenant: Counter[str] = Counter()
        """Connections by tenant."""
        self._applications: Counter[str] = Counter()
        """Connections of applications by tenant."""
        self._of_gateway: Counter[HubPeer] = Counter()

    def set_policy(self, authority: CertificatePolicy) -> None:
        """Check certificates with this policy from now on."""
        self.authority = authority

    def new_connection(self) -> PeerConnection:
        """Return the handler of a new connection."""
        return PeerConnection(self)

    def limit_reached(self, peer: HubPeer) -> str | None:
        """Return why the tenant may not open another connection; None if it may.

        A gateway that reconnects replaces its old connection, so it is always allowed.
        """
        quota, tenant = self._tenants.of(peer.tenant), peer.tenant
        if peer.kind is PeerKind.GATEWAY and peer in self._of_gateway:
            return None
        if self._of_tenant[tenant] >= quota.connections:
            return self._tenants.count_refusal(tenant, "connections")
        if peer.kind is PeerKind.APPLICATION and self._applications[tenant] >= quota.applications:
            return self._tenants.count_refusal(tenant, "applications")
        return None

    def admit(self, driver: ConnectionDriver, connection: PeerConnection, peer: HubPeer) -> None:
        """Count an admitted peer."""
        self.admitted[driver] = connection
        self._of_tenant[peer.tenant] += 1
        self._applications[peer.tenant] += peer.kind is PeerKind.APPLICATION
        if peer.kind is PeerKind.GATEWAY:
            self._of_gateway[peer] += 1

    def remove(self, driver: ConnectionDriver) -> None:
        """Forget a connection that has ended."""
        connection = self.admitted.pop(driver, None)
        if connection is None or connection.peer is None:
            return
        peer = connection.peer
        self._of_tenant[peer.tenant] -= 1
        self._applications[peer.tenant] -= peer.kind is PeerKind.APPLICATION
        if peer.kind is PeerKind.GATEWAY:
            self._of_gateway[peer] -= 1
            if not self._of_gateway[peer]:
                del self._of_gateway[peer]

    def tick(self) -> None:
        """Drop expired logins."""
        self.gate.expire()

    def applications(self, tenant: str) -> list[ConnectionDriver]:
        """Return the connections of a tenant's applications."""
        wanted = (tenant, PeerKind.APPLICATION)
        peers = [(driver, connection.peer) for driver, connection in self.admitted.items()]
        return [driver for driver, peer in peers if peer is not None and (peer.tenant, peer.kind) == wanted]

    def end_removed(self, tenant: str, *, late: bool) -> int:
        """Close the connections of a removed tenant; return the number of those that stay. Reading from a gateway
        stops, and its connection stays until all that it has sent is landed and answered, unless it is `late`: so what
        is in the lake is not on the gateway's disk any more."""
        staying = 0
        for connection in list(self.admitted.values()):
            if connection.peer is not None and connection.peer.tenant == tenant and not connection.end_removed(late):
                staying += 1
        return staying

    def count_connections(self, tenant: str) -> tuple[int, int]:
        """Return the number of connections of a tenant, and of those of its applications."""
        return self._of_tenant[tenant], self._applications[tenant]

    def review(self) -> None:
        """Close connections with certificates that are no longer accepted."""
        for connection in list(self.admitted.values()):
            connection.review()


class PeerConnection:
    """One connection; its `bridge.transport.driver.ConnectionOwner` until the peer is identified."""

    def __init__(self, acceptor: Acceptor) -> None:
        gate, dev = acceptor.gate, acceptor.dev
        self._acceptor = acceptor
        self._credentials = SaslCredentials(gate) if gate.passwords or gate.tokens else None
        self.sasl: Final = SaslServer(
            _accept_any if dev else None, credentials=self._credentials, anonymous=ANONYMOUS if dev else None
        )
        self.peer: HubPeer | None = None
        """None until the peer has been admitted."""
        self._engine: Engine
        self._driver: ConnectionDriver
        self._certified: CertifiedGateway | None = None
        self._owner: ConnectionOwner | None = None
        self._opened: PeerOpened | None = None
        """Open of a peer of unknown kind (development mode)."""
        self._leaving = False

    def arrive(self, engine: Engine, driver: ConnectionDriver) -> ConnectionOwner:
        """Read the certificate that the peer showed in the TLS handshake."""
        self._engine, self._driver = engine, driver
        if self._credentials is not None:
            self._credentials.connected(driver.wake, driver.address)
        shown = driver.transport.get_extra_info("peercert") if driver.transport is not None else None
        if shown:
            self._read_certificate(shown)
        return self

    def review(self) -> None:
        """Close the connection if its certificate is no longer accepted. Those of a removed tenant end by
        `end_removed`."""
        if self.peer is not None and self._acceptor.is_removed(self.peer.tenant):
            return
        if (why := self._refusal()) is not None:
            self.end(Condition(UNAUTHORIZED, why))

    def end_removed(self, late: bool) -> bool:
        """Close the connection, as its tenant was removed; return False while data of the gateway is not answered."""
        peer, owner = self.peer, self._owner
        if peer is None or self._leaving:
            return True
        if isinstance(owner, Intake) and owner.waiting_bytes and not late:
            self._driver.pause_reading(REMOVED)
            return False
        self.end(Condition(UNAUTHORIZED, removed_words(peer.tenant)))
        self._driver.resume_reading(REMOVED)  # the answer to the close; everything else is ignored
        return True

    def end(self, condition: Condition) -> None:
        """Close the connection; discard what the peer still sends."""
        if not self._leaving:
            self._leaving = True
            self._driver.hand_over(self)
            self._engine.close(condition)
            self._driver.flush_soon()

    # --- Owner ------------------------------------------------------------------------------------------------

    def handle(self, events: Sequence[Event]) -> None:
        for place, event in enumerate(events):
            if isinstance(event, Closed):
                if self._owner is not None:
                    self._owner.handle((event,))
            elif self._leaving:
                continue
            elif isinstance(event, PeerOpened):
                self._open(event)
            elif isinstance(event, Attached) and self._opened is not None:
                self._identify_by_link(self._opened, event.link)
            if self._owner is not None and not self._leaving:
                self._driver.hand_over(self._owner)
                before, self._opened = self._opened, None
                self._owner.handle([*((before,) if before is not None else ()), *events[place:]])
                return

    def writable(self) -> None:
        """Do nothing: no data is pending."""

    # --- inside -----------------------------------------------------------------------------------------------

    def _read_certificate(self, certificate: Mapping[str, Any]) -> None:
        try:
            self._certified = read_certificate(certificate)
        except InvalidPeer as why:
            if self._acceptor.dev:  # any name will do
                self.sasl.external = subject_name(certificate)
            else:
                log.warning("%s: %s", self._driver.peername, why)
            return
        self.sasl.external = self._certified.peer.identity

    def _open(self, event: PeerOpened) -> None:
        """Admit the peer, or refuse it with the reason."""
        try:
            if self._certified is not None and event.identity == self._certified.peer.identity:
                peer = self._gateway(event, self._certified.peer)
                if event.container_id == peer.name:
                    self._admit(peer)
                else:
                    self._answer_probe()
            elif not self._acceptor.dev:
                self._admit(parse_user(event.identity or "", PeerKind.APPLICATION))
            else:
                self._dev_name(event)  # raises for an invalid name
                self._opened = event
                self._engine.open()  # many clients attach only after the answer
        except InvalidPeer as why:
            self._refuse(Condition(UNAUTHORIZED, str(why)))

    def _identify_by_link(self, opened: PeerOpened, link: Link) -> None:
        """Identify a peer by its first link, in development mode."""
        gateway = not link.is_sender and link.target.address in (TELEMETRY, STATUS, LEDGER, MANIFESTS)
        self._admit(
            HubPeer(DEFAULT_TENANT, self._dev_name(opened), PeerKind.GATEWAY if gateway else PeerKind.APPLICATION)
        )

    def _admit(self, peer: HubPeer) -> None:
        """Hand the peer to its owner, if the limits allow another connection."""
        if self._acceptor.is_removed(peer.tenant):
            self._refuse(Condition(UNAUTHORIZED, removed_words(peer.tenant)))
            return
        if (full := self._acceptor.limit_reached(peer)) is not None:
            self._refuse(Condition("amqp:resource-limit-exceeded", full))
            return
        if peer.kind is PeerKind.GATEWAY and not self._driver.identified(peer.identity):
            self._refuse(_LIMIT_REACHED)
            return
        try:
            owner = self._acceptor.serve[peer.kind](peer, self._engine, self._driver, self._credentials)
        except PeerNotServed as why:
            self._refuse(Condition("amqp:resource-limit-exceeded", str(why)))
            return
        self.peer, self._owner = peer, owner
        self._acceptor.admit(self._driver, self, peer)

    def _gateway(self, event: PeerOpened, peer: HubPeer) -> HubPeer:
        """Check that the gateway of the certificate may connect. Raises InvalidPeer."""
        if event.container_id not in (peer.name, peer.name + PROBE_SUFFIX):
            words = f"the certificate names gateway {peer.name!r}, the container-id names {event.container_id!r}"
            raise InvalidPeer(words)
        if self._acceptor.is_removed(peer.tenant):  # its certificate is revoked too, which is not the cause
            raise InvalidPeer(removed_words(peer.tenant))
        if (why := self._refusal()) is not None:
            raise InvalidPeer(why)
        if self._certified is not None and self._acceptor.authority is not None:
            self._acceptor.authority.admitted(self._certified)
        return peer

    def _answer_probe(self) -> None:
        """Answer a probe: a second connection of a gateway that only tests whether it would be admitted."""
        self._leaving = True
        self._engine.open()
        self._engine.close()

    def _dev_name(self, event: PeerOpened) -> str:
        """Return the name of a peer in development mode. Raises InvalidPeer."""
        name = event.container_id if event.identity in (None, ANONYMOUS) else event.identity
        if name is None or (fault := gateway_fault(name)):
            raise InvalidPeer(gateway_fault("") if name is None else fault)
        return name

    def _refusal(self) -> str | None:
        shown, authority = self._certified, self._acceptor.authority
        if shown is None or authority is None:
            return None
        return authority.refusal(shown.peer, shown.serial)

    def _refuse(self, condition: Condition) -> None:
        log.warning("%s is refused: %s", self._driver.peername, condition.description)
        self._leaving = True
        self._engine.open(_NOT_ESTABLISHED)
        self._engine.close(condition)


def removed_words(tenant: str) -> str:
    """Return the reason for refused peers of a removed tenant."""
    return f"tenant {tenant} was removed from this hub; messages stay at their sender; use another tenant"


def _accept_any(_mechanism: str, _user: str, _password: bytes) -> str:
    """Accept every client with any credentials, in development mode."""
    return ANONYMOUS
