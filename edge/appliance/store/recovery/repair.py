"""A damaged store becomes a sound one, in a new file beside it: what passes its checks is kept, the rest accounted for.

Segments stand for themselves: each row that can be reached and whose CRC fits is kept as it is. What stood between them
is entered into the loss ledger. Where the sequences given last are not known any more the store goes on under a new
epoch, rather than name two messages alike. The damaged file is never written to, and stays under another name.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from bridge.message import Stored
from edge.appliance.store.recovery import snapshot
from edge.appliance.store.recovery.inspection import key_of, log_of
from edge.appliance.store.recovery.losses import MissingMessages
from edge.appliance.store.recovery.salvage import Salvage
from edge.appliance.store.recovery.snapshot import Snapshot
from edge.broker.model.ranges import Ranges
from edge.broker.model.topics import matches, overlaps
from edge.broker.store import epochs, schema, segment
from edge.broker.store.damage import DAMAGED
from edge.broker.store.epochs import Epochs
from edge.broker.store.faults import meaning
from edge.broker.store.gaps import GAPS, gaps_in
from edge.broker.store.limits import CHUNK_BYTES, POSITION_BITS, POSITION_MAX, POSITIONS_LOST_MAX, Limits
from edge.broker.store.lock import DirectoryLock
from edge.broker.store.losses import Claim
from edge.broker.store.progress import Progress
from edge.broker.store.records import LedgerEntry
from edge.broker.store.reservation import MEMORY, unpack_range
from edge.broker.store.segment import Row
from edge.broker.store.sqlite import FILE_NAME, REPAIRED_NAME

SUBSCRIPTION: Final = "subscription"
"""Kind of small state: a durable subscription (`edge.broker.delivery.durable.Declaration`)."""
QUEUE: Final = "queue"
"""Cursor of every queue, and what the name of its log begins with."""
CURSOR: Final[Mapping[str, type]] = {"cursor": int, "name": str, "log": int, "position": int, "acknowledged": bytes}
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
"""Small tables that are kept row by row."""
TOPIC: Final = "topic"
"""What the name of a topic's log begins with."""
UNSOUND_BYTES_MAX: Final = 64 << 20
"""Rows that fail their checks and are kept in memory for what they still say; of others only the place counts."""
_OF_LOG: Final = "WHERE key >= ? AND key <= ? ORDER BY key"
_EXTENTS: Final = f"SELECT key, messages FROM segment {_OF_LOG}"  # noqa: S608 - ours
RECOVERED: Final = "recovered"
"""Cursor of a log whose own cursors are lost: it keeps the messages until they are exported or purged."""


class RepairReport(msgspec.Struct):
    """What a repair does, or would do."""

    segments: int = 0
    messages: int = 0
    bytes: int = 0
    """Kept."""
    lost_messages: int = 0
    """Positions that are missing and that some consumer group had not acknowledged."""
    gaps: list[tuple[int, int, int]] = []
    """(log, first, last) of the positions that are missing."""
    epoch: str = ""
    new_epoch: bool = False
    notes: list[str] = []
    """What else could not be kept, and what was done about it."""
    damaged_copy: str = ""
    """Where the damaged file is kept; empty as long as nothing was done."""


def repair(
    data: Path, *, write: bool, on_progress: Callable[[int, int], None] = lambda _done, _all: None
) -> RepairReport:
    """Make the store in a data directory sound; without `write` only say how.

    Raises StoreBusy, StoreInaccessible, StoreFull.

    `on_progress` is called with (bytes gone through, bytes of the file).

    Needs room for two copies of the store, for three where the messages have to be looked for in every page.
    Interrupted at any time, it leaves the damaged store in place, or the new one, or a state that only a repair opens,
    and finishes.
    """
    lock = DirectoryLock(data)
    try:
        if (data / REPAIRED_NAME).exists():
            kept = _put_in_place(data)
            return RepairReport(notes=["an earlier repair was interrupted and is complete now"], damaged_copy=kept)
        copy, fresh = data / f"{FILE_NAME}.salvage", data / f"{FILE_NAME}.repairing"
        try:
            size = (data / FILE_NAME).stat().st_size
            taken = snapshot.take(data / FILE_NAME, copy, lambda done: on_progress(done, size))
            with contextlib.closing(Salvage(copy)) as salvage:
                report = _Repair(salvage, copy, fresh, lambda done: on_progress(done, size)).run(taken)
            if write:
                _sync(fresh)
                fresh.replace(data / REPAIRED_NAME)
                report.damaged_copy = _put_in_place(data)
        except sqlite3.Error as error:
            raise meaning(error, "repairing") from error
        else:
            return report
        finally:
            for path in (copy, fresh):
                for suffix in ("", "-wal", "-shm", "-journal", *(f"-{name}" for name in snapshot.SCRATCH)):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
    finally:
        lock.release()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_in_place(data: Path) -> str:
    """Swap the repaired file in. Every step may be done again: a store is not opened while `REPAIRED_NAME` is there."""
    path, fresh = data / FILE_NAME, data / REPAIRED_NAME
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(fresh.stat().st_mtime))
    damaged = data / f"{FILE_NAME}.damaged-{stamp}"
    if path.exists() and not damaged.exists():
        os.link(path, damaged)
    log = data / f"{FILE_NAME}-wal"
    if log.exists():
        log.replace(damaged.with_name(damaged.name + "-wal"))  # the new file must not be given the old one's log
    (data / f"{FILE_NAME}-shm").unlink(missing_ok=True)
    _sync(data)
    fresh.replace(path)
    _sync(data)
    return str(damaged)


@dataclass(slots=True)
class _Log:
    """A log on its way into the fresh file."""

    number: int
    name: str
    first: int | None
    """First position kept; None: nobody knows yet."""
    counted: int
    end: int = 0
    bytes: int = 0
    without_cursors: bool = False
    """Its cursors are lost, and nobody knows whose they were."""
    missing: MissingMessages = field(default_factory=lambda: MissingMessages("", ()))


class _Repair:
    """One repair: from what was salvaged into a fresh file."""

    def __init__(self, salvage: Salvage, copy: Path, target: Path, on_progress: Callable[[int], None]) -> None:
        self._salvage = salvage
        self._copy = copy
        self._target = target
        self._on_progress = on_progress
        self._report = RepairReport()
        self._unsound: list[Row] = []
        """Rows that the tree leads to and that fail their checks."""
        self._seen: dict[str, Ranges] = {}
        """Sequences kept, by address."""
        self._begins: dict[str, int] = {}
        """Position of the first of them."""
        self._homes: dict[str, int] = {}
        """The log of an address."""
        self._state: list[tuple[str, str, bytes]] = []
        self._settled: dict[int, int] = {}
        """By log kept in memory, the position below which it was settled."""
        self._known: set[tuple[int, int, int]] = set()
        """Gaps that an earlier repair has accounted for."""

    def run(self, taken: Snapshot) -> RepairReport:
        """Write the fresh file. Raises sqlite3.Error."""
        os.close(os.open(self._target, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        with contextlib.closing(sqlite3.connect(self._target, isolation_level=None)) as out:
            schema.configure(out, Limits(page_bytes=self._salvage.page_bytes))
            out.execute("PRAGMA synchronous = OFF")  # synced as a whole before it takes its place
            schema.prepare(out)
            out.execute("BEGIN")
            for note in taken.notes:
                self._note(note, unknown=taken.treeless)
            self._segments(out, taken)
            meta = dict(self._salvage.rows("meta", {"key": str, "value": str})[0])
            self._known = set(gaps_in(meta.get(GAPS)))
            logs = self._logs(out)
            self._small(out)
            self._settled = _settled(out)
            cursors = self._read_cursors(logs)
            for log in logs.values():
                self._log(out, log)
                self._report.lost_messages += log.missing.count()
            counters = self._counters(out)
            self._cursors(out, logs, cursors)
            self._epoch(out, meta.get("epoch"), counters)
            self._ledger(out, logs, counters)
            gaps = msgspec.json.encode(self._report.gaps).decode()
            out.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (GAPS, gaps))
            out.execute("COMMIT")
            out.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return self._report

    def _note(self, text: str, *, unknown: bool = False) -> None:
        """`unknown`: the sequences given last are not known any more."""
        self._report.notes.append(text)
        self._report.new_epoch = self._report.new_epoch or unknown

    def _logs(self, out: sqlite3.Connection) -> dict[int, _Log]:
        rows, complete = self._log_rows()
        logs = {number: _Log(number, name, first, end) for number, name, first, end in rows}
        if not complete:
            self._note("the table of logs is damaged", unknown=True)
        self._rename(out, logs)
        filled = {number for (number,) in out.execute(f"SELECT DISTINCT key >> {POSITION_BITS} FROM segment")}  # noqa: S608
        for number in range(1, max([*logs, *filled], default=0) + 1):  # logs are numbered without a gap
            if number not in logs:
                name = f"{RECOVERED} {number}"
                logs[number] = _Log(number, name, None, 0)
                text = f"the name of log {number} is lost: it is called {name!r}, export it from there"
                self._note(text, unknown=True)
        return dict(sorted(logs.items()))

    def _log_rows(self) -> tuple[list[tuple[int, str, int, int]], bool]:
        return self._salvage.rows("log", {"log": int, "name": str, "first": int, "next": int})

    def _rename(self, out: sqlite3.Connection, logs: dict[int, _Log]) -> None:
        """Where a table and its index call a log differently, it has the name that its messages fit."""
        for number, name in self._salvage.indexed("log", ("log", "name")):
            log = logs.get(number)
            if not isinstance(name, str) or (log is not None and log.name == name):
                continue
            other = next((found for found in logs.values() if found.name == name), None)
            if log is None and other is not None:
                del logs[other.number]
                logs[number] = _Log(number, name, other.first, other.counted)
                self._note(f"log {name!r} had another number in its table: it is {number}")
            elif log is None:
                logs[number] = _Log(number, name, None, 0)
                self._note(f"log {name!r} is known from its index only: it ends with its newest segment", unknown=True)
            elif other is None and _fits(out, number, name) and not _fits(out, number, log.name):
                self._note(f"log {log.name!r} is called {name!r} now, as its messages are of it")
                log.name = name

    def _read_cursors(self, logs: dict[int, _Log]) -> list[tuple[int, str, int, int, bytes]]:
        """The cursors of known logs. Where their table is damaged, those that must have been there begin anew."""
        rows, complete = self._salvage.rows("cursor", CURSOR)
        kept = [row for row in rows if row[2] in logs]
        for _, name, log, *_ in rows:
            if log not in logs:
                self._note(f"cursor {name!r} is left out: its log {log} is lost")
        there, number = {(row[2], row[1]) for row in kept}, max((row[0] for row in kept), default=0)
        indexed = self._indexed_groups(logs, kept)
        if not complete:
            self._note("the table of cursors is damaged: who lost its place there is given again what is kept")
            indexed += [(log, name, 0, b"") for log, name in self._groups(logs, there)]
        for log, name, position, above in indexed:
            if (log, name) not in there:
                there.add((log, name))
                number += 1
                kept.append((number, name, log, max(position, logs[log].first or 0), above))
        for log in logs.values():
            mine = [Claim(row[1], _progress(row), None) for row in kept if row[2] == log.number]
            if not mine and (not complete or log.name.startswith(RECOVERED)):
                log.without_cursors = True
                mine = [Claim(RECOVERED, Progress(log.first or 0), None)]
            log.missing = MissingMessages(log.name, mine)
        return kept

    def _indexed_groups(
        self, logs: dict[int, _Log], rows: Sequence[tuple[int, str, int, int, bytes]]
    ) -> list[tuple[int, str, int, bytes]]:
        """(log, name, position, acknowledged) of consumer groups that only the index of their table knows, or knows by
        another name: which of the two is right nobody can tell, so both are kept."""
        by_number = {row[0]: row for row in rows}
        there = {(row[2], row[1]) for row in rows}
        found = []
        for number, name, log in self._salvage.indexed("cursor", ("cursor", "name", "log")):
            if isinstance(name, str) and log in logs and (log, name) not in there:
                row = by_number.get(number)
                same = row is not None and (row[1] == name or row[2] == log)
                found.append((log, name, row[3], row[4]) if row is not None and same else (log, name, 0, b""))
                self._note(f"cursor {name!r} of log {log} is not in its table as it is in the index: it is kept")
        return found

    def _groups(self, logs: dict[int, _Log], there: set[tuple[int, str]]) -> list[tuple[int, str]]:
        """(log, consumer group) that the small state says there is, and that is not in `there`."""
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
        return [group for group in found if group not in there]

    # --- messages ---------------------------------------------------------------------------------------------

    def _segments(self, out: sqlite3.Connection, taken: Snapshot) -> None:
        """Every segment that passes its CRC: those the tree leads to, and where some are missing those of all pages."""
        self._keep(out, self._sound(self._salvage.segments()))
        bounds = {number: (first, end) for number, _, first, end in self._log_rows()[0]}
        if taken.treeless or not self._salvage.whole or any(_lacks(out, log, *ends) for log, ends in bounds.items()):
            self._keep(out, (row for row in snapshot.search(self._copy, taken.page_bytes, self._on_progress)
                             if self._is_live(out, row, bounds, anywhere=taken.treeless)))  # fmt: skip
        if not taken.treeless and not self._salvage.whole:
            self._note("the tree of the messages is damaged: the newest may be missing", unknown=True)

    def _sound(self, rows: Iterator[Row]) -> Iterator[Row]:
        size = 0
        for row in rows:
            try:
                segment.verify(row)
            except segment.SegmentDamaged:
                if isinstance(row.key, int) and isinstance(row.data, bytes):
                    size += len(row.data)
                    self._unsound.append(row if size <= UNSOUND_BYTES_MAX else row._replace(data=b""))
            else:
                yield row

    def _is_live(
        self, out: sqlite3.Connection, row: Row, bounds: Mapping[int, tuple[int, int]], *, anywhere: bool
    ) -> bool:
        """False for what was deleted, or refused, and is in a free page. Two that overlap are judged later."""
        log, start = log_of(row.key)
        first, end = bounds.get(log, (0, POSITION_MAX))
        return start >= first and (anywhere or start + row.messages <= max(end, _end_of(out, log)))

    def _keep(self, out: sqlite3.Connection, rows: Iterator[Row]) -> None:
        pending: list[Row] = []
        size = 0
        for row in rows:
            pending.append(row)
            size += len(row.data)
            if size >= CHUNK_BYTES:
                _insert(out, "segment", Row._fields, pending)
                pending, size = [], 0
        _insert(out, "segment", Row._fields, pending)

    def _log(self, out: sqlite3.Connection, log: _Log) -> None:
        """What is there of a log and what is missing."""
        expected = log.first
        overlapping: list[int] = []
        for row in map(Row._make, out.execute(f"{segment.SELECT} {_OF_LOG}", _bounds(log.number))):
            start = log_of(row.key)[1]
            if log.first is None or (not log.bytes and start < log.first):
                log.first = expected = start  # rows go in the commit that moves `first`: what is there was not deleted
            if expected is not None and start < expected:
                overlapping.append(row.key)
                continue
            if expected is not None and start > expected:
                self._gap(log, expected, start - 1)
            runs = segment.decode(row, start)
            self._take(log, runs)
            expected = start + row.messages
            log.bytes += row.body_bytes
            self._report.segments += 1
            self._report.messages += sum(len(stored.run.bodies) for stored in runs)
            self._report.bytes += row.body_bytes
            self._on_progress(self._report.bytes)
        out.executemany("DELETE FROM segment WHERE key = ?", ((key,) for key in overlapping))
        self._end(log, expected or 0)
        row_of_log = (log.number, log.name, log.first or 0, log.end, log.bytes)
        _insert(out, "log", ("log", "name", "first", "next", "bytes"), [row_of_log])

    def _end(self, log: _Log, end: int) -> None:
        """The end of a log: behind what is kept, and behind what is known to have been there."""
        counted = log.counted
        settled = self._settled.get(log.number, counted + 1)
        in_memory = settled <= counted  # from there on
        if counted - (max(end, settled) if in_memory else end) > POSITIONS_LOST_MAX:
            self._note(f"log {log.name!r} cannot have ended at {counted}: it ends at {end} now", unknown=True)
            counted = end
        beyond = max(counted, end)
        for row in sorted(self._unsound):
            number, start = log_of(row.key)
            if number == log.number and start == beyond:  # the newest: what it says of its end is not to be believed
                beyond = start + 1
        reached = settled if in_memory else beyond
        damages = [self._salvage.remains(row, log.counted) for row in self._unsound if log_of(row.key)[0] == log.number]
        believed = [damage for damage in damages if damage is not None and damage.runs]
        beyond = max([beyond, *(damage.last + 1 for damage in believed if damage.first < beyond)])
        if end < max(reached, beyond if not in_memory else 0):
            self._gap(log, end, max(reached, beyond if not in_memory else 0) - 1)
        log.end = max(end, beyond)
        for damage in believed:
            if any(first <= damage.first and damage.last <= last for first, last in log.missing.gaps):
                log.missing.damages.append(damage)
                self._take(log, damage.runs)

    def _take(self, log: _Log, runs: Sequence[Stored]) -> None:
        for position, sequence, run in runs:
            self._begins[run.address] = min(position, self._begins.get(run.address, position))
            seen = self._seen.get(run.address)
            if seen is None:
                seen = self._seen[run.address] = Ranges()
            seen.add(sequence, sequence + len(run.bodies) - 1)
            self._homes[run.address] = log.number

    def _gap(self, log: _Log, first: int, last: int) -> None:
        self._report.gaps.append((log.number, first, last))
        if last >= log.counted:
            self._note(f"the newest messages of log {log.name!r}, from position {first} on, are lost", unknown=True)
        if (log.number, first, last) not in self._known:
            log.missing.gaps.append((first, last))

    # --- everything else --------------------------------------------------------------------------------------

    def _small(self, out: sqlite3.Connection) -> None:
        for table, columns in SMALL.items():
            rows, complete = self._salvage.rows(table, columns)
            _insert(out, table, tuple(columns), rows)
            if table == "state":
                self._state = rows
            if not complete:
                self._note(f"table {table} is damaged: {len(rows):,} of its rows are kept")

    def _counters(self, out: sqlite3.Connection) -> dict[str, int]:
        rows, complete = self._salvage.rows("address", {"name": str, "next": int})
        counters: dict[str, int] = dict(rows)
        if not complete:
            self._note("the table of addresses is damaged", unknown=True)
        for address, seen in self._seen.items():
            counters[address] = max(counters.get(address, 0), list(seen)[-1][1] + 1)
        _insert(out, "address", ("name", "next"), list(counters.items()))
        return counters

    def _cursors(
        self, out: sqlite3.Connection, logs: dict[int, _Log], cursors: Sequence[tuple[int, str, int, int, bytes]]
    ) -> None:
        kept: list[tuple[Any, ...]] = []
        for row in cursors:
            cursor, name, log, _, above = row
            end, progress = logs[log].end, _progress(row)
            if above and not progress.above:
                self._note(f"cursor {name!r}: what it acknowledged out of order is lost, and delivered again")
            if progress.position > end or any(last >= end for _, last in progress.above):
                progress = Progress(min(progress.position, end))
                self._note(f"cursor {name!r} was beyond the end of its log: it is at {progress.position}")
            kept.append((cursor, name, log, progress.position, progress.pack()))
        number = max((row[0] for row in kept), default=0)
        for found in logs.values():
            if found.without_cursors and (found.first or 0) < found.end:
                number += 1
                kept.append((number, RECOVERED, found.number, found.first or 0, b""))
                self._note(f"log {found.name!r} has lost its cursors: cursor {RECOVERED!r} keeps its messages")
        _insert(out, "cursor", tuple(CURSOR), kept)

    def _epoch(self, out: sqlite3.Connection, epoch: object, counters: Mapping[str, int]) -> None:
        """Keep the epoch; when sequences may have been given that nobody knows of, what comes is of a new one."""
        try:
            Epochs.load(out, str(epoch))
        except ValueError as error:
            self._note(f"{error}: older messages have the current epoch's name, and may reach a hub a second time")
            out.execute("DELETE FROM epoch")
            out.execute("DELETE FROM epoch_start")
        last = out.execute("SELECT id FROM epoch ORDER BY number DESC LIMIT 1").fetchone()
        kept = str(epoch) if epoch is not None else last[0] if last is not None else None
        if kept is None:
            self._note("the epoch is lost: messages have new names, and may reach a hub a second time", unknown=True)
        self._report.epoch = kept or uuid.uuid4().hex
        out.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', ?)", (self._report.epoch,))
        if self._report.new_epoch and kept is not None:
            self._report.epoch = epochs.begin(out, counters, DAMAGED)

    def _ledger(self, out: sqlite3.Connection, logs: dict[int, _Log], counters: dict[str, int]) -> None:
        """Enter what is missing for every group that waited for it."""
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
            _insert(out, "ledger", LedgerEntry._fields, entries)
            last += len(found)


def _bounds(log: int) -> tuple[int, int]:
    return key_of(log, 0), key_of(log, POSITION_MAX)


def _end_of(out: sqlite3.Connection, log: int) -> int:
    """Where the newest segment of a log ends that is kept; 0 when there is none."""
    row = out.execute(f"{_EXTENTS} DESC LIMIT 1", _bounds(log)).fetchone()
    return 0 if row is None else log_of(row[0])[1] + int(row[1])


def _lacks(out: sqlite3.Connection, log: int, first: int, end: int) -> bool:
    """True when a log that should have positions ``first <= p < end`` has a gap."""
    expected = first
    for key, messages in out.execute(_EXTENTS, _bounds(log)):
        if log_of(key)[1] > expected:
            return True
        expected = max(expected, log_of(key)[1] + messages)
    return expected < end


def _fits(out: sqlite3.Connection, log: int, name: str) -> bool:
    """True when the first message of a log may be in one of that name."""
    kind, _, pattern = name.partition(" ")
    row = out.execute(f"{segment.SELECT} {_OF_LOG} LIMIT 1", _bounds(log)).fetchone()
    if row is None or kind not in (QUEUE, TOPIC):
        return kind in (QUEUE, TOPIC)
    addresses = [head.address for head in segment.heads(Row._make(row))]
    return all(address == pattern if kind == QUEUE else matches(pattern, address) for address in addresses)


def _progress(row: tuple[int, str, int, int, bytes]) -> Progress:
    """Of a row of table ``cursor``; without the ranges above its position when they are rotten."""
    try:
        return Progress(row[3], row[4])
    except ValueError:
        return Progress(row[3])


def _settled(out: sqlite3.Connection) -> dict[int, int]:
    """Where logs kept in memory were settled: beyond it their numbers are only reserved (`edge.broker.store.spill`)."""
    found = {}
    for key, value in out.execute("SELECT key, value FROM state WHERE kind = ?", (MEMORY,)):
        with contextlib.suppress(ValueError):
            mark = unpack_range(key, value)
            if mark.address is None:
                found[mark.log] = mark.base
    return found


def _insert(out: sqlite3.Connection, table: str, columns: tuple[str, ...], rows: list[Any]) -> None:
    marks = ", ".join("?" * len(columns))
    out.executemany(f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)  # noqa: S608
