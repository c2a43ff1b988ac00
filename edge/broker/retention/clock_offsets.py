"""Reports how far the clock was off when messages were stamped, to the peer of one connector.

All stamps are off by the same amount while the clock is not synchronised and nothing sets it. Such a time is a
*span*. It ends when the clock is set or synchronised, and when the machine restarts. The messages received in it are
a range of sequences of each address, from the counters at its start to those at its end. So nothing is done for each
message. The monotonic clock continues in the meantime. When the wall clock is synchronised in the same boot, the change
of the distance between the two clocks is the offset of the span. It is exact to the second that a time service may
slew the clock. For a span of an earlier boot only bounds are known: the last correct time before it, and the start
of the boot with the correct clock. The bounds are reported.

**When the clock changes.** The change is known before a message gets the new time as its stamp, but messages stamped
before may still wait for their sequences. So the counters are read at once, and again after the commit of all messages
that waited. A message between these two readings is assigned by its stamp: to the span with the nearer time.

**After a crash** the counters of the start of the span are in the store, because they were written before or with
the first message of the span. A report that is sent twice has the same content.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from bridge.clock_offset import BOOT_ENDED, SET_TOO_OFTEN, ClockDocument, ClockSpan, OffsetState, StampedRange
from bridge.reports import Reports
from edge.broker.limits import (
    CLOCK_KNOWN_EVERY_S,
    CLOCK_RANGES_A_DOCUMENT,
    CLOCK_RANGES_KEPT_MAX,
    CLOCK_STEP_S_MAX,
)
from edge.broker.model.clock import ClockReading, WallClock
from edge.broker.store.contract import EpochLineage, SmallState
from edge.broker.store.errors import StoreError
from edge.broker.store.ticket import Ticket

log = logging.getLogger(__name__)

HEADS: Final = "clock offsets"
"""Kind of small state that holds a `ClockOffsetState` by connector."""

_NS_IN_S: Final = 1_000_000_000

T = TypeVar("T")

Received = tuple[str, int, int, int | None, int | None]
"""(address, first sequence, last, stamped after, until): see `bridge.clock_offset.StampedRange`."""


class StoredSpan(msgspec.Struct, array_like=True, frozen=True):
    """Period as written to the store."""

    number: int
    boot: str
    ahead_ns: int
    """Wall clock minus monotonic clock."""
    began: int
    """UTC ns by the wall clock at that time."""
    known: OffsetState = OffsetState.NOT_YET
    low: int | None = None
    high: int | None = None
    reason: str = ""

    def document(self, *, whole: bool = False, messages: Sequence[StampedRange] = ()) -> ClockSpan:
        """Return the span as sent to the peer."""
        return ClockSpan(
            self.boot, self.number, self.began, self.known, self.low, self.high, self.reason, whole, messages
        )


class UnassignedStamps(msgspec.Struct, array_like=True, frozen=True):
    """Change of the clock while messages stamped before it may have no sequence yet."""

    before: int
    """Number of the span that has ended."""
    after: int
    """Number of the span that has started; 0: none."""
    middle: int
    """Midpoint between the times before and after the change; UTC ns."""
    rises: bool
    """True when the clock was set to a later time."""
    again: bool = False
    """True after another change. Then `before` is a span of unknown offset for all messages that wait."""


class ClockOffsetState(msgspec.Struct, array_like=True, frozen=True):
    """State of the reports of one connector."""

    number: int = 0
    """Number of the newest span."""
    open: StoredSpan | None = None
    """The current span; None while the clock is correct."""
    mixed: bool = False
    """True when the clock was set within the span, and there was no room for another one."""
    between: UnassignedStamps | None = None
    right_at: int = 0
    """Last time at which the clock was known to be correct, UTC ns; 0: never."""
    ranges: int = 0
    """Ranges and spans that wait in the store."""
    pages: int = 0
    """Pages of ranges written so far."""
    announced: int = 0
    """Number of the newest span that the peer has confirmed."""


class ClockOffsetReports:
    """Clock offset reports of one connector. Create them before messages arrive, and call `poll` every few seconds."""

    def __init__(
        self,
        state: SmallState,
        lineage: EpochLineage,
        reports: Reports,
        connector: str,
        *,
        clock: WallClock,
        sends: Callable[[str], bool],
    ) -> None:
        """`sends` returns True for an address that is forwarded to the peer."""
        self._state = state
        self._lineage = lineage
        self._reports = reports
        self._connector = connector
        self._clock = clock
        self._sends = sends
        self._kinds = {part: f"clock {part}/{connector}" for part in ("stretch", "ranges", "counters")}
        self._head = ClockOffsetState()
        self._ended: dict[int, StoredSpan] = {}
        """Ended spans that the peer does not have completely, by number."""
        self._counters: dict[str, int] = {}
        """Next sequences at the start of the open span, or at the last change of the clock."""
        self._behind = False
        """True when a change of the clock could not be written."""
        self._ticket: Ticket | None = None
        self._in_flight = False
        self._round = 0
        """Number of restarts of the transfer; answers of earlier rounds are ignored."""
        self._sent = ""
        """Key of the last page that the peer has confirmed."""
        reports.clock_offsets.call_when_accepted(self._peer_ready)
        self._load()
        self._retry_later(self._catch_up)
        clock.changes.add(self._changed)

    def release(self) -> None:
        """Stop following the clock: the connector was deleted."""
        self._clock.changes.remove(self._changed)

    @property
    def waiting(self) -> int:
        """Number of ranges and spans that were not reported yet."""
        return self._head.ranges + (self._head.open is not None)

    def poll(self) -> None:
        """Retry failed steps, and send what the peer does not have."""
        if self._behind:
            self._retry_later(self._catch_up)
        if not self._behind:
            self._retry_later(self._update)
        self.feed()

    def _update(self) -> None:
        head = self._head
        if head.between is not None:
            if self._written():
                self._assign_waiting()
        elif head.mixed and head.open is not None and head.ranges < CLOCK_RANGES_KEPT_MAX:
            self._end_mixed_span(head.open)
        now = self._clock.reading()
        if now.good and now.wall_ns - self._head.right_at >= CLOCK_KNOWN_EVERY_S * _NS_IN_S:
            self._put_head(right_at=now.wall_ns)

    # --- changes of the clock ---------------------------------------------------------------------------------

    def _changed(self, before: ClockReading, after: ClockReading) -> None:
        if not self._behind:
            self._retry_later(partial(self._change, before, after))

    def _retry_later(self, step: Callable[[], None]) -> None:
        """Run a step. If the store fails, the step is retried at the next `poll`."""
        try:
            step()
        except StoreError as error:
            self._behind = True
            log.warning("connector %s: cannot store the clock offset, retrying later: %s", self._connector, error)

    def _catch_up(self) -> None:
        """Compare the clock with its stored state."""
        now, open_ = self._clock.reading(), self._head.open
        shown = now.wall_ns if open_ is None else open_.ahead_ns + now.monotonic_ns
        self._change(now._replace(wall_ns=shown), now)
        self._behind = False

    def _change(self, before: ClockReading, after: ClockReading) -> None:
        """Record a change of the clock. Raises StoreError; then nothing has changed."""
        open_ = self._head.open
        if open_ is not None and not after.good and open_.boot == after.boot and not _was_set(open_, after):
            return
        if self._head.between is not None and not self._written():
            self._change_again(self._head.between, after)
            return
        self._assign_waiting()
        if open_ is None:
            if not after.good:
                self._start_span(dict(self._lineage.sequences()), after)
                if before.good:
                    self._put_head(right_at=before.wall_ns)
        elif not self._head.mixed and self._head.ranges < CLOCK_RANGES_KEPT_MAX:
            self._end_span(open_, dict(self._lineage.sequences()), before, after)
        else:
            self._put_head(mixed=True)
        if after.good:
            self._settle(after)

    def _start_span(self, counters: dict[str, int], now: ClockReading) -> None:
        number = self._head.number + 1
        self._counters = counters
        self._write_counters()
        self._put_head(number=number, open=StoredSpan(number, now.boot, now.ahead_ns, now.wall_ns))

    def _end_span(self, open_: StoredSpan, counters: dict[str, int], before: ClockReading, after: ClockReading) -> None:
        """End the open span, and start another one unless the clock is correct."""
        self._put_span(open_)
        self._write_ranges(open_.number, _received(self._counters, counters))
        self._drop_counters()
        self._put_head(open=None)
        if not after.good:
            self._start_span(counters, after)
        if open_.boot == after.boot:
            self._counters = counters
            self._write_counters()
            following = 0 if self._head.open is None else self._head.open.number
            middle, rises = (before.wall_ns + after.wall_ns) // 2, after.wall_ns > before.wall_ns
            self._put_head(between=UnassignedStamps(open_.number, following, middle, rises))

    def _change_again(self, between: UnassignedStamps, after: ClockReading) -> None:
        """Record a second change within milliseconds, while messages stamped before the first one still wait.

        Their span cannot be determined.
        """
        waiting = between.before
        if not between.again:
            waiting = self._head.number + 1
            self._put_head(number=waiting)
            self._put_span(
                StoredSpan(waiting, after.boot, after.ahead_ns, after.wall_ns, OffsetState.NEVER, reason=SET_TOO_OFTEN)
            )
        if self._head.open is not None:
            self._put_span(self._head.open)
            self._put_head(open=None)
        if after.good:
            self._settle(after)
        else:
            self._start_span(self._counters, after)
        following = 0 if self._head.open is None else self._head.open.number
        self._put_head(between=UnassignedStamps(waiting, following, 0, rises=False, again=True))

    def _assign_waiting(self) -> None:
        """Assign the messages that waited at the last change, as all have their sequences now. Raises StoreError; then
        nothing has changed."""
        between = self._head.between
        if between is None:
            return
        counters = dict(self._lineage.sequences())
        waited = list(_received(self._counters, counters))
        if between.again or not between.after:
            self._write_ranges(between.before, waited)
        else:
            below, above = (None, between.middle), (between.middle, None)
            before, after = (below, above) if between.rises else (above, below)
            self._write_ranges(between.before, [(*one[:3], *before) for one in waited])
            self._write_ranges(between.after, [(*one[:3], *after) for one in waited])
        if not between.after:
            self._drop_counters()
        elif waited:
            self._counters = counters
            self._write_counters()
        self._put_head(between=None)

    def _end_mixed_span(self, open_: StoredSpan) -> None:
        """End a mixed span, as there is room again. Raises StoreError; then nothing has changed."""
        counters, now = dict(self._lineage.sequences()), self._clock.reading()
        self._put_span(msgspec.structs.replace(open_, known=OffsetState.NEVER, reason=SET_TOO_OFTEN))
        self._write_ranges(open_.number, _received(self._counters, counters))
        self._drop_counters()
        self._put_head(open=None, mixed=False)
        if not now.good:
            self._start_span(counters, now)

    def _settle(self, now: ClockReading) -> None:
        """Set the offset of every ended span: the clock is correct now. Periods of other boots get bounds."""
        started, right_at = now.wall_ns - now.monotonic_ns, self._head.right_at
        for one in [one for one in self._ended.values() if one.known is OffsetState.NOT_YET]:
            if one.boot == now.boot:
                off = now.ahead_ns - one.ahead_ns
                self._put_span(msgspec.structs.replace(one, known=OffsetState.MEASURED, low=off, high=off))
                continue
            high = started - one.began
            low = min(right_at - one.began, high) if right_at else None
            self._put_span(msgspec.structs.replace(one, known=OffsetState.NEVER, low=low, high=high, reason=BOOT_ENDED))
        self._put_head(right_at=now.wall_ns)

    # --- store ------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Load the state from the store. Raises StoreError."""
        head = dict(self._state.items(HEADS)).get(self._connector)
        if head is None:
            return
        self._head = msgspec.msgpack.decode(head, type=ClockOffsetState)
        spans = msgspec.msgpack.Decoder(StoredSpan)
        self._ended = {one.number: one for one in map(spans.decode, self._values("stretch"))}
        if self._head.open is not None or self._head.between is not None:
            counters = msgspec.msgpack.Decoder(dict[str, int])
            for page in self._values("counters"):
                self._counters |= counters.decode(page)

    def _values(self, part: str) -> Iterator[bytes]:
        return (value for _, value in self._state.items(self._kinds[part]))

    def _put_span(self, span: StoredSpan) -> None:
        if span.number not in self._ended:
            self._put_head(ranges=self._head.ranges + 1)
        self._ended[span.number] = span
        self._state.put(self._kinds["stretch"], f"{span.number:016}", msgspec.msgpack.encode(span))

    def _write_ranges(self, number: int, received: Iterable[Received]) -> None:
        for page in _pages(list(received)):
            self._put_head(pages=self._head.pages + 1, ranges=self._head.ranges + len(page))
            key = f"{number:016}/{self._head.pages:016}"
            self._state.put(self._kinds["ranges"], key, msgspec.msgpack.encode(page))

    def _write_counters(self) -> None:
        for place, page in enumerate(_pages(list(self._counters.items()))):
            self._state.put(self._kinds["counters"], f"{place:016}", msgspec.msgpack.encode(dict(page)))

    def _drop_counters(self) -> None:
        for place, _ in enumerate(_pages(list(self._counters))):
            self._state.delete(self._kinds["counters"], f"{place:016}")
        self._counters = {}

    def _put_head(self, **changes: Any) -> None:
        """Write the state, in the same commit as all values put before it."""
        self._head = msgspec.structs.replace(self._head, **changes)
        self._ticket = self._state.put(HEADS, self._connector, msgspec.msgpack.encode(self._head))

    def _written(self) -> bool:
        """Return True when all values are on disk. After a failed commit they are in the next one."""
        if self._ticket is not None and self._ticket.decided and self._ticket.error is not None:
            self._put_head()
        if self._ticket is not None and not self._ticket.decided:
            return False
        self._ticket = None
        return True

    # --- transfer to the peer ---------------------------------------------------------------------------------

    def restate(self) -> None:
        """Send the current document again: the peer may have lost it, or messages have new names."""
        self._reports.clock_offsets.clear()
        self._round += 1
        self._in_flight = False

    def _peer_ready(self) -> None:
        self.restate()
        self.feed()

    def feed(self) -> None:
        """Send the next document, unless one is in flight. Its confirmation calls `feed` again."""
        try:
            if self._may_send():
                self._send()
        except StoreError as error:
            log.warning("connector %s: cannot send clock offsets, retrying later: %s", self._connector, error)

    def _may_send(self) -> bool:
        documents = self._reports.clock_offsets
        idle = not self._in_flight and not self._behind and documents.link is not None and documents.credit > 0
        return idle and self._written()

    def _send(self) -> None:
        """Send new spans first, then ranges of the oldest ended span. Raises StoreError."""
        head = self._head
        every = [*self._ended.values(), *([head.open] if head.open is not None else [])]
        if fresh := sorted((one for one in every if one.number > head.announced), key=lambda one: one.number):
            some = fresh[:CLOCK_RANGES_A_DOCUMENT]
            self._send_document([one.document() for one in some], partial(self._put_head, announced=some[-1].number))
            return
        first = min(self._ended.values(), key=lambda one: one.number, default=None)
        if first is None or first.known is OffsetState.NOT_YET or head.between is not None:
            return
        prefix, ranges = f"{first.number:016}/", list[StampedRange]()
        pages = self._state.items(self._kinds["ranges"])
        for key, page in ((key, page) for key, page in pages if key > self._sent and key.startswith(prefix)):
            received = msgspec.msgpack.decode(page, type=list[Received])
            ranges = list(self._named(received))
            if ranges:
                self._send_document(
                    [first.document(messages=ranges)], partial(self._page_confirmed, key, len(received))
                )
                return
            self._page_confirmed(key, len(received))
        self._send_document([first.document(whole=True)], partial(self._span_confirmed, first.number))

    def _named(self, received: Iterable[Received]) -> Iterator[StampedRange]:
        """Return the ranges that go to this peer, by the current names of their messages."""
        for address, first, last, after, until in received:
            if self._sends(address):
                for epoch, low, high in self._lineage.epochs.parts(address, first, last):
                    yield StampedRange(epoch, address, low, high, after, until)

    def _send_document(self, spans: Sequence[ClockSpan], confirmed: Callable[[], None]) -> None:
        self._in_flight = True
        document = ClockDocument(self._clock.reading().wall_ns, spans)
        self._reports.send_clock_offsets(
            msgspec.to_builtins(document), partial(self._confirmed, self._round, confirmed)
        )

    def _confirmed(self, round_: int, confirmed: Callable[[], None], _kept: bool) -> None:
        """Continue after the peer stored the document, or rejected it for good (`Reports` logs that)."""
        if round_ == self._round:
            self._in_flight = False
            confirmed()
            self.feed()

    def _page_confirmed(self, key: str, ranges: int) -> None:
        self._sent = key
        self._state.delete(self._kinds["ranges"], key)
        self._put_head(ranges=max(0, self._head.ranges - ranges))

    def _span_confirmed(self, number: int) -> None:
        self._state.delete(self._kinds["stretch"], f"{number:016}")
        del self._ended[number]
        self._put_head(ranges=max(0, self._head.ranges - 1))
        log.info("connector %s: the peer has the clock offset of span %d", self._connector, number)


def _was_set(open_: StoredSpan, now: ClockReading) -> bool:
    """Return True when the clock was set since the span started."""
    return abs(now.ahead_ns - open_.ahead_ns) > CLOCK_STEP_S_MAX * _NS_IN_S


def _received(before: Mapping[str, int], now: Mapping[str, int]) -> Iterator[Received]:
    """Return the ranges received between two readings of the counters."""
    for address, following in now.items():
        first = before.get(address, 0)
        if following > first:
            yield address, first, following - 1, None, None


def _pages(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), CLOCK_RANGES_A_DOCUMENT):
        yield items[start : start + CLOCK_RANGES_A_DOCUMENT]
