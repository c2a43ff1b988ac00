"""Logs of a store: the interface for publishers and readers."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.message import Run, Stored
from edge.broker.store.cursors import CursorTable
from edge.broker.store.errors import StoreError
from edge.broker.store.gatherer import Gatherer
from edge.broker.store.limits import TEXT_BYTES_MAX
from edge.broker.store.log_reads import LogReads
from edge.broker.store.logs import LogTable, check_text
from edge.broker.store.medium import ReadDone
from edge.broker.store.rings import MemoryRings
from edge.broker.store.ticket import Ticket


class StoreLogs:
    """Implements `contract.MessageLogs`."""

    def __init__(
        self, gatherer: Gatherer, logs: LogTable, cursors: CursorTable, rings: MemoryRings, reads: LogReads
    ) -> None:
        self._gatherer = gatherer
        self._logs = logs
        self._cursors = cursors
        self._memory = rings
        self._rings = rings.rings
        self._reads = reads
        self._closed = False

    # --- logs -------------------------------------------------------------------------------------------------

    def open(self, name: str) -> int:
        state = self._logs.find(name)
        if state is None:
            state = self._logs.make(name)
            self._gatherer.open.new_logs.append(state.log)
            self._gatherer.open.urgent = True
        return state.log

    def find(self, name: str) -> int | None:
        return self._logs.number(name)

    def name(self, log: int) -> str:
        return self._logs.name(log)

    def free(self, log: int) -> bool:
        state, gatherer = self._logs[log], self._gatherer
        cursors = self._cursors.of(state)
        empty = all(cursor.progress.position >= state.next for cursor in cursors)
        if not empty or state.ring is not None or gatherer.is_writing(log):
            return False
        for cursor in cursors:
            self._cursors.drop(cursor.cursor)
        self._logs.free(state)
        gatherer.delay(log, 0)
        gatherer.open.freed.add(log)
        gatherer.open.urgent = True
        return True

    # --- durability -------------------------------------------------------------------------------------------

    def delay(self, log: int, delay_s: float) -> None:
        self._gatherer.delay(log, delay_s)

    def keep_in_memory(self, log: int, *, keep: bool) -> None:
        if keep:
            self._memory.enter(self._logs[log])
        elif log in self._rings:
            self._memory.leave(self._rings[log])

    def in_memory(self, log: int) -> bool:
        ring = self._rings.get(log)
        return ring is not None and not ring.leaving

    # --- messages ---------------------------------------------------------------------------------------------

    def bounds(self, log: int) -> tuple[int, int]:
        return self._logs.bounds(log)

    def append(self, log: int, run: Run) -> Ticket | Stored:
        if self._closed:
            raise StoreError("the store is closed")
        if not (run.address.isascii() and run.device.isascii() and len(run.address) + len(run.device) < TEXT_BYTES_MAX):
            check_text("address", run.address)
            check_text("device", run.device)
        size = sum(map(len, run.bodies))
        if self._rings and (ring := self._rings.get(log)) is not None and not ring.leaving:
            if self._gatherer.together:
                raise StoreError("a log in memory is in no commit")
            return self._memory.append(ring, run, size)
        return self._gatherer.append(log, run, size)

    def append_all(self, log: int, runs: Sequence[Run], size: int) -> Ticket:
        if self._closed:
            raise StoreError("the store is closed")
        for run in runs:
            if (
                not (run.address.isascii() and run.device.isascii())
                or len(run.address) + len(run.device) >= TEXT_BYTES_MAX
            ):
                check_text("address", run.address)
                check_text("device", run.device)
        if self._gatherer.together and self.in_memory(log):
            raise StoreError("a log in memory is in no commit")
        return self._gatherer.append_all(log, runs, size)

    def read(self, log: int, position: int, bytes_max: int, done: ReadDone) -> None:
        self._reads.read(log, position, bytes_max, done)

    def close(self) -> None:
        """Refuse further appends, and stop retries of reads."""
        self._closed = True
        self._reads.close()
