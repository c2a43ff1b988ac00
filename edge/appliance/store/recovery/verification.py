"""Verification of a store. It changes nothing, a gateway may run, and its memory grows with the number of addresses.

Damage is what opening or reading the store would refuse or skip (`sqlite.py`, `reader.py`), and wrong values that they
would accept: counters behind given sequences, cursors beyond the end of their log.
"""

from __future__ import annotations

import enum
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from edge.appliance.store.recovery.inspection import CursorFacts, Inspection, LogFacts, log_of
from edge.broker.model.ranges import Ranges
from edge.broker.store import schema, segment
from edge.broker.store.consistency import SMALL_TABLES
from edge.broker.store.errors import StoreDamaged, StoreError
from edge.broker.store.gaps import GAPS, gaps_in
from edge.broker.store.limits import CHECK_LINES_MAX, FINDINGS_MAX, POSITION_BITS
from edge.broker.store.progress import CursorProgress

_OPENING: Final = [f"integrity_check({table})" for table in SMALL_TABLES]
"""Checks by SQLite that opening a store makes, including indexes."""

OnProgress = Callable[[int, int], None]
"""Called with (bytes of bodies verified, bytes of all bodies)."""


class Depth(enum.Enum):
    """Extent of a verification."""

    FULL = "full"
    """All pages and all segments."""
    QUICK = "quick"
    """The tree of pages, counters, cursors, the newest segments and the indexes of small tables, on which opening the
    store depends; no other index."""
    TOUCH = "touch"
    """QUICK without the tree: the parts that opening the store reads."""


class StoreFinding(msgspec.Struct, frozen=True):
    """Finding of a verification."""

    code: str
    """Kind of finding, for programs: ``segment-damaged``."""
    where: str
    what: str
    damage: bool = True
    """False for a note that is not damage."""
    log: int | None = None
    first: int | None = None
    last: int | None = None
    """Last position of `log` that it concerns; `first` is the first one."""


class VerificationReport(msgspec.Struct):
    """Report of a verification."""

    path: str
    depth: str
    epoch: str | None = None
    schema: int = 0
    logs: int = 0
    cursors: int = 0
    addresses: int = 0
    segments: int = 0
    """Verified segments."""
    messages: int = 0
    bytes: int = 0
    findings: list[StoreFinding] = []
    left_out: int = 0
    """Findings beyond the limit, which are only counted."""

    @property
    def damaged(self) -> bool:
        """True when there is damage."""
        return bool(self.left_out) or any(finding.damage for finding in self.findings)

    def add(self, finding: StoreFinding) -> None:
        """Add a finding, or count it when there are too many."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.left_out += finding.damage


def verify(
    path: Path, depth: Depth = Depth.FULL, on_progress: OnProgress = lambda _done, _all: None
) -> VerificationReport:
    """Verify the store in the file at `path`. Raises StoreInaccessible when it cannot be opened at all."""
    report = VerificationReport(str(path), depth.value)
    try:
        inspection = Inspection.open(path)
    except StoreError as error:
        if not path.is_file():
            raise
        report.add(StoreFinding("not-a-store", path.name, str(error)))
        return report
    with inspection:
        for step in (_check_pages, _check_schema):
            _step(report, step(inspection, depth))
        verification = _Verification(inspection, report, depth, on_progress)
        for part in (verification.load, verification.walk, verification.cursors, verification.sequences):
            _step(report, part())
    return report


def _step(report: VerificationReport, found: Iterator[StoreFinding]) -> None:
    """Add the findings of a step. A read error ends the step and becomes a finding."""
    try:
        for finding in found:
            report.add(finding)
    except (StoreError, TypeError, ValueError) as error:  # a damaged page may return NULL for a NOT NULL column
        report.add(StoreFinding("unreadable", "file", str(error)))


def _check_pages(inspection: Inspection, depth: Depth) -> Iterator[StoreFinding]:
    match depth:
        case Depth.FULL:
            checks = [f"integrity_check({CHECK_LINES_MAX})"]
        case Depth.QUICK:
            checks = [f"quick_check({CHECK_LINES_MAX})", *_OPENING]
        case Depth.TOUCH:
            checks = _OPENING
    for check in checks:
        for (line,) in inspection.query(f"PRAGMA {check}"):
            if line != "ok":
                yield StoreFinding("pages-damaged", "file", str(line).replace("\n", " "))


def _check_schema(inspection: Inspection, _: Depth) -> Iterator[StoreFinding]:
    version, ours = inspection.number("user_version"), len(schema.MIGRATIONS)
    if version > ours:
        what = f"schema {version} is newer than this program's {ours}: its additions are not verified"
        yield StoreFinding("schema-newer", "schema", what, damage=False)
    for table, columns in _expected(min(version, ours)).items():
        existing = {str(row[1]) for row in inspection.query(f"PRAGMA table_info({table})")}
        missing = columns - existing
        if missing:
            what = "is missing" if not existing else f"has no {', '.join(sorted(missing))}"
            yield StoreFinding("schema-damaged", f"table {table}", what)
    if inspection.meta("epoch") is None:
        yield StoreFinding("no-epoch", "table meta", "the store has no epoch: messages cannot be named")


def _expected(version: int) -> dict[str, set[str]]:
    """Return the columns of each table of a schema version, from the migrations."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        schema.prepare(connection, schema.MIGRATIONS[: max(version, 1)])
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: {row[1] for row in connection.execute(f"PRAGMA table_info({name})")} for name in names}
    finally:
        connection.close()


class _Verification:
    """Verification of logs, with the state that its steps share."""

    def __init__(
        self, inspection: Inspection, report: VerificationReport, depth: Depth, on_progress: OnProgress
    ) -> None:
        self._inspection = inspection
        self._report = report
        self._full = depth is Depth.FULL
        self._on_progress = on_progress
        self._logs: list[LogFacts] = []
        self._cursors: Sequence[CursorFacts] = ()
        self._next: dict[str, int] = {}
        self._boots: set[int] = set()
        self._known_gaps: set[tuple[int, int, int]] = set()
        self._in_memory: set[int] = set()
        """Logs that are or were in memory: their messages were never written."""
        self._holes = False
        self._seen: dict[str, Ranges] = {}
        self._home: dict[str, int] = {}
        self._elsewhere: set[str] = set()
        self._counted_end: dict[str, int] = {}
        self._unsteady: set[str] = set()
        self._all = 0

    def load(self) -> Iterator[StoreFinding]:
        """Read counters and cursors, in one snapshot."""
        inspection = self._inspection
        with inspection.snapshot():
            self._report.epoch = inspection.meta("epoch")
            self._report.schema = inspection.number("user_version")
            self._logs = inspection.logs()
            self._cursors = inspection.cursors()
            rows = inspection.query("SELECT name, next FROM address")
            self._next = {str(name): int(str(end)) for name, end in rows}
            self._boots = {int(str(boot)) for (boot,) in inspection.query("SELECT boot FROM boot")}
            self._known_gaps = set(known_gaps(inspection))
            inspection.epochs(self._report.epoch or "")  # as opening does; an error is a finding
            self._in_memory = {mark.log for mark in inspection.marks()}
        self._report.logs, self._report.cursors = len(self._logs), len(self._cursors)
        self._report.addresses = len(self._next)
        self._all = sum(log.bytes for log in self._logs)
        numbers = {log.log for log in self._logs}
        for number in sorted(self._segment_logs()):
            if number not in numbers:
                yield StoreFinding("log-unknown", f"log {number}", "has messages and no row in table log", log=number)

    def walk(self) -> Iterator[StoreFinding]:
        """Verify all segments of all logs, or only those not counted yet."""
        for log in self._logs:
            yield from self._log(log)

    def cursors(self) -> Iterator[StoreFinding]:
        """Verify that each cursor is in an existing log, within its bounds, with valid ranges."""
        logs = {log.log: log for log in self._logs}
        for cursor in self._cursors:
            where = f"cursor {cursor.name!r} of log {cursor.log}"
            log = logs.get(cursor.log)
            if log is None:
                yield StoreFinding("cursor-lost", where, "its log does not exist", log=cursor.log)
                continue
            try:
                progress = CursorProgress(cursor.position, cursor.acknowledged)
            except ValueError as error:
                yield StoreFinding("cursor-damaged", where, str(error), log=cursor.log)
                continue
            end = max((last + 1 for _, last in progress.above), default=progress.position)
            if end > log.next:
                what = f"is at {end}, beyond the end of its log at {log.next}: it would skip new messages"
                yield StoreFinding("cursor-beyond", where, what, log=cursor.log)

    def sequences(self) -> Iterator[StoreFinding]:
        """Verify that given sequences are below their counter, and without unexplained gaps."""
        for address, end in self._counted_end.items():
            if self._next.get(address, 0) < end:
                following = self._next.get(address, 0)
                what = f"the next sequence is {following}, and {end - 1} is used already: it would be used twice"
                yield StoreFinding("counter-behind", f"address {address!r}", what)
        if not self._full or self._holes or self._known_gaps:
            return  # missing messages are reported as positions already
        dropping = self._in_memory | {log.log for log in self._logs if log.first > 0}
        for address, seen in self._seen.items():
            if address in self._elsewhere or address in self._unsteady:
                continue
            if len(dropping) > (self._home.get(address) in dropping):
                continue  # with another configuration it may have been in another log that drops messages
            pairs = list(seen)
            ends = [last + 1 for _, last in pairs]
            starts = [first for first, _ in pairs[1:]] + [max(ends[-1], self._next.get(address, 0))]
            for first, after in zip(ends, starts, strict=True):
                if first < after and not self._in_ledger(address, first, after - 1):
                    what = f"sequences {first} to {after - 1} are in no log and not in the ledger"
                    yield StoreFinding("sequences-missing", f"address {address!r}", what)

    # --- one log ----------------------------------------------------------------------------------------------

    def _log(self, log: LogFacts) -> Iterator[StoreFinding]:
        where = f"log {log.name!r}"
        expected = log.first if self._full else log.counted
        counted_bytes, alive = 0, True
        for row in self._inspection.segments(log.log, 0 if self._full else log.counted):
            start, messages = log_of(row.key)[1], segment.extent(row)
            if not self._full and start < log.counted:
                continue
            if start != expected:
                first_now = self._first(log.log)
                alive = alive and first_now == log.first
                if start < log.first:
                    yield StoreFinding(
                        "below-first", where, f"a segment at {start} is below its first position {log.first}",
                        log=log.log, first=start, last=start + messages - 1,
                    )  # fmt: skip
                elif start < expected:
                    what = f"segments overlap at {start}"
                    yield StoreFinding("overlap", where, what, log=log.log, first=start, last=expected - 1)
                elif first_now < start:
                    yield self._gap(log, max(expected, first_now), start - 1)
            expected = max(expected, start + messages)
            yield from self._segment(log, row, start)
            if start < log.counted and isinstance(row.body_bytes, int):
                counted_bytes += row.body_bytes
        if expected < log.next and log.log not in self._in_memory and self._first(log.log) <= expected:
            yield self._gap(log, expected, log.next - 1)
        steady = alive and self._full and self._first(log.log) == log.first
        if not steady or log.log in self._in_memory:
            self._unsteady |= {address for address, home in self._home.items() if home == log.log}
        counted = self._counted_bytes(log)
        if steady and counted is not None and counted != counted_bytes and not self._holes:
            yield StoreFinding(
                "bytes-miscounted", where, f"table log says {counted} bytes, its segments have {counted_bytes}"
            )

    def _segment(self, log: LogFacts, row: segment.SegmentRow, start: int) -> Iterator[StoreFinding]:
        messages = segment.extent(row)
        where = f"log {log.name!r}"
        try:
            runs = segment.decode(row, start)
        except segment.SegmentDamaged as error:
            self._holes = True
            last = start + messages - 1
            kind = "segment-damaged" if start < log.counted else "newest-damaged"
            more = "" if start < log.counted else ": the gateway cannot start, as the last sequences are unknown"
            what = f"positions {start} to {last}: {error}{more}"
            yield StoreFinding(kind, where, what, log=log.log, first=start, last=last)
            return
        self._report.segments += 1
        self._report.messages += messages
        self._report.bytes += row.body_bytes
        self._on_progress(self._report.bytes, self._all)
        if row.boot not in self._boots:
            yield StoreFinding(
                "boot-unknown", where, f"segment at {start}: its boot {row.boot} is not known", damage=False
            )
        for _, sequence, run in runs:
            address, end = run.address, sequence + len(run.bodies)
            if start < log.counted:
                self._counted_end[address] = max(self._counted_end.get(address, 0), end)
            if self._home.setdefault(address, log.log) != log.log:
                self._elsewhere.add(address)
            seen = self._seen.get(address)
            if seen is None:
                seen = self._seen[address] = Ranges()
            if seen.within(sequence, end - 1):
                what = f"sequences {sequence} to {end - 1} are used twice"
                yield StoreFinding("sequence-twice", f"address {address!r}", what, log=log.log, first=start)
            seen.add(sequence, end - 1)

    def _gap(self, log: LogFacts, first: int, last: int) -> StoreFinding:
        known = (log.log, first, last) in self._known_gaps
        self._holes = self._holes or not known
        what = f"positions {first} to {last} are missing"
        if known:
            what += ": a repair has accounted for them"
        return StoreFinding(
            "positions-missing", f"log {log.name!r}", what, damage=not known, log=log.log, first=first, last=last
        )

    # --- current state of the file ----------------------------------------------------------------------------

    def _first(self, log: int) -> int:
        """Return the current first position: a running gateway deletes from the front."""
        rows = self._inspection.query("SELECT first FROM log WHERE log = ?", (log,))
        if not rows:
            raise StoreDamaged(f"log {log} is no longer found in table log")
        return int(str(rows[0][0]))

    def _counted_bytes(self, log: LogFacts) -> int | None:
        """Return `log.bytes` as of the start of the verification; None when it was counted again since."""
        rows = self._inspection.query("SELECT next, bytes FROM log WHERE log = ?", (log.log,))
        return int(str(rows[0][1])) if rows and rows[0][0] == log.counted else None

    def _segment_logs(self) -> Iterator[int]:
        """Yield the numbers of the logs with segments, one seek each."""
        after = -1
        while True:
            key = self._inspection.query("SELECT min(key) FROM segment WHERE key > ?", (after,))[0][0]
            if key is None:
                return
            if int(str(key)) <= after:  # a damaged tree leads back
                raise StoreDamaged(f"segments are out of order at key {key}")
            number = int(str(key)) >> POSITION_BITS
            yield number
            after = ((number + 1) << POSITION_BITS) - 1

    def _in_ledger(self, address: str, first: int, last: int) -> bool:
        """Return True when the ledger covers all of these sequences."""
        if "ledger" not in self._inspection.tables():
            return False
        covered = Ranges()
        for low, high in self._inspection.query(
            "SELECT first, last FROM ledger WHERE address = ? AND first <= ? AND last >= ?", (address, last, first)
        ):
            covered.add(int(str(low)), int(str(high)))
        return covered.within(first, last) == [(first, last)]


def known_gaps(inspection: Inspection) -> list[tuple[int, int, int]]:
    """Return (log, first, last) of the positions that repairs have accounted for."""
    return gaps_in(inspection.meta(GAPS))
