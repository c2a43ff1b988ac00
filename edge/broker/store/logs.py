"""The logs of a store, as it keeps them in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from edge.broker.store.buffered_log import BufferedLog
from edge.broker.store.errors import StoreError
from edge.broker.store.limits import LOGS_MAX, TEXT_BYTES_MAX


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
    cursors: dict[int, None] | tuple[int, ...] = ()
    """Of most logs one: a tuple of it takes 48 bytes, a dict 184."""
    thinned_to: tuple[int, int] = (0, 0)
    """Pass and position at which thinning goes on; forgotten at the end, as finding it again is cheap."""
    buffer: BufferedLog | None = None
    """The end of it that is in memory only; None: every message goes by the medium."""

    def add_cursor(self, cursor: int, position: int) -> None:
        if isinstance(self.cursors, dict):
            self.cursors[cursor] = None
        elif not self.cursors:
            self.cursors = (cursor,)
        else:
            self.cursors = {**dict.fromkeys(self.cursors), cursor: None}
        self.lowest = None if self.lowest is None else min(self.lowest, position)

    def remove_cursor(self, cursor: int, position: int) -> None:
        if isinstance(self.cursors, dict):
            self.cursors.pop(cursor, None)
        elif cursor in self.cursors:
            self.cursors = ()
        if position == self.lowest:
            self.lowest = None

    @property
    def is_free(self) -> bool:
        """It is nobody's."""
        return self.name == free_name(self.log)

    @property
    def medium_end(self) -> int:
        """Where what is on the medium ends."""
        return self.next if self.buffer is None else self.buffer.written


class LogTable:
    """By number and by name."""

    def __init__(self) -> None:
        self._states: dict[int, LogState] = {}
        self._numbers: dict[str, int] = {}
        self._free: deque[LogState] = deque()
        self.to_reclaim: dict[int, None] = {}
        """Logs that may hold what no cursor wants any more, in the order of their turns."""

    def __getitem__(self, log: int) -> LogState:
        return self._states[log]

    def __contains__(self, log: int) -> bool:
        return log in self._states

    def __len__(self) -> int:
        """They are numbered from 1 on."""
        return len(self._states)

    def __iter__(self) -> Iterator[LogState]:
        return iter(self._states.values())

    def get(self, log: int) -> LogState | None:
        return self._states.get(log)

    def number(self, name: str) -> int | None:
        """None when there is no such log."""
        return self._numbers.get(name)

    def make(self, name: str) -> LogState:
        """A log that has nothing. Raises StoreError when there are too many, or the name cannot be written."""
        check_text("log", name)
        if self._free and self._free[0].first == self._free[0].next:
            state = self._free.popleft()
            del self._numbers[state.name]
            state.name = name
            self._numbers[name] = state.log
            return state
        number = len(self._states) + 1
        if number > LOGS_MAX:
            raise StoreError(f"the store has {LOGS_MAX} logs already: no room for {name!r}")
        state = LogState(number, name)
        self.add(state)
        return state

    def add(self, state: LogState) -> None:
        self._states[state.log] = state
        self._numbers[state.name] = state.log
        if state.is_free:
            self._free.append(state)

    def free(self, state: LogState) -> None:
        """Nobody needs it, or will use its number before `make` gives it away again."""
        del self._numbers[state.name]
        state.name = free_name(state.log)
        state.thinned_to = (0, 0)
        self.add(state)


def check_text(what: str, text: str) -> None:
    """Raises StoreError when `text` cannot be written as at most 65 535 bytes of UTF-8."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise StoreError(f"{what} {text!r} is not valid Unicode") from error
    if size > TEXT_BYTES_MAX:
        raise StoreError(f"{what} has {size} bytes, {TEXT_BYTES_MAX} are allowed")
