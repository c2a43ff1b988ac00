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
from edge.appliance.store.recovery.losses import LogShort
from edge.appliance.store.recovery.salvage import Salvage
from edge.appliance.store.recovery.snapshot import Snapshot
from edge.broker.model.ranges import Ranges
from edge.broker.model.topics import overlaps
from edge.broker.store import epochs, schema, segment
from edge.broker.store.damage import DAMAGED
from edge.broker.store.epochs import Epochs
from edge.broker.store.faults import meaning
from edge.broker.store.gaps import GAPS, gaps_in
from edge.broker.store.limits import CHUNK_BYTES, POSITION_MAX, POSITIONS_LOST_MAX, Limits
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
RECOVERED: Final = "recovered"
"""Cursor of a log whose own cursors are lost: it keeps the messages until they are exported or purged."""


class Mended(msgspec.Struct):
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


def repair(data: Path, *, write: bool, told: Callable[[int, int], None] = lambda _done, _all: None) -> Mended:
    """Mend the store in a data directory; without `write` only say how. Raises StoreBusy, StoreInaccessible, StoreFull.

    `told` is called with (bytes gone through, bytes of the file).

    Needs room for two copies of the store, for three where the messages have to be looked for in every page.
    Interrupted at any time, it leaves the damaged store in place, or the new one, or a state that only a repair opens,
    and finishes.
    """
    lock = DirectoryLock(data)
    try:
        if (data / REPAIRED_NAME).exists():
            kept = _put_in_place(data)
            return Mended(notes=["an earlier repair was interrupted and is complete now"], damaged_copy=kept)
        copy, fresh = data / f"{FILE_NAME}.salvage", data / f"{FILE_NAME}.repairing"
        try:
            size = (data / FILE_NAME).stat().st_size
            taken = snapshot.take(data / FILE_NAME, copy, lambda done: told(done, size))
            with contextlib.closing(Salvage(copy, taken.searched)) as salvage:
                mended = _Repair(salvage, fresh, lambda done: told(done, size)).run(taken)
            if write:
                _sync(fresh)
                fresh.replace(data / REPAIRED_NAME)
                mended.damaged_copy = _put_in_place(data)
        except sqlite3.Error as error:
            raise meaning(error, "repairing") from error
        else:
            return mended
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
    forlorn: bool = False
    """Its cursors are lost, and nobody knows whose they were."""
    short: LogShort = field(default_factory=lambda: LogShort("", ()))


class _Repair:
    """One repair: from what was salvaged into a fresh file."""

    def __init__(self, salvage: Salvage, target: Path, told: Callable[[int], None]) -> None:
        self._salvage = salvage
        self._target = target
        self._told = told
        self._mended = Mended()
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

    def run(self, taken: Snapshot) -> Mended:
        """Write the fresh file. Raises sqlite3.Error."""
        os.close(os.open(self._target, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        with contextlib.closing(sqlite3.connect(self._target, isolation_level=None)) as out:
            schema.configure(out, Limits(page_bytes=self._salvage.page_bytes))
            out.execute("PRAGMA synchronous = OFF")  # synced as a whole before it takes its place
            schema.prepare(out)
            out.execute("BEGIN")
            for note in taken.notes:
                self._note(note, unknown=taken.searched is not None)
            meta = dict(self._salvage.rows("meta", {"key": str, "value": str})[0])
            self._known = set(gaps_in(meta.get(GAPS)))
            logs = self._logs()
            self._small(out)
            self._settled = _settled(out)
            cursors = self._read_cursors(logs)
            for log in logs.values():
                self._segments(out, log)
                self._mended.lost_messages += log.short.missing()
            counters = self._counters(out)
            self._cursors(out, logs, cursors)
            self._epoch(out, meta.get("epoch"), counters)
            self._ledger(out, logs, counters)
            gaps = msgspec.json.encode(self._mended.gaps).decode()
            out.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (GAPS, gaps))
            out.execute("COMMIT")
            out.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return self._mended

    def _note(self, text: str, *, unknown: bool = False) -> None:
        """`unknown`: the sequences given last are not known any more."""
        self._mended.notes.append(text)
        self._mended.new_epoch = self._mended.new_epoch or unknown

    def _logs(self) -> dict[int, _Log]:
        rows, complete = self._salvage.rows("log", {"log": int, "name": str, "first": int, "next": int})
        logs = {number: _Log(number, name, first, end) for number, name, first, end in rows}
        if not complete:
            self._note("the table of logs is damaged", unknown=True)
        for number in self._salvage.log_numbers():
            if number not in logs:
                name = f"{RECOVERED} {number}"
                logs[number] = _Log(number, name, None, 0)
                text = f"the name of log {number} is lost: it is called {name!r}, export it from there"
                self._note(text, unknown=True)
        return logs

    def _read_cursors(self, logs: dict[int, _Log]) -> list[tuple[int, str, int, int, bytes]]:
        """The cursors of known logs. Where their table is damaged, those that must have been there begin anew."""
        rows, complete = self._salvage.rows("cursor", CURSOR)
        kept = [row for row in rows if row[2] in logs]
        for _, name, log, *_ in rows:
            if log not in logs:
                self._note(f"cursor {name!r} is left out: its log {log} is lost")
        if not complete:
            self._note("the table of cursors is damaged: who lost its place there is given again what is kept")
            number = max((row[0] for row in kept), default=0)
            for log, name in self._groups(logs, {(row[2], row[1]) for row in kept}):
                number += 1
                kept.append((number, name, log, logs[log].first or 0, b""))
        for log in logs.values():
            mine = [Claim(row[1], _progress(row), None) for row in kept if row[2] == log.number]
            if not mine and (not complete or log.name.startswith(RECOVERED)):
                log.forlorn = True
                mine = [Claim(RECOVERED, Progress(log.first or 0), None)]
            log.short = LogShort(log.name, mine)
        return kept

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

    def _segments(self, out: sqlite3.Connection, log: _Log) -> None:
        pending: list[Row] = []
        size, expected = 0, log.first
        for row, runs in self._sound(log):
            start = log_of(row.key)[1]
            if log.first is None or (not pending and log.bytes == 0 and start < log.first):
                log.first = expected = start  # rows go in the commit that moves `first`: what is there was not deleted
            if expected is not None and start < expected:
                continue  # overlaps what is kept
            if expected is not None and start > expected:
                self._gap(log, expected, start - 1)
            self._take(log, runs)
            expected = start + row.messages
            log.bytes += row.body_bytes
            pending.append(row)
            size += len(row.data)
            self._mended.segments += 1
            self._mended.messages += sum(len(stored.run.bodies) for stored in runs)
            self._mended.bytes += row.body_bytes
            if size >= CHUNK_BYTES:
                _insert(out, "segment", Row._fields, pending)
                pending, size = [], 0
                self._told(self._mended.bytes)
        _insert(out, "segment", Row._fields, pending)
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
        beyond = max(counted, self._salvage.reached(log.number))
        reached = settled if in_memory else beyond
        if end < reached:
            self._gap(log, end, reached - 1)
        log.end = max(end, beyond)
        if self._salvage.lost_tail(log.number):
            self._note(f"the end of log {log.name!r} cannot be read", unknown=True)

    def _take(self, log: _Log, runs: Sequence[Stored]) -> None:
        for position, sequence, run in runs:
            self._begins.setdefault(run.address, position)
            seen = self._seen.get(run.address)
            if seen is None:
                seen = self._seen[run.address] = Ranges()
            seen.add(sequence, sequence + len(run.bodies) - 1)
            self._homes[run.address] = log.number

    def _sound(self, log: _Log) -> Iterator[tuple[Row, Sequence[Stored]]]:
        for row in self._salvage.segments(key_of(log.number, 0), key_of(log.number, POSITION_MAX)):
            try:
                yield row, segment.decode(row, log_of(row.key)[1])
            except segment.SegmentDamaged:
                damage = self._salvage.remains(row, log.counted)
                if damage is not None and damage.runs and damage.first >= (log.first or 0):
                    log.short.damages.append(damage)
                    self._take(log, damage.runs)

    def _gap(self, log: _Log, first: int, last: int) -> None:
        self._mended.gaps.append((log.number, first, last))
        if last >= log.counted:
            self._note(f"the newest messages of log {log.name!r}, from position {first} on, are lost", unknown=True)
        if (log.number, first, last) not in self._known:
            log.short.gaps.append((first, last))

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
            if found.forlorn and (found.first or 0) < found.end:
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
        self._mended.epoch = kept or uuid.uuid4().hex
        out.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', ?)", (self._mended.epoch,))
        if self._mended.new_epoch and kept is not None:
            self._mended.epoch = epochs.begin(out, counters, DAMAGED)

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
            found = log.short.losses(kept, self._begins, free, entered, now)
            entries = [(number, *loss) for number, loss in enumerate(found, last + 1)]
            _insert(out, "ledger", LedgerEntry._fields, entries)
            last += len(found)


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
