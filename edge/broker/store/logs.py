"""The logs of a store: objects of those in use, rows of table ``log`` for the others."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Final

from edge.broker.store.errors import StoreError
from edge.broker.store.limits import LOGS_MAX, POSITION_MAX, TEXT_BYTES_MAX
from edge.broker.store.log_rows import LogEntry, LogRow, LogRows
from edge.broker.store.meter import ByteMeter
from edge.broker.store.ring import MessageRing

FREE: Final = "free "
"""Begins the name of a log that is nobody's, and may be made another's."""


def free_name(log: int) -> str:
    """The name of a log that has none."""
    return f"{FREE}{log}"


@dataclass(slots=True)
class IdlePositions:
    """The cursors of one log that are rows only."""

    count: int = 0
    lowest: int = POSITION_MAX
    """Lower bound of their positions."""
    came_lowest: int = POSITION_MAX
    """The lowest position of those that became idle since the medium began to look for `lowest`."""


@dataclass(slots=True, eq=False)
class LogState:
    """A log: positions ``first <= p < next`` are committed and kept."""

    log: int
    name: str
    first: int = 0
    next: int = 0
    bytes: int = 0
    counted: int = 0
    """`next` as it stands in table ``log``; segments from here on are read again at open, so they must not go."""
    lowest: int | None = None
    """The lowest cursor's position; None when it has to be worked out again."""
    deleting_to: int = 0
    """Everything below may be gone once the running commit is done."""
    cursors: dict[str, int] | tuple[int, ...] = ()
    """Of most logs one: its number. Of a log with several, their numbers by name."""
    idle: IdlePositions | None = None
    """Cursors that are rows only, and not among `cursors`; None: it has no such cursor."""
    slowest: list[int] | None = None
    """Of a log with several cursors a heap by which `lowest` is found (`CursorTable`); None until it is asked for."""
    thinned_to: tuple[int, int] = (0, 0)
    """Pass and position at which thinning goes on; forgotten at the end, as finding it again is cheap."""
    ring: MessageRing | None = None
    """The end of it that is in memory only; None: every message goes by the medium."""

    @property
    def has_cursors(self) -> bool:
        """Somebody may want what it keeps."""
        return bool(self.cursors) or self.idle is not None

    @property
    def is_free(self) -> bool:
        """It is nobody's."""
        return self.name == free_name(self.log)

    @property
    def medium_end(self) -> int:
        """Where what is on the medium ends."""
        return self.next if self.ring is None or self.ring.start is None else self.ring.start


class _InUse(dict[int, LogState]):
    """Makes a state of its row when it is asked for one that is not here."""

    def __init__(self, read: Callable[[int], LogState]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, log: int) -> LogState:
        return self._read(log)


class LogTable:
    """Logs by number and by name. One that is not in use is its row; asking for its state makes an object of it, which
    is to be used in the same turn only."""

    def __init__(self, rows: LogRows) -> None:
        self._rows = rows
        self._states = _InUse(self._read)
        self._numbers: dict[str, int] = {}
        """Logs in use, by name."""
        self._count = 0
        self._free: deque[int] = deque()
        self._meters: list[ByteMeter | None] = []
        """Meters by number of the log."""
        self.to_reclaim: dict[int, None] = {}
        """Logs that may hold what no cursor wants any more, in the order of their turns."""
        self.passed: set[int] = set()
        """Logs kept in memory that may have messages every cursor has passed."""
        self.messages = 0
        """Positions that all of them keep."""
        self.bytes = 0
        """Bytes of bodies that all of them keep."""
        self.came = 0
        """Logs that came into use, or were counted, since the last look for those to drop (`LogCache`)."""

    def __getitem__(self, log: int) -> LogState:
        return self._states[log]

    def __contains__(self, log: int) -> bool:
        return 0 < log <= self._count

    def __len__(self) -> int:
        """They are numbered from 1 on."""
        return self._count

    def get(self, log: int) -> LogState | None:
        return self._states[log] if log in self else None

    def number(self, name: str) -> int | None:
        """Return the number of a log; None if it is not found. Raises StoreError."""
        number = self._numbers.get(name)
        if number is None and (entry := self._entry_named(name)) is not None:
            return entry.log
        return number

    def find(self, name: str) -> LogState | None:
        """Return a log, which is in use from now on; None if it is not found. Raises StoreError."""
        number = self._numbers.get(name)
        if number is not None:
            return self._states[number]
        entry = self._entry_named(name)
        return None if entry is None else self._enter(entry)

    def _entry_named(self, name: str) -> LogEntry | None:
        entry = self._rows.log_named(name)
        return None if entry is None or entry.log in self._states else entry  # it has another name by now

    def name(self, log: int) -> str:
        """Raises IndexError."""
        if log not in self:
            raise IndexError(log)
        state = self._states.get(log)
        return self._entry(log).name if state is None else state.name

    def rows(self) -> Iterator[LogRow]:
        """Yield the row of every log, with what is not on the medium yet, and without making an object for it."""
        seen = 0
        for row in self._pages():
            state = self._states.get(row.log)
            yield row if state is None else _row(state)
            seen = row.log
        for log in range(seen + 1, self._count + 1):
            yield _row(self._states[log])

    def _pages(self, *, holding: bool = False) -> Iterator[LogRow]:
        page = self._rows.logs_after(0, holding=holding)
        while page:
            yield from page
            page = self._rows.logs_after(page[-1].log, holding=holding)

    def begin(self, count: int, messages: int, size: int, free: Iterable[int]) -> None:
        """Take note of what the medium has: logs, positions and bytes they keep, and logs without a name."""
        self._count, self.messages, self.bytes = count, messages, size
        self._free.extend(free)

    # --- made and given back ----------------------------------------------------------------------------------

    def make(self, name: str) -> LogState:
        """A log that has nothing. Raises StoreError when there are too many, or the name cannot be written."""
        check_text("log", name)
        if self._free:
            first, end = self.bounds(self._free[0])
            if first == end:
                state = self[self._free.popleft()]
                self._rename(state, name)
                return state
        number = self._count + 1
        if number > LOGS_MAX:
            raise StoreError(f"the store has {LOGS_MAX} logs already: no room for {name!r}")
        state = LogState(number, name)
        self.add(state)
        return state

    def add(self, state: LogState) -> None:
        """Add a log that `begin` did not count."""
        self._states[state.log] = state
        self._numbers[state.name] = state.log
        self._count = max(self._count, state.log)
        self.came += 1
        self.messages += state.next - state.first
        self.bytes += state.bytes
        if state.is_free:
            self._free.append(state.log)

    def free(self, state: LogState) -> None:
        """Nobody needs it, or will use its number before `make` gives it away again."""
        self._rename(state, free_name(state.log))
        state.thinned_to = (0, 0)
        self._free.append(state.log)

    def _rename(self, state: LogState, name: str) -> None:
        del self._numbers[state.name]
        self._numbers[name] = state.log
        state.name = name

    # --- what they hold ---------------------------------------------------------------------------------------

    def bounds(self, log: int) -> tuple[int, int]:
        """(first position kept, next position to be given). Raises KeyError."""
        known = self._states.get(log) or self._entry(log)
        return known.first, known.next

    def kept_bytes(self, log: int) -> int:
        """Bytes of bodies it keeps. Raises KeyError."""
        return (self._states.get(log) or self._entry(log)).bytes

    def move(self, state: LogState, *, first: int | None = None, end: int | None = None, size: int = 0) -> None:
        """It begins or ends elsewhere, and keeps `size` bytes more (less, when that is negative)."""
        if first is not None and first > state.first:
            self.messages -= first - state.first
            state.first = first
        if end is not None:
            self.messages += end - state.next
            state.next = end
        if size:
            state.bytes += size
            self.bytes += size
            meter = self.meter_of(state.log)
            if meter is not None:
                meter.bytes += size

    def meter_of(self, log: int) -> ByteMeter | None:
        return self._meters[log] if log < len(self._meters) else None

    def set_meter(self, log: int, meter: ByteMeter | None) -> bool:
        """What the log keeps counts in this meter, and in no other one; False when it did. Raises KeyError."""
        before, size = self.meter_of(log), self.kept_bytes(log)
        if before is meter:
            return False
        if before is not None:
            before.bytes -= size
        if meter is not None:
            meter.bytes += size
        self._meters += repeat(None, log + 1 - len(self._meters))
        self._meters[log] = meter
        return True

    def metered(self, meter: ByteMeter) -> Iterator[int]:
        """The logs that have this meter. Looks at every log."""
        return (log for log, its in enumerate(self._meters) if its is meter)

    def largest(self, meter: ByteMeter, count: int) -> list[int]:
        """Those of them that keep the most bytes. Looks at every log."""
        sizes = ((row.bytes, row.log) for row in self._holding() if self.meter_of(row.log) is meter)
        return [log for _, log in heapq.nlargest(count, sizes)]

    def holding(self) -> Iterator[tuple[int, str]]:
        """Logs that keep bytes of messages, and their names; one that comes into use meanwhile may be there twice."""
        return ((row.log, row.name) for row in self._holding())

    def _holding(self) -> Iterator[LogRow]:
        for row in self._pages(holding=True):
            if row.log not in self._states:
                yield row
        for state in list(self._states.values()):
            if state.bytes:
                yield _row(state)

    # --- objects of rows --------------------------------------------------------------------------------------

    @property
    def in_use(self) -> dict[int, LogState]:
        """Those that are objects, in the order in which they came into use."""
        return self._states

    def let_go(self, state: LogState) -> None:
        """Drop an object that is not used, if the row says the same. Not while a commit is running or to change it."""
        if state.ring is not None or state.cursors or state.counted != state.next:
            return
        idle = state.idle
        entry = self._entry(state.log)
        alone = entry.position is None if idle is None else idle.count == 1 and entry.position is not None
        if alone and entry[:5] == _row(state):
            del self._states[state.log], self._numbers[state.name]

    def _read(self, log: int) -> LogState:
        return self._enter(self._entry(log))

    def _entry(self, log: int) -> LogEntry:
        entry = self._rows.log(log) if log in self else None
        if entry is None:
            raise KeyError(log)
        return entry

    def _enter(self, entry: LogEntry) -> LogState:
        """Make an object of a row."""
        log, name, first, end, size, position = entry
        state = self._states[log] = LogState(log, name, first, end, size, counted=end)
        if position is not None:
            state.idle = IdlePositions(1, max(position, first))
        self._numbers[name] = log
        self.came += 1
        return state


def _row(state: LogState) -> LogRow:
    return LogRow(state.log, state.name, state.first, state.next, state.bytes)


def check_text(what: str, text: str) -> None:
    """Raises StoreError when `text` cannot be written as at most 65 535 bytes of UTF-8."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise StoreError(f"{what} {text!r} is not valid Unicode") from error
    if size > TEXT_BYTES_MAX:
        raise StoreError(f"{what} has {size} bytes, {TEXT_BYTES_MAX} are allowed")
