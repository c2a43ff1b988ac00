"""The names of a space's queues, as columns by the numbers of their logs: 6 bytes a queue, as the store keeps the name
of its log anyway."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Final

from edge.broker.model.lowest_numbers import LowestNumbers
from edge.broker.model.repeated_values import RepeatedValues
from edge.broker.router.logs import Logs

_NONE: Final = 0
_CONFIGURED: Final = 1
_CLIENTS: Final = 2
_USED: Final = (1 << 32) - 1
"""Seconds of 136 years."""


class QueueNames:
    """By number of the log."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._kinds = bytearray()
        """`_NONE`: the log is no queue's."""
        self._users = RepeatedValues("")
        """Who made each; empty: nobody is known."""
        self._unused = LowestNumbers[int]("I")
        """Since when each is empty and nobody uses it (monotonic seconds, rounded up); `_USED`: that is not so."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, log: int) -> bool:
        return log < len(self._kinds) and self._kinds[log] != _NONE

    def __iter__(self) -> Iterator[int]:
        """What comes or goes meanwhile may be among them."""
        return (log for log, kind in enumerate(self._kinds) if kind != _NONE)

    def address(self, log: int) -> str:
        """Of a queue that is here."""
        return self._logs.address(log)

    def log(self, address: str) -> int | None:
        """None when there is no queue of this address."""
        log = self._logs.find_queue(address)
        return log if log is not None and log in self else None

    def all(self) -> array[int]:
        """The numbers of now."""
        return array("i", self)

    def add(self, log: int, user: str, *, configured: bool) -> None:
        """It is there from now on. `configured`: its name is the configuration's, not the user's."""
        missing = log + 1 - len(self._kinds)
        if missing > 0:
            self._kinds.extend(bytes(missing))
            self._users.extend(missing)
        for _ in range(missing):
            self._unused.append(_USED)
        self._kinds[log] = _CONFIGURED if configured else _CLIENTS
        self._users[log] = user
        self._count += 1

    def remove(self, log: int) -> None:
        """It is there no longer."""
        self._kinds[log], self._users[log] = _NONE, ""
        self._unused[log] = _USED
        self._count -= 1

    def user(self, log: int) -> str | None:
        """Who made it, when the name counts as a client's; None when it was the configuration's."""
        return self._users[log] if self._kinds[log] == _CLIENTS else None

    # --- unused -----------------------------------------------------------------------------------------------

    def is_unused(self, log: int) -> bool:
        """It is known since when nobody uses it."""
        return self._unused[log] != _USED

    def unused_since(self, log: int, now_s: float) -> None:
        """It is empty, and nobody uses it from now on."""
        self._unused[log] = math.ceil(now_s)

    def used(self, log: int) -> None:
        """Somebody uses it, or something is in it."""
        if self._unused[log] != _USED:
            self._unused[log] = _USED

    def unused_until(self, since_s: float, count: int) -> list[int]:
        """Some of those that have been unused since then or longer."""
        return list(islice(self._unused.up_to(math.floor(since_s)), count))
