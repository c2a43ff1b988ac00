"""One connection to an AMQP 1.0 peer that is no hub: an engine with the two halves of its connector bound to it.

It obeys `Connection`, and tells who dials `LinkUp` when the peer has opened and `LinkDown` at its end. Addresses the
peer does not know are the halves' concern: one that is missing keeps nobody else from anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bridge.engine import (
    Attached,
    Closed,
    Condition,
    Detached,
    Dispositions,
    Engine,
    Event,
    Opened,
    SessionEnded,
    Transfers,
    words,
)
from bridge.forwarders.claims import Claims, NoClaims
from bridge.forwarders.conditions import wait_s
from bridge.forwarders.receivers import Receivers
from bridge.forwarders.senders import Senders
from bridge.gateway_link import LinkDown, LinkUp


class PeerLink:
    """See the module."""

    def __init__(self, engine: Engine, senders: Senders, receivers: Receivers, claims: Claims | None = None) -> None:
        """`engine` is a client that has not been opened; `claims`: the same as of the two halves."""
        self._engine = engine
        self._senders = senders
        self._receivers = receivers
        self._claims = claims or NoClaims()
        self._wake: Callable[[], None] = _ignore
        self._reason: str | None = None
        """Why the connection is to end; it ends when the receivers have left."""
        self._condition: Condition | None = None
        self._ended = False
        self._down = False
        engine.open()

    def woken_by(self, wake: Callable[[], None]) -> None:
        """`wake` is called when there may be bytes to send."""
        self._wake = wake

    # --- Connection -------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._engine.closed

    @property
    def deadline(self) -> float | None:
        every = (each.deadline for each in (self._engine, self._senders, self._receivers, self._claims))
        return min((each for each in every if each is not None), default=None)

    @property
    def held_bytes(self) -> int:
        return self._engine.held_bytes

    @property
    def more(self) -> bool:
        return self._engine.more

    def shed(self) -> Sequence[LinkUp | LinkDown]:
        return self._take(self._engine.shed(), 0.0)

    def receive_data(self, data: bytes, now: float) -> Sequence[LinkUp | LinkDown]:
        return self._take(self._engine.receive_data(data, now), now)

    def receive_eof(self, now: float) -> Sequence[LinkUp | LinkDown]:
        return self._take(self._engine.receive_eof(now), now)

    def handle_timeout(self, now: float, *, listening: bool = True) -> Sequence[LinkUp | LinkDown]:
        told = self._take(self._engine.handle_timeout(now, listening=listening), now)
        if not self._down:
            self._claims.retry(now)
            self._senders.retry(now)
            self._receivers.handle_timeout(now)
        return told

    @property
    def spoken(self) -> str:
        return self._engine.spoken

    @property
    def has_output(self) -> bool:
        return True  # the outbox may have more with each flush

    def data_to_send(self) -> bytes:
        if not self._down and self._reason is None:
            self._claims.flush()
            self._senders.flush()
        return self._engine.data_to_send()

    # --- commands ---------------------------------------------------------------------------------------------

    def close(self, reason: str, condition: Condition | None = None) -> None:
        """End the connection in good order: what was taken of the peer is answered first. What else is unsettled stays
        with the outbox, and with the peer."""
        if self._reason is None and not self._down:
            self._reason, self._condition = reason, condition
            self._receivers.leave(self._end)
            self._wake()

    # --- inside -----------------------------------------------------------------------------------------------

    def _take(self, events: Iterable[Event], now: float) -> list[LinkUp | LinkDown]:
        told: list[LinkUp | LinkDown] = []
        for event in events:
            if isinstance(event, Closed):
                self._on_closed(event, told)
            elif self._ended:
                continue  # whatever else arrives comes again over the next connection
            elif isinstance(event, Dispositions):
                if not self._claims.settled(event):
                    self._senders.settled(event)
            elif isinstance(event, Transfers):
                self._received(event, now)
            elif self._reason is None:  # else nothing new begins
                self._on_links(event, now, told)
        return told

    def _on_links(self, event: Event, now: float, told: list[LinkUp | LinkDown]) -> None:
        if isinstance(event, Opened):
            told.append(LinkUp(event.container_id, False))
            self._claims.begin(self._engine, self._cut, now)
            self._senders.begin(self._engine, self._woken, self._cut)
            self._receivers.begin(self._engine, self._woken, self._cut)
        elif isinstance(event, Attached):
            halves = (self._claims, self._senders, self._receivers)
            if not any(each.attached(event.link) for each in halves):
                self._engine.refuse(event.link, Condition("amqp:not-found", "a gateway serves no links here"))
        elif isinstance(event, Detached):
            if not self._claims.detached(event):
                _ = self._senders.detached(event, now) or self._receivers.detached(event, now)
        elif isinstance(event, SessionEnded):
            self._cut(f"the peer ended the session: {words(event.condition)}")

    def _received(self, event: Transfers, now: float) -> None:
        if self._claims.received(event, now):
            self._receivers.attach()  # there may be a right to another address
        elif not self._receivers.received(event):
            self.close("the peer sent messages on a link of ours", Condition("amqp:not-allowed"))

    def _on_closed(self, event: Closed, told: list[LinkUp | LinkDown]) -> None:
        if not self._down:
            self._down = True
            self._release()
            asked_s = max(self._senders.wait_s, self._receivers.wait_s, wait_s(event.condition))
            told.append(LinkDown(self._reason or words(event.condition), asked_s))

    def _woken(self) -> None:
        self._wake()

    def _cut(self, reason: str) -> None:
        self.close(reason, Condition("amqp:connection:forced", reason))

    def _end(self) -> None:
        if not self._ended:
            self._release()
            self._engine.close(self._condition)
            self._wake()

    def _release(self) -> None:
        if not self._ended:
            self._ended = True
            self._claims.end()
            self._senders.end()
            self._receivers.end()


def _ignore() -> None:
    """Nothing is dialled yet."""
