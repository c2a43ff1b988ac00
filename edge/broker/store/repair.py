"""A damaged store becomes a sound one, in a new file beside it: what passes its checks is kept, the rest accounted for.

Segments stand for themselves: each row that can be reached and whose CRC fits is kept as it is. What stood between them
is entered into the loss ledger. Where the sequences given last are not known any more the store goes on under a new
epoch, rather than name two messages alike. The damaged file is never written to, and stays under another name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from bridge.message import Stored
from edge.broker.ranges import Ranges
from edge.broker.store import schema, segment
from edge.broker.store.contract import LedgerEntry, Loss
from edge.broker.store.damage import DAMAGED
from edge.broker.store.faults import meaning
from edge.broker.store.inspection import key_of, log_of
from edge.broker.store.limits import CHUNK_BYTES, POSITION_MAX, POSITIONS_LOST_MAX, Limits
from edge.broker.store.lock import DirectoryLock
from edge.broker.store.progress import Progress
from edge.broker.store.salvage import Salvage
from edge.broker.store.segment import Row
from edge.broker.store.sqlite import FILE_NAME, REPAIRED_NAME
from edge.broker.store.verification import GAPS, gaps_in
from edge.broker.topics import matches

BASE: Final = "base"
"""Kind of small state: the first sequence of an address that forwarders owe (`edge.broker.registry`)."""
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

    Needs room for two copies of the store. Interrupted at any time, it leaves the damaged store in place, or the new
    one, or a state that only a repair opens, and finishes.
    """
    lock = DirectoryLock(data)
    try:
        if (data / REPAIRED_NAME).exists():
            kept = _put_in_place(data)
            return Mended(notes=["an earlier repair was interrupted and is complete now"], damaged_copy=kept)
        copy, fresh = data / f"{FILE_NAME}.salvage", data / f"{FILE_NAME}.repairing"
        try:
            _snapshot(data / FILE_NAME, copy)
            with contextlib.closing(Salvage(copy)) as salvage:
                mended = _Repair(salvage, fresh, lambda done: told(done, copy.stat().st_size)).run()
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
                for suffix in ("", "-wal", "-shm", "-journal"):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
    finally:
        lock.release()


def _snapshot(path: Path, copy: Path) -> None:
    """The file with what its log holds, page by page: nothing is looked into. Of a file without a head only itself."""
    os.close(os.open(copy, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    try:
        address = f"{path.resolve().as_uri()}?mode=ro"
        with (
            contextlib.closing(sqlite3.connect(address, uri=True)) as source,
            contextlib.closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
    except sqlite3.Error:
        shutil.copyfile(path, copy)


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
    lost: int = 0
    """Positions missing that some group had not acknowledged."""
    lost_head: int = 0
    """Of these, the ones before everything that is kept."""


class _Repair:
    """One repair: from what was salvaged into a fresh file."""

    def __init__(self, salvage: Salvage, target: Path, told: Callable[[int], None]) -> None:
        self._salvage = salvage
        self._target = target
        self._told = told
        self._mended = Mended()
        self._seen: dict[str, Ranges] = {}
        """Sequences kept, by address."""
        self._homes: dict[str, int] = {}
        """The log of an address."""
        self._known: set[tuple[int, int, int]] = set()
        """Gaps that an earlier repair has accounted for."""
        self._places: dict[int, list[tuple[str, Progress]]] = {}
        """(group, how far it has come) by log."""

    def run(self) -> Mended:
        """Write the fresh file. Raises sqlite3.Error."""
        os.close(os.open(self._target, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        with contextlib.closing(sqlite3.connect(self._target, isolation_level=None)) as out:
            schema.configure(out, Limits(page_bytes=self._salvage.page_bytes))
            out.execute("PRAGMA synchronous = OFF")  # synced as a whole before it takes its place
            schema.prepare(out)
            out.execute("BEGIN")
            meta = dict(self._salvage.rows("meta", ("key", "value"))[0])
            self._known = set(gaps_in(meta.get(GAPS)))
            logs = self._logs()
            cursors, complete = self._read_cursors()
            for log in logs.values():
                self._segments(out, log)
            self._small(out)
            counters = self._counters(out)
            self._cursors(out, logs, cursors, complete=complete)
            self._epoch(out, meta.get("epoch"))
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
        rows, complete = self._salvage.rows("log", ("log", "name", "first", "next"))
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

    def _read_cursors(self) -> tuple[list[tuple[Any, ...]], bool]:
        rows, complete = self._salvage.rows("cursor", ("cursor", "name", "log", "position", "acknowledged"))
        for _, name, log, position, above in rows:
            try:
                progress = Progress(position, above)
            except (ValueError, TypeError):
                progress = Progress(position)
            self._places.setdefault(log, []).append((name, progress))
        return rows, complete

    # --- messages ---------------------------------------------------------------------------------------------

    def _segments(self, out: sqlite3.Connection, log: _Log) -> None:
        pending: list[Row] = []
        size, expected = 0, log.first
        for row, runs in self._sound(log.number):
            start = log_of(row.key)[1]
            if log.first is None or (not pending and log.bytes == 0 and start < log.first):
                log.first = expected = start  # rows go in the commit that moves `first`: what is there was not deleted
            if expected is not None and start < expected:
                continue  # overlaps what is kept
            if expected is not None and start > expected:
                self._gap(log, expected, start - 1, head=expected == log.first)
            self._take(log, runs)
            expected = start + row.messages
            log.bytes += row.body_bytes
            pending.append(row)
            size += len(row.data)
            self._mended.segments += 1
            self._mended.messages += row.messages
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
        if counted - end > POSITIONS_LOST_MAX:
            self._note(f"log {log.name!r} cannot have ended at {counted}: it ends at {end} now", unknown=True)
            counted = end
        beyond = max(counted, self._salvage.reached(log.number))
        if end < beyond:
            self._gap(log, end, beyond - 1, head=end == (log.first or 0))
        log.end = max(end, beyond)
        if self._salvage.lost_tail(log.number):
            self._note(f"the end of log {log.name!r} cannot be read", unknown=True)

    def _take(self, log: _Log, runs: Sequence[Stored]) -> None:
        for _, sequence, run in runs:
            seen = self._seen.get(run.address)
            if seen is None:
                seen = self._seen[run.address] = Ranges()
            seen.add(sequence, sequence + len(run.bodies) - 1)
            self._homes[run.address] = log.number

    def _sound(self, number: int) -> Iterator[tuple[Row, Sequence[Stored]]]:
        for row in self._salvage.segments(key_of(number, 0), key_of(number, POSITION_MAX)):
            try:
                yield row, segment.decode(row, log_of(row.key)[1])
            except segment.SegmentDamaged:
                continue

    def _gap(self, log: _Log, first: int, last: int, *, head: bool) -> None:
        self._mended.gaps.append((log.number, first, last))
        if last >= log.counted:
            self._note(f"the newest messages of log {log.name!r}, from position {first} on, are lost", unknown=True)
        if (log.number, first, last) in self._known or self._passed(log.number, first, last):
            return
        log.lost += last + 1 - first
        log.lost_head += (last + 1 - first) if head else 0
        self._mended.lost_messages += last + 1 - first

    def _passed(self, log: int, first: int, last: int) -> bool:
        """True when every group of a log had acknowledged these positions already."""
        places = self._places.get(log, [])
        return bool(places) and all(progress.within(first, last) == [(first, last)] for _, progress in places)

    # --- everything else --------------------------------------------------------------------------------------

    def _small(self, out: sqlite3.Connection) -> None:
        for table, columns in (
            ("boot", ("boot", "boot_id", "opened_at")),
            ("state", ("kind", "key", "value")),
            ("ledger", LedgerEntry._fields),
            ("thinned", ("key", "level")),
            ("wear", ("hour", "seconds", "payload_bytes", "process_bytes", "device_bytes")),
        ):
            rows, complete = self._salvage.rows(table, columns)
            _insert(out, table, columns, rows)
            if not complete:
                self._note(f"table {table} is damaged: {len(rows):,} of its rows are kept")

    def _counters(self, out: sqlite3.Connection) -> dict[str, int]:
        rows, complete = self._salvage.rows("address", ("name", "next"))
        counters: dict[str, int] = dict(rows)
        if not complete:
            self._note("the table of addresses is damaged", unknown=True)
        for address, seen in self._seen.items():
            counters[address] = max(counters.get(address, 0), list(seen)[-1][1] + 1)
        _insert(out, "address", ("name", "next"), list(counters.items()))
        return counters

    def _cursors(
        self, out: sqlite3.Connection, logs: dict[int, _Log], rows: Sequence[tuple[Any, ...]], *, complete: bool
    ) -> None:
        if not complete:
            self._note("the table of cursors is damaged: consumer groups in the lost part begin anew")
        kept: list[tuple[Any, ...]] = []
        for cursor, name, log, position, above in rows:
            if log not in logs:
                self._note(f"cursor {name!r} is left out: its log {log} is lost")
                continue
            end = logs[log].end
            try:
                progress = Progress(position, above)
            except (ValueError, TypeError):
                progress = Progress(position)
                self._note(f"cursor {name!r}: what it acknowledged out of order is lost, and delivered again")
            if progress.position > end or any(last >= end for _, last in progress.above):
                progress = Progress(min(progress.position, end))
                self._note(f"cursor {name!r} was beyond the end of its log: it is at {progress.position}")
            kept.append((cursor, name, log, progress.position, progress.pack()))
        number = max((row[0] for row in kept), default=0)
        held = {row[2] for row in kept}
        for found in logs.values():
            empty = (found.first or 0) >= found.end
            if found.number not in held and not empty and (not complete or found.name.startswith(RECOVERED)):
                number += 1
                kept.append((number, RECOVERED, found.number, found.first or 0, b""))
                self._note(f"log {found.name!r} has lost its cursors: cursor {RECOVERED!r} keeps its messages")
        _insert(out, "cursor", ("cursor", "name", "log", "position", "acknowledged"), kept)

    def _epoch(self, out: sqlite3.Connection, epoch: object) -> None:
        if epoch is None:
            self._note("the epoch is lost", unknown=True)
        self._mended.epoch = uuid.uuid4().hex if self._mended.new_epoch or epoch is None else str(epoch)
        out.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', ?)", (self._mended.epoch,))
        if self._mended.new_epoch:
            # To the hub the new epoch begins with what is kept: sequences below were another epoch's.
            bases = [(BASE, address, seen.first.to_bytes(8, "big")) for address, seen in self._seen.items()]
            out.execute("DELETE FROM state WHERE kind = ?", (BASE,))
            _insert(out, "state", ("kind", "key", "value"), bases)

    def _ledger(self, out: sqlite3.Connection, logs: dict[int, _Log], counters: dict[str, int]) -> None:
        """Enter what is missing for every group that waited for it.

        Together no more messages than positions are missing. Ranges hold what was lost for certain, and more where
        only its bounds are known.
        """
        (last,) = out.execute("SELECT coalesce(max(entry), 0) FROM ledger").fetchone()
        now, entries = time.time_ns(), []
        for log in logs.values():
            groups = [name for name, progress in self._places.get(log.number, ()) if self._missed(log, progress)]
            left = dict.fromkeys(groups, log.lost)
            for address, first, final in self._holes(log, counters) if groups else ():
                for name in groups:
                    if self._entered(out, name, address, first, final):
                        continue
                    messages = min(final + 1 - first, left[name])
                    left[name] -= messages
                    last += 1
                    entries.append((last, *Loss(name, address, first, final, messages, 0, DAMAGED, now)))
        _insert(out, "ledger", LedgerEntry._fields, entries)

    def _missed(self, log: _Log, progress: Progress) -> bool:
        """True when a group had not acknowledged all that is missing of its log."""
        return any(
            progress.within(first, last) != [(first, last)]
            for number, first, last in self._mended.gaps
            if number == log.number and (number, first, last) not in self._known
        )

    def _holes(self, log: _Log, counters: dict[str, int]) -> Iterator[tuple[str, int, int]]:
        """(address, first, last) of sequences that are in no kept segment, the most certain first."""
        heads = []
        for address, home in self._homes.items():
            if home != log.number:
                continue
            seen = self._seen[address]
            pairs = list(seen)
            starts = [first for first, _ in pairs[1:]] + [counters[address]]
            for (_, before), after in zip(pairs, starts, strict=True):
                if before + 1 < after:
                    yield address, before + 1, after - 1
            if log.lost_head and seen.first:
                heads.append((address, max(0, seen.first - log.lost_head), seen.first - 1))
        yield from heads
        kind, _, pattern = log.name.partition(" ")
        for address, end in counters.items():  # those of which nothing is kept
            mine = address == pattern if kind == "queue" else kind == "topic" and matches(pattern, address)
            if mine and end and address not in self._homes:
                yield address, max(0, end - log.lost), end - 1

    @staticmethod
    def _entered(out: sqlite3.Connection, name: str, address: str, first: int, last: int) -> bool:
        """True when the ledger has it already."""
        rows = out.execute(
            "SELECT 1 FROM ledger WHERE subscription = ? AND address = ? AND first <= ? AND last >= ?",
            (name, address, first, last),
        )
        return rows.fetchone() is not None


def _insert(out: sqlite3.Connection, table: str, columns: tuple[str, ...], rows: list[Any]) -> None:
    marks = ", ".join("?" * len(columns))
    out.executemany(f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)  # noqa: S608
