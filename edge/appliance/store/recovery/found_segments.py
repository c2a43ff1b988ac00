"""Recover the messages of a damaged store: every segment with a valid checksum, in the table or in any page."""

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
"""Maximum bytes of damaged rows in memory, to read their intact parts later; of further rows only the key is kept."""


class SegmentSearch:
    """Searches for segments and verifies the CRC of each."""

    def __init__(self, salvage: Salvage, copy: Path, report: RepairReport, on_progress: Callable[[int], None]) -> None:
        self._salvage = salvage
        self._copy = copy
        self._report = report
        self._on_progress = on_progress
        self.damaged: list[SegmentRow] = []
        """Rows of the table with a wrong CRC."""

    def write(self, out: sqlite3.Connection, taken: StoreSnapshot, bounds: Mapping[int, tuple[int, int]]) -> None:
        """Write the segments with a valid CRC: from the table and, if segments are missing there, from all pages.

        `bounds`: first position and end of each log.
        """
        self._write(out, self._intact(self._salvage.segments()))
        if (
            taken.without_tree
            or not self._salvage.complete
            or any(lacks(out, log, *ends) for log, ends in bounds.items())
        ):
            self._write(out, (row for row in snapshot.search(self._copy, taken.page_bytes, self._on_progress)
                             if self._is_live(out, row, bounds, anywhere=taken.without_tree)))  # fmt: skip
        if not taken.without_tree and not self._salvage.complete:
            self._report.note("the table of messages is damaged: the newest messages may be missing", unknown=True)

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
        """Return False for a deleted or rolled back row that is still in a free page. Overlaps are resolved later."""
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
