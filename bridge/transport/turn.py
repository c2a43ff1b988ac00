"""The end of a turn of the event loop: whoever has something to write writes it there, all in one callback.

A handle of the loop for every connection and turn would cost more than most of what is written. Nothing here knows what
is written.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Sequence
from typing import Final, Protocol
from weakref import WeakKeyDictionary

log = logging.getLogger(__name__)


WRITE_S: Final = 0.001
"""How long may be written at the end of one turn, in which nobody is read, however long each takes."""

WRITE_EACH_S: Final = 0.00002
"""So much longer for each that has written: a short answer takes 5 us. Large messages have their turns shorter."""

WRITE_S_MAX: Final = 0.005
"""The longest end of a turn: the answers of 1 000 connections."""

WRITERS_AT_ONCE: Final = 4
"""Between two looks at the clock."""


class TurnWriter(Protocol):
    """Somebody with something to write."""

    def write(self) -> None:
        """The turn ends. What fails there ends its own connection, and is not raised."""
        ...


class LoopTurn:
    """What waits for the end of a turn of one loop; used inside the loop only."""

    __slots__ = ("_late", "_scheduled", "_writers", "loop", "unhurried")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: Final = loop
        self._scheduled = False
        self._writers: list[TurnWriter] = []
        self._late: list[TurnWriter] = []
        """Those there was no time for in the turns before, and the unhurried."""
        self.unhurried = False
        """Who is added now writes after the others of this turn: what it has to write comes of reads that had a slice
        of the turn (`bridge.transport.slow_lane`), such as a large retained message for thousands at once."""

    def add(self, writer: TurnWriter) -> None:
        """Have it write at the end of this turn. Who is added twice is called twice."""
        (self._late if self.unhurried else self._writers).append(writer)
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._end)

    def write(self) -> None:
        """Write now, ahead of the end of the turn, as much as there is time for."""
        writers, self._writers = self._writers, []
        late, self._late = self._late, []
        begun = self.loop.time()
        beyond = self._write_some(writers, begun)
        self._late = self._write_some(late, begun) + beyond + self._late

    def _write_some(self, writers: list[TurnWriter], begun: float) -> list[TurnWriter]:
        """Have these write while there is time, some of them in any case; returns those there is none for."""
        if len(writers) <= WRITERS_AT_ONCE:
            _write_all(writers)
            return []
        for start in range(0, len(writers), WRITERS_AT_ONCE):
            if start and self.loop.time() - begun > min(WRITE_S + start * WRITE_EACH_S, WRITE_S_MAX):
                return writers[start:]
            _write_all(writers[start : start + WRITERS_AT_ONCE])
        return []

    def _end(self) -> None:
        """What takes too long for one turn, as a large message to thousands, goes on in the next."""
        self._scheduled = False
        self.write()
        if self._late and not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._end)


def _write_all(writers: Sequence[TurnWriter]) -> None:
    for writer in writers:
        try:
            writer.write()
        except Exception as error:  # the others write all the same
            _report(error)


def _report(error: Exception) -> None:
    """Type and place alone: what an exception says may quote a message."""
    log.error("a write raised %s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopTurn] = WeakKeyDictionary()


def turn_of(loop: asyncio.AbstractEventLoop) -> LoopTurn:
    """The turn of a loop, the same for all who ask."""
    found = _of_loop.get(loop)
    if found is None:
        found = _of_loop[loop] = LoopTurn(loop)
    return found
