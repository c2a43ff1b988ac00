"""Names by number, and their numbers by name.

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


class NumberedNames:
    """Numbers are from 1 on; each has a name, and no two have the same."""

    __slots__ = ("_names", "_slots", "_taken", "_there")

    def __init__(self) -> None:
        self._names = [""]
        self._slots = array("i", [_EMPTY]) * _SLOTS_MIN
        """Numbers, at or behind the place their names hash to; a power of two of them."""
        self._taken = 0
        """Slots that are not empty."""
        self._there = 0
        """Numbers that have a name."""

    def __len__(self) -> int:
        """The highest number there was."""
        return len(self._names) - 1

    def __getitem__(self, number: int) -> str:
        return self._names[number]

    def number(self, name: str) -> int | None:
        """None when nothing has this name."""
        slot = self._slot(name)
        return None if slot is None else self._slots[slot]

    def add(self, number: int, name: str) -> None:
        """Give a number its first name, or one after `remove`."""
        names = self._names
        if number >= len(names):
            names.extend([""] * (number + 1 - len(names)))
        names[number] = name
        self._taken += 1
        self._there += 1
        if 3 * self._taken > 2 * len(self._slots):
            self._enter_all(0)
        else:
            self._enter(number)

    def remove(self, number: int) -> None:
        """Take its name from a number."""
        slot = self._slot(self._names[number])
        if slot is not None:
            self._slots[slot] = _LEFT
            self._there -= 1
        self._names[number] = ""
        if len(self._slots) > _SLOTS_MIN and 16 * self._there < len(self._slots):
            self._enter_all(0)

    def expect(self, names: int) -> None:
        """So many will be added."""
        self._enter_all(names)

    # --- inside -----------------------------------------------------------------------------------------------

    def _slot(self, name: str) -> int | None:
        slots, names = self._slots, self._names
        mask = len(slots) - 1
        slot = hash(name) & mask
        while (number := slots[slot]) != _EMPTY:
            if number != _LEFT and names[number] == name:
                return slot
            slot = (slot + 1) & mask
        return None

    def _enter(self, number: int) -> None:
        slots = self._slots
        mask = len(slots) - 1
        slot = hash(self._names[number]) & mask
        while slots[slot] != _EMPTY:
            slot = (slot + 1) & mask
        slots[slot] = number

    def _enter_all(self, more: int) -> None:
        """Begin anew, with room for `more` names, and as many as there are."""
        named = [number for number, name in enumerate(self._names) if name]
        size = _SLOTS_MIN
        while size < 2 * max(more, len(named)):
            size *= 2
        self._slots = array("i", [_EMPTY]) * size
        self._taken = self._there = len(named)
        for number in named:
            self._enter(number)
