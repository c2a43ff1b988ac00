"""Names by number, and their numbers by name.

There may be a hundred thousand, so names are text behind text, and the index is a table of numbers (open addressing,
linear probing): some 18 bytes a name beside its own, where a string, an entry of a dict and its number take 150.
"""

from __future__ import annotations

from array import array
from typing import Final

_EMPTY: Final = 0
_LEFT: Final = -1
"""Something was here: looking goes on behind it."""
_SLOTS_MIN: Final = 64
_NOWHERE: Final = 0
_LENGTH_BYTES: Final = 4
"""Before each name, which nobody has checked when it is looked for."""
_GONE_BYTES_MIN: Final = 4096
"""With more bytes than this of names that are gone, and no more of others, the text is made anew."""


class NumberedNames:
    """Numbers are from 1 on; each has a name, and no two have the same."""

    __slots__ = ("_gone_bytes", "_places", "_slots", "_taken", "_text", "_there")

    def __init__(self) -> None:
        self._text = bytearray(1)
        """Names, each behind its length. Those that are gone are in it too; the first byte is none's."""
        self._gone_bytes = 0
        self._places = array("I", [_NOWHERE])
        """Where in the text the name of each number is."""
        self._slots = array("i", [_EMPTY]) * _SLOTS_MIN
        """Numbers, at or behind the place their names hash to; a power of two of them."""
        self._taken = 0
        """Slots that are not empty."""
        self._there = 0
        """Numbers that have a name."""

    def __len__(self) -> int:
        """The highest number there was."""
        return len(self._places) - 1

    def __getitem__(self, number: int) -> str:
        """Empty where it has none. Raises IndexError."""
        return self._packed(self._places[number])[_LENGTH_BYTES:].decode(errors="surrogatepass")

    def number(self, name: str) -> int | None:
        """None when nothing has this name."""
        slot = self._slot(_pack(name))
        return None if slot is None else self._slots[slot]

    def add(self, number: int, name: str) -> None:
        """Give a number its first name, or one after `remove`."""
        missing, packed = number + 1 - len(self._places), _pack(name)
        if missing > 0:
            self._places.extend([_NOWHERE] * missing)
        self._places[number] = len(self._text)
        self._text += packed
        self._taken += 1
        self._there += 1
        if 3 * self._taken > 2 * len(self._slots):
            self._enter_all(0)
        else:
            self._enter(number, packed)

    def remove(self, number: int) -> None:
        """Take its name from a number."""
        packed = self._packed(self._places[number])
        slot = self._slot(packed)
        if slot is not None:
            self._slots[slot] = _LEFT
            self._there -= 1
        self._places[number] = _NOWHERE
        self._gone_bytes += len(packed)
        if self._gone_bytes > max(_GONE_BYTES_MIN, len(self._text) // 2):
            self._move_together()
        if len(self._slots) > _SLOTS_MIN and 16 * self._there < len(self._slots):
            self._enter_all(0)

    def expect(self, names: int) -> None:
        """So many will be added."""
        self._enter_all(names)

    # --- inside -----------------------------------------------------------------------------------------------

    def _packed(self, place: int) -> bytes:
        """The name at a place of the text, with its length."""
        if place == _NOWHERE:
            return bytes(_LENGTH_BYTES)
        length = int.from_bytes(self._text[place : place + _LENGTH_BYTES])
        return bytes(self._text[place : place + _LENGTH_BYTES + length])

    def _slot(self, packed: bytes) -> int | None:
        slots, places, text = self._slots, self._places, self._text
        mask = len(slots) - 1
        slot = hash(packed) & mask
        while (number := slots[slot]) != _EMPTY:
            if number != _LEFT and text.startswith(packed, places[number]):
                return slot
            slot = (slot + 1) & mask
        return None

    def _enter(self, number: int, packed: bytes) -> None:
        slots = self._slots
        mask = len(slots) - 1
        slot = hash(packed) & mask
        while slots[slot] != _EMPTY:
            slot = (slot + 1) & mask
        slots[slot] = number

    def _enter_all(self, more: int) -> None:
        """Begin the index anew, with room for `more` names, and as many as there are."""
        size = _SLOTS_MIN
        while size < 2 * max(more, self._there):
            size *= 2
        self._slots = array("i", [_EMPTY]) * size
        self._taken = self._there
        for number, place in enumerate(self._places):
            if place != _NOWHERE:
                self._enter(number, self._packed(place))

    def _move_together(self) -> None:
        """Begin the text anew, with the names there are."""
        text = bytearray(1)
        for number, place in enumerate(self._places):
            if place != _NOWHERE:
                self._places[number] = len(text)
                text += self._packed(place)
        self._text, self._gone_bytes = text, 0


def _pack(name: str) -> bytes:
    text = name.encode(errors="surrogatepass")  # who writes names makes sure that they are Unicode
    return len(text).to_bytes(_LENGTH_BYTES) + text
