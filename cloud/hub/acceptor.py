"""Who is let in: from the certificate and the credentials of a connection to a `Peer`, and to who serves such peers.

A connection is a *visitor* until its peer has opened it. Then its events go to the owner made for it
(`bridge.intake.Intake` for a gateway, `edge.broker.amqp.session.AmqpSession` for an application) and the visitor hears
no more of them, until the peer has to leave.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from bridge.engine import Attached, Closed, Condition, Engine, Event, Link, PeerOpened
from bridge.hub_addresses import LEDGER, MANIFESTS, PROBE_SUFFIX, STATUS, TELEMETRY
from bridge.sasl import ANONYMOUS, SaslServer
from bridge.transport.driver import ConnectionDriver, ConnectionOwner
from cloud.hub.peers import DEFAULT_TENANT, Certified, Kind, NotAPeer, Peer, certified, gateway_fault, user
from cloud.hub.tenants import Tenants
from edge.broker.listeners.tls import subject_name
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.sasl_credentials import SaslCredentials

log = logging.getLogger(__name__)

UNAUTHORIZED: Final = "amqp:unauthorized-access"
_NOT_ESTABLISHED: Final = {"amqp:connection-establishment-failed": True}
"""In an open that a close follows."""
_NO_PLACE: Final = Condition("amqp:resource-limit-exceeded", "there is no room for another connection")


class Authority(Protocol):
    """Who has issued the certificates of gateways, and knows which of them are good no more."""

    def refusal(self, peer: Peer, serial: int) -> str | None:
        """Why the certificate of this serial number does not let this gateway in; None: it does. Asked at each open
        and by `Acceptor.review`, on the loop's thread; returns at once."""
        ...

    def admitted(self, shown: Certified) -> None:
        """A gateway was let in by this certificate. Returns at once."""
        ...


class NotServed(Exception):
    """There is nobody to serve a peer now; the message says why."""


Serve = Callable[[Peer, Engine, ConnectionDriver, SaslCredentials | None], ConnectionOwner]
"""Makes who serves a peer; its first event is the peer's `PeerOpened`. It answers with an open of its own, and says by
`ConnectionDriver.identified` who the peer is where that is a user. Raises NotServed."""


class Acceptor:
    """Decides about every connection of one hub."""

    def __init__(
        self,
        gate: Authenticator,
        serve: Mapping[Kind, Serve],
        *,
        dev: bool,
        authority: Authority | None = None,
        tenants: Tenants | None = None,
    ) -> None:
        """`gate` knows users. `serve`: by kind of peer. `dev`: who comes is of the default tenant, and has the name
        its certificate or its container id says; it is a gateway if its first link is for what gateways send, else an
        application. `authority` None: each certificate TLS lets in is good until it ends. `tenants`: their
        quotas."""
        self.gate: Final = gate
        self.serve: Final = serve
        self.dev: Final = dev
        self.authority = authority
        self.admitted: dict[ConnectionDriver, Visitor] = {}
        """Everybody who has been let in and is still there."""
        self._tenants = tenants or Tenants()
        self._of_tenant: Counter[str] = Counter()
        """Connections; so below."""
        self._applications: Counter[str] = Counter()
        """Of those."""
        self._of_gateway: Counter[Peer] = Counter()

    def ask_authority(self, authority: Authority) -> None:
        """Ask this authority about certificates from now on."""
        self.authority = authority

    def visitor(self) -> Visitor:
        """For a connection that begins."""
        return Visitor(self)

    def no_place(self, peer: Peer) -> str | None:
        """Why its tenant may not have another connection; None: it may. A gateway's old one is closed when the new one
        is there."""
        quota, tenant = self._tenants.of(peer.tenant), peer.tenant
        if peer.kind is Kind.GATEWAY and peer in self._of_gateway:
            return None
        if self._of_tenant[tenant] >= quota.connections:
            return self._tenants.at_its_bound(tenant, "connections")
        if peer.kind is Kind.APPLICATION and self._applications[tenant] >= quota.applications:
            return self._tenants.at_its_bound(tenant, "applications")
        return None

    def admit(self, driver: ConnectionDriver, visitor: Visitor, peer: Peer) -> None:
        """The peer has been let in."""
        self.admitted[driver] = visitor
        self._of_tenant[peer.tenant] += 1
        self._applications[peer.tenant] += peer.kind is Kind.APPLICATION
        if peer.kind is Kind.GATEWAY:
            self._of_gateway[peer] += 1

    def gone(self, driver: ConnectionDriver) -> None:
        """A connection is over."""
        visitor = self.admitted.pop(driver, None)
        if visitor is None or visitor.peer is None:
            return
        peer = visitor.peer
        self._of_tenant[peer.tenant] -= 1
        self._applications[peer.tenant] -= peer.kind is Kind.APPLICATION
        if peer.kind is Kind.GATEWAY:
            self._of_gateway[peer] -= 1
            if not self._of_gateway[peer]:
                del self._of_gateway[peer]

    def tick(self) -> None:
        """End what has expired of who was let in."""
        self.gate.expire()

    def applications(self, tenant: str) -> list[ConnectionDriver]:
        """Of the connections of a tenant's applications."""
        wanted = (tenant, Kind.APPLICATION)
        peers = [(driver, visitor.peer) for driver, visitor in self.admitted.items()]
        return [driver for driver, peer in peers if peer is not None and (peer.tenant, peer.kind) == wanted]

    def review(self) -> None:
        """The authority may have changed its mind: those whose certificates are good no more have to leave."""
        for visitor in list(self.admitted.values()):
            visitor.review()


class Visitor:
    """One connection, first as its `bridge.transport.driver.ConnectionOwner`."""

    def __init__(self, acceptor: Acceptor) -> None:
        gate, dev = acceptor.gate, acceptor.dev
        self._acceptor = acceptor
        self._credentials = SaslCredentials(gate) if gate.passwords or gate.tokens else None
        self.sasl: Final = SaslServer(
            _anybody if dev else None, credentials=self._credentials, anonymous=ANONYMOUS if dev else None
        )
        self.peer: Peer | None = None
        """None until it has been let in."""
        self._engine: Engine
        self._driver: ConnectionDriver
        self._certified: Certified | None = None
        self._owner: ConnectionOwner | None = None
        self._opened: PeerOpened | None = None
        """Of a peer that has yet to show what it is."""
        self._leaving = False

    def arrive(self, engine: Engine, driver: ConnectionDriver) -> ConnectionOwner:
        """The transport is there: look at the certificate the peer has shown in its handshake."""
        self._engine, self._driver = engine, driver
        if self._credentials is not None:
            self._credentials.connected(driver.wake, driver.address)
        shown = driver.transport.get_extra_info("peercert") if driver.transport is not None else None
        if shown:
            self._look_at(shown)
        return self

    def review(self) -> None:
        """Leave, if the authority says so of the certificate."""
        if (why := self._refusal()) is not None:
            self.end(Condition(UNAUTHORIZED, why))

    def end(self, condition: Condition) -> None:
        """The peer has to leave: nothing it still sends is taken."""
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
                self._show(self._opened, event.link)
            if self._owner is not None and not self._leaving:
                self._driver.hand_over(self._owner)
                before, self._opened = self._opened, None
                self._owner.handle([*((before,) if before is not None else ()), *events[place:]])
                return

    def writable(self) -> None:
        """Nothing waits."""

    # --- inside -----------------------------------------------------------------------------------------------

    def _look_at(self, certificate: Mapping[str, Any]) -> None:
        try:
            self._certified = certified(certificate)
        except NotAPeer as why:
            if self._acceptor.dev:  # any name will do
                self.sasl.external = subject_name(certificate)
            else:
                log.warning("%s: %s", self._driver.peername, why)
            return
        self.sasl.external = self._certified.peer.identity

    def _open(self, event: PeerOpened) -> None:
        """Let the peer in, or say why not."""
        try:
            if self._certified is not None and event.identity == self._certified.peer.identity:
                peer = self._gateway(event, self._certified.peer)
                if event.container_id == peer.name:
                    self._admit(peer)
                else:
                    self._answer_probe()
            elif not self._acceptor.dev:
                self._admit(user(event.identity or "", Kind.APPLICATION))
            else:
                self._named(event)  # raises for what is no name
                self._opened = event
                self._engine.open()  # many do not attach before
        except NotAPeer as why:
            self._turn_away(Condition(UNAUTHORIZED, str(why)))

    def _show(self, opened: PeerOpened, link: Link) -> None:
        """Development mode: a peer shows by its first link what it is."""
        gateway = not link.is_sender and link.target.address in (TELEMETRY, STATUS, LEDGER, MANIFESTS)
        self._admit(Peer(DEFAULT_TENANT, self._named(opened), Kind.GATEWAY if gateway else Kind.APPLICATION))

    def _admit(self, peer: Peer) -> None:
        """The peer may stay, if there is a place for it."""
        if (full := self._acceptor.no_place(peer)) is not None:
            self._turn_away(Condition("amqp:resource-limit-exceeded", full))
            return
        if peer.kind is Kind.GATEWAY and not self._driver.identified(peer.identity):
            self._turn_away(_NO_PLACE)
            return
        try:
            owner = self._acceptor.serve[peer.kind](peer, self._engine, self._driver, self._credentials)
        except NotServed as why:
            self._turn_away(Condition("amqp:resource-limit-exceeded", str(why)))
            return
        self.peer, self._owner = peer, owner
        self._acceptor.admit(self._driver, self, peer)

    def _gateway(self, event: PeerOpened, peer: Peer) -> Peer:
        """The gateway of the certificate, if it may come. Raises NotAPeer."""
        if event.container_id not in (peer.name, peer.name + PROBE_SUFFIX):
            words = f"the certificate is of gateway {peer.name!r}, the container-id says {event.container_id!r}"
            raise NotAPeer(words)
        if (why := self._refusal()) is not None:
            raise NotAPeer(why)
        if self._certified is not None and self._acceptor.authority is not None:
            self._acceptor.authority.admitted(self._certified)
        return peer

    def _answer_probe(self) -> None:
        """Somebody at the gateway looks whether it would be let in, beside the one that may be connected: it would."""
        self._leaving = True
        self._engine.open()
        self._engine.close()

    def _named(self, event: PeerOpened) -> str:
        """What a peer of development mode is called. Raises NotAPeer."""
        name = event.container_id if event.identity in (None, ANONYMOUS) else event.identity
        if name is None or (fault := gateway_fault(name)):
            raise NotAPeer(gateway_fault("") if name is None else fault)
        return name

    def _refusal(self) -> str | None:
        shown, authority = self._certified, self._acceptor.authority
        if shown is None or authority is None:
            return None
        return authority.refusal(shown.peer, shown.serial)

    def _turn_away(self, condition: Condition) -> None:
        log.warning("%s is turned away: %s", self._driver.peername, condition.description)
        self._leaving = True
        self._engine.open(_NOT_ESTABLISHED)
        self._engine.close(condition)


def _anybody(_mechanism: str, _user: str, _password: bytes) -> str:
    """Development mode: whoever comes is let in, whatever credentials it has."""
    return ANONYMOUS
