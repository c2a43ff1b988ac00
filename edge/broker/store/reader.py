"""Reading thread: a read-only connection, seeks by position, and a cache of partly read segments."""

from __future__ import annotations

import contextlib
import logging
import queue
import sqlite3
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from bridge.message import Stored
from edge.broker.store.damage import Damage, examine
from edge.broker.store.errors import StoreDamaged, StoreError
from edge.broker.store.faults import ADVICE, misplaced_row_error, store_error_of
from edge.broker.store.gaps import is_accounted_for
from edge.broker.store.limits import POSITION_BITS, POSITION_MAX, StoreLimits
from edge.broker.store.medium import FAILED, UNREAD
from edge.broker.store.problems import READING, Problems
from edge.broker.store.segment import SELECT, SegmentDamaged, SegmentRow, decode
from edge.output.logs import describe_error

logger = logging.getLogger(__name__)

_SEEK: Final = "SELECT max(key) FROM segment WHERE key >= ? AND key <= ?"
SCAN: Final = f"{SELECT} WHERE key >= ? AND key < ? ORDER BY key"
"""Rows of table ``segment`` in a range of keys."""


_SLOWEST: Final = "SELECT min(position) FROM cursor WHERE log = ? AND cursor NOT IN (SELECT value FROM json_each(?))"

FAILED_READ_KEPT_S: Final = 60.0
"""Readers retry a failed read every `StoreLimits.retry_delay_s`. After this time without a retry it is forgotten."""


class ReadRequest(NamedTuple):
    """Request to read ``position <= p < end`` of a log, about `bytes_max` of bodies. `done` gets the runs."""

    log: int
    name: str
    """Name of the log."""
    position: int
    end: int
    bytes_max: int
    done: Callable[[Sequence[Stored]], None]


class SlowestCursorQuery(NamedTuple):
    """Request for the lowest position of the cursors of a log, except those in `but`; see `Medium.slowest`."""

    log: int
    but: Sequence[int]
    done: Callable[[int], None]


class _Segment(NamedTuple):
    """Decoded segment."""

    runs: list[Stored]
    end: int
    """Position after its last message."""


class StoreReader:
    """Owns the reading connection and its thread.

    Unexpected data (a gap, segments out of order or overlapping, missing segments, an error of SQLite) stops the log:
    nothing beyond it is delivered, and it is one of the store's problems until it can be read. A damaged segment is
    skipped only if its neighbours confirm its bounds, because then the losses are known exactly.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        post: Callable[[Callable[[], None]], object],
        damaged: Callable[[Damage], None],
        problems: Problems,
        limits: StoreLimits,
    ) -> None:
        """`damaged` is posted for each skipped segment."""
        self._connection = connection
        self._post = post
        self._damaged = damaged
        self._problems = problems
        self._limits = limits
        self._outdated = False
        self._unread: dict[str, tuple[int, float]] = {}
        """Position and time (monotonic seconds) of the last failed read, by log."""
        self._found: list[Damage] = []
        self._partly_read: OrderedDict[int, _Segment] = OrderedDict()
        self._requests: queue.SimpleQueue[ReadRequest | SlowestCursorQuery | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-reader", daemon=True)
        self._thread.start()

    def submit(self, request: ReadRequest | SlowestCursorQuery) -> None:
        """Queue a request."""
        self._requests.put(request)

    def forget(self) -> None:
        """Drop cached segments, because segments were rewritten."""
        self._outdated = True

    @property
    def alive(self) -> bool:
        """False when the thread has ended and reads nothing."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the thread and close the connection. Queued requests are not answered. Blocks."""
        self._requests.put(None)
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            if isinstance(request, SlowestCursorQuery):
                self._find_slowest(request)
                continue
            runs = FAILED
            try:
                runs = self._answer(request)
            except Exception as error:
                self._failed(request, error)
            else:
                self._succeeded(request, runs)
            with contextlib.suppress(RuntimeError):  # the loop is closed: the answer is not needed
                for damage in self._found:
                    self._post(partial(self._damaged, damage))
                self._post(partial(request.done, runs))

    def _find_slowest(self, request: SlowestCursorQuery) -> None:
        """Read the whole table, about 20 ms for 100 000 cursors. Nothing waits for the answer."""
        try:
            row = self._connection.execute(
                _SLOWEST, (request.log, msgspec.json.encode(request.but).decode())
            ).fetchone()
            found = POSITION_MAX if row[0] is None else int(row[0])
        except sqlite3.Error as error:
            logger.warning("%s", store_error_of(error, f"reading the cursors of log {request.log}"))
            found = UNREAD
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._post(partial(request.done, found))

    def _answer(self, request: ReadRequest) -> list[Stored]:
        """Read, and repeat the read in one transaction if it finds damage.

        Without a transaction the writer may delete or rewrite segments between two statements.
        """
        try:
            return self.read(request)
        except StoreDamaged:
            self._partly_read.clear()
            self._connection.execute("BEGIN")
            try:
                return self.read(request)
            finally:
                self._connection.execute("COMMIT")

    def _succeeded(self, request: ReadRequest, runs: Sequence[Stored]) -> None:
        """Clear the failure of a log when the failed position was read, or when no client has retried it for a while.

        A read of other positions does not clear it.
        """
        if not self._unread or request.name not in self._unread:
            return
        failed, at_s = self._unread[request.name]
        end = runs[-1].position + len(runs[-1].run) if runs else request.position + 1
        if request.position <= failed < end or time.monotonic() - at_s > FAILED_READ_KEPT_S:
            del self._unread[request.name]
            if self._problems.solved(READING + request.name):
                logger.warning("log %r can be read again", request.name)

    def _failed(self, request: ReadRequest, error: Exception) -> None:
        self._unread[request.name] = (request.position, time.monotonic())
        about = f"read of log {request.name!r} at position {request.position}"
        why = store_error_of(error, about) if isinstance(error, sqlite3.Error) else f"{about}: {_error_text(error)}"
        text = f"{why}; nothing after it is delivered until it can be read"
        if self._problems.report(READING + request.name, text):
            logger.error("%s", text)

    def read(self, request: ReadRequest) -> list[Stored]:
        """Return the runs of a request as far as they can be read. Skipped damage is in `_found`.

        Raises sqlite3.Error or StoreDamaged if an error prevents reading even the first run.
        """
        taken: list[Stored] = []
        self._found = []
        if self._outdated:
            self._outdated = False
            self._partly_read.clear()
        if request.position >= request.end:
            return taken
        try:
            self._take(request, taken)
        except (sqlite3.Error, StoreDamaged):
            if not taken:
                raise
        return taken

    def _take(self, request: ReadRequest, taken: list[Stored]) -> None:
        size = 0
        for key, read in self._segments(request):
            for index in range(_index_of(read.runs, request.position), len(read.runs)):
                stored = _trimmed(read.runs[index], request.position)
                if stored is None:
                    continue
                size += stored.run.size
                if taken and size > request.bytes_max:
                    self._keep(key, read)
                    return
                taken.append(stored)
            self._partly_read.pop(key, None)
            if size >= request.bytes_max:
                return

    def _segments(self, request: ReadRequest) -> Iterator[tuple[int, _Segment]]:
        """Iterate over (key, segment) from the one with the position on, and check that they are adjacent. Raises
        sqlite3.Error, StoreDamaged."""
        base = request.log << POSITION_BITS
        end = base | request.end
        wanted = base | request.position
        key = self._connection.execute(_SEEK, (base, wanted)).fetchone()[0]
        start = wanted if key is None else key
        expected = start & POSITION_MAX
        kept = self._partly_read.get(start)
        if kept is not None:
            yield start, kept
            start, expected = start + 1, kept.end
        rows = self._connection.execute(SCAN, (start, end))
        try:
            for row in map(SegmentRow._make, rows):
                if not start <= row.key < end:
                    raise misplaced_row_error(row.key)
                start = row.key + 1
                self._check_adjacent(request, expected, row.key & POSITION_MAX)
                try:
                    runs = decode(row, row.key & POSITION_MAX)
                except SegmentDamaged:
                    damage = examine(self._connection, row, request.end)
                    self._found.append(damage)
                    expected = damage.last + 1
                else:
                    expected = (row.key & POSITION_MAX) + row.messages
                    yield row.key, _Segment(runs, expected)
            self._check_adjacent(request, expected, request.end)
        finally:
            rows.close()  # an open statement would hold back the checkpoint

    def _check_adjacent(self, request: ReadRequest, expected: int, position: int) -> None:
        """Check that the next segment, or the end, is where the previous segment ended. Raises StoreDamaged."""
        if expected == position or (expected > position == request.end):
            return  # a segment committed in the meantime may extend beyond the request
        if expected > position:
            raise StoreDamaged(f"segments overlap at position {position}: {ADVICE}")
        if not is_accounted_for(self._connection, request.log, expected, position - 1):
            raise StoreDamaged(f"positions {expected} to {position - 1} are missing: {ADVICE}")

    def _keep(self, key: int, read: _Segment) -> None:
        self._partly_read[key] = read
        self._partly_read.move_to_end(key)
        if len(self._partly_read) > self._limits.segments_cached_max:
            self._partly_read.popitem(last=False)


def _error_text(error: Exception) -> str:
    return str(error) if isinstance(error, StoreError) else describe_error(error)


def _index_of(segment: list[Stored], position: int) -> int:
    """Return the index of the run with `position`; 0 when all are later."""
    return max(0, bisect_right(segment, position, key=lambda stored: stored.position) - 1)


def _trimmed(stored: Stored, position: int) -> Stored | None:
    """Return the run from `position` on; None when it ends before."""
    skipped = position - stored.position
    if skipped <= 0:
        return stored
    count = len(stored.run.bodies)
    if skipped >= count:
        return None
    return Stored(position, stored.sequence + skipped, stored.run.part(skipped, count))
