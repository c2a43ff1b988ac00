"""The one thread that reads: a read-only connection, seeks by position, and the last segments read in part."""

from __future__ import annotations

import contextlib
import logging
import queue
import sqlite3
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from bridge.message import Stored
from edge.broker.store.damage import Damage, examine
from edge.broker.store.faults import meaning, misplaced
from edge.broker.store.limits import POSITION_BITS, POSITION_MAX, Limits
from edge.broker.store.segment import SELECT, Row, SegmentDamaged, decode

logger = logging.getLogger(__name__)

_SEEK: Final = "SELECT max(key) FROM segment WHERE key >= ? AND key <= ?"
SCAN: Final = f"{SELECT} WHERE key >= ? AND key < ? ORDER BY key"
"""Rows of table ``segment`` in a range of keys."""


FAILED: Final[list[Stored]] = []
"""The answer when the medium could not be read, by identity; empty for ever."""


class Request(NamedTuple):
    """Read ``position <= p < end`` of a log, about `bytes_max` of bodies; `done` gets the runs."""

    log: int
    position: int
    end: int
    bytes_max: int
    done: Callable[[Sequence[Stored]], None]


class Reader:
    """Owns the reading connection and its thread."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        post: Callable[[Callable[[], None]], object],
        damaged: Callable[[Damage], None],
        limits: Limits,
    ) -> None:
        """`damaged` is posted for each segment that fails its checksum."""
        self._connection = connection
        self._post = post
        self._damaged = damaged
        self._limits = limits
        self._outdated = False
        self._partly_read: OrderedDict[int, list[Stored]] = OrderedDict()
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-reader", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        self._requests.put(request)

    def forget(self) -> None:
        """Segments were rewritten: what was kept of them is not what they are any more."""
        self._outdated = True

    def stop(self) -> None:
        """End the thread and close the connection; requests under way are not answered. Blocks."""
        self._requests.put(None)
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            runs = FAILED
            try:
                runs = self.read(request)
            except sqlite3.Error as error:
                logger.error("%s", meaning(error, f"read of log {request.log} at {request.position}"))  # noqa: TRY400
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants the answer any more
                self._post(partial(request.done, runs))

    def read(self, request: Request) -> list[Stored]:
        """What `request` asks for. Raises sqlite3.Error."""
        taken: list[Stored] = []
        if self._outdated:
            self._outdated = False
            self._partly_read.clear()
        if request.position >= request.end:
            return taken
        size = 0
        for key, segment in self._segments(request):
            for index in range(_containing(segment, request.position), len(segment)):
                stored = _from(segment[index], request.position)
                if stored is None:
                    continue
                size += stored.run.size
                if taken and size > request.bytes_max:
                    self._keep(key, segment)
                    return taken
                taken.append(stored)
            self._partly_read.pop(key, None)
            if size >= request.bytes_max:
                break
        return taken

    def _segments(self, request: Request) -> Iterator[tuple[int, list[Stored]]]:
        """(key, decoded runs) of the segment that holds the position and of those after it."""
        base = request.log << POSITION_BITS
        end = base | request.end
        wanted = base | request.position
        key = self._connection.execute(_SEEK, (base, wanted)).fetchone()[0]
        start = wanted if key is None else key
        kept = self._partly_read.get(start)
        if kept is not None:
            yield start, kept
            start += 1
        rows = self._connection.execute(SCAN, (start, end))
        try:
            for row in map(Row._make, rows):
                if not start <= row.key < end:
                    raise misplaced(row.key)
                start = row.key + 1
                try:
                    segment = decode(row, row.key & POSITION_MAX)
                except SegmentDamaged:
                    self._report(request, row)
                else:
                    yield row.key, segment
        finally:
            rows.close()  # an open statement would hold back the checkpoint

    def _keep(self, key: int, segment: list[Stored]) -> None:
        self._partly_read[key] = segment
        self._partly_read.move_to_end(key)
        if len(self._partly_read) > self._limits.segments_cached_max:
            self._partly_read.popitem(last=False)

    def _report(self, request: Request, row: Row) -> None:
        with contextlib.suppress(RuntimeError):
            self._post(partial(self._damaged, examine(self._connection, row, request.end)))


def _containing(segment: list[Stored], position: int) -> int:
    """Index of the run that holds `position`, 0 when all are later."""
    return max(0, bisect_right(segment, position, key=lambda stored: stored.position) - 1)


def _from(stored: Stored, position: int) -> Stored | None:
    """The run from `position` on; None when it ends before."""
    skipped = position - stored.position
    if skipped <= 0:
        return stored
    count = len(stored.run.bodies)
    if skipped >= count:
        return None
    return Stored(position, stored.sequence + skipped, stored.run.part(skipped, count))
