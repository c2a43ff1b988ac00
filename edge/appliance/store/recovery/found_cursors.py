"""Consumer groups of a damaged store, and their positions."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from edge.appliance.store.recovery.found_logs import QUEUE, RECOVERED, FoundLog
from edge.appliance.store.recovery.losses import MissingMessages
from edge.appliance.store.recovery.report import RepairReport
from edge.appliance.store.recovery.rows import insert
from edge.appliance.store.recovery.salvage import Salvage
from edge.broker.model.topics import overlaps
from edge.broker.store.group import CursorRow
from edge.broker.store.losses import Claim
from edge.broker.store.progress import CursorProgress

SUBSCRIPTION: Final = "subscription"
"""Kind of small state of a durable subscription (`edge.broker.delivery.durable.Declaration`)."""
CURSOR: Final[Mapping[str, type]] = {"cursor": int, "name": str, "log": int, "position": int, "acknowledged": bytes}


class CursorSearch:
    """Search cursors in their table, its index, and the small state of durable subscriptions."""

    def __init__(self, salvage: Salvage, report: RepairReport, state: Sequence[tuple[str, str, bytes]]) -> None:
        """`state`: rows (kind, key, value) of small state."""
        self._salvage = salvage
        self._report = report
        self._state = state

    def cursors(self, logs: dict[int, FoundLog]) -> list[CursorRow]:
        """Return the cursors of known logs. If their table is damaged, add missing ones at the start of their log."""
        rows, complete = self._salvage.rows("cursor", CURSOR)
        kept = [CursorRow(*row) for row in rows if row[2] in logs]
        for _, name, log, *_ in rows:
            if log not in logs:
                self._report.note(f"cursor {name!r} is dropped: its log {log} is lost")
        existing, number = {(row[2], row[1]) for row in kept}, max((row[0] for row in kept), default=0)
        indexed = self._indexed_groups(logs, kept)
        if not complete:
            self._report.note(
                "the table of cursors is damaged: a consumer that lost its position gets the kept messages again"
            )
            indexed += [(log, name, 0, b"") for log, name in self._groups(logs, existing)]
        for log, name, position, above in indexed:
            if (log, name) not in existing:
                existing.add((log, name))
                number += 1
                kept.append(CursorRow(number, name, log, max(position, logs[log].first or 0), above))
        for log in logs.values():
            mine = [Claim(row[1], progress_of(row), None) for row in kept if row[2] == log.number]
            if not mine and (not complete or log.name.startswith(RECOVERED)):
                log.without_cursors = True
                mine = [Claim(RECOVERED, CursorProgress(log.first or 0), None)]
            log.missing = MissingMessages(log.name, mine)
        return kept

    def _indexed_groups(
        self, logs: dict[int, FoundLog], rows: Sequence[CursorRow]
    ) -> list[tuple[int, str, int, bytes]]:
        """Return (log, name, position, acknowledged) of consumer groups that are only in the index of their table, or
        have another name there. As it is unknown which name is right, both are kept."""
        by_number = {row[0]: row for row in rows}
        existing = {(row[2], row[1]) for row in rows}
        found = []
        for number, name, log in self._salvage.indexed("cursor", ("cursor", "name", "log")):
            if isinstance(name, str) and log in logs and (log, name) not in existing:
                row = by_number.get(number)
                same = row is not None and (row[1] == name or row[2] == log)
                found.append((log, name, row[3], row[4]) if row is not None and same else (log, name, 0, b""))
                self._report.note(f"cursor {name!r} of log {log} differs in its table and its index: both are kept")
        return found

    def _groups(self, logs: dict[int, FoundLog], existing: set[tuple[int, str]]) -> list[tuple[int, str]]:
        """Return (log, consumer group) of durable subscriptions and queues that are not in `existing`."""
        patterns: dict[str, str] = {}
        for kind, name, value in self._state:
            if kind == SUBSCRIPTION:
                with contextlib.suppress(msgspec.MsgspecError, KeyError):
                    patterns[name] = str(msgspec.msgpack.decode(value, type=dict[str, Any])["pattern"])
        found = []
        for log in logs.values():
            kind, _, address = log.name.partition(" ")
            names = [name for name, pattern in patterns.items() if kind == "topic" and overlaps(pattern, address)]
            found += [(log.number, name) for name in ([QUEUE] if kind == QUEUE else names)]
        return [group for group in found if group not in existing]

    def write(self, out: sqlite3.Connection, logs: dict[int, FoundLog], cursors: Sequence[CursorRow]) -> None:
        """Write the cursors, limited to their logs; the ends of these are known now."""
        kept: list[tuple[Any, ...]] = []
        for row in cursors:
            cursor, name, log, _, above = row
            end, progress = logs[log].end, progress_of(row)
            if above and not progress.above:
                self._report.note(
                    f"cursor {name!r}: its acknowledgements out of order are lost; these messages are delivered again"
                )
            if progress.position > end or any(last >= end for _, last in progress.above):
                progress = CursorProgress(min(progress.position, end))
                self._report.note(f"cursor {name!r} was beyond the end of its log: it is now at {progress.position}")
            kept.append((cursor, name, log, progress.position, progress.pack()))
        number = max((row[0] for row in kept), default=0)
        for found in logs.values():
            if found.without_cursors and (found.first or 0) < found.end:
                number += 1
                kept.append((number, RECOVERED, found.number, found.first or 0, b""))
                self._report.note(f"log {found.name!r} has lost its cursors: cursor {RECOVERED!r} keeps its messages")
        insert(out, "cursor", tuple(CURSOR), kept)


def progress_of(row: CursorRow) -> CursorProgress:
    """Return the progress of a row of table ``cursor``, without the ranges above its position if they are damaged."""
    try:
        return CursorProgress(row.position, row.acknowledged)
    except ValueError:
        return CursorProgress(row.position)
