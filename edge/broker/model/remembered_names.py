"""Cache of values by name that does not store names used only once.

A client may send a hundred thousand names, each once. So when the cache has more than a few entries, a name is stored
at its second lookup. One bit, addressed by the hash of the name, records the first one. If two names share a bit, the
second of them is stored early.
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
"""At most one bit of eight is set, so one new name of eight is stored at its first lookup."""


class RememberedNames(dict[str, V]):
    """Cached values by name. The caller computes a missing value and passes it to `note`."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = bytearray()
        """One bit for each name that was looked up, by its hash; empty while all names are stored."""
        self._noted = 0

    def note(self, name: str, value: V) -> None:
        """Store a value. When there are too many, all other entries are dropped."""
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
