"""The gateway's store: one SQLite file in WAL mode, one thread that writes it, one that reads it."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from bridge.message import Stored
from edge.broker.store import epochs, openings, schema, segment, soundness, wal, wear
from edge.broker.store.checkpointer import Checkpointer
from edge.broker.store.contract import CursorRecord, LedgerEntry, StoreDamaged, StoreError, StoreInaccessible, Summary
from edge.broker.store.damage import Damage
from edge.broker.store.durations import Histogram
from edge.broker.store.epochs import Epochs
from edge.broker.store.faults import ADVICE, meaning, meaning_of_system
from edge.broker.store.files import StoreFiles
from edge.broker.store.group import CursorState, Group, Holder, LogState, Outcome
from edge.broker.store.grouping import GroupingStore, Post
from edge.broker.store.limits import OFFSET_MAX, POSITION_BITS, POSITION_MAX, STATE_PAGE_ROWS, Limits
from edge.broker.store.lock import DirectoryLock
from edge.broker.store.problems import Problems
from edge.broker.store.progress import Progress
from edge.broker.store.reader import SCAN, Reader, Request
from edge.broker.store.tail import MEMORY, Settlement, unpack_mark
from edge.broker.store.writer import Job, Writer

logger = logging.getLogger(__name__)

FILE_NAME: Final = "store.sqlite"
REPAIRED_NAME: Final = "store.sqlite.repaired"
"""A repaired store on its way to its place; until it is there, nothing else must be opened."""
_LEDGER: Final = f"SELECT {', '.join(LedgerEntry._fields)} FROM ledger"  # noqa: S608 - names of our own
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class SqliteStore(GroupingStore):
    """See `contract.Store`; made by `open`."""

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        post: Post,
        clock: Callable[[], float] = time.monotonic,
        limits: Limits | None = None,
        summary: Summary | None = None,
    ) -> Self:
        """Open the store in `directory`, making both when they are new.

        `post` runs a callback on the loop's thread (``loop.call_soon_threadsafe``); `summary` says how messages are
        thinned (None: not at all). Raises StoreBusy, StoreTooNew,
        StoreDamaged, StoreInaccessible, or StoreFull when the file has to be made or migrated and cannot be written.
        """
        _make_directory(directory)
        lock = DirectoryLock(directory)
        with contextlib.ExitStack() as undo:
            undo.callback(lock.release)
            path = directory / FILE_NAME
            if (directory / REPAIRED_NAME).exists():
                raise StoreDamaged(f"{path}: a repair was interrupted: run `waypost store repair --yes` again")
            limits = limits or Limits()
            try:
                logged = wal.make_durable(path)
                _make_file(path)
                connection = undo.enter_context(contextlib.closing(_connect_writer(path, limits)))
                epoch = schema.prepare(connection)
                limits = msgspec.structs.replace(limits, page_bytes=schema.page_bytes(connection))
                _sync_directory(directory)
                side = undo.enter_context(contextlib.closing(_connect_reader(path, limits)))
                store = cls(
                    epoch, post=post, clock=clock, limits=limits, summary=summary, path=path, side=side, lock=lock
                )
                store._load()
                store._open_epochs(connection, directory)
                store._start_meter()
                beside = undo.enter_context(contextlib.closing(_connect_writer(path, limits)))
                reading = undo.enter_context(contextlib.closing(_connect_reader(path, limits)))
                store._files = StoreFiles(path)
                checkpointer = Checkpointer(path, connection, beside, limits, logged_bytes=logged)
            except sqlite3.Error as error:
                raise meaning(error, f"opening {path}") from error
            except OSError as error:
                raise meaning_of_system(error, f"opening {path}") from error
            except StoreError as error:
                raise type(error)(f"{path}: {error}") from error
            except (TypeError, ValueError, OverflowError) as error:  # a rotten page gives columns other types
                raise StoreDamaged(f"{path}: a table is damaged ({error}): {ADVICE}") from error
            store._writer = Writer(connection, post, store._ledger, limits, checkpointer, store._files, store._problems)
            store._reader = Reader(reading, post, store._skip_damaged, store._problems, limits)
            undo.pop_all()
            return store

    def __init__(
        self,
        epoch: str,
        *,
        post: Post,
        clock: Callable[[], float],
        limits: Limits,
        summary: Summary | None,
        path: Path,
        side: sqlite3.Connection,
        lock: DirectoryLock,
    ) -> None:
        """Use `open`. `side` is the loop thread's own reading connection: point reads, and start-up."""
        super().__init__(epoch, post=post, clock=clock, limits=limits, summary=summary)
        self._path = path
        self._side = side
        self._lock = lock
        self._writer: Writer
        self._reader: Reader
        self._problems = Problems()
        self._files: StoreFiles
        self._openings: list[str] = []
        self._boot = 0
        self._boot_row: tuple[int, str, int] | None = None
        self.device: wear.Device | None = None
        """What the store is on."""
        self._meter: wear.Meter
        self._wear: wear.Totals | None = None
        """On its way to the medium."""

    @property
    def commits(self) -> Histogram:
        """How long the commits of this process took."""
        return self._writer.durations.histogram()

    @property
    def written(self) -> tuple[wear.Totals, Sequence[wear.Totals]]:
        """What was written until now, and until the end of earlier hours of running."""
        return self._meter.totals(), self._meter.rows

    @property
    def problems(self) -> Sequence[str]:
        """What keeps it from doing its work, in words: commits that fail, logs that cannot be read, files gone."""
        found, gone = self._problems.texts(), self._files.check()
        return found if gone is None or str(gone) in found else [*found, str(gone)]

    def _last_words(self) -> bool:
        return self._meter.untold

    # --- reading ----------------------------------------------------------------------------------------------

    def cursors(self) -> Sequence[CursorRecord]:
        return [state.record() for state in self._stored_cursors()]

    def items(self, kind: str) -> Iterator[tuple[str, bytes]]:
        after = None
        while True:
            later = "" if after is None else "AND key > ?"
            rows = self._query(
                f"SELECT key, value FROM state WHERE kind = ? {later} ORDER BY key LIMIT {STATE_PAGE_ROWS}",  # noqa: S608
                (kind,) if after is None else (kind, after),
            )
            yield from rows
            if len(rows) < STATE_PAGE_ROWS:
                return
            after = rows[-1][0]

    def _read(self, log: LogState, position: int, bytes_max: int, done: Callable[[Sequence[Stored]], None]) -> None:
        tail = self._tails.get(log.log)
        end = log.next if tail is None else tail.written  # a rotten last segment reaches no further either
        self._reader.submit(Request(log.log, log.name, position, end, bytes_max, done))

    def _written(self, log: int, before: int) -> int:
        base = log << POSITION_BITS
        newest = "SELECT key, messages FROM segment WHERE key >= ? AND key < ? ORDER BY key DESC LIMIT 1"
        rows = self._query(newest, (base, base | before))
        return (rows[0][0] & POSITION_MAX) + rows[0][1] if rows else 0

    def _load_sequences(self, addresses: Iterable[str]) -> dict[str, int]:
        names = msgspec.json.encode(list(addresses)).decode()
        return dict(
            self._query("SELECT name, next FROM address WHERE name IN (SELECT value FROM json_each(?))", (names,))
        )

    def sequences(self) -> Iterator[tuple[str, int]]:
        rows = self._query("SELECT name, next FROM address")
        return iter({**dict(rows), **self._sequences}.items())

    def _read_ledger(self, after: int, entries_max: int, subscriptions: str) -> Sequence[LedgerEntry]:
        begins = "AND substr(subscription, 1, length(?)) = ?"
        parameters = (after, subscriptions, subscriptions, entries_max)
        rows = self._query(f"{_LEDGER} WHERE entry > ? {begins} ORDER BY entry LIMIT ?", parameters)
        return [LedgerEntry._make(row) for row in rows]

    def _query(self, text: str, parameters: Sequence[str | int] = ()) -> list[Any]:
        try:
            return self._side.execute(text, parameters).fetchall()
        except sqlite3.Error as error:
            raise meaning(error, "reading the store") from error

    def free_bytes(self) -> int | None:
        try:
            medium, size, page = os.statvfs(self._path), os.stat(self._path).st_size, self._limits.page_bytes
            free, pages = self._query("SELECT * FROM pragma_freelist_count, pragma_page_count")[0]
        except (OSError, StoreError) as error:
            logger.warning("free space of the medium is not known: %s", error)
            return None
        return int(max(0, medium.f_bavail * medium.f_frsize + free * page - max(0, pages * page - size)))

    def _file_bytes(self) -> int:
        total = 0
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                total += os.stat(f"{self._path}{suffix}").st_size
        return total

    # --- writing ----------------------------------------------------------------------------------------------

    def _commit(self, group: Group) -> None:
        due = group.counting and (self._closing or self._meter.due())
        self._wear = self._meter.totals(_payload_bytes(group)) if due else None
        segments = list(self._pack(group))
        self._writer.submit(
            Job(group, segments, self._boot_row, self._wear, self._summary, partial(self._finish, group))
        )

    def _succeeded(self, group: Group, outcome: Outcome) -> None:
        self._boot_row = None
        self._meter.payload_bytes += _payload_bytes(group)
        if self._wear is not None:
            self._meter.kept(self._wear)
        if outcome.thinned or any(evicted.cut for evicted in outcome.evicted):
            self._reader.forget()
        super()._succeeded(group, outcome)

    def _pack(self, group: Group) -> Iterator[segment.Row]:
        """The group's segments: one a log, more when there is more than a segment may hold."""
        bytes_max = self._limits.segment_bytes_max
        for log, first, end in group.filled:
            yield segment.encode(log << POSITION_BITS | first, self._boot, group.monotonic_ns, (), span=end - first)
        for settlement in group.settled:
            for key, span, runs in _covering(settlement, bytes_max):
                yield segment.encode(key, self._boot, group.monotonic_ns, runs, span=span, packed=True)
        by_log: dict[int, list[Stored]] = {}
        for log, stored in group.appended:
            if stored.run.bodies:
                by_log.setdefault(log, []).append(stored)
        for log, runs in by_log.items():
            parts = [runs] if group.sizes[log] <= bytes_max else _chunks(runs, bytes_max)
            waits = log in self._delays
            for part in parts:
                key = log << POSITION_BITS | part[0].position
                yield segment.encode(key, self._boot, group.monotonic_ns, part, packed=waits)

    def _stop(self) -> None:
        self._reader.stop()
        self._side.close()
        self._writer.stop()
        self._lock.release()

    # --- epochs -----------------------------------------------------------------------------------------------

    @property
    def openings(self) -> Sequence[str]:
        return self._openings

    def fork(self, shared: str) -> None:
        self._fork(lambda: self._ends_after(shared), "the hub knows of a later opening")

    def begin_epoch(self) -> None:
        """What comes from now on is of a new epoch, as somebody knows that this is an older copy. Raises StoreError."""
        self._fork(dict, "by command")

    def _fork(self, ends: Callable[[], Mapping[int, int]], why: str) -> None:
        try:
            starts = dict(self.sequences())
            for log, end in ends().items():
                for address, sequence in self._appended_since(log, end):
                    starts[address] = min(starts.get(address, sequence), sequence)
            with contextlib.closing(_connect_writer(self._path, self._limits)) as connection:
                self._begin_epoch(connection, starts, why)
        except sqlite3.Error as error:
            raise meaning(error, "beginning a new epoch") from error
        except ValueError as error:
            raise StoreDamaged(f"beginning a new epoch: {error}: run `waypost store repair`") from error

    def _ends_after(self, shared: str) -> dict[int, int]:
        ends = openings.ends_after(self._side, shared)
        return {log: ends.get(log, 0) for log in self._logs}

    def _appended_since(self, log: int, end: int) -> Iterator[tuple[str, int]]:
        """(address, sequence) of runs at or above a position; one that cannot be read is lost, whatever its name."""
        base = log << POSITION_BITS
        (key,) = self._side.execute(
            "SELECT max(key) FROM segment WHERE key >= ? AND key <= ?", (base, base | end)
        ).fetchone()
        for row in map(segment.Row._make, self._side.execute(SCAN, (key or base | end, base | POSITION_MAX))):
            with contextlib.suppress(segment.SegmentDamaged):
                for position, sequence, run in segment.decode(row, row.key & POSITION_MAX):
                    if position >= end:
                        yield run.address, sequence
        for taken in self._tails[log].taken if log in self._tails else ():
            if taken.stored.position >= end:
                yield taken.stored.run.address, taken.stored.sequence

    def _begin_epoch(self, connection: sqlite3.Connection, starts: dict[str, int], why: str) -> None:
        name = epochs.begin(connection, starts, why)
        self.epochs.reload(self._side)
        logger.warning("%s: an older copy of this store was put back; new messages are of epoch %s", why, name)

    def _open_epochs(self, connection: sqlite3.Connection, directory: Path) -> None:
        """Enter this opening. A medium that cannot take that now goes on without: it is known by the one before."""
        self.epochs = Epochs.load(self._side, self.epoch)
        known, beside = openings.known(self._side), openings.beside(directory)
        starts = dict(self.sequences()) if beside is not None and beside not in known else {}
        if any(starts.values()):
            self._begin_epoch(connection, starts, f"{openings.COMPANION} names an opening the store does not know")
        try:
            openings.enter(connection, {state.log: state.next for state in self._logs.values()})
            openings.remember(directory, openings.known(self._side)[-1])
        except (sqlite3.Error, OSError) as error:
            logger.warning("this opening cannot be remembered (%s)", error)
        self._openings = openings.known(self._side)

    # --- opening ----------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Read what is kept in memory: O(logs + cursors), and the few segments not counted yet."""
        soundness.check_tables(self._side)
        self._load_boot()
        self._load_ledger()
        for row in self._side.execute("SELECT log, name, first, next, bytes FROM log"):
            number, name, first, end, size = row
            self._add_log(LogState(number, name, first=first, next=end, bytes=size, counted=end))
        for state in list(self._logs.values()):
            self._recount(state)
        for address, end in self._load_sequences(self._uncounted).items():  # reserved further by another log
            self._uncounted[address] = max(self._uncounted[address], end)
        self._sequences.update(self._uncounted)
        soundness.check_logs(self._side, self._logs.values(), self._counted_sequences)
        for cursor in self._stored_cursors():
            soundness.check_cursor(cursor, self._logs[cursor.log])
            self._add_cursor(cursor)
        self._lost = [unpack_mark(key, value) for key, value in self.items(MEMORY)]
        for state in self._logs.values():  # what a crash kept from being deleted
            if self._floor(state, state.next) > state.first:
                self._reclaim[state.log] = None

    def _counted_sequences(self, addresses: Iterable[str]) -> dict[str, int]:
        return {**self._load_sequences(addresses), **self._uncounted}

    def _start_meter(self) -> None:
        self.device = device = wear.Device.of(self._path)
        self._meter = wear.Meter(wear.load(self._side), lambda: wear.counters(device), self._clock)

    def _load_ledger(self) -> None:
        growing = self._query(f"{_LEDGER} ORDER BY entry DESC LIMIT ?", (self._limits.ledger_growing_max,))
        rows = self._query("SELECT count(*) FROM ledger")[0][0]
        self._ledger.load(map(LedgerEntry._make, reversed(growing)), rows)

    def _load_boot(self) -> None:
        try:
            boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            boot_id = uuid.uuid4().hex  # not Linux: stamps compare within this process only
        row = self._side.execute("SELECT boot, boot_id FROM boot ORDER BY boot DESC LIMIT 1").fetchone()
        if row is not None and row[1] == boot_id:
            self._boot = row[0]
        else:
            self._boot = 1 if row is None else row[0] + 1
            self._boot_row = (self._boot, boot_id, time.time_ns())

    def _recount(self, state: LogState) -> None:
        """Count the segments committed since table ``log`` was last written."""
        base = state.log << POSITION_BITS
        rows = self._side.execute(SCAN, (base | state.next, base | POSITION_MAX))
        for row in map(segment.Row._make, rows):
            heads = _heads(state.name, row)
            if row.key & POSITION_MAX != state.next:
                raise StoreDamaged(f"log {state.name!r}: positions from {state.next} on are missing: {ADVICE}")
            state.next = (row.key & POSITION_MAX) + row.messages
            state.bytes += row.body_bytes
            self._uncounted_logs.add(state.log)
            self._uncounted_bytes += row.body_bytes
            for address, sequence, count in heads:
                self._uncounted[address] = max(self._uncounted.get(address, 0), sequence + count)

    def _stored_cursors(self) -> Iterator[CursorState]:
        """Every cursor as of the last commit, not below the first position its log keeps."""
        for number, name, log, position, above in self._query(
            "SELECT cursor, name, log, position, acknowledged FROM cursor ORDER BY cursor"
        ):
            try:
                progress = Progress(position, above)
            except ValueError as error:
                raise StoreDamaged(f"cursor {name!r}: {error}: run `waypost store repair`") from error
            if log not in self._logs:
                raise StoreDamaged(f"cursor {name!r}: there is no log {log}: run `waypost store repair`")
            progress.add(-1, self._logs[log].first - 1)
            yield CursorState(number, name, log, progress)

    def _skip_damaged(self, damage: Damage) -> None:
        """Nobody can be given these messages any more: every cursor passes, and the ledger says what it lost."""
        log = self._logs[damage.log]
        first, last = damage.first, min(damage.last, log.next - 1)
        cursors = {number: self._cursors[number] for number in sorted(log.cursors)}
        holders = [Holder(cursor.name, cursor.progress, cursor.wants) for cursor in cursors.values()]
        losses = damage.losses(holders, time.time_ns())
        logger.error(
            "log %r: positions %d to %d are damaged and skipped; the ledger says what is lost", log.name, first, last
        )
        for number, cursor in cursors.items():
            if cursor.progress.outside(first, last):
                self.give_up(number, first, last, [loss for loss in losses if loss.subscription == cursor.name])


def _heads(log: str, row: segment.Row) -> list[segment.Head]:
    try:
        return segment.heads(row)
    except segment.SegmentDamaged as error:
        position = row.key & POSITION_MAX
        raise StoreDamaged(
            f"log {log!r}: the newest messages, from position {position} on, are damaged ({error}), so the sequences "
            "given last are not known: run `waypost store repair`, which goes on under a new epoch"
        ) from error


def _chunks(runs: Sequence[Stored], bytes_max: int) -> Iterator[list[Stored]]:
    """The runs in pieces of at most `bytes_max` of bodies; a larger message is a piece of its own."""
    piece: list[Stored] = []
    size = 0
    for run in runs:
        for part in segment.split(run, bytes_max):
            part_size = sum(map(len, part.run.bodies))
            if piece and size + part_size > bytes_max:
                yield piece
                piece, size = [], 0
            piece.append(part)
            size += part_size
    yield piece


def _covering(settlement: Settlement, bytes_max: int) -> Iterator[tuple[int, int, Sequence[Stored]]]:
    """(key, span, runs) of segments that hold what is settled and cover every position from its start on."""
    base, place, tail_end = settlement.log << POSITION_BITS, settlement.start, settlement.tail_end
    pieces = list(_chunks(settlement.runs, bytes_max)) if settlement.runs else []
    ends = [piece[0].position for piece in pieces[1:]] + [tail_end]
    for piece, end in zip(pieces, ends, strict=bool(pieces)):
        if piece[-1].position - place > OFFSET_MAX:
            yield base | place, piece[0].position - place, ()
            place = piece[0].position
        yield base | place, end - place, piece
        place = end
    if not pieces and settlement.writes and place < tail_end:  # something follows: nothing between is missing
        yield base | place, tail_end - place, ()


def _payload_bytes(group: Group) -> int:
    """Bytes of the bodies a group writes."""
    return group.size + sum(settlement.size for settlement in group.settled) if group.settled else group.size


def _make_directory(directory: Path) -> None:
    """Make `directory` durably, with the folders above that are missing. Raises StoreInaccessible."""
    made = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in made:
            _sync_directory(folder.parent)
    except OSError as error:
        raise StoreInaccessible(
            f"cannot make data directory {directory}: {error.strerror}; make it yourself, or give another one"
        ) from error


def _sync_directory(directory: Path) -> None:
    """Make the file's name as durable as its contents (SQLite does so for its log, not for the database)."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.suppress(OSError):  # file systems without the notion
        os.fsync(descriptor)
    os.close(descriptor)


def _make_file(path: Path) -> None:
    """For its owner only: SQLite would make it world-readable. Raises StoreInaccessible.

    Before any connection: closing a descriptor of the file takes every lock of the process on it along (fcntl(2)), and
    whoever else closes the file then believes to be the last, and deletes the log.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreInaccessible(f"{error.strerror}; check owner and mode of the data directory") from error


def _connect_writer(path: Path, limits: Limits) -> sqlite3.Connection:
    """Raises sqlite3.Error."""
    connection = sqlite3.connect(
        path,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        timeout=limits.busy_timeout_s,
    )
    try:
        schema.configure(connection, limits)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _connect_reader(path: Path, limits: Limits) -> sqlite3.Connection:
    """Raises sqlite3.Error."""
    return sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=ro",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=limits.busy_timeout_s,
    )
