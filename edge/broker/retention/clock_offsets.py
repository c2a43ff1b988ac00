"""How far the clock was off when messages were stamped, told to the peer of one connector once it is known.

While the clock is not known to be right, and nobody sets it, all stamps are off by the same: that is a *stretch*. It
ends when the clock is set or found right, and when the machine starts anew. What was received in it is a range of
sequences of each address, from the counters at its beginning to those at its end: nothing is done a message. The clock
that counts from the machine's start goes on beneath. When the wall clock is found right in the same boot, the distance
between the two says how far the stretch was off, to the second that a service may move a clock without setting it. A
boot that ended before lies between the last right time before it and the start of the one in which it is right again,
and that is told.

**The moment the clock changes.** It is known before a message is stamped by what it shows then, but messages stamped
before may still wait for their sequences. So the counters are taken at once, and again after the commit of all that
waited. What lies between is told apart by its stamps: nearer to what the clock showed before, or to what it shows then.

**After a crash** the counters of the beginning are in the store: they were written with the first message of the
stretch, or before. What is told twice is the same.
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
"""Kind of the store's small state that holds a `ClockOffsetState` by connector."""

_NS_IN_S: Final = 1_000_000_000

T = TypeVar("T")

Received = tuple[str, int, int, int | None, int | None]
"""(address, first sequence, last, stamped after, until): see `bridge.clock_offset.StampedRange`."""


class StoredPeriod(msgspec.Struct, array_like=True, frozen=True):
    """A stretch in the store."""

    number: int
    boot: str
    ahead_ns: int
    """How far the wall clock was from the one since the machine's start."""
    began: int
    """UTC ns, as the wall clock showed it."""
    known: OffsetState = OffsetState.NOT_YET
    low: int | None = None
    high: int | None = None
    reason: str = ""

    def told(self, *, whole: bool = False, messages: Sequence[StampedRange] = ()) -> ClockSpan:
        """As the peer gets it."""
        return ClockSpan(
            self.boot, self.number, self.began, self.known, self.low, self.high, self.reason, whole, messages
        )


class UnassignedStamps(msgspec.Struct, array_like=True, frozen=True):
    """The clock has changed, and messages stamped before may have no sequence yet."""

    before: int
    """Number of the stretch that has ended."""
    after: int
    """Of the one that has begun; 0: none."""
    middle: int
    """Between what the clock showed before and what it shows after; UTC ns."""
    rises: bool
    """It was set to a later time."""
    again: bool = False
    """It has changed again meanwhile: `before` is a stretch of all that waits, of which nothing is known."""


class ClockOffsetState(msgspec.Struct, array_like=True, frozen=True):
    """Where a connector stands."""

    number: int = 0
    """Of the newest stretch."""
    open: StoredPeriod | None = None
    """The stretch that goes on."""
    mixed: bool = False
    """The clock was set within it: there was no room for another one."""
    between: UnassignedStamps | None = None
    right_at: int = 0
    """The last time the clock was known to be right, UTC ns; 0: never."""
    ranges: int = 0
    """That wait in the store, and stretches."""
    pages: int = 0
    """Written so far."""
    announced: int = 0
    """Number of the newest stretch that the peer knows of."""


class ClockOffsetReports:
    """Made with a connector's reports, before messages are taken; `look` is called every few seconds."""

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
        """`sends`: messages of this address go to the peer."""
        self._state = state
        self._lineage = lineage
        self._reports = reports
        self._connector = connector
        self._clock = clock
        self._sends = sends
        self._kinds = {part: f"clock {part}/{connector}" for part in ("stretch", "ranges", "counters")}
        self._head = ClockOffsetState()
        self._ended: dict[int, StoredPeriod] = {}
        """Stretches that are not whole at the peer, by number."""
        self._counters: dict[str, int] = {}
        """Next sequences at the beginning of the open stretch, or when the clock changed last."""
        self._behind = False
        """What became of the clock could not be written."""
        self._ticket: Ticket | None = None
        self._under_way = False
        self._round = 0
        """Counts how often what is under way was begun anew."""
        self._sent = ""
        """Key of the last page the peer has."""
        reports.clock_offsets.call_when_taken(self._takes)
        self._load()
        self._guarded(self._catch_up)
        clock.changes.add(self._changed)

    def release(self) -> None:
        """The connector is gone."""
        self._clock.changes.remove(self._changed)

    @property
    def waiting(self) -> int:
        """Ranges of messages, and stretches, whose offset is not known or not told."""
        return self._head.ranges + (self._head.open is not None)

    def look(self) -> None:
        """Go on with what had to wait, and tell the peer what it does not know."""
        if self._behind:
            self._guarded(self._catch_up)
        if not self._behind:
            self._guarded(self._look)
        self.feed()

    def _look(self) -> None:
        head = self._head
        if head.between is not None:
            if self._written():
                self._part()
        elif head.mixed and head.open is not None and head.ranges < CLOCK_RANGES_KEPT_MAX:
            self._end_mixed(head.open)
        now = self._clock.reading()
        if now.good and now.wall_ns - self._head.right_at >= CLOCK_KNOWN_EVERY_S * _NS_IN_S:
            self._put_head(right_at=now.wall_ns)

    # --- what becomes of the clock ----------------------------------------------------------------------------

    def _changed(self, before: ClockReading, after: ClockReading) -> None:
        if not self._behind:
            self._guarded(partial(self._change, before, after))

    def _guarded(self, step: Callable[[], None]) -> None:
        """What the store cannot read or take now is done at the next look."""
        try:
            step()
        except StoreError as error:
            self._behind = True
            log.warning("connector %s: how far the clock is off is written down later: %s", self._connector, error)

    def _catch_up(self) -> None:
        """Compare the clock with what it was when that was written last."""
        now, open_ = self._clock.reading(), self._head.open
        shown = now.wall_ns if open_ is None else open_.ahead_ns + now.monotonic_ns
        self._change(now._replace(wall_ns=shown), now)
        self._behind = False

    def _change(self, before: ClockReading, after: ClockReading) -> None:
        """Raises StoreError; then nothing has happened."""
        open_ = self._head.open
        if open_ is not None and not after.good and open_.boot == after.boot and not _apart(open_, after):
            return
        if self._head.between is not None and not self._written():
            self._change_again(self._head.between, after)
            return
        self._part()
        if open_ is None:
            if not after.good:
                self._begin(dict(self._lineage.sequences()), after)
                if before.good:
                    self._put_head(right_at=before.wall_ns)
        elif not self._head.mixed and self._head.ranges < CLOCK_RANGES_KEPT_MAX:
            self._end(open_, dict(self._lineage.sequences()), before, after)
        else:
            self._put_head(mixed=True)
        if after.good:
            self._settle(after)

    def _begin(self, counters: dict[str, int], now: ClockReading) -> None:
        number = self._head.number + 1
        self._counters = counters
        self._write_counters()
        self._put_head(number=number, open=StoredPeriod(number, now.boot, now.ahead_ns, now.wall_ns))

    def _end(self, open_: StoredPeriod, counters: dict[str, int], before: ClockReading, after: ClockReading) -> None:
        """The open stretch is over, and another one begins unless the clock is right."""
        self._keep(open_)
        self._write_ranges(open_.number, _received(self._counters, counters))
        self._drop_counters()
        self._put_head(open=None)
        if not after.good:
            self._begin(counters, after)
        if open_.boot == after.boot:
            self._counters = counters
            self._write_counters()
            following = 0 if self._head.open is None else self._head.open.number
            middle, rises = (before.wall_ns + after.wall_ns) // 2, after.wall_ns > before.wall_ns
            self._put_head(between=UnassignedStamps(open_.number, following, middle, rises))

    def _change_again(self, between: UnassignedStamps, after: ClockReading) -> None:
        """What was stamped before the last change still waits, some milliseconds on: nothing will tell it apart."""
        waiting = between.before
        if not between.again:
            waiting = self._head.number + 1
            self._put_head(number=waiting)
            self._keep(
                StoredPeriod(
                    waiting, after.boot, after.ahead_ns, after.wall_ns, OffsetState.NEVER, reason=SET_TOO_OFTEN
                )
            )
        if self._head.open is not None:
            self._keep(self._head.open)
            self._put_head(open=None)
        if after.good:
            self._settle(after)
        else:
            self._begin(self._counters, after)
        following = 0 if self._head.open is None else self._head.open.number
        self._put_head(between=UnassignedStamps(waiting, following, 0, rises=False, again=True))

    def _part(self) -> None:
        """All that was stamped before the clock changed has its sequence by now. Raises StoreError; then nothing has
        happened."""
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

    def _end_mixed(self, open_: StoredPeriod) -> None:
        """There is room again. Raises StoreError; then nothing has happened."""
        counters, now = dict(self._lineage.sequences()), self._clock.reading()
        self._keep(msgspec.structs.replace(open_, known=OffsetState.NEVER, reason=SET_TOO_OFTEN))
        self._write_ranges(open_.number, _received(self._counters, counters))
        self._drop_counters()
        self._put_head(open=None, mixed=False)
        if not now.good:
            self._begin(counters, now)

    def _settle(self, now: ClockReading) -> None:
        """The clock is right: of every stretch that has ended it is known how far it was off, or never will be."""
        started, right_at = now.wall_ns - now.monotonic_ns, self._head.right_at
        for one in [one for one in self._ended.values() if one.known is OffsetState.NOT_YET]:
            if one.boot == now.boot:
                off = now.ahead_ns - one.ahead_ns
                self._keep(msgspec.structs.replace(one, known=OffsetState.MEASURED, low=off, high=off))
                continue
            high = started - one.began
            low = min(right_at - one.began, high) if right_at else None
            self._keep(msgspec.structs.replace(one, known=OffsetState.NEVER, low=low, high=high, reason=BOOT_ENDED))
        self._put_head(right_at=now.wall_ns)

    # --- what is written --------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Raises StoreError."""
        head = dict(self._state.items(HEADS)).get(self._connector)
        if head is None:
            return
        self._head = msgspec.msgpack.decode(head, type=ClockOffsetState)
        stretches = msgspec.msgpack.Decoder(StoredPeriod)
        self._ended = {one.number: one for one in map(stretches.decode, self._values("stretch"))}
        if self._head.open is not None or self._head.between is not None:
            counters = msgspec.msgpack.Decoder(dict[str, int])
            for page in self._values("counters"):
                self._counters |= counters.decode(page)

    def _values(self, part: str) -> Iterator[bytes]:
        return (value for _, value in self._state.items(self._kinds[part]))

    def _keep(self, stretch: StoredPeriod) -> None:
        if stretch.number not in self._ended:
            self._put_head(ranges=self._head.ranges + 1)
        self._ended[stretch.number] = stretch
        self._state.put(self._kinds["stretch"], f"{stretch.number:016}", msgspec.msgpack.encode(stretch))

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
        """In the commit of all that was put before it."""
        self._head = msgspec.structs.replace(self._head, **changes)
        self._ticket = self._state.put(HEADS, self._connector, msgspec.msgpack.encode(self._head))

    def _written(self) -> bool:
        """What was put is on disk, and can be read. What a failed commit held is in the next one."""
        if self._ticket is not None and self._ticket.decided and self._ticket.error is not None:
            self._put_head()
        if self._ticket is not None and not self._ticket.decided:
            return False
        self._ticket = None
        return True

    # --- towards the peer -------------------------------------------------------------------------------------

    def restate(self) -> None:
        """What is under way is told anew: the peer may have lost it, or messages have other names than before."""
        self._reports.clock_offsets.clear()
        self._round += 1
        self._under_way = False

    def _takes(self) -> None:
        self.restate()
        self.feed()

    def feed(self) -> None:
        """Send what is known, unless something is under way: its end comes back here."""
        try:
            if self._may_send():
                self._send()
        except StoreError as error:
            log.warning("connector %s: how far the clock was off is told later: %s", self._connector, error)

    def _may_send(self) -> bool:
        documents = self._reports.clock_offsets
        idle = not self._under_way and not self._behind and documents.link is not None and documents.credit > 0
        return idle and self._written()

    def _send(self) -> None:
        """Raises StoreError."""
        head = self._head
        every = [*self._ended.values(), *([head.open] if head.open is not None else [])]
        if fresh := sorted((one for one in every if one.number > head.announced), key=lambda one: one.number):
            some = fresh[:CLOCK_RANGES_A_DOCUMENT]
            self._tell([one.told() for one in some], partial(self._put_head, announced=some[-1].number))
            return
        first = min(self._ended.values(), key=lambda one: one.number, default=None)
        if first is None or first.known is OffsetState.NOT_YET or head.between is not None:
            return
        prefix, told = f"{first.number:016}/", list[StampedRange]()
        pages = self._state.items(self._kinds["ranges"])
        for key, page in ((key, page) for key, page in pages if key > self._sent and key.startswith(prefix)):
            received = msgspec.msgpack.decode(page, type=list[Received])
            told = list(self._named(received))
            if told:
                self._tell([first.told(messages=told)], partial(self._page_told, key, len(received)))
                return
            self._page_told(key, len(received))
        self._tell([first.told(whole=True)], partial(self._stretch_told, first.number))

    def _named(self, received: Iterable[Received]) -> Iterator[StampedRange]:
        """By the names messages have now; those that go to this peer."""
        for address, first, last, after, until in received:
            if self._sends(address):
                for epoch, low, high in self._lineage.epochs.parts(address, first, last):
                    yield StampedRange(epoch, address, low, high, after, until)

    def _tell(self, stretches: Sequence[ClockSpan], told: Callable[[], None]) -> None:
        self._under_way = True
        document = ClockDocument(self._clock.reading().wall_ns, stretches)
        self._reports.tell_clock_offsets(msgspec.to_builtins(document), partial(self._arrived, self._round, told))

    def _arrived(self, round_: int, told: Callable[[], None], _kept: bool) -> None:
        """The peer has it on disk, or will never understand it (which `Reports` has said in the log)."""
        if round_ == self._round:
            self._under_way = False
            told()
            self.feed()

    def _page_told(self, key: str, ranges: int) -> None:
        self._sent = key
        self._state.delete(self._kinds["ranges"], key)
        self._put_head(ranges=max(0, self._head.ranges - ranges))

    def _stretch_told(self, number: int) -> None:
        self._state.delete(self._kinds["stretch"], f"{number:016}")
        del self._ended[number]
        self._put_head(ranges=max(0, self._head.ranges - 1))
        log.info("connector %s: the peer knows how far the clock was off in stretch %d", self._connector, number)


def _apart(open_: StoredPeriod, now: ClockReading) -> bool:
    """The clock was set since the stretch began."""
    return abs(now.ahead_ns - open_.ahead_ns) > CLOCK_STEP_S_MAX * _NS_IN_S


def _received(before: Mapping[str, int], now: Mapping[str, int]) -> Iterator[Received]:
    """What came between two readings of the counters."""
    for address, following in now.items():
        first = before.get(address, 0)
        if following > first:
            yield address, first, following - 1, None, None


def _pages(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), CLOCK_RANGES_A_DOCUMENT):
        yield items[start : start + CLOCK_RANGES_A_DOCUMENT]
