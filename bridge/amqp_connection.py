"""Client AMQP connection: an engine and the links over it.

It implements `ConnectionMachine`, so output gathered during a turn of the loop is sent when the driver requests
bytes. Each attempt creates a new one. Peers differ in their `ConnectionLinks`: `hub_links` and `peer_links`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from bridge.engine import (
    Accepted,
    Attached,
    Closed,
    Condition,
    Detached,
    Dispositions,
    Engine,
    Event,
    Link,
    LinkFlow,
    PeerOpened,
    SessionEnded,
    Transfers,
    describe_condition,
)
from bridge.uplink import UplinkShell


class LinkUp(msgspec.Struct, frozen=True, gc=False):
    """The link is up: the peer takes messages."""

    peer: str
    """Container-id of the peer."""
    batching: bool
    """True when the peer takes batches; otherwise each delivery is one AMQP message."""


class LinkDown(msgspec.Struct, frozen=True, gc=False):
    """The connection ended or was never established. Always the last event, exactly once."""

    reason: str
    wait_s: float = 0.0
    """Shortest time until the next attempt, as the peer requests."""


class ConnectionLinks(Protocol):
    """The links of one connection. `attached` and `received` return False for a link that is not one of these."""

    @property
    def deadline(self) -> float | None:
        """Time at which `flush` or `handle_timeout` has something to do; None: nothing is due."""

    def driven_by(self, driver: UplinkShell) -> None:
        """Set the driver that writes the bytes. Called once, before the connection opens."""

    def count_bytes(self, size: int) -> None:
        """Count bytes that crossed the connection in either direction."""

    def opened(self, connection: AmqpConnection, now: float) -> None:
        """Attach links: the peer has opened."""

    def attached(self, link: Link) -> bool:
        """Handle a link that the peer attached; return False when it is not one of these."""

    def detached(self, event: Detached, now: float) -> None:
        """Handle a link that the peer ended."""

    def settled(self, event: Dispositions, now: float) -> None:
        """Handle dispositions of the peer; also called while the links are leaving."""

    def progressed(self, event: LinkFlow | Accepted) -> None:
        """Handle changed credit of a link of ours, or messages that were accepted and settled (only of links with
        `Link.accepted_by_tag`); also called while the links are leaving."""

    def received(self, event: Transfers, now: float) -> bool:
        """Handle messages that arrived; return False when their link is not one of these. Also called while leaving."""

    def handle_timeout(self, now: float) -> None:
        """Do what is due when the deadline has passed; also called while the links are leaving."""

    def flush(self) -> None:
        """Give the engine what is due. Not called while the links are leaving."""

    def leave(self, left: Callable[[], None]) -> None:
        """Start nothing new, and call `left` once all messages of the peer are answered. Called once at most."""

    def end(self) -> None:
        """Return what is unsettled: the connection is over. Called once, after `leave` or without it."""

    def wait_s(self, condition: Condition | None) -> float:
        """Return the shortest time until the next attempt. `condition`: the peer's, in its close."""


class AmqpConnection:
    """An engine and its links as one `ConnectionMachine`. Its events, for the dialer, are `LinkUp` and `LinkDown`."""

    def __init__(self, engine: Engine, links: ConnectionLinks) -> None:
        """`engine` is a client that has not been opened."""
        self.engine = engine
        self._links = links
        self._peer = "-"
        self._wake: Callable[[], None] = _ignore
        self._reason: str | None = None
        """Reason to end the connection; it ends when the links have left."""
        self._condition: Condition | None = None
        self._ended = False
        """The links have ended."""
        self._down = False
        """`LinkDown` was reported."""
        self._events: list[LinkUp | LinkDown] = []
        engine.open()

    def driven_by(self, driver: UplinkShell) -> None:
        """Set the driver that writes the bytes."""
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
        self._links.count_bytes(len(data))
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
        self._links.count_bytes(len(data))
        return data

    # --- commands ---------------------------------------------------------------------------------------------

    def close(self, reason: str, condition: Condition | None = None) -> None:
        """Close the connection after all messages of the peer are answered."""
        if self._reason is None and not self._down:
            self._reason, self._condition = reason, condition
            self._links.leave(self._end)
            self._wake()

    # --- for its links ----------------------------------------------------------------------------------------

    def up(self, *, batching: bool) -> None:
        """Report that messages may leave. Called while an event is handled."""
        self._events.append(LinkUp(self._peer, batching))

    def disconnect(self, reason: str) -> None:
        """Close the connection because of a fault; the dialer reconnects after its backoff."""
        self.close(reason, Condition("amqp:connection:forced", reason))

    def wake(self) -> None:
        """Request a flush: there may be bytes to send."""
        self._wake()

    # --- inside -----------------------------------------------------------------------------------------------

    def _take(self, events: Iterable[Event], now: float) -> list[LinkUp | LinkDown]:
        for event in events:
            if isinstance(event, Closed):
                self._on_closed(event)
            elif self._ended:
                continue  # the peer sends the rest again over the next connection
            elif isinstance(event, Dispositions):
                self._links.settled(event, now)
            elif isinstance(event, LinkFlow | Accepted):
                self._links.progressed(event)
            elif isinstance(event, Transfers):
                if not self._links.received(event, now):
                    self.close(
                        "the peer sent messages on a link where it is the receiver", Condition("amqp:not-allowed")
                    )
            elif self._reason is None:  # else nothing new begins
                self._on_links(event, now)
        reported, self._events = self._events, []
        return reported

    def _on_links(self, event: Event, now: float) -> None:
        if isinstance(event, PeerOpened):
            self._peer = event.container_id
            self._links.opened(self, now)
        elif isinstance(event, Attached):
            if not self._links.attached(event.link):
                self.engine.refuse(
                    event.link, Condition("amqp:not-found", "a gateway accepts no links over this connection")
                )
        elif isinstance(event, Detached):
            self._links.detached(event, now)
        elif isinstance(event, SessionEnded):
            self.disconnect(f"the peer ended the session: {describe_condition(event.condition)}")

    def _on_closed(self, event: Closed) -> None:
        if not self._down:
            self._down = True
            self._end_links()
            wait_s = self._links.wait_s(event.condition)
            self._events.append(LinkDown(self._reason or describe_condition(event.condition), wait_s))

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
    """Do nothing: no driver is set yet."""
