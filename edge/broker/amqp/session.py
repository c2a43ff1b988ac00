"""Server side of one AMQP connection: open, authentication, rights and close."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final

from bridge.engine import (
    Accepted,
    Attached,
    Closed,
    Condition,
    Detached,
    Dispositions,
    Engine,
    Event,
    LinkFlow,
    PeerOpened,
    SessionEnded,
    Transfers,
)
from bridge.message import Run
from bridge.sasl import ANONYMOUS
from edge.broker.amqp.addressing import AttachRefused
from edge.broker.amqp.administration import Administration
from edge.broker.amqp.arrivals import AmqpLane
from edge.broker.amqp.containers import ConnectionFigures, ContainerRegistry, LinkFigures, MessageTotals
from edge.broker.amqp.incoming import IncomingLink
from edge.broker.amqp.interception import NO_INTERCEPTION, LinkInterception
from edge.broker.amqp.links import SessionLinks
from edge.broker.amqp.peer import NOT_AUTHORIZED, AmqpPeer, denied
from edge.broker.amqp.scheduler import Scheduler
from edge.broker.amqp.will import will_of
from edge.broker.model.authorization import Ended
from edge.broker.model.refusals import RefusalCause, RefusalJournal
from edge.broker.router.due_wills import WillOrigin
from edge.broker.router.router import Router
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.proof import LoginVerdict, VerifiedIdentity
from edge.broker.security.sasl_credentials import SaslCredentials

SOLE_CONNECTION: Final = "sole-connection-for-container"
"""Desired by a peer that requires an exclusive container id (OASIS, Enforcing Connection Uniqueness). So JMS clients
learn that their client id is in use."""
CAPABILITIES: Final = ("ANONYMOUS-RELAY", "SHARED-SUBS", SOLE_CONNECTION)
"""Capabilities that our open offers; JMS clients use only these."""
DELAYED_DELIVERY: Final = "DELAYED_DELIVERY"
"""Capability of a router that takes messages with a delivery time."""
_NOT_ESTABLISHED: Final = {"amqp:connection-establishment-failed": True}
"""Property of an open that is followed by a close."""
_CONNECTION_LIMIT: Final = Condition("amqp:resource-limit-exceeded", "connection limit of the user or address reached")
_VIOLATIONS: Final = frozenset(
    ("amqp:connection:framing-error", "amqp:decode-error", "amqp:illegal-state", "amqp:invalid-field")
)
"""Conditions with which the engine ends the connection of a peer that violates the protocol."""
_CONTAINER_TAKEN: Final = Condition(
    "amqp:invalid-field", "the container id is in use over another connection", (("invalid-field", "container-id"),)
)


class AmqpSession:
    """Handles the events of one connection (`bridge.transport.driver.ConnectionOwner`)."""

    def __init__(
        self,
        driver: Scheduler,
        engine: Engine,
        router: Router,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        on_closed: Callable[[Condition | None], None] | None = None,
        gate: Authenticator | None = None,
        credentials: SaslCredentials | None = None,
        interception: LinkInterception = NO_INTERCEPTION,
        administration: Administration | None = None,
        containers: ContainerRegistry | None = None,
        lane: AmqpLane | None = None,
        refusals: RefusalJournal | None = None,
    ) -> None:
        """`clock_ns`: UTC, for time to live. `on_closed` is called once, with the reason of the end.

        Without a `gate` every client may do everything. `credentials` has the identity that SASL has verified.
        `interception` can handle attaches. `administration` changes addresses for `$management`. `containers`: registry
        of all sessions. `lane` reads messages with the usual header instead of the engine. `refusals` records refusals.
        """
        self._driver = driver
        self._engine = engine
        self._router = router
        self._on_closed = on_closed
        self._gate = gate
        self._credentials = credentials
        self._interception = interception
        self._containers = ContainerRegistry() if containers is None else containers
        self._lane = lane
        self._sole: tuple[str, str] | None = None
        """Exclusive container id of this connection."""
        self._number = 0
        """Number of the connection; 0 before the open."""
        self._opened_at = 0.0
        self._will: Run | None = None
        self._identity = ""
        """User that SASL or TLS has verified."""
        self._ended_with: Condition | None = None
        """Why we closed the connection; None while we have not."""
        self._refusals = RefusalJournal() if refusals is None else refusals
        self._peer = AmqpPeer(self._record_forbidden)
        self._links = SessionLinks(
            engine,
            router,
            driver,
            self._peer,
            clock_ns=clock_ns,
            put_token=self._put_token if gate is not None and gate.tokens else None,
            administration=administration,
            containers=self._containers,
            disconnect=self._disconnect,
        )
        router.address_listeners.add(self._links.detach_readdressed)

    @property
    def name(self) -> str:
        """Name of the device: its authenticated user, or its container id."""
        return self._peer.name

    @property
    def container_id(self) -> str:
        return self._peer.container_id

    @property
    def router(self) -> Router:
        """Router of its address space."""
        return self._router

    # --- for management -----------------------------------------------------------------------------------------

    def figures(self) -> ConnectionFigures:
        """Return the properties of the connection."""
        peer, driver = self._peer, self._driver
        user = peer.user or self._identity
        mechanism = self._engine.mechanism
        return ConnectionFigures(peer.container_id, driver.peername, user, mechanism, driver.cipher, self._opened_at)

    def link_figures(self) -> Iterator[LinkFigures]:
        """Yield the figures of its links, in the order of attach."""
        return self._links.figures()

    # --- for a trace --------------------------------------------------------------------------------------------

    @property
    def connection(self) -> Engine:
        """See `edge.broker.model.tracing.Traceable`."""
        return self._engine

    @property
    def trace_names(self) -> tuple[str, str]:
        """See `edge.broker.model.tracing.Traceable`."""
        return self.container_id, self._peer.user or self._identity

    def reset_fast_path(self) -> None:
        """See `edge.broker.model.tracing.Traceable`. The lane does not read while a tap is around the engine."""
        if self._lane is not None:
            self._lane.publish()

    # --- Owner --------------------------------------------------------------------------------------------------

    def handle(self, events: Sequence[Event]) -> None:
        if self._lane is not None:
            self._lane.publish()
        for event in events:
            if isinstance(event, Transfers):
                owner = event.link.context
                if owner is not None and not self._peer.closing:
                    owner.received(event)
                    if self._lane is not None and len(event.messages) == 1 and isinstance(owner, IncomingLink):
                        self._lane.learn(owner)
            elif isinstance(event, Accepted):
                if event.link.context is not None:
                    event.link.context.accepted(event.tags)
            elif isinstance(event, Dispositions):
                if event.link.is_sender and event.link.context is not None:
                    event.link.context.settled(event)
            elif isinstance(event, LinkFlow) and event.link.is_sender:
                if event.link.context is not None:
                    event.link.context.flow()
            else:
                self._handle_rare(event)

    def writable(self) -> None:
        """Deliver waiting messages, as the peer reads again."""
        for outgoing in self._links.outgoing:
            outgoing.flow()

    def totals(self) -> MessageTotals:
        """Return the counts of messages."""
        return self._links.totals()

    def close_by_operator(self) -> None:
        """Close the connection: an operator has requested it."""
        self._close(Condition("amqp:connection:forced", "an operator has closed the connection"))
        self._links.stop_sending()
        self._driver.flush_soon()

    def shut_down(self) -> None:
        """Close the connection before the broker stops (section 2.4.3)."""
        self._close(Condition("amqp:connection:forced", "the broker is stopping"))
        self._driver.flush_soon()

    # --- inside: the connection ---------------------------------------------------------------------------------

    def _handle_rare(self, event: Event) -> None:
        if isinstance(event, PeerOpened):
            self._opened(event)
        elif isinstance(event, Attached):
            self._links.attach(event.link)
        elif isinstance(event, Detached):
            error = event.condition
            self._links.detached(event.link, closed=event.closed, lost=error is not None, condition=error)
        elif isinstance(event, Closed):
            self._closed(event.condition)
        elif isinstance(event, LinkFlow):
            if isinstance(event.link.context, IncomingLink):
                event.link.context.credit_returned()
        elif not isinstance(event, SessionEnded):  # each of its links has had its own event
            raise TypeError(f"unknown event {event!r}")

    def _opened(self, event: PeerOpened) -> None:
        peer = self._peer
        peer.container_id = event.container_id
        user = event.identity if event.identity is not None and event.identity != ANONYMOUS else ""
        peer.name = user or event.container_id or "-"
        if SOLE_CONNECTION in event.desired_capabilities and not self._is_sole(user):
            peer.closing = True
            self._record(RefusalCause.CLIENT_ID_TAKEN, user)
            self._engine.open(_NOT_ESTABLISHED)
            self._engine.close(_CONTAINER_TAKEN)
            return
        if not self._may_put_token(user) and not self._driver.identified(user):
            peer.closing = True
            self._record(RefusalCause.TOO_MANY_CONNECTIONS, user)
            self._engine.open(_NOT_ESTABLISHED)
            self._engine.close(_CONNECTION_LIMIT)
            return
        self._identity = user
        self._number = self._containers.add_connection(self)
        self._opened_at = self._router.now_ns() / 1e9
        self._engine.open()
        if self._gate is not None and not self._gate.open:
            self._find_grant(self._gate, user)
        self._find_interceptor()
        self._take_will(event)

    def _may_put_token(self, user: str) -> bool:
        """Return True if the peer has not authenticated and may put a token to `$cbs`."""
        gate = self._gate
        return not user and gate is not None and not gate.open and gate.tokens

    def _is_sole(self, user: str) -> bool:
        """Claim the container id of this user. Return False if another connection has it."""
        wanted = (user, self.container_id)
        if wanted in self._containers.sole:
            return False
        self._containers.sole.add(wanted)
        self._sole = wanted
        return True

    def _take_will(self, event: PeerOpened) -> None:
        peer = self._peer
        try:
            will = will_of(event.properties, peer.publisher)
            if will is not None and peer.grant is not None:
                peer.require(peer.grant.may_send(will.address), "leave a will for", will.address)
            self._will = None if peer.closing else will
        except AttachRefused as error:
            if error.condition.name == NOT_AUTHORIZED and not peer.closing:
                self._record(RefusalCause.NOT_ALLOWED_TO_SEND, detail="its will")
            self._close(error.condition)

    def _disconnect(self, reason: str) -> None:
        """Close the connection of a router."""
        self._close(Condition("amqp:connection:forced", reason))
        self._driver.flush_soon()

    def _close(self, condition: Condition) -> None:
        self._peer.closing = True
        self._ended_with = condition
        self._engine.close(condition)

    def _record(self, cause: RefusalCause, user: str = "", *, address: str = "", detail: str = "") -> None:
        """Record a refusal for operators."""
        remote = self._driver.peername.rpartition(":")[0]
        user = user or self._peer.user or self._identity
        self._refusals.add(cause, remote, user=user, client=self.container_id, address=address, detail=detail)

    def _record_forbidden(self, cause: RefusalCause, address: str) -> None:
        self._record(cause, address=address)

    def _closed(self, condition: Condition | None) -> None:
        """Clean up after the end of the connection. Every step runs, also if another one raises."""
        violation = condition is not None and condition.name in _VIOLATIONS and self._ended_with is None
        if condition is not None and violation and not self._engine.spoken:
            self._record(RefusalCause.PROTOCOL_ERROR, detail=condition.description or condition.name)
        with ExitStack() as last_first:
            if self._on_closed is not None:
                last_first.callback(self._on_closed, condition)
            last_first.callback(self._release_grant)
            last_first.callback(self._publish_will, condition or self._ended_with)
            last_first.callback(self._router.address_listeners.remove, self._links.detach_readdressed)
            last_first.callback(self._links.end, lost=condition is not None and self._ended_with is None)
            self._containers.end_connection(self._number)
            self._peer.end()
            if self._sole is not None:
                self._containers.sole.discard(self._sole)

    def _publish_will(self, condition: Condition | None) -> None:
        """Publish the will, unless the client itself closed the connection without an error."""
        will, self._will = self._will, None
        if will is not None and condition is not None:
            self._router.wills.add(WillOrigin(self.name, self._peer.user, will))

    # --- inside: rights of the user -----------------------------------------------------------------------------

    def _find_grant(self, gate: Authenticator, user: str) -> None:
        peer = self._peer
        if user:
            proven = self._credentials.proven if self._credentials is not None else None
            if proven is None or proven.user != user:
                proven = VerifiedIdentity(user)
            peer.grant = gate.grant(proven, peer.container_id, self._revoked)
        elif gate.tokens:
            peer.grant = gate.grant_nothing(peer.container_id, self._revoked)
        if peer.grant is None:
            self._record(RefusalCause.UNKNOWN_USER, user)
            self._revoked(Ended.CHANGED)

    def _release_grant(self) -> None:
        if self._peer.grant is not None and self._gate is not None:
            self._gate.release(self._peer.grant)

    def _find_interceptor(self) -> None:
        """Set the interceptor for the current user."""
        peer = self._peer
        if peer.closing:
            return
        try:
            peer.interceptor = self._interception.links(peer.grant)
        except AttachRefused as error:
            self._close(error.condition)

    def _revoked(self, why: Ended) -> None:
        """Close after the rights changed or expired. Publish the will only if they expired."""
        if why is not Ended.EXPIRED:
            self._will = None
        self._close(denied(why.value))
        self._links.stop_sending()
        self._driver.flush_soon()

    def _put_token(self, token: bytes, decided: Callable[[str], None]) -> None:
        """Process a token of `$cbs`, which sets the rights of the client and their expiry.

        `decided` is called with an error text, or an empty one.
        """
        gate, grant = self._gate, self._peer.grant

        def known(verdict: LoginVerdict, proven: VerifiedIdentity | None) -> None:
            if self._peer.closing or gate is None or grant is None:
                return
            unknown = not grant.user
            if proven is None:
                decided("the token is not valid" if verdict is LoginVerdict.REFUSED else verdict.value)
            elif not gate.renew(grant, proven):
                decided(f"this connection belongs to {grant.user}")
            elif unknown and not self._driver.identified(proven.user):
                self._record(RefusalCause.TOO_MANY_CONNECTIONS, proven.user)
                decided(_CONNECTION_LIMIT.description)
                self._close(_CONNECTION_LIMIT)
            else:
                self._peer.name = proven.user
                self._find_interceptor()
                decided("")
                self._links.detach_forbidden(grant)
            self._driver.flush_soon()

        if gate is not None:
            source = self._credentials.source if self._credentials is not None else ""
            gate.check_token(token, known, source, self.container_id)
