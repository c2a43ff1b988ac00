"""New file from the intact parts of a damaged store: logs with their gaps, small tables, epoch and ledger."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bridge.message import Stored
from edge.appliance.store.recovery.found_cursors import CursorSearch
from edge.appliance.store.recovery.found_logs import FoundLog, LogSearch
from edge.appliance.store.recovery.found_segments import SegmentSearch
from edge.appliance.store.recovery.inspection import log_of
from edge.appliance.store.recovery.report import RepairReport
from edge.appliance.store.recovery.rows import OF_LOG, bounds, insert
from edge.appliance.store.recovery.salvage import Salvage
from edge.appliance.store.recovery.snapshot import StoreSnapshot
from edge.broker.model.ranges import Ranges
from edge.broker.store import epochs, schema, segment
from edge.broker.store.damage import DAMAGED
from edge.broker.store.epochs import Epochs
from edge.broker.store.gaps import GAPS, gaps_in
from edge.broker.store.limits import POSITIONS_LOST_MAX, StoreLimits
from edge.broker.store.records import LedgerEntry
from edge.broker.store.reservation import MEMORY, unpack_range
from edge.broker.store.segment import SegmentRow

SMALL: Final[Mapping[str, Mapping[str, type]]] = {
    "boot": {"boot": int, "boot_id": str, "opened_at": int},
    "state": {"kind": str, "key": str, "value": bytes},
    "ledger": {name: str if name in ("subscription", "address", "reason") else int for name in LedgerEntry._fields},
    "thinned": {"key": int, "level": int},
    "opening": {"number": int, "id": str, "opened_at": int, "ends": str},
    "epoch": {"number": int, "id": str, "began_at": int, "reason": str},
    "epoch_start": {"address": str, "epoch": int, "first": int},
    "wear": {"hour": int, "seconds": float, "payload_bytes": int, "process_bytes": int, "device_bytes": int},
}
"""Small tables that are copied row by row."""


class Rebuilding:
    """Write the salvaged parts of one store to a new file."""

    def __init__(self, salvage: Salvage, copy: Path, target: Path, on_progress: Callable[[int], None]) -> None:
        self._salvage = salvage
        self._target = target
        self._on_progress = on_progress
        self._report = RepairReport()
        self._search = SegmentSearch(salvage, copy, self._report, on_progress)
        self._seen: dict[str, Ranges] = {}
        """Kept sequences, by address."""
        self._begins: dict[str, int] = {}
        """Position of the first kept message, by address."""
        self._homes: dict[str, int] = {}
        """Log of each address."""
        self._state: list[tuple[str, str, bytes]] = []
        self._settled: dict[int, int] = {}
        """End on the medium of each log in memory."""
        self._known: set[tuple[int, int, int]] = set()
        """Gaps that earlier repairs have accounted for."""

    def run(self, taken: StoreSnapshot) -> RepairReport:
        """Write the new file. Raises sqlite3.Error."""
        os.close(os.open(self._target, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        with contextlib.closing(sqlite3.connect(self._target, isolation_level=None)) as out:
            schema.configure(out, StoreLimits(page_bytes=self._salvage.page_bytes))
            out.execute("PRAGMA synchronous = OFF")  # the whole file is synced before the swap
            schema.prepare(out)
            out.execute("BEGIN")
            for note in taken.notes:
                self._report.note(note, unknown=taken.without_tree)
            found = LogSearch(self._salvage, self._report)
            self._search.write(out, taken, {number: (first, end) for number, _, first, end in found.rows()[0]})
            meta = dict(self._salvage.rows("meta", {"key": str, "value": str})[0])
            self._known = set(gaps_in(meta.get(GAPS)))
            logs = found.logs(out)
            self._small(out)
            self._settled = _settled(out)
            groups = CursorSearch(self._salvage, self._report, self._state)
            cursors = groups.cursors(logs)
            for log in logs.values():
                self._log(out, log)
            counters = self._counters(out)
            for log in logs.values():
                self._end_by_counters(log, counters)
                row = (log.number, log.name, log.first or 0, log.end, log.bytes)
                insert(out, "log", ("log", "name", "first", "next", "bytes"), [row])
                self._report.lost_messages += log.missing.count()
            groups.write(out, logs, cursors)
            self._epoch(out, meta.get("epoch"), counters)
            self._ledger(out, logs, counters)
            gaps = msgspec.json.encode(self._report.gaps).decode()
            out.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (GAPS, gaps))
            out.execute("COMMIT")
            out.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return self._report

    def _log(self, out: sqlite3.Connection, log: FoundLog) -> None:
        """Collect the kept and the missing messages of a log."""
        expected = log.first
        overlapping: list[int] = []
        for row in map(SegmentRow._make, out.execute(f"{segment.SELECT} {OF_LOG}", bounds(log.number))):
            start = log_of(row.key)[1]
            if log.first is None or (not log.bytes and start < log.first):
                log.first = expected = start  # rows are deleted in the commit that moves `first`: these are live
            if expected is not None and start < expected:
                overlapping.append(row.key)
                continue
            if expected is not None and start > expected:
                self._gap(log, expected, start - 1)
            runs = segment.decode(row, start)
            self._record_runs(log, runs)
            expected = start + row.messages
            log.bytes += row.body_bytes
            self._report.segments += 1
            self._report.messages += sum(len(stored.run.bodies) for stored in runs)
            self._report.bytes += row.body_bytes
            self._on_progress(self._report.bytes)
        out.executemany("DELETE FROM segment WHERE key = ?", ((key,) for key in overlapping))
        self._end(log, expected or 0)

    def _end(self, log: FoundLog, end: int) -> None:
        """Determine the end of a log: behind the kept messages, and behind those known to have existed."""
        counted = log.counted
        settled = self._settled.get(log.number, counted + 1)
        in_memory = settled <= counted  # from there on
        if counted - (max(end, settled) if in_memory else end) > POSITIONS_LOST_MAX:
            self._report.note(f"log {log.name!r} cannot have ended at {counted}: it now ends at {end}", unknown=True)
            counted = end
        beyond = max(counted, end)
        for row in sorted(self._search.damaged):
            number, start = log_of(row.key)
            if number == log.number and start == beyond:  # the newest one: its own end is not reliable
                beyond = start + 1
        reached = settled if in_memory else beyond
        damages = [
            self._salvage.remains(row, log.counted) for row in self._search.damaged if log_of(row.key)[0] == log.number
        ]
        trusted = [damage for damage in damages if damage is not None and damage.runs]
        beyond = max([beyond, *(damage.last + 1 for damage in trusted if damage.first < beyond)])
        if end < max(reached, beyond if not in_memory else 0):
            self._gap(log, end, max(reached, beyond if not in_memory else 0) - 1)
        log.end = max(end, beyond)
        for damage in trusted:
            if any(first <= damage.first and damage.last <= last for first, last in log.missing.gaps):
                log.missing.damages.append(damage)
                self._record_runs(log, damage.runs)

    def _end_by_counters(self, log: FoundLog, counters: Mapping[str, int]) -> None:
        """Determine the end of a log without a row by the counters of its addresses. They count the messages behind the
        kept ones, as messages are removed only from the front."""
        if log.ends or log.number in self._settled:
            return
        addresses = [address for address, home in self._homes.items() if home == log.number]
        lost = sum(counters[address] - list(self._seen[address])[-1][1] - 1 for address in addresses)
        if 0 < lost <= POSITIONS_LOST_MAX:
            self._gap(log, log.end, log.end + lost - 1)
            log.end += lost

    def _record_runs(self, log: FoundLog, runs: Sequence[Stored]) -> None:
        for position, sequence, run in runs:
            self._begins[run.address] = min(position, self._begins.get(run.address, position))
            seen = self._seen.get(run.address)
            if seen is None:
                seen = self._seen[run.address] = Ranges()
            seen.add(sequence, sequence + len(run.bodies) - 1)
            self._homes[run.address] = log.number

    def _gap(self, log: FoundLog, first: int, last: int) -> None:
        self._report.gaps.append((log.number, first, last))
        if last >= log.counted:
            self._report.note(
                f"the newest messages of log {log.name!r}, from position {first} on, are lost", unknown=True
            )
        if (log.number, first, last) not in self._known:
            log.missing.gaps.append((first, last))

    def _small(self, out: sqlite3.Connection) -> None:
        for table, columns in SMALL.items():
            rows, complete = self._salvage.rows(table, columns)
            insert(out, table, tuple(columns), rows)
            if table == "state":
                self._state = rows
            if not complete:
                self._report.note(f"table {table} is damaged: {len(rows):,} of its rows are kept")

    def _counters(self, out: sqlite3.Connection) -> dict[str, int]:
        rows, complete = self._salvage.rows("address", {"name": str, "next": int})
        counters: dict[str, int] = dict(rows)
        if not complete:
            self._report.note("the table of addresses is damaged", unknown=True)
        for address, seen in self._seen.items():
            counters[address] = max(counters.get(address, 0), list(seen)[-1][1] + 1)
        insert(out, "address", ("name", "next"), list(counters.items()))
        return counters

    def _epoch(self, out: sqlite3.Connection, epoch: object, counters: Mapping[str, int]) -> None:
        """Keep the epoch. Start a new one when unknown sequences may have been given."""
        try:
            Epochs.load(out, str(epoch))
        except ValueError as error:
            self._report.note(f"{error}: older messages get the current epoch, and may reach a hub a second time")
            out.execute("DELETE FROM epoch")
            out.execute("DELETE FROM epoch_start")
        last = out.execute("SELECT id FROM epoch ORDER BY number DESC LIMIT 1").fetchone()
        kept = str(epoch) if epoch is not None else last[0] if last is not None else None
        if kept is None:
            self._report.note(
                "the epoch is lost: messages get new names, and may reach a hub a second time", unknown=True
            )
        self._report.epoch = kept or uuid.uuid4().hex
        out.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', ?)", (self._report.epoch,))
        if self._report.new_epoch and kept is not None:
            self._report.epoch = epochs.start_epoch(out, counters, DAMAGED)

    def _ledger(self, out: sqlite3.Connection, logs: dict[int, FoundLog], counters: dict[str, int]) -> None:
        """Enter the missing messages of each group into the ledger."""
        (last,) = out.execute("SELECT coalesce(max(entry), 0) FROM ledger").fetchone()
        now = time.time_ns()

        def entered(*loss: str | int) -> bool:
            query = "SELECT 1 FROM ledger WHERE subscription = ? AND address = ? AND first <= ? AND last >= ?"
            return out.execute(query, loss).fetchone() is not None

        for log in logs.values():
            kept = {address: seen for address, seen in self._seen.items() if self._homes[address] == log.number}
            free = {address: end for address, end in counters.items() if self._homes.get(address) in (None, log.number)}
            found = log.missing.losses(kept, self._begins, free, entered, now)
            entries = [(number, *loss) for number, loss in enumerate(found, last + 1)]
            insert(out, "ledger", LedgerEntry._fields, entries)
            last += len(found)


def _settled(out: sqlite3.Connection) -> dict[int, int]:
    """Return the ends of logs in memory on the medium; positions beyond are only reserved."""
    found = {}
    for key, value in out.execute("SELECT key, value FROM state WHERE kind = ?", (MEMORY,)):
        with contextlib.suppress(ValueError):
            mark = unpack_range(key, value)
            if mark.address is None:
                found[mark.log] = mark.base
    return found
