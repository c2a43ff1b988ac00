"""What was found out of names, as long as they are asked for: a name that comes once is not worth its place.

A client may say a hundred thousand names, each once. So while there are more than a few, a name gets a place when it is
asked for the second time; that it was before is remembered in one bit, by its hash. Now and then two names share one,
and the second of them gets its place early.
"""

from __future__ import annotations

from typing import Final, TypeVar

from edge.broker.limits import (
    ADDRESS_REMEMBERED_CHARACTERS_MAX,
    NAMES_NOTED_MAX,
    NAMES_REMEMBERED_AT_ONCE,
    NAMES_REMEMBERED_MAX,
)

V = TypeVar("V")
_BITS: Final = 8 * NAMES_NOTED_MAX
"""Of eight bits one is set at most: one name of eight that is new seems to have been there."""


class RememberedNames(dict[str, V]):
    """Values by name. What is not here is to be found out, and then noted."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = bytearray()
        """A bit for each name that was noted, by its hash; empty as long as all get a place."""
        self._noted = 0

    def note(self, name: str, value: V) -> None:
        """This is what was found out. Where there are too many, the others are found out anew for who asks."""
        if len(name) > ADDRESS_REMEMBERED_CHARACTERS_MAX:
            return
        if len(self) >= NAMES_REMEMBERED_AT_ONCE and not self._is_asked_again(name):
            return
        if len(self) >= NAMES_REMEMBERED_MAX:
            dict.clear(self)
        self[name] = value

    def _is_asked_again(self, name: str) -> bool:
        if not self._asked or self._noted >= NAMES_NOTED_MAX:
            self._asked, self._noted = bytearray(_BITS // 8), 0
        place, bit = divmod(hash(name) % _BITS, 8)
        asked = self._asked[place]
        if asked & 1 << bit:
            return True
        self._asked[place] = asked | 1 << bit
        self._noted += 1
        return False
