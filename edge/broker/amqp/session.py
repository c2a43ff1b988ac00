"""The broker's end of one AMQP connection: what a peer attaches becomes an origin or a consumer of the router."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from bridge.engine import (
    Attached,
    Closed,
    Condition,
    Detached,
    Dispositions,
    Engine,
    Event,
    Flow,
    Link,
    Opened,
    SessionEnded,
    Transfers,
)
from bridge.message import Run
from bridge.sasl import ANONYMOUS
from bridge.transport.driver import Driver
from edge.broker.amqp.addressing import (
    CONDITIONS,
    SERVICES,
    TEMPORARY_QUEUE,
    Reception,
    Unacceptable,
    reception,
    sending_address,
)
from edge.broker.amqp.incoming import IncomingLink, Scheduler
from edge.broker.amqp.interception import NO_INTERCEPTION, PASS_THROUGH, LinkInterception, LinkInterceptor
from edge.broker.amqp.outgoing import OutgoingLink
from edge.broker.amqp.services import Administration, ServiceLink
from edge.broker.amqp.will import WillOrigin, will_of
from edge.broker.model.addresses import AddressType
from edge.broker.model.authorization import MANAGEMENT, Ended, Grant, Operation
from edge.broker.model.interfaces import Refusal
from edge.broker.router.router import AddressError, Router
from edge.broker.security.authenticator import Gate, SaslCredentials
from edge.broker.security.proof import Proven, Verdict

SOLE_CONNECTION: Final = "sole-connection-for-container"
"""A peer that desires it wants its container id to be in use over no other connection (OASIS, Enforcing Connection
Uniqueness): so JMS clients learn that their client id is taken."""
CAPABILITIES: Final = ("ANONYMOUS-RELAY", "SHARED-SUBS", SOLE_CONNECTION)
"""What our open offers: clients of JMS do without what is not in it."""
_NOT_ESTABLISHED: Final = {"amqp:connection-establishment-failed": True}
"""In an open that a close follows."""
_CONTAINER_TAKEN: Final = Condition(
    "amqp:invalid-field", "the container id is in use over another connection", (("invalid-field", "container-id"),)
)

NOT_AUTHORIZED = CONDITIONS[Refusal.NOT_AUTHORIZED]


def _may_send(address: str, grant: Grant) -> bool:
    return grant.may_send(address)


def _may_receive(address: str, browse: bool, grant: Grant) -> bool:
    return (browse and grant.may(Operation.VIEW, address)) or grant.may_receive(address)


class AmqpSession:
    """Owner (`bridge.transport.driver.Owner`) of a driver over a server `Engine`."""

    def __init__(
        self,
        driver: Driver | Scheduler,
        engine: Engine,
        router: Router,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        on_closed: Callable[[Condition | None], None] | None = None,
        gate: Gate | None = None,
        credentials: SaslCredentials | None = None,
        interception: LinkInterception = NO_INTERCEPTION,
        administration: Administration | None = None,
        containers: set[tuple[str, str]] | None = None,
    ) -> None:
        """`clock_ns` is UTC, for time to live; `on_closed` hears why the connection ended, once.

        Without a gate everybody may do everything. `credentials` knows who was proven by SASL, beside who TLS has
        proven. `interception`: who steps in before an attach is taken as it is. `administration`: who changes addresses
        for `$management`. `containers`: users (empty: anybody) and container ids that are over one connection only, of
        all sessions.
        """
        self.name = "-"
        """Identity of the device: what it authenticated as, or its container id."""
        self.container_id = ""
        self._containers = set() if containers is None else containers
        self._sole: tuple[str, str] | None = None
        """What of `containers` is ours."""
        self._driver = driver
        self._engine = engine
        self._router = router
        self._clock_ns = clock_ns
        self._on_closed = on_closed
        self._gate = gate
        self._administration = administration
        self._credentials = credentials
        self._grant: Grant | None = None
        """What the user may do; None where everybody may do everything."""
        self._interception = interception
        self._interceptor: LinkInterceptor = PASS_THROUGH
        self._cut = False
        """The user is gone or has other rights now; what still comes before our close has been answered is dropped."""
        self._will: Run | None = None
        self._replies: dict[str, str] = {}
        """Target addresses of receivers of a service's answers, and where the router finds them."""
        self._incoming: set[IncomingLink | ServiceLink] = set()
        self._outgoing: set[OutgoingLink] = set()
        self._made: dict[Link, str] = {}
        """Links that made a dynamic node, and its address: what the user made is the user's."""
        self._allowed: dict[Link, Callable[[Grant], bool]] = {}
        """Whether a link would be allowed by a grant, to be asked again when that changes."""
        self._kinds: dict[Link, tuple[str, AddressType]] = {}
        """The configured address a link was attached to, and what it was then."""
        router.followers[self._readdress] = None

    # --- Owner ------------------------------------------------------------------------------------------------

    def handle(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Transfers):
                self._received(event)
            elif isinstance(event, Dispositions):
                if isinstance(event.link.context, OutgoingLink):
                    event.link.context.settled(event)
            elif isinstance(event, Flow):
                if isinstance(event.link.context, OutgoingLink):
                    event.link.context.flow()
            else:
                self._handle_rare(event)

    def writable(self) -> None:
        """The peer reads again: take what waited meanwhile."""
        for outgoing in list(self._outgoing):
            outgoing.flow()

    def shut_down(self) -> None:
        """The broker is stopping: say so before the socket goes (section 2.4.3)."""
        self._engine.close(Condition("amqp:connection:forced", "the broker is stopping"))
        self._driver.flush_soon()

    # --- inside -----------------------------------------------------------------------------------------------

    def _handle_rare(self, event: Event) -> None:
        if isinstance(event, Opened):
            self._opened(event)
        elif isinstance(event, Attached):
            self._attached(event.link)
        elif isinstance(event, Detached):
            self._detached(event.link, closed=event.closed)
        elif isinstance(event, Closed):
            self._closed(event.condition)
        elif not isinstance(event, SessionEnded):  # its links were told one by one
            raise TypeError(f"unknown event {event!r}")

    def _opened(self, event: Opened) -> None:
        self.container_id = event.container_id
        authenticated = event.identity is not None and event.identity != ANONYMOUS
        self.name = (event.identity if authenticated else event.container_id) or "-"
        if SOLE_CONNECTION in event.desired_capabilities and not self._is_sole(self.name if authenticated else ""):
            self._cut = True
            self._engine.open(_NOT_ESTABLISHED)
            self._engine.close(_CONTAINER_TAKEN)
            return
        self._engine.open()
        gate = self._gate
        if gate is not None and not gate.open:
            if authenticated:
                proven = self._credentials.proven if self._credentials is not None else None
                if proven is None or proven.user != self.name:
                    proven = Proven(self.name)
                self._grant = gate.grant(proven, event.container_id, self._revoked)
            elif gate.tokens:
                self._grant = gate.grant_nothing(event.container_id, self._revoked)
            if self._grant is None:
                self._revoked(Ended.CHANGED)
        self._find_interceptor()
        self._take_will(event)

    def _is_sole(self, user: str) -> bool:
        """The container id of this user is ours now; False when another connection has it."""
        wanted = (user, self.container_id)
        if wanted in self._containers:
            return False
        self._containers.add(wanted)
        self._sole = wanted
        return True

    def _find_interceptor(self) -> None:
        """Who steps in for the user that is known now."""
        if self._cut:
            return
        try:
            self._interceptor = self._interception.links(self._grant.user if self._grant is not None else None)
        except Unacceptable as error:
            self._cut = True
            self._engine.close(error.condition)

    def _take_will(self, event: Opened) -> None:
        try:
            will = will_of(event.properties, self.name)
            if will is not None and self._grant is not None:
                self._must(self._grant.may_send(will.address), "leave a will for", will.address)
            self._will = None if self._cut else will
        except Unacceptable as error:
            self._cut = True
            self._engine.close(error.condition)

    def _revoked(self, why: Ended) -> None:
        """The user may come again and see. A will was allowed until now when a token has expired, else it is not."""
        self._cut = True
        if why is not Ended.EXPIRED:
            self._will = None
        for outgoing in self._outgoing:  # not a message more, however long our close is on its way
            outgoing.ended(closed=False)
        self._engine.close(Condition(NOT_AUTHORIZED, why.value))
        self._driver.flush_soon()

    @property
    def _subscriber(self) -> str:
        """Whom durable subscriptions belong to: nobody gets at those of another user by taking its container id."""
        return self.container_id if self._grant is None else f"{self._grant.user}/{self.container_id}"

    def _must(self, allowed: bool, what: str, address: str) -> None:
        """Raises `Unacceptable` unless it is allowed."""
        if not allowed or self._cut:
            raise Unacceptable(NOT_AUTHORIZED, f"{self.name} must not {what} {address!r}")

    def _attached(self, link: Link) -> None:
        try:
            if link.is_sender:
                self._attach_receiver(link)
            else:
                self._attach_sender(link)
        except Unacceptable as error:
            self._engine.refuse(link, error.condition)
        except AddressError as error:
            self._engine.refuse(link, Condition(CONDITIONS[error.refusal], str(error)))

    def _attach_sender(self, link: Link) -> None:
        """The peer sends: we are its target."""
        address, target = sending_address(link)
        if address in SERVICES:
            self._attach_service(link, address)
            return
        grant = self._grant
        if grant is not None and not grant.user:
            self._must(False, "send, before a token was put to $cbs, to", address or "the anonymous relay")
        if grant is not None and address is not None:
            self._must(link.target.dynamic or grant.may_send(address), "send to", address)
            if not link.target.dynamic:
                self._allowed[link] = partial(_may_send, address)
        if address is not None and self._router.address_type(address) is AddressType.SUBSCRIPTION:
            raise Unacceptable("amqp:not-allowed", f"{address!r} is a subscription: it gets what is sent to its topic")
        relay = self._interceptor.relay(address)
        incoming = IncomingLink(self._engine, link, self._router, self._driver, self.name, address, grant, relay)
        link.context = incoming
        self._incoming.add(incoming)
        if target.dynamic and target.address is not None:
            self._made[link] = target.address
            if TEMPORARY_QUEUE in target.capabilities:
                self._router.make_temporary_queue(target.address)
        elif address is not None and relay is None:
            self._kinds[link] = address, self._router.address_type(address)
        self._engine.accept(link, target=target)
        incoming.top_up()

    def _attach_service(self, link: Link, service: str) -> None:
        grant = self._grant
        if grant is not None and service == MANAGEMENT:
            self._must(grant.may_manage, "manage over", service)
        incoming = ServiceLink(
            self._engine,
            link,
            self._router,
            self._driver,
            service,
            name=self.name,
            replies=self._replies,
            grant=grant,
            put_token=self._put_token if self._gate is not None and self._gate.tokens else None,
            administration=self._administration,
        )
        link.context = incoming
        self._incoming.add(incoming)
        self._engine.accept(link)
        incoming.top_up()

    def _put_token(self, token: bytes, decided: Callable[[str], None]) -> None:
        """A token put to `$cbs`: from now on it says what the client may do, and until when.

        `decided` hears what is wrong with it, or nothing (empty).
        """
        gate, grant = self._gate, self._grant

        def known(verdict: Verdict, proven: Proven | None) -> None:
            if self._cut or gate is None or grant is None:
                return
            if proven is None:
                decided("the token is not valid" if verdict is Verdict.REFUSED else verdict.value)
            elif not gate.renew(grant, proven):
                decided(f"this connection is {grant.user}'s")
            else:
                self.name = proven.user
                self._find_interceptor()
                decided("")
                self._end_forbidden(grant)
            self._driver.flush_soon()

        if gate is not None:
            gate.check_token(token, known, self._credentials.source if self._credentials is not None else "")

    def _end_forbidden(self, grant: Grant) -> None:
        """Detach the links to what may not be done any more."""
        denied = Condition(NOT_AUTHORIZED, "the new token does not allow this")
        for link, allowed in list(self._allowed.items()):
            if not allowed(grant):
                self._engine.detach(link, condition=denied)
                self._detached(link, closed=False)

    def _readdress(self) -> None:
        """Addresses may have another type than before: who is attached to what is no more hears so."""
        for link, (address, kind) in list(self._kinds.items()):
            now = self._router.address_type(address)
            if now is not kind:
                text = f"{address!r} was a {kind.value}, and is a {now.value} now"
                self._engine.detach(link, condition=Condition("amqp:resource-deleted", text))
                self._detached(link, closed=False)
                self._driver.flush_soon()

    def _attach_receiver(self, link: Link) -> None:
        """The peer receives: we are its source."""
        if not self._cut and self._intercept_receiver(link):
            return
        wanted = reception(link, self._subscriber, self._router.address_type, self._router.durable_subscriptions)
        grant = self._grant
        own = link.source.dynamic or wanted.address in self._made.values()
        if grant is not None and not (own or wanted.service):
            allowed = partial(_may_receive, wanted.address, wanted.options.browse)
            self._must(allowed(grant), "receive from", wanted.address)
            self._allowed[link] = allowed
        outgoing = OutgoingLink(
            self._engine,
            link,
            self._router,
            self._driver,
            self.name,
            durable=wanted.durable,
            clock_ns=self._clock_ns,
            selector=wanted.selector,
            shared=self._competes(wanted),
        )
        options = wanted.options
        resumed = options.durable_name is not None and options.durable_name in self._router.durable_subscriptions
        outgoing.subscription = self._router.subscribe(outgoing, wanted.address, wanted.options)
        link.context = outgoing
        self._outgoing.add(outgoing)
        if not (own or wanted.service):
            self._kinds[link] = wanted.address, self._router.address_type(wanted.address)
        self._engine.accept(link, source=wanted.source)
        if wanted.service and link.target.address is not None:
            self._replies[link.target.address] = wanted.address
        elif not (resumed or options.shared or options.share_name is not None):
            self._feed_retained(outgoing, wanted.address)
        outgoing.flow()

    def _intercept_receiver(self, link: Link) -> bool:
        """False leaves the link to this session."""
        outgoing = self._interceptor.receiver(self._engine, link, self._driver, self.name, self._clock_ns)
        if outgoing is None:
            return False
        link.context = outgoing
        self._outgoing.add(outgoing)
        self._engine.accept(link)
        outgoing.flow()
        return True

    def _competes(self, wanted: Reception) -> bool:
        """Others get what this receiver does not select."""
        if wanted.address in self._router.temporary_queues:
            return True
        return self._router.address_type(wanted.address).is_queue and not wanted.options.browse

    def _feed_retained(self, outgoing: OutgoingLink, address: str) -> None:
        """A new receiver of a topic gets what was retained there (as MQTT 5 section 3.3.1.3 has it)."""
        router = self._router
        if router.address_type(address) is AddressType.TOPIC:
            outgoing.feed(map(self._worthwhile, router.retained.walk(address)))

    def _worthwhile(self, run: Run | None) -> Run | None:
        """The run, unless its time to live has passed."""
        router = self._router
        return None if run is None or router.deadletters.worthless(run, router.policy(run.address)) else run

    def _received(self, event: Transfers) -> None:
        if isinstance(event.link.context, IncomingLink | ServiceLink) and not self._cut:
            event.link.context.received(event)

    def _detached(self, link: Link, *, closed: bool) -> None:
        owner, link.context = link.context, None
        self._allowed.pop(link, None)
        self._kinds.pop(link, None)
        self._unmake(link)
        if isinstance(owner, IncomingLink | ServiceLink):
            self._incoming.discard(owner)
            owner.ended()
        elif isinstance(owner, OutgoingLink):
            self._outgoing.discard(owner)
            self._replies.pop(link.target.address or "", None)
            owner.ended(closed=closed)

    def _unmake(self, link: Link) -> None:
        """The node the link made ends with it (section 3.5.10)."""
        address = self._made.pop(link, None)
        if address is not None and address in self._router.temporary_queues:
            self._router.end_temporary_queue(address)

    def _closed(self, condition: Condition | None) -> None:
        if self._sole is not None:
            self._containers.discard(self._sole)
        for incoming in list(self._incoming):
            incoming.ended()
        for outgoing in list(self._outgoing):
            outgoing.ended(closed=False)
        self._incoming.clear()
        self._outgoing.clear()
        self._allowed.clear()
        self._kinds.clear()
        self._router.followers.pop(self._readdress, None)
        for link in list(self._made):
            self._unmake(link)
        will, self._will = self._will, None
        if will is not None and condition is not None:
            self._router.publish(WillOrigin(self.name), will, ())
        if self._grant is not None and self._gate is not None:
            self._gate.release(self._grant)
        if self._on_closed is not None:
            self._on_closed(condition)
