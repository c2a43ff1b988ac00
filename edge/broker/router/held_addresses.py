"""Addresses that refused a due message: each is tried again with one message, after waits that double.

All its messages would be refused, and each try is a read of the card.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from edge.broker.limits import SCHEDULED_AGAIN_S, SCHEDULED_TRIALS_MAX
from edge.broker.model.interfaces import Refusal

_FIRST_S, _LONGEST_S = SCHEDULED_AGAIN_S
_FACTOR: Final = 2


Place = tuple[str, int | None]
"""An address, and the number of a message if only that one is refused."""


class HeldAddress:
    """An address, or one message of it, that waits for its next try."""

    __slots__ = ("again_s", "numbers", "wait_s", "why")

    def __init__(self, why: Refusal, wait_s: float) -> None:
        self.why = why
        self.numbers: dict[int, None] = {}
        """Numbers of its messages, the next one to try first."""
        self.wait_s = wait_s
        """Length of the present wait, seconds."""
        self.again_s = 0.0
        """Time of the next try (monotonic seconds)."""


class HeldAddresses:
    """All of one schedule."""

    def __init__(self) -> None:
        self._all: dict[Place, HeldAddress] = {}
        self._places: dict[int, Place] = {}
        """Key in `_all`, by message."""
        self._next: list[tuple[float, int, Place]] = []
        """Heap of (time of the next try, a message of the address, key)."""

    def __contains__(self, number: int) -> bool:
        """Return True when a message is held."""
        return number in self._places

    def why(self, address: str) -> Refusal | None:
        """Return why an address is held; None if it is not."""
        found = self._all.get((address, None))
        return None if found is None else found.why

    def add(self, address: str, number: int) -> None:
        """Add a due message of a held address, which is not held itself."""
        self._all[address, None].numbers[number] = None
        self._places[number] = (address, None)

    def hold(self, address: str, number: int, why: Refusal, now_s: float, *, alone: bool) -> None:
        """Hold an address, as a message was refused; `alone`: only this message.

        The next try is with another message, as this one may be the only cause.
        """
        place = (address, number if alone else None)
        before = self._all.get(place)
        wait_s = min(before.wait_s * _FACTOR, _LONGEST_S) if before is not None else _FIRST_S
        left = self._places.get(number)
        self.remove(number)
        held = self._all.setdefault(place, HeldAddress(why, wait_s))
        held.why, held.wait_s, held.again_s = why, wait_s, now_s + wait_s
        held.numbers[number] = None
        self._places[number] = place
        heapq.heappush(self._next, (held.again_s, number, place))
        rest = self._all.get(left) if left is not None and left != place else None
        if left is not None and rest is not None:  # the try has no meaning for the others
            rest.again_s = now_s
            heapq.heappush(self._next, (now_s, next(iter(rest.numbers)), left))

    def trials(self, now_s: float) -> Sequence[int]:
        """Return the messages to try now, one of an address, at most `SCHEDULED_TRIALS_MAX`.

        The caller then holds or releases the address of each.
        """
        found: list[int] = []
        while self._next and self._next[0][0] <= now_s and len(found) < SCHEDULED_TRIALS_MAX:
            again_s, _, place = heapq.heappop(self._next)
            held = self._all.get(place)
            if held is not None and held.again_s == again_s:
                found.append(next(iter(held.numbers)))
        return found

    def release(self, address: str) -> Sequence[int]:
        """Hold an address no longer; return its messages, in order."""
        found = self._all.pop((address, None), None)
        if found is None:
            return ()
        for number in found.numbers:
            del self._places[number]
        return tuple(found.numbers)

    def release_all(self) -> None:
        """Hold nothing any longer."""
        self._all.clear()
        self._places.clear()
        self._next.clear()

    def remove(self, number: int) -> None:
        """Forget a message, if it is held."""
        place = self._places.pop(number, None)
        if place is not None:
            held = self._all[place]
            del held.numbers[number]
            if not held.numbers:
                del self._all[place]
