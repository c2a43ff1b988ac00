"""The broker's end of one AMQP connection: what a peer attaches becomes an origin or a consumer of the router."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from bridge.driver import Driver
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
from edge.broker.addresses import AddressType
from edge.broker.amqp.addressing import (
    CONDITIONS,
    MANAGEMENT,
    SERVICES,
    Unacceptable,
    reception,
    sending_address,
)
from edge.broker.amqp.incoming import Flusher, IncomingLink
from edge.broker.amqp.outgoing import OutgoingLink
from edge.broker.amqp.services import ServiceLink
from edge.broker.amqp.will import WillOrigin, will_of
from edge.broker.contract import Refusal
from edge.broker.identity import Gate
from edge.broker.policy import Grant, Operation
from edge.broker.router import AddressError, Router

NOT_AUTHORIZED = CONDITIONS[Refusal.NOT_AUTHORIZED]


class AmqpSession:
    """Owner (`bridge.driver.Owner`) of a driver over a server `Engine`."""

    def __init__(
        self,
        driver: Driver | Flusher,
        engine: Engine,
        router: Router,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        on_closed: Callable[[Condition | None], None] | None = None,
        gate: Gate | None = None,
    ) -> None:
        """`clock_ns` is UTC, for time to live; `on_closed` hears why the connection ended, once.

        Without a gate everybody may do everything.
        """
        self.name = "-"
        """Identity of the device: what it authenticated as, or its container id."""
        self.container_id = ""
        self._driver = driver
        self._engine = engine
        self._router = router
        self._clock_ns = clock_ns
        self._on_closed = on_closed
        self._gate = gate
        self._grant: Grant | None = None
        """What the user may do; None where everybody may do everything."""
        self._cut = False
        """The user is gone or has other rights now; what still comes before our close has been answered is dropped."""
        self._will: Run | None = None
        self._replies: dict[str, str] = {}
        """Target addresses of receivers of a service's answers, and where the router finds them."""
        self._incoming: set[IncomingLink | ServiceLink] = set()
        self._outgoing: set[OutgoingLink] = set()

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
        self._engine.open()
        gate = self._gate
        if gate is not None and not gate.open:
            self._grant = gate.grant(self.name, event.container_id, self._revoked) if authenticated else None
            if self._grant is None:
                self._revoked()
        self._take_will(event)

    def _take_will(self, event: Opened) -> None:
        try:
            will = will_of(event.properties, self.name)
            if will is not None and self._grant is not None:
                self._must(self._grant.may_send(will.address), "leave a will for", will.address)
            self._will = None if self._cut else will
        except Unacceptable as error:
            self._cut = True
            self._engine.close(error.condition)

    def _revoked(self) -> None:
        """The user is gone, or its rules have changed: it may come again and see."""
        self._cut = True
        self._will = None  # allowed by rules that are no more
        self._engine.close(Condition(NOT_AUTHORIZED, "the user is unknown, or has changed"))
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
        if grant is not None and address is not None:
            self._must(link.target.dynamic or grant.may_send(address), "send to", address)
        incoming = IncomingLink(self._engine, link, self._router, self._driver, self.name, address, grant)
        link.context = incoming
        self._incoming.add(incoming)
        self._engine.accept(link, target=target)
        incoming.top_up()

    def _attach_service(self, link: Link, service: str) -> None:
        grant = self._grant
        if grant is not None and service == MANAGEMENT:
            self._must(grant.may(Operation.MANAGE, service), "manage over", service)
        incoming = ServiceLink(
            self._engine,
            link,
            self._router,
            self._driver,
            service,
            name=self.name,
            replies=self._replies,
            grant=grant,
        )
        link.context = incoming
        self._incoming.add(incoming)
        self._engine.accept(link)
        incoming.top_up()

    def _attach_receiver(self, link: Link) -> None:
        """The peer receives: we are its source."""
        wanted = reception(link, self._subscriber, self._router.address_type)
        grant = self._grant
        if grant is not None:
            viewing = wanted.options.browse and grant.may(Operation.VIEW, wanted.address)
            allowed = link.source.dynamic or bool(wanted.service) or viewing or grant.may_receive(wanted.address)
            self._must(allowed, "receive from", wanted.address)
        outgoing = OutgoingLink(
            self._engine,
            link,
            self._router,
            self._driver,
            self.name,
            durable=wanted.durable,
            clock_ns=self._clock_ns,
            selector=wanted.selector,
        )
        options = wanted.options
        resumed = options.durable_name is not None and options.durable_name in self._router.durable_subscriptions
        outgoing.subscription = self._router.subscribe(outgoing, wanted.address, wanted.options)
        link.context = outgoing
        self._outgoing.add(outgoing)
        self._engine.accept(link, source=wanted.source)
        if wanted.service and link.target.address is not None:
            self._replies[link.target.address] = wanted.address
        elif not (resumed or options.shared or options.share_name is not None):
            self._feed_retained(outgoing, wanted.address)
        outgoing.flow()

    def _feed_retained(self, outgoing: OutgoingLink, address: str) -> None:
        """A new receiver of a topic gets what was retained there (as MQTT 5 section 3.3.1.3 has it)."""
        router = self._router
        if router.address_type(address) is AddressType.TOPIC:
            runs = router.retained.matching(address)
            outgoing.feed(run for run in runs if not router.deadletters.worthless(run, router.policy(run.address)))

    def _received(self, event: Transfers) -> None:
        if isinstance(event.link.context, IncomingLink | ServiceLink) and not self._cut:
            event.link.context.received(event)

    def _detached(self, link: Link, *, closed: bool) -> None:
        owner, link.context = link.context, None
        if isinstance(owner, IncomingLink | ServiceLink):
            self._incoming.discard(owner)
            owner.ended()
        elif isinstance(owner, OutgoingLink):
            self._outgoing.discard(owner)
            self._replies.pop(link.target.address or "", None)
            owner.ended(closed=closed)

    def _closed(self, condition: Condition | None) -> None:
        for incoming in list(self._incoming):
            incoming.ended()
        for outgoing in list(self._outgoing):
            outgoing.ended(closed=False)
        self._incoming.clear()
        self._outgoing.clear()
        will, self._will = self._will, None
        if will is not None and condition is not None:
            self._router.publish(WillOrigin(self.name), will, ())
        if self._grant is not None and self._gate is not None:
            self._gate.release(self._grant)
        if self._on_closed is not None:
            self._on_closed(condition)
