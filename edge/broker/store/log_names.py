"""The names of all logs by number, and their numbers by name.

There may be a hundred thousand, so the index is a table of numbers (open addressing, linear probing): some 12 bytes a
name, where an entry of a dict and its number take 90.
"""

from __future__ import annotations

from array import array
from typing import Final

_EMPTY: Final = 0
_LEFT: Final = -1
"""Something was here: looking goes on behind it."""
_SLOTS_MIN: Final = 64


class LogNames:
    """Logs are numbered from 1 on; each has a name, and no two have the same."""

    __slots__ = ("_names", "_slots", "_taken")

    def __init__(self) -> None:
        self._names = [""]
        self._slots = array("i", [_EMPTY]) * _SLOTS_MIN
        """Numbers of logs, at or behind the place their names hash to; a power of two of them."""
        self._taken = 0
        """Slots that are not empty."""

    def __len__(self) -> int:
        return len(self._names) - 1

    def __getitem__(self, log: int) -> str:
        return self._names[log]

    def number(self, name: str) -> int | None:
        """None when no log has this name."""
        slot = self._slot(name)
        return None if slot is None else self._slots[slot]

    def add(self, log: int, name: str) -> None:
        """Give a log its first name, or one after `remove`."""
        names = self._names
        if log >= len(names):
            names.extend([""] * (log + 1 - len(names)))
        names[log] = name
        self._taken += 1
        if 3 * self._taken > 2 * len(self._slots):
            self._enter_all(0)
        else:
            self._enter(log)

    def remove(self, log: int) -> None:
        """Take its name from a log."""
        slot = self._slot(self._names[log])
        if slot is not None:
            self._slots[slot] = _LEFT
        self._names[log] = ""

    def expect(self, names: int) -> None:
        """So many will be added."""
        self._enter_all(names)

    # --- inside -----------------------------------------------------------------------------------------------

    def _slot(self, name: str) -> int | None:
        slots, names = self._slots, self._names
        mask = len(slots) - 1
        slot = hash(name) & mask
        while (log := slots[slot]) != _EMPTY:
            if log != _LEFT and names[log] == name:
                return slot
            slot = (slot + 1) & mask
        return None

    def _enter(self, log: int) -> None:
        slots = self._slots
        mask = len(slots) - 1
        slot = hash(self._names[log]) & mask
        while slots[slot] != _EMPTY:
            slot = (slot + 1) & mask
        slots[slot] = log

    def _enter_all(self, more: int) -> None:
        """Begin anew, with room for `more` names, and as many as there are."""
        named = [log for log, name in enumerate(self._names) if name]
        size = _SLOTS_MIN
        while size < 2 * max(more, len(named)):
            size *= 2
        self._slots = array("i", [_EMPTY]) * size
        self._taken = len(named)
        for log in named:
            self._enter(log)
