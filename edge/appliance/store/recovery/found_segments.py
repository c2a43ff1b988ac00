"""Messages of a damaged store: segments that pass their checks, wherever they are found."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from edge.appliance.store.recovery import snapshot
from edge.appliance.store.recovery.inspection import log_of
from edge.appliance.store.recovery.report import RepairReport
from edge.appliance.store.recovery.rows import end_of, insert, lacks
from edge.appliance.store.recovery.salvage import Salvage
from edge.appliance.store.recovery.snapshot import StoreSnapshot
from edge.broker.store import segment
from edge.broker.store.limits import CHUNK_BYTES, POSITION_MAX
from edge.broker.store.segment import SegmentRow

DAMAGED_BYTES_MAX: Final = 64 << 20
"""Damaged rows that are kept in memory for their readable parts; of further ones only the position is kept."""


class SegmentSearch:
    """Search segments. Each one is verified by its own CRC."""

    def __init__(self, salvage: Salvage, copy: Path, report: RepairReport, on_progress: Callable[[int], None]) -> None:
        self._salvage = salvage
        self._copy = copy
        self._report = report
        self._on_progress = on_progress
        self.damaged: list[SegmentRow] = []
        """Rows of the tree that fail their checks."""

    def write(self, out: sqlite3.Connection, taken: StoreSnapshot, bounds: Mapping[int, tuple[int, int]]) -> None:
        """Write each segment that passes its CRC: those of the tree, and if some are missing those of all pages.

        `bounds`: first position and end of each log in its table.
        """
        self._write(out, self._intact(self._salvage.segments()))
        if taken.treeless or not self._salvage.complete or any(lacks(out, log, *ends) for log, ends in bounds.items()):
            self._write(out, (row for row in snapshot.search(self._copy, taken.page_bytes, self._on_progress)
                             if self._is_live(out, row, bounds, anywhere=taken.treeless)))  # fmt: skip
        if not taken.treeless and not self._salvage.complete:
            self._report.note("the tree of the messages is damaged: the newest may be missing", unknown=True)

    def _intact(self, rows: Iterator[SegmentRow]) -> Iterator[SegmentRow]:
        size = 0
        for row in rows:
            try:
                segment.verify(row)
            except segment.SegmentDamaged:
                if isinstance(row.key, int) and isinstance(row.data, bytes):
                    size += len(row.data)
                    self.damaged.append(row if size <= DAMAGED_BYTES_MAX else row._replace(data=b""))
            else:
                yield row

    def _is_live(
        self, out: sqlite3.Connection, row: SegmentRow, bounds: Mapping[int, tuple[int, int]], *, anywhere: bool
    ) -> bool:
        """Return False for a row in a free page that was deleted or refused. Overlapping rows are resolved later."""
        log, start = log_of(row.key)
        first, end = bounds.get(log, (0, POSITION_MAX))
        return start >= first and (anywhere or start + row.messages <= max(end, end_of(out, log)))

    def _write(self, out: sqlite3.Connection, rows: Iterator[SegmentRow]) -> None:
        pending: list[SegmentRow] = []
        size = 0
        for row in rows:
            pending.append(row)
            size += len(row.data)
            if size >= CHUNK_BYTES:
                insert(out, "segment", SegmentRow._fields, pending)
                pending, size = [], 0
        insert(out, "segment", SegmentRow._fields, pending)
