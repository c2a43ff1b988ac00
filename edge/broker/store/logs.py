"""Logs of a store: objects for those in use, rows of table ``log`` for the others."""

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
"""Prefix of the name of a free log, which can be reused."""


def free_name(log: int) -> str:
    """Return the name of a free log."""
    return f"{FREE}{log}"


@dataclass(slots=True)
class IdlePositions:
    """Idle cursors of one log."""

    count: int = 0
    lowest: int = POSITION_MAX
    """Lower bound of their positions."""
    came_lowest: int = POSITION_MAX
    """Lowest position of cursors that became idle since the search for `lowest` started."""


@dataclass(slots=True, eq=False)
class LogState:
    """Log in use. Positions ``first <= p < next`` are committed and kept."""

    log: int
    name: str
    first: int = 0
    next: int = 0
    bytes: int = 0
    counted: int = 0
    """`next` in table ``log``. Opening reads the segments after it again, so they must not be deleted."""
    lowest: int | None = None
    """Position of the slowest cursor; None when it has to be computed again."""
    deleting_to: int = 0
    """The running commit may delete everything below."""
    cursors: dict[str, int] | tuple[int, ...] = ()
    """Number of the only cursor, or the numbers of several cursors by name."""
    idle: IdlePositions | None = None
    """Idle cursors, which are not in `cursors`; None: there are none."""
    slowest: list[int] | None = None
    """Heap to find `lowest` for a log with several cursors (`CursorTable`); None until it is needed."""
    thinned_to: tuple[int, int] = (0, 0)
    """Pass and position where thinning continues. Not stored, as finding it again is cheap."""
    ring: MessageRing | None = None
    """End of the log that is only in memory; None: all messages are on the medium."""

    @property
    def has_cursors(self) -> bool:
        """True when the log has cursors."""
        return bool(self.cursors) or self.idle is not None

    @property
    def is_free(self) -> bool:
        """True for a free log."""
        return self.name == free_name(self.log)

    @property
    def medium_end(self) -> int:
        """End of the messages on the medium."""
        return self.next if self.ring is None or self.ring.start is None else self.ring.start


class _InUse(dict[int, LogState]):
    """Logs in use, by number. A missing one is loaded from its row."""

    def __init__(self, read: Callable[[int], LogState]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, log: int) -> LogState:
        return self._read(log)


class LogTable:
    """Logs by number and by name.

    A log that is not in use is only a row. Access to its state loads an object, which is valid for the current turn of
    the event loop.
    """

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
        """Logs that may have messages passed by every cursor, in the order of deletion."""
        self.passed: set[int] = set()
        """Logs kept in memory that may have messages passed by every cursor."""
        self.messages = 0
        """Positions kept by all logs."""
        self.bytes = 0
        """Bytes of bodies kept by all logs."""
        self.came = 0
        """Logs that came into use, or were counted, since the last check of `LogCache`."""

    def __getitem__(self, log: int) -> LogState:
        return self._states[log]

    def __contains__(self, log: int) -> bool:
        return 0 < log <= self._count

    def __len__(self) -> int:
        """Return the number of logs, which is also the highest log number."""
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
        """Return a log, loading it if needed; None if it is not found. Raises StoreError."""
        number = self._numbers.get(name)
        if number is not None:
            return self._states[number]
        entry = self._entry_named(name)
        return None if entry is None else self._enter(entry)

    def _entry_named(self, name: str) -> LogEntry | None:
        entry = self._rows.log_named(name)
        return None if entry is None or entry.log in self._states else entry  # it was renamed since

    def name(self, log: int) -> str:
        """Return the name of a log. Raises IndexError."""
        if log not in self:
            raise IndexError(log)
        state = self._states.get(log)
        return self._entry(log).name if state is None else state.name

    def rows(self) -> Iterator[LogRow]:
        """Yield the current row of every log, including uncommitted changes, without loading objects."""
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

    def set_totals(self, count: int, messages: int, size: int, free: Iterable[int]) -> None:
        """Set the totals of the medium: number of logs, their positions and bytes, and the free logs."""
        self._count, self.messages, self.bytes = count, messages, size
        self._free.extend(free)

    # --- creation ---------------------------------------------------------------------------------------------

    def make(self, name: str) -> LogState:
        """Create an empty log. Raises StoreError when there are too many, or when the name is invalid."""
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
        """Add a log that `set_totals` did not count."""
        self._states[state.log] = state
        self._numbers[state.name] = state.log
        self._count = max(self._count, state.log)
        self.came += 1
        self.messages += state.next - state.first
        self.bytes += state.bytes
        if state.is_free:
            self._free.append(state.log)

    def free(self, state: LogState) -> None:
        """Free a log for reuse by `make`. The caller must no longer use its number."""
        self._rename(state, free_name(state.log))
        state.thinned_to = (0, 0)
        self._free.append(state.log)

    def _rename(self, state: LogState, name: str) -> None:
        del self._numbers[state.name]
        self._numbers[name] = state.log
        state.name = name

    # --- contents ---------------------------------------------------------------------------------------------

    def bounds(self, log: int) -> tuple[int, int]:
        """Return (first position kept, next position). Raises KeyError."""
        known = self._states.get(log) or self._entry(log)
        return known.first, known.next

    def kept_bytes(self, log: int) -> int:
        """Return the bytes of bodies in a log. Raises KeyError."""
        return (self._states.get(log) or self._entry(log)).bytes

    def move(self, state: LogState, *, first: int | None = None, end: int | None = None, size: int = 0) -> None:
        """Change the start or the end of a log, and add `size` (possibly negative) to its bytes."""
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
        """Count the bytes of a log in this meter only. Return False when it is so already. Raises KeyError."""
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
        """Iterate over the logs with this meter. Checks every log."""
        return (log for log, its in enumerate(self._meters) if its is meter)

    def largest(self, meter: ByteMeter, count: int) -> list[int]:
        """Return the logs with this meter that have the most bytes. Checks every log."""
        sizes = ((row.bytes, row.log) for row in self._holding() if self.meter_of(row.log) is meter)
        return [log for _, log in heapq.nlargest(count, sizes)]

    def holding(self) -> Iterator[tuple[int, str]]:
        """Iterate over logs with messages, and their names. A log loaded during the iteration may come twice."""
        return ((row.log, row.name) for row in self._holding())

    def _holding(self) -> Iterator[LogRow]:
        for row in self._pages(holding=True):
            if row.log not in self._states:
                yield row
        for state in list(self._states.values()):
            if state.bytes:
                yield _row(state)

    # --- objects ----------------------------------------------------------------------------------------------

    @property
    def in_use(self) -> dict[int, LogState]:
        """Logs that are objects, in the order in which they came into use."""
        return self._states

    def drop_object(self, state: LogState) -> None:
        """Drop an unused object if its row is up to date. Do not call it while a commit may change the row."""
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
        """Load a log from its row."""
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
    """Check that `text` has at most 65 535 bytes of UTF-8. Raises StoreError."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise StoreError(f"{what} {text!r} is not valid Unicode") from error
    if size > TEXT_BYTES_MAX:
        raise StoreError(f"{what} has {size} bytes, {TEXT_BYTES_MAX} are allowed")
