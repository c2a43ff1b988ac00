"""One AMQP connection that this end dials: an engine, and the links that are held over it.

It obeys `Connection`, so what was gathered during a turn of the loop is sent exactly when the driver asks for bytes.
Each attempt makes a new one. What differs between peers are its `ConnectionLinks`: `hub_links` and `peer_links`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from bridge.engine import (
    Attached,
    Closed,
    Condition,
    Detached,
    Dispositions,
    Engine,
    Event,
    Link,
    PeerOpened,
    SessionEnded,
    Transfers,
    words,
)
from bridge.uplink import UplinkShell


class LinkUp(msgspec.Struct, frozen=True, gc=False):
    """The peer takes messages."""

    peer: str
    """Its container-id."""
    batching: bool
    """It takes batches; otherwise it gets one AMQP message a delivery."""


class LinkDown(msgspec.Struct, frozen=True, gc=False):
    """The connection is over, or never came about; always the last event, exactly once."""

    reason: str
    wait_s: float = 0.0
    """Shortest time until the next attempt, as the peer requests."""


class ConnectionLinks(Protocol):
    """The links of one connection. Calls that say so return False for a link that is none of these."""

    @property
    def deadline(self) -> float | None:
        """When `flush` or `handle_timeout` has something to do; None: nothing is due."""

    def driven_by(self, driver: UplinkShell) -> None:
        """`driver` gets the bytes out. Called once, before the connection opens."""

    def carried(self, size: int) -> None:
        """Count bytes that crossed the connection, one way or the other."""

    def opened(self, connection: AmqpConnection, now: float) -> None:
        """The peer has opened: attach links."""

    def attached(self, link: Link) -> bool:
        """The peer took a link; or False."""

    def detached(self, event: Detached, now: float) -> None:
        """The peer ended a link."""

    def settled(self, event: Dispositions, now: float) -> None:
        """The peer has answered; also while the links are leaving."""

    def received(self, event: Transfers, now: float) -> bool:
        """Messages arrived, also while the links are leaving; or False."""

    def handle_timeout(self, now: float) -> None:
        """The deadline may be over; also while the links are leaving."""

    def flush(self) -> None:
        """Hand the engine what is due. Not called while the links are leaving."""

    def leave(self, left: Callable[[], None]) -> None:
        """Begin nothing new, and call `left` when what was taken of the peer is answered. Called once at most."""

    def end(self) -> None:
        """The connection is over. Called once, after `leave` or without it. What is unsettled goes back."""

    def wait_s(self, condition: Condition | None) -> float:
        """Return the shortest time until the next attempt. `condition`: of the peer's close."""


class AmqpConnection:
    """See the module. Its events are `LinkUp` and `LinkDown`, for the dialer."""

    def __init__(self, engine: Engine, links: ConnectionLinks) -> None:
        """`engine` is a client that has not been opened."""
        self.engine = engine
        self._links = links
        self._peer = "-"
        self._wake: Callable[[], None] = _ignore
        self._reason: str | None = None
        """Why the connection is to end; it ends when the links have left."""
        self._condition: Condition | None = None
        self._ended = False
        """The links are over."""
        self._down = False
        """The dialer knows it."""
        self._events: list[LinkUp | LinkDown] = []
        engine.open()

    def driven_by(self, driver: UplinkShell) -> None:
        """`driver` gets the bytes out."""
        self._wake = driver.flush_soon
        self._links.driven_by(driver)

    # --- Connection -------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self.engine.closed

    @property
    def deadline(self) -> float | None:
        every = (self.engine.deadline, self._links.deadline)
        return min((each for each in every if each is not None), default=None)

    @property
    def held_bytes(self) -> int:
        return self.engine.held_bytes

    @property
    def more(self) -> bool:
        return self.engine.more

    def shed(self) -> Sequence[LinkUp | LinkDown]:
        return self._take(self.engine.shed(), 0.0)

    def receive_data(self, data: bytes, now: float) -> Sequence[LinkUp | LinkDown]:
        self._links.carried(len(data))
        return self._take(self.engine.receive_data(data, now), now)

    def receive_eof(self, now: float) -> Sequence[LinkUp | LinkDown]:
        return self._take(self.engine.receive_eof(now), now)

    def handle_timeout(self, now: float, *, listening: bool = True) -> Sequence[LinkUp | LinkDown]:
        events = self._take(self.engine.handle_timeout(now, listening=listening), now)
        if not self._down:
            self._links.handle_timeout(now)
        return events

    @property
    def spoken(self) -> str:
        return self.engine.spoken

    @property
    def has_output(self) -> bool:
        return True  # the links may have more with each flush

    def data_to_send(self) -> bytes:
        if not self._down and self._reason is None:
            self._links.flush()
        data = self.engine.data_to_send()
        self._links.carried(len(data))
        return data

    # --- commands ---------------------------------------------------------------------------------------------

    def close(self, reason: str, condition: Condition | None = None) -> None:
        """End the connection in good order: what was taken of the peer is answered first."""
        if self._reason is None and not self._down:
            self._reason, self._condition = reason, condition
            self._links.leave(self._end)
            self._wake()

    # --- for its links ----------------------------------------------------------------------------------------

    def up(self, *, batching: bool) -> None:
        """Messages may leave. Called while an event is handled."""
        self._events.append(LinkUp(self._peer, batching))

    def cut(self, reason: str) -> None:
        """End the connection for a fault; it is made anew after the backoff."""
        self.close(reason, Condition("amqp:connection:forced", reason))

    def wake(self) -> None:
        """There may be bytes to send."""
        self._wake()

    # --- inside -----------------------------------------------------------------------------------------------

    def _take(self, events: Iterable[Event], now: float) -> list[LinkUp | LinkDown]:
        for event in events:
            if isinstance(event, Closed):
                self._on_closed(event)
            elif self._ended:
                continue  # whatever else arrives comes again over the next connection
            elif isinstance(event, Dispositions):
                self._links.settled(event, now)
            elif isinstance(event, Transfers):
                if not self._links.received(event, now):
                    self.close("the peer sent messages on a link of ours", Condition("amqp:not-allowed"))
            elif self._reason is None:  # else nothing new begins
                self._on_links(event, now)
        told, self._events = self._events, []
        return told

    def _on_links(self, event: Event, now: float) -> None:
        if isinstance(event, PeerOpened):
            self._peer = event.container_id
            self._links.opened(self, now)
        elif isinstance(event, Attached):
            if not self._links.attached(event.link):
                self.engine.refuse(event.link, Condition("amqp:not-found", "a gateway serves no links here"))
        elif isinstance(event, Detached):
            self._links.detached(event, now)
        elif isinstance(event, SessionEnded):
            self.cut(f"the peer ended the session: {words(event.condition)}")

    def _on_closed(self, event: Closed) -> None:
        if not self._down:
            self._down = True
            self._end_links()
            wait_s = self._links.wait_s(event.condition)
            self._events.append(LinkDown(self._reason or words(event.condition), wait_s))

    def _end(self) -> None:
        if not self._ended:
            self._end_links()
            self.engine.close(self._condition)
            self._wake()

    def _end_links(self) -> None:
        if not self._ended:
            self._ended = True
            self._links.end()


def _ignore() -> None:
    """Nothing is dialled yet."""
