"""Output at the end of a turn of the event loop, for all connections in one callback.

A handle of the loop for every connection and turn would cost more than most writes.
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
"""Seconds for writing at the end of one turn, during which nothing is read."""

WRITE_EACH_S: Final = 0.00002
"""Seconds added for each connection that has written: a short answer takes 5 us."""

WRITE_S_MAX: Final = 0.005
"""Longest time for writing in one turn: the answers of 1 000 connections."""

WRITERS_AT_ONCE: Final = 4
"""Connections written between two checks of the clock."""


class TurnWriter(Protocol):
    """Connection with output."""

    def write(self) -> None:
        """Write the output of this turn. An error ends the connection and is not raised."""
        ...


class LoopTurn:
    """Connections that write at the end of a turn of one loop; for use inside the loop only."""

    __slots__ = ("_late", "_scheduled", "_writers", "loop", "unhurried")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: Final = loop
        self._scheduled = False
        self._writers: list[TurnWriter] = []
        self._late: list[TurnWriter] = []
        """Writers that did not fit into earlier turns, and the unhurried ones."""
        self.unhurried = False
        """While true, added writers write after all others of this turn: their output results from the slow lane
        (`bridge.transport.slow_lane`), such as a large retained message for thousands of clients at once."""

    def add(self, writer: TurnWriter) -> None:
        """Call `writer.write` at the end of this turn. A writer that is added twice is called twice."""
        (self._late if self.unhurried else self._writers).append(writer)
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._end)

    def write(self) -> None:
        """Write now, before the end of the turn, as much as there is time for."""
        writers, self._writers = self._writers, []
        late, self._late = self._late, []
        begun = self.loop.time()
        beyond = self._write_some(writers, begun)
        self._late = self._write_some(late, begun) + beyond + self._late

    def _write_some(self, writers: list[TurnWriter], begun: float) -> list[TurnWriter]:
        """Call these writers while there is time, at least `WRITERS_AT_ONCE`; return the others."""
        if len(writers) <= WRITERS_AT_ONCE:
            _write_all(writers)
            return []
        for start in range(0, len(writers), WRITERS_AT_ONCE):
            if start and self.loop.time() - begun > min(WRITE_S + start * WRITE_EACH_S, WRITE_S_MAX):
                return writers[start:]
            _write_all(writers[start : start + WRITERS_AT_ONCE])
        return []

    def _end(self) -> None:
        """Write; output that takes too long for one turn, as a large message to thousands, continues in the next."""
        self._scheduled = False
        self.write()
        if self._late and not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._end)


def _write_all(writers: Sequence[TurnWriter]) -> None:
    for writer in writers:
        try:
            writer.write()
        except Exception as error:  # must not stop the other writers
            _report(error)


def _report(error: Exception) -> None:
    """Log type and frames only: the text of an exception may quote a message."""
    log.error("a write raised %s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopTurn] = WeakKeyDictionary()


def turn_of(loop: asyncio.AbstractEventLoop) -> LoopTurn:
    """Return the turn of a loop. Every call returns the same object."""
    found = _of_loop.get(loop)
    if found is None:
        found = _of_loop[loop] = LoopTurn(loop)
    return found
