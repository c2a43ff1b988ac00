"""Who is let in: from the certificate and the credentials of a connection to a `Peer`, and to who serves such peers.

A connection is a *visitor* until its peer has opened it. Then its events go to the owner made for it
(`bridge.intake.Intake` for a gateway) and the visitor hears no more of them, until the peer has to leave.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from bridge.engine import Closed, Condition, Engine, Event, Opened
from bridge.sasl import ANONYMOUS, SaslServer
from bridge.transport.driver import Driver, Owner
from cloud.hub.peers import DEFAULT_TENANT, Certified, Kind, NotAPeer, Peer, certified, gateway_fault, user
from edge.broker.listeners.tls import subject_name
from edge.broker.security.authenticator import Gate
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


Serve = Callable[[Peer, Engine, Driver, SaslCredentials | None], Owner]
"""Makes who serves a peer; its first event is the peer's `Opened`. It answers with an open of its own."""


class Acceptor:
    """Decides about every connection of one hub."""

    def __init__(
        self, gate: Gate, serve: Mapping[Kind, Serve], *, dev: bool, authority: Authority | None = None
    ) -> None:
        """`gate` knows users. `serve`: by kind of peer; others are turned away. `dev`: who comes is a gateway of the
        default tenant, and has the name its certificate or its container id says. `authority` None: each certificate
        TLS lets in is good until it ends."""
        self.gate: Final = gate
        self.serve: Final = serve
        self.dev: Final = dev
        self.authority = authority
        self.admitted: dict[Driver, Visitor] = {}
        """Everybody who has been let in and is still there."""

    def visitor(self) -> Visitor:
        """For a connection that begins."""
        return Visitor(self)

    def gone(self, driver: Driver) -> None:
        """A connection is over."""
        self.admitted.pop(driver, None)

    def review(self) -> None:
        """The authority may have changed its mind: those whose certificates are good no more have to leave."""
        for visitor in list(self.admitted.values()):
            visitor.review()


class Visitor:
    """One connection, first as its `bridge.transport.driver.Owner`."""

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
        self._driver: Driver
        self._certified: Certified | None = None
        self._owner: Owner | None = None
        self._leaving = False

    def arrive(self, engine: Engine, driver: Driver) -> Owner:
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
            elif isinstance(event, Opened) and not self._leaving:
                self._open(event)
                if self._owner is not None:
                    self._driver.hand_over(self._owner)
                    self._owner.handle(events[place:])
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

    def _open(self, event: Opened) -> None:
        """Let the peer in, or say why not."""
        try:
            peer = self._peer(event)
        except NotAPeer as why:
            self._turn_away(Condition(UNAUTHORIZED, str(why)))
            return
        serve = self._acceptor.serve.get(peer.kind)
        if serve is None:
            self._turn_away(Condition("amqp:not-allowed", f"this hub serves no {peer.kind.value} over AMQP"))
        elif not self._driver.identified(peer.identity):
            self._turn_away(_NO_PLACE)
        else:
            self.peer = peer
            self._acceptor.admitted[self._driver] = self
            self._owner = serve(peer, self._engine, self._driver, self._credentials)

    def _peer(self, event: Opened) -> Peer:
        """Who has opened the connection. Raises NotAPeer."""
        shown = self._certified
        if shown is not None and event.identity == shown.peer.identity:
            if event.container_id != shown.peer.name:
                raise NotAPeer(
                    f"the certificate is of gateway {shown.peer.name!r}, the container-id says {event.container_id!r}"
                )
            if (why := self._refusal()) is not None:
                raise NotAPeer(why)
            return shown.peer
        if not self._acceptor.dev:
            return user(event.identity or "", Kind.APPLICATION)
        name = event.container_id if event.identity in (None, ANONYMOUS) else event.identity
        if fault := gateway_fault(name or ""):
            raise NotAPeer(fault)
        return Peer(DEFAULT_TENANT, name or "", Kind.GATEWAY)

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
