"""The broker's end of one AMQP connection: what a peer attaches becomes an origin or a consumer of the router."""

from __future__ import annotations

import asyncio
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
from bridge.sasl import ANONYMOUS
from edge.broker.amqp.addressing import CONDITIONS, Unacceptable, reception, sending_address
from edge.broker.amqp.incoming import Flusher, IncomingLink
from edge.broker.amqp.outgoing import OutgoingLink
from edge.broker.router import AddressError, Router


def _call_later(delay_s: float, callback: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_later(delay_s, callback)


class AmqpSession:
    """Owner (`bridge.driver.Owner`) of a driver over a server `Engine`."""

    def __init__(
        self,
        driver: Driver | Flusher,
        engine: Engine,
        router: Router,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        later: Callable[[float, Callable[[], None]], object] = _call_later,
        on_closed: Callable[[Condition | None], None] | None = None,
    ) -> None:
        """`clock_ns` is UTC, for time to live; `on_closed` hears why the connection ended, once."""
        self.name = "-"
        """Identity of the device: what it authenticated as, or its container id."""
        self.container_id = ""
        self._driver = driver
        self._engine = engine
        self._router = router
        self._clock_ns = clock_ns
        self._later = later
        self._on_closed = on_closed
        self._incoming: set[IncomingLink] = set()
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
        incoming = IncomingLink(self._engine, link, self._router, self._driver, self.name, address)
        link.context = incoming
        self._incoming.add(incoming)
        self._engine.accept(link, target=target)
        incoming.top_up()

    def _attach_receiver(self, link: Link) -> None:
        """The peer receives: we are its source."""
        wanted = reception(link, self.container_id, self._router.address_type)
        outgoing = OutgoingLink(
            self._engine,
            link,
            self._router,
            self._driver,
            self.name,
            durable=wanted.durable,
            clock_ns=self._clock_ns,
            later=self._later,
        )
        outgoing.subscription = self._router.subscribe(outgoing, wanted.address, wanted.options)
        link.context = outgoing
        self._outgoing.add(outgoing)
        self._engine.accept(link, source=wanted.source)
        outgoing.flow()

    def _received(self, event: Transfers) -> None:
        if isinstance(event.link.context, IncomingLink):
            event.link.context.received(event)

    def _detached(self, link: Link, *, closed: bool) -> None:
        owner, link.context = link.context, None
        if isinstance(owner, IncomingLink):
            self._incoming.discard(owner)
            owner.ended()
        elif isinstance(owner, OutgoingLink):
            self._outgoing.discard(owner)
            owner.ended(closed=closed)

    def _closed(self, condition: Condition | None) -> None:
        for incoming in list(self._incoming):
            incoming.ended()
        for outgoing in list(self._outgoing):
            outgoing.ended(closed=False)
        self._incoming.clear()
        self._outgoing.clear()
        if self._on_closed is not None:
            self._on_closed(condition)
