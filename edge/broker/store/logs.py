"""The logs of a store, as it keeps them in memory: objects of those in use, numbers of the others."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Final, NamedTuple

from edge.broker.model.numbered_names import NumberedNames
from edge.broker.store.errors import StoreError
from edge.broker.store.limits import LOGS_MAX, POSITION_MAX, TEXT_BYTES_MAX
from edge.broker.store.logs_at_rest import LogsAtRest, RestingLog
from edge.broker.store.meter import Meter
from edge.broker.store.ring import Ring


class LogRow(NamedTuple):
    """A row of table ``log``."""

    log: int
    name: str
    first: int
    next: int
    bytes: int


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
    ring: Ring | None = None
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
    """Asked for a log that is not here, it takes it out of those at rest."""

    def __init__(self, wake: Callable[[int], LogState]) -> None:
        super().__init__()
        self._wake = wake

    def __missing__(self, log: int) -> LogState:
        return self._wake(log)


class LogTable:
    """By number and by name. Of a log *at rest* only numbers are kept; who asks for its state has it made anew, and
    what was got so is to be used in the same turn only."""

    def __init__(self) -> None:
        self._states = _InUse(self._wake)
        self._rest = LogsAtRest()
        self._names = NumberedNames()
        self._free: deque[int] = deque()
        self._meters: list[Meter | None] = []
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
        """Logs that came into use, or were counted, since somebody looked which of them may rest (`Resting`)."""
        self._woken: Callable[[LogState, RestingLog], None] = lambda _state, _row: None

    def call_when_woken(self, call: Callable[[LogState, RestingLog], None]) -> None:
        """Have `call` restore the cursor of a log that was idle."""
        self._woken = call

    def __getitem__(self, log: int) -> LogState:
        return self._states[log]

    def __contains__(self, log: int) -> bool:
        return 0 < log <= len(self._names)

    def __len__(self) -> int:
        """They are numbered from 1 on."""
        return len(self._names)

    def get(self, log: int) -> LogState | None:
        return self._states[log] if log in self else None

    def number(self, name: str) -> int | None:
        """None when there is no such log."""
        return self._names.number(name)

    def name(self, log: int) -> str:
        """Raises IndexError."""
        return self._names[log]

    def rows(self) -> Iterator[LogRow]:
        """Every log, and none of them made an object for it."""
        for log in range(1, len(self) + 1):
            first, end = self.bounds(log)
            yield LogRow(log, self._names[log], first, end, self.kept_bytes(log))

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
        number = len(self) + 1
        if number > LOGS_MAX:
            raise StoreError(f"the store has {LOGS_MAX} logs already: no room for {name!r}")
        state = LogState(number, name)
        self.add(state)
        return state

    def add(self, state: LogState) -> None:
        """As the medium has it."""
        self._states[state.log] = state
        self.came += 1
        self._enter(state.log, state.name, state.next - state.first, state.bytes)

    def expect(self, logs: int) -> None:
        """So many will be added."""
        self._names.expect(logs)

    def add_at_rest(self, log: int, name: str, row: RestingLog) -> None:
        """As `add`; it has no cursor yet (`set_resting_cursor`)."""
        self._rest.put(log, row)
        self._enter(log, name, row.next - row.first, row.bytes)

    def _enter(self, log: int, name: str, messages: int, size: int) -> None:
        self._names.add(log, name)
        self.messages += messages
        self.bytes += size
        if name == free_name(log):
            self._free.append(log)

    def free(self, state: LogState) -> None:
        """Nobody needs it, or will use its number before `make` gives it away again."""
        self._rename(state, free_name(state.log))
        state.thinned_to = (0, 0)
        self._free.append(state.log)

    def _rename(self, state: LogState, name: str) -> None:
        self._names.remove(state.log)
        self._names.add(state.log, name)
        state.name = name

    # --- what they hold ---------------------------------------------------------------------------------------

    def bounds(self, log: int) -> tuple[int, int]:
        """(first position kept, next position to be given). Raises KeyError."""
        state = self._states.get(log)
        return self._rest.bounds(log) if state is None else (state.first, state.next)

    def kept_bytes(self, log: int) -> int:
        """Bytes of bodies it keeps. Raises KeyError."""
        state = self._states.get(log)
        return self._rest.bytes(log) if state is None else state.bytes

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

    def meter_of(self, log: int) -> Meter | None:
        return self._meters[log] if log < len(self._meters) else None

    def set_meter(self, log: int, meter: Meter | None) -> bool:
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

    def metered(self, meter: Meter) -> Iterator[int]:
        """The logs that have this meter. Looks at every log."""
        return (log for log, its in enumerate(self._meters) if its is meter)

    def largest(self, meter: Meter, count: int) -> list[int]:
        """Those of them that keep the most bytes. Looks at every log."""
        return heapq.nlargest(count, self.metered(meter), key=self.kept_bytes)

    # --- at rest ----------------------------------------------------------------------------------------------

    def log_of(self, cursor: int) -> int | None:
        """The log at rest that has this cursor."""
        return self._rest.log_of(cursor)

    def resting(self, log: int) -> RestingLog | None:
        """What is kept of a log at rest; None: it is in use. Raises KeyError when there is no such log."""
        return None if log in self._states else self._rest[log]

    def set_resting_cursor(self, log: int, cursor: int, name: str, position: int) -> bool:
        """The cursor of a log that was added at rest, and has none yet; False when it is no such log, or the cursor is
        beyond its end."""
        return self._rest.set_cursor(log, cursor, name, position)

    def holding(self) -> Iterator[tuple[int, str]]:
        """Logs that keep bytes of messages, and their names; one that comes into use meanwhile may be there twice."""
        for log in self._rest.holding():
            yield log, self._names[log]
        for log, state in list(self._states.items()):
            if state.bytes:
                yield log, self._names[log]

    def unwanted(self) -> Iterator[int]:
        """Logs at rest that hold what no cursor wants."""
        return self._rest.unwanted()

    @property
    def in_use(self) -> dict[int, LogState]:
        """Those that are objects, in the order in which they came into use."""
        return self._states

    def lay_down(self, state: LogState, row: RestingLog) -> bool:
        """Keep a row of numbers in place of a state; False when there is no room for it."""
        done = self._rest.put(state.log, row)
        if done:
            del self._states[state.log]
        return done

    def _wake(self, log: int) -> LogState:
        row = self._rest.take(log)
        state = LogState(log, self._names[log], row.first, row.next, row.bytes, counted=row.next)
        self._states[log] = state
        self.came += 1
        self._woken(state, row)
        return state


def check_text(what: str, text: str) -> None:
    """Raises StoreError when `text` cannot be written as at most 65 535 bytes of UTF-8."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise StoreError(f"{what} {text!r} is not valid Unicode") from error
    if size > TEXT_BYTES_MAX:
        raise StoreError(f"{what} has {size} bytes, {TEXT_BYTES_MAX} are allowed")
