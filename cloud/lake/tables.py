"""Delta tables of the lake, each appended to by one writer and durable when `append` returns.

delta-rs keeps the log but syncs nothing (strace shows no fsync), so an acknowledgement after its commit would survive a
power cut only by luck; and it reads the log's folder several times for each commit. Here a data file is written and
synced first, then named in the log, then the log is synced. An append takes the next version that is free: it reads the
entries that others have taken since, and nothing else. A power cut can only tear the last log entry, which was never
acknowledged: `LakeTable.open` removes it. On an object store nothing tears.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from cloud.lake.checkpoints import StartWork, TableCheckpoints, run_at_once, sync_log
from cloud.lake.commits import Failpoint, no_failpoint
from cloud.lake.compaction import SmallFile, log_entry, row_groups, select_files, small_files
from cloud.lake.contract import ContractTable, contract
from cloud.lake.entries import FENCED, EntryNews, append_entry, fence_entry, read_entry
from cloud.lake.faults import LakeError, TableMismatch
from cloud.lake.lake import TableRefusal, TransactionId
from cloud.lake.limits import (
    APPEND_ATTEMPTS_MAX,
    COMPACTED_FILES_MIN,
    ENTRIES_SEARCHED_MAX,
    FENCED_WITHIN,
    LOG_KEPT_DAYS,
    PASSED_ENTRIES_MAX,
    REFUSED_CHECK_S,
)
from cloud.lake.table_demands import DELETION_VECTORS, delta_fields, features_of, refusal_of
from cloud.lake.transactions import LogIncomplete, TransactionLog
from cloud.place.data_file import write_data_file
from cloud.place.faults import explain_error
from cloud.place.place import LOG, LakeLocation, LakePlace, place_of
from edge.output.logs import describe_error

log = logging.getLogger(__name__)


@contextlib.contextmanager
def lake_errors(what: str) -> Iterator[None]:
    """Translate errors to `LakeError`."""
    try:
        yield
    except (OSError, DeltaError) as error:
        raise LakeError(f"{what}: {explain_error(str(error))}") from error
    except pa.ArrowException as error:  # its text may quote a value
        raise LakeError(f"{what}: {describe_error(error)}") from error


class LakeTable:
    """Delta table of the contract at a place. For one thread, and one process at a time."""

    def __init__(
        self, name: str, place: LakePlace, delta: DeltaTable, failpoint: Failpoint, start: StartWork = run_at_once
    ) -> None:
        self.name = name
        self._place = place
        self._delta = delta
        self._failpoint = failpoint
        self._version = int(delta.version())
        """Newest version that this writer has seen; the opened table may be older."""
        self._passed: dict[str, int] = {}
        """Last transaction by application in the versions that were read one by one."""
        self._fences: dict[str, int | None] = {}
        """Last fence by application in the versions before those."""
        self._transactions = TransactionLog(place)
        self._checkpoints = TableCheckpoints(place, start)
        self._appended = COMPACTED_FILES_MIN
        """Files appended since the last search for small ones; starts with a search, for files of an earlier run."""
        self._unreadable: set[str] = set()
        """Unreadable files, left in place so that an operator can restore them."""
        self._refusal = refusal_of(delta, self._columns)
        self._refused_check_s = time.monotonic()

    @classmethod
    def open(
        cls,
        lake: LakeLocation,
        name: str,
        *,
        durable_version: int = -1,
        failpoint: Failpoint = no_failpoint,
        start: StartWork = run_at_once,
    ) -> LakeTable:
        """Open a table; create a missing one.

        `durable_version`: newest version known to be on disk. A torn log entry after it is removed: its commit was
        never acknowledged. `start` starts checkpoints. A table with a feature that this program cannot write is opened,
        and refuses rows: other tables are not affected. Raises `LakeError`, and `TableMismatch` for other columns.
        """
        place = place_of(lake).at(name)
        spec = contract().tables[name]
        with lake_errors(f"table {name} cannot be opened"):
            place.make()
            if place.tears:
                _remove_torn_tail(place, durable_version)
            try:
                delta = place.delta()
            except TableNotFoundError:
                delta = _create(place, spec)
            if _lacks_columns(refusal_of(delta, spec.arrow_schema)):
                _add_columns(place, delta, spec.arrow_schema)
        table = cls(name, place, delta, failpoint, start)
        if _lacks_columns(table.refusal):
            table.require_writable()
        return table

    @property
    def identity(self) -> str:
        """Id of the table, assigned at its creation."""
        return str(self._delta.metadata().id)

    @property
    def version(self) -> int:
        """Version of the table that this writer has seen."""
        return self._version

    @property
    def refusal(self) -> TableRefusal | None:
        """Why this program cannot append to the table as it was last read; None if it can."""
        return self._refusal

    @property
    def _columns(self) -> pa.Schema:
        return contract().tables[self.name].arrow_schema

    def require_writable(self) -> None:
        """Check that rows can be appended. A table that refused them is read again. Raises `LakeError`,
        `TableMismatch`.

        An entry that changes the table is always read before the next version is written: its writer opens the table
        again.
        """
        if self._refusal is None:
            return
        with lake_errors(f"table {self.name} cannot be read"):
            self._open_again()
            if _lacks_columns(self._refusal):
                _add_columns(self._place, self._delta, self._columns)
                self._use(self._delta)
        self._require_accepted()

    def _require_accepted(self) -> None:
        if self._refusal is not None:
            raise TableMismatch(self.name, f"in {self._place} {self._refusal.why}", self._refusal.next_step)

    def committed(self, application: str) -> int | None:
        """Return the last commit id of an application in the table, read from disk; None without one."""
        with lake_errors(f"table {self.name} cannot be read"):
            return self._read_transactions().get(application)

    def transactions(self) -> dict[str, int]:
        """Return the last commit id of each application in the table, of a commit or of a fence, read from disk."""
        last: dict[str, int] = {}
        with lake_errors(f"table {self.name} cannot be read"):
            found = self._read_transactions()
        for name, number in found.items():
            application = name.removesuffix(FENCED)
            last[application] = max(number, last.get(application, number))
        return last

    def _read_transactions(self) -> Mapping[str, int]:
        """Return the last transaction of each application, read from disk. Raises what delta-rs raises, OSError."""
        if not self._read_news():
            self._open_again()
        found = self._transactions.read(self._version)
        sync_log(self._place, self._version)
        return found

    def settled(self, transaction: TransactionId) -> bool:
        """Return whether a transaction is in the table, for good. Raises `LakeError`.

        If it is not there, it could still appear: a store may deliver a delayed entry for the next version, and a hub
        started from a copied data directory may be about to commit. So that version is taken by a fence, an entry that
        names the last transaction that is no longer accepted; every commit checks it.
        """
        for _ in range(FENCED_WITHIN):
            found = self.committed(transaction.application)
            if _is_in(transaction, found):
                return True
            seen = self._version
            with lake_errors(f"table {self.name} cannot be read"):
                if self._is_fenced(transaction):
                    return False
            if self._version != seen:
                continue  # the log was read again: the transaction may be in one of its later versions
            with lake_errors(f"table {self.name} cannot be written"):
                if self._put_entry(fence_entry({transaction: found or 0})):
                    return False
        raise self._contended()

    def fence(self, commits: Mapping[str, int]) -> None:
        """Fence applications up to these commits. Raises `LakeError`."""
        for _ in range(FENCED_WITHIN):
            with lake_errors(f"table {self.name} cannot be written"):
                found = self._read_transactions()
                wanted = [TransactionId(*each) for each in commits.items()]
                left = [each for each in wanted if not _is_in(each, found.get(each.application + FENCED))]
                last = {each: found.get(each.application, 0) for each in left}
                if not last or self._put_entry(fence_entry(last)):
                    return
        raise self._contended()

    def _contended(self) -> LakeError:
        return LakeError(f"table {self.name} cannot be written: other programs commit to it all the time")

    def read(self, columns: Sequence[str], equal: Mapping[str, str]) -> Iterator[pa.Table]:
        """Yield these columns of the rows with `equal` values, one data file at a time. Raises `LakeError`."""
        with lake_errors(f"table {self.name} cannot be read"):
            filters = [(column, "=", value) for column, value in equal.items()]
            for path in pa.table(self._place.delta().get_add_actions())["path"].to_pylist():
                source = self._place.source(unquote(path))
                yield pq.read_table(source, columns=list(columns), filters=filters or None, partitioning=None)

    def added_by(self, transaction: TransactionId, version: int, columns: Sequence[str]) -> pa.Table | None:
        """Return these columns of the rows that a transaction added in this version, or in one of the
        `ENTRIES_SEARCHED_MAX` before it; None if it is not there, or its file is gone. Raises `LakeError`, also while
        the table cannot be opened."""
        with lake_errors(f"table {self.name} cannot be read"):
            self._open_again()
            for number in range(version, max(-1, version - ENTRIES_SEARCHED_MAX), -1):
                name = f"{LOG}/{number:020}.json"
                news = _read_entry(self._place.read(name), name)
                if news is None:
                    return None
                # a fence repeats the last number of its application, and adds nothing
                if news.added and news.transactions.get(transaction.application) == transaction.commit:
                    return self._rows_added(news.added, columns)
        return None

    def _rows_added(self, paths: Sequence[str], columns: Sequence[str]) -> pa.Table | None:
        files = []
        for path in paths:
            try:
                with pq.ParquetFile(self._place.source(unquote(path)), page_checksum_verification=True) as opened:
                    files.append(opened.read(columns=list(columns)))
            except FileNotFoundError:
                return None
        return pa.concat_tables(files)

    def append(self, rows: pa.Table, transaction: TransactionId | None = None) -> int:
        """Append rows of one partition as one version, durable on return; return the version.

        The version carries the transaction. Raises `LakeError`; then the rows may or may not be in the table: ask
        `committed`.
        """
        self.require_writable()
        with lake_errors(f"table {self.name} cannot be written"):
            partitions = contract().tables[self.name].partition_by
            values = {column: str(rows.column(column)[0].as_py()) for column in partitions}
            action = write_data_file(self._place, [rows.drop_columns(list(partitions))], values)
            self._failpoint("written")
            before = self._version
            entries = self._put_append(append_entry(action, transaction), transaction)
            self._failpoint("committed")
            self._require_newest(before, action.path, transaction)
            for version, transactions in entries:
                self._transactions.note(version, transactions)
            for version in range(before + 1, self._version + 1):  # others may have added versions
                sync_log(self._place, version)
            self._failpoint("synced")
        self._appended += 1
        self._checkpoints.count_version(self._version)
        return self._version

    def _put_append(self, entry: bytes, transaction: TransactionId | None) -> Sequence[tuple[int, Mapping[str, int]]]:
        """Write the log entry of an append as the next version that is free; return the versions that it read and the
        one that it wrote, with their transactions.

        The entries of the versions that others have taken since are read, and the log is not. After many of them, or
        one that changes the table itself, delta-rs opens the table again.
        """
        self._require_allowed(transaction)
        read: list[tuple[int, Mapping[str, int]]] = []
        for passed in range(1, APPEND_ATTEMPTS_MAX + 1):
            name = f"{LOG}/{self._version + 1:020}.json"
            if self._place.put_new(name, entry):
                break
            taken = self._place.read(name)
            if taken == entry:
                break  # the store had written it, answered with an error, and refused the retry
            news = _read_entry(taken, name)
            if news is None or news.changes_table or passed % PASSED_ENTRIES_MAX == 0:
                self._reopen()
            else:
                self._version += 1
                self._passed.update(news.transactions)
                read.append((self._version, news.transactions))
            self._require_allowed(transaction)
        else:
            raise self._contended()
        self._version += 1
        read.append((self._version, {} if transaction is None else {transaction.application: transaction.commit}))
        return read

    def _require_allowed(self, transaction: TransactionId | None) -> None:
        """Check that no version that this writer has seen forbids a transaction. Raises `LakeError`."""
        if transaction is None:
            return
        if self._is_fenced(transaction):
            raise LakeError(f"table {self.name}: commit {transaction.commit} rejected: another writer fenced it")
        if _is_in(transaction, self._passed.get(transaction.application)):
            raise LakeError(f"table {self.name}: commit {transaction.commit} rejected: its number was used before")

    def _require_newest(self, before: int, path: str, transaction: TransactionId | None) -> None:
        """Check that the entry just written is part of the table. Raises `LakeError`.

        Old entries are deleted, the oldest first. A writer that stood still for longer could take the number of a
        deleted one, which no reader would see. The entry of the version that it knew `before` is missing then; the one
        just before it may be of another such writer.
        """
        written = self._version
        if self._place.size(f"{LOG}/{before:020}.json") is not None:
            return
        self._reopen()
        if transaction is not None:
            there = _is_in(transaction, self._delta.transaction_version(transaction.application))
        else:
            there = path in pa.table(self._delta.get_add_actions())["path"].to_pylist()
        if not there:
            if transaction is not None:
                self._place.delete(f"{LOG}/{written:020}.json")
            raise LakeError(f"table {self.name}: version {written} is long past; the table was opened again")

    def _reopen(self) -> None:
        """Read the log again. Raises what delta-rs raises, and `TableMismatch`."""
        self._open_again()
        self._require_accepted()

    def _open_again(self) -> None:
        """Open the table again. Raises what delta-rs raises, and `TableMismatch` if it cannot read it any more."""
        try:
            self._use(self._place.delta())
        except DeltaError as error:
            if _UNREADABLE not in str(error):
                raise
            why = f"cannot be read: {explain_error(str(error))}"
            self._refusal = TableRefusal(why, "take the feature back, or update the hubs", fences=False)
            self._require_accepted()

    def _use(self, delta: DeltaTable) -> None:
        """Continue with an opened table."""
        version = int(delta.version())
        if version != self._version:  # some versions were not read one by one
            self._passed.clear()
            self._fences.clear()
        self._delta, self._version = delta, version
        self._refusal = refusal_of(delta, self._columns)

    def _refresh(self) -> None:
        """Read the entries since the table was opened, or the table if entries were deleted since."""
        if not self._read_news():
            self._reopen()

    def _read_news(self) -> bool:
        """Read the entries since the table was opened; return False if that is not possible."""
        with contextlib.suppress(DeltaError):
            self._delta.update_incremental()
            if self._delta.version() >= self._version:
                self._use(self._delta)
                return True
        return False

    def _is_fenced(self, transaction: TransactionId) -> bool:
        """Return whether a version up to the one seen fences a transaction. Raises what delta-rs raises, OSError."""
        name = transaction.application + FENCED
        if name not in self._fences:
            try:
                found = self._transactions.read(self._version)
            except LogIncomplete:  # its entries were deleted
                self._reopen()
                found = self._transactions.read(self._version)
            self._fences[name] = found.get(name)
        return _is_in(transaction, self._fences[name]) or _is_in(transaction, self._passed.get(name))

    def compact(self) -> int:
        """Compact small files of one day if there are enough; return their number.

        Rows do not change. The former files stay for readers of older versions, until a vacuum. Raises `LakeError`;
        then the table is unchanged.
        """
        if self._refusal is not None:
            self._check_refusal()
            return 0
        self._checkpoints.keep()
        if self._appended < COMPACTED_FILES_MIN:
            return 0
        self._appended = 0
        spec = contract().tables[self.name]
        with lake_errors(f"files of table {self.name} cannot be compacted"):
            self._refresh()
            if self.refusal is not None:  # by what was just read
                return 0
            small = small_files(self._delta, spec.partition_by, without=self._unreadable | self._with_deleted_rows())
            files = select_files(small)
            if not files:
                return 0
            kept = pa.schema([field for field in spec.arrow_schema if field.name not in spec.partition_by])
            action = write_data_file(self._place, row_groups(map(self._rows_of, files), kept), dict(files[0].partition))
            self._failpoint("rewritten")
            if not self._put_entry(log_entry(files, action, action.modification_time)):
                self._place.delete(action.path)  # another program has committed: retry later
                return 0
        if len(small) - len(files) >= COMPACTED_FILES_MIN:
            self._appended = COMPACTED_FILES_MIN  # continue at the next call
        return len(files)

    def _check_refusal(self) -> None:
        """Read a table that refuses rows again, from time to time."""
        if time.monotonic() - self._refused_check_s >= REFUSED_CHECK_S:
            self._refused_check_s = time.monotonic()
            with contextlib.suppress(TableMismatch):
                self.require_writable()

    def _with_deleted_rows(self) -> set[str]:
        """Return the paths of files of which another engine has deleted some rows."""
        if DELETION_VECTORS not in features_of(self._delta):
            return set()
        names = {uri.rpartition("/")[2] for uri in pa.table(self._delta.deletion_vectors())["filepath"].to_pylist()}
        paths = pa.table(self._delta.get_add_actions())["path"].to_pylist()
        return {path for path in paths if path.rpartition("/")[2] in names}

    def _put_entry(self, content: bytes) -> bool:
        """Write the log entry of the next version, durable on return; return False if another program has taken that
        version.

        A store that has written and then failed refuses the retry, so the content is compared. Raises `TableMismatch`
        if the table as it was last read allows no entry of this program.
        """
        if self._refusal is not None and not self._refusal.fences:
            self._require_accepted()
        name = f"{LOG}/{self.version + 1:020}.json"
        if not self._place.put_new(name, content) and self._place.read(name) != content:
            return False
        self._refresh()
        sync_log(self._place, self.version)
        return True

    def _rows_of(self, file: SmallFile) -> pa.Table:
        try:
            with pq.ParquetFile(self._place.source(file.path), page_checksum_verification=True) as opened:
                return opened.read()
        except (OSError, pa.ArrowException):
            self._unreadable.add(file.path)
            raise


_UNREADABLE: Final = "Unsupported"
"""Part of the error of delta-rs for a table with a feature that it cannot read."""


def _lacks_columns(refusal: TableRefusal | None) -> bool:
    """Return whether columns differ, which may be added, or belong to another table."""
    return refusal is not None and refusal.columns


def _is_in(transaction: TransactionId, found: int | None) -> bool:
    return found is not None and found >= transaction.commit


def _read_entry(content: bytes | None, name: str) -> EntryNews | None:
    """Read the entry of a version that others have taken; None if it is gone. Raises OSError for a damaged one."""
    if content is None:
        return None
    try:
        return read_entry(content)
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"the log entry {name} is damaged: {error}") from error


def _create(place: LakePlace, spec: ContractTable) -> DeltaTable:
    """Create an empty table, durable on return; open it if another hub has created it in the meantime."""
    partitions, options = list(spec.partition_by), place.storage_options
    try:
        delta = DeltaTable.create(
            place.uri,
            spec.arrow_schema,
            partition_by=partitions,
            storage_options=options,
            configuration={"delta.logRetentionDuration": f"interval {LOG_KEPT_DAYS} days"},
        )
    except DeltaError as refused:
        try:
            delta = place.delta()
        except TableNotFoundError:
            raise refused from None
    sync_log(place, 0)
    return delta


def _add_columns(place: LakePlace, delta: DeltaTable, wanted: pa.Schema) -> None:
    """Add missing columns of newer versions at the end of a table, null in existing rows."""
    found, fields = [field.name for field in delta.schema().fields], delta_fields(wanted)
    added = fields[len(found) :]
    if added and found == [field.name for field in fields[: len(found)]] and all(field.nullable for field in added):
        delta.alter.add_columns(added)
        delta.update_incremental()
        sync_log(place, int(delta.version()))
        log.info("added %d columns to table %s", len(added), place.name)


def _remove_torn_tail(place: LakePlace, durable_version: int) -> None:
    """Remove the last log entry if a power cut tore it; every earlier one was synced before the next began.

    A torn checkpoint is removed whatever its version: it is derived from the log, and made again later.
    """
    names = place.names(LOG)
    if not names:
        return
    newest = max((name for name in names if name.endswith(".checkpoint.parquet")), default=None)
    if newest is not None and not _readable(place, newest):
        log.warning("lake: removed the torn checkpoint %s: the log is complete", newest)
        place.delete(f"{LOG}/{newest}")
        place.delete(f"{LOG}/_last_checkpoint")
    entries = (name for name in names if name.endswith(".json"))
    last = max((name for name in entries if name.removesuffix(".json").isdigit()), default=None)
    if last is not None and not _is_complete(place.read(f"{LOG}/{last}")):
        # delta-rs takes an empty entry for an empty version, so only this check notices it.
        if int(last.removesuffix(".json")) <= durable_version:
            raise LakeError(
                f"{place.uri}/{LOG}/{last} is damaged although it was on disk: restore the lake from a backup"
            )
        log.warning("lake: removed the torn entry %s/%s, which was never acknowledged", place.name, last)
        place.delete(f"{LOG}/{last}")
    place.sync(LOG, ())


def _readable(place: LakePlace, checkpoint: str) -> bool:
    """Return whether a checkpoint's footer, which is written last, can be read."""
    try:
        pq.ParquetFile(place.source(f"{LOG}/{checkpoint}")).close()
    except (OSError, pa.ArrowInvalid):
        return False
    return True


def _is_complete(entry: bytes | None) -> bool:
    """Return whether a log entry has lines and all of them are JSON."""
    try:
        lines = (entry or b"").decode().splitlines()
        return bool(lines) and all(isinstance(json.loads(line), dict) for line in lines)
    except ValueError:
        return False
