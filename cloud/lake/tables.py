"""Delta tables of the lake, each appended to by one writer and durable when `append` returns.

delta-rs keeps the log but syncs nothing (strace shows no fsync), so an acknowledgement after its commit would survive a
power cut only by luck. Here a data file is written and synced first, then named in the log by delta-rs, then the log is
synced. A power cut can only tear the last log entry, which was never acknowledged: `LakeTable.open` removes it. On an
object store nothing tears.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake import Transaction as AppTransaction
from deltalake.exceptions import DeltaError, TableNotFoundError

from cloud.lake.commits import Failpoint, no_failpoint
from cloud.lake.compaction import SmallFile, log_entry, row_groups, select_files, small_files
from cloud.lake.contract import ContractTable, contract
from cloud.lake.faults import LakeError, TableMismatch
from cloud.lake.lake import TransactionId
from cloud.lake.limits import COMPACTED_FILES_MIN, FENCED_WITHIN, LOG_KEPT_DAYS
from cloud.lake.transactions import TransactionLog
from cloud.place.data_file import write_data_file
from cloud.place.faults import explain_error
from cloud.place.place import LOG, LakeLocation, LakePlace, place_of
from edge.output.logs import describe_error

log = logging.getLogger(__name__)

_FENCED = "/fenced"
"""Suffix of an application id: its transaction is the last commit that was fenced."""


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

    def __init__(self, name: str, place: LakePlace, delta: DeltaTable, failpoint: Failpoint) -> None:
        self.name = name
        self._place = place
        self._delta = delta
        self._failpoint = failpoint
        self._transactions = TransactionLog(place)
        self._appended = COMPACTED_FILES_MIN
        """Files appended since the last search for small ones; starts with a search, for files of an earlier run."""
        self._unreadable: set[str] = set()
        """Unreadable files, left in place so that an operator can restore them."""

    @classmethod
    def open(
        cls, lake: LakeLocation, name: str, *, durable_version: int = -1, failpoint: Failpoint = no_failpoint
    ) -> LakeTable:
        """Open a table; create a missing one.

        `durable_version`: newest version known to be on disk. A torn log entry after it is removed: its commit was
        never acknowledged. Raises `LakeError`, `TableMismatch`.
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
            _add_columns(place, delta, spec.arrow_schema)
        table = cls(name, place, delta, failpoint)
        found = [(field.name, str(field.type)) for field in delta.schema().fields]
        wanted = [(field.name, str(field.type)) for field in _delta_fields(spec.arrow_schema)]
        if found != wanted:
            raise TableMismatch(f"table {name} in {lake} has other columns than this program writes: {found}")
        return table

    @property
    def identity(self) -> str:
        """Id of the table, assigned at its creation."""
        return str(self._delta.metadata().id)

    @property
    def version(self) -> int:
        """Version of the table that this writer has seen."""
        return int(self._delta.version())

    def committed(self, application: str) -> int | None:
        """Return the last commit id of an application in the table, read from disk; None without one."""
        with lake_errors(f"table {self.name} cannot be read"):
            self._delta = self._place.delta()
            found = self._delta.transaction_version(application)
            _sync_log(self._place, self.version)
        return None if found is None else int(found)

    def transactions(self) -> dict[str, int]:
        """Return the last commit id of each application in the table, of a commit or of a fence, read from disk."""
        with lake_errors(f"table {self.name} cannot be read"):
            self._delta = self._place.delta()
            found = self._transactions.read(self.version)
            _sync_log(self._place, self.version)
        last: dict[str, int] = {}
        for name, number in found.items():
            application = name.removesuffix(_FENCED)
            last[application] = max(number, last.get(application, number))
        return last

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
            if self._is_fenced(transaction):
                return False
            with lake_errors(f"table {self.name} cannot be written"):
                if self._put_entry(_fence({transaction: found or 0})):
                    return False
        raise self._contended()

    def fence(self, commits: Mapping[str, int]) -> None:
        """Fence applications up to these commits. Raises `LakeError`."""
        for _ in range(FENCED_WITHIN):
            with lake_errors(f"table {self.name} cannot be written"):
                self._delta = self._place.delta()
                wanted = [TransactionId(*each) for each in commits.items()]
                last = {each: self._delta.transaction_version(each.application) or 0 for each in wanted}
                if self._put_entry(_fence({each: at for each, at in last.items() if not self._is_fenced(each)})):
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

    def append(self, rows: pa.Table, transaction: TransactionId | None = None) -> int:
        """Append rows of one partition as one version, durable on return; return the version.

        The version carries the transaction. Raises `LakeError`; then the rows may or may not be in the table: ask
        `committed`.
        """
        with lake_errors(f"table {self.name} cannot be written"):
            partitions = contract().tables[self.name].partition_by
            values = {column: str(rows.column(column)[0].as_py()) for column in partitions}
            action = write_data_file(self._place, [rows.drop_columns(list(partitions))], values)
            self._failpoint("written")
            transactions = None if transaction is None else [AppTransaction(*transaction)]
            self._delta.update_incremental()
            if transaction is not None and self._is_fenced(transaction):
                raise LakeError(f"table {self.name}: commit {transaction.commit} rejected: another writer fenced it")
            self._delta.create_write_transaction(
                [action],
                mode="append",
                schema=self._delta.schema(),
                partition_by=list(contract().tables[self.name].partition_by),
                commit_properties=CommitProperties(app_transactions=transactions),
            )
            self._failpoint("committed")
            before = self.version
            self._delta.update_incremental()
            for version in range(before + 1, self.version + 1):  # compaction may have added a version
                _sync_log(self._place, version)
            self._failpoint("synced")
        self._appended += 1
        return self.version

    def _is_fenced(self, transaction: TransactionId) -> bool:
        """Return whether the opened version fences a transaction. For later versions, delta-rs reports a conflict of
        the application."""
        return _is_in(transaction, self._delta.transaction_version(transaction.application + _FENCED))

    def compact(self) -> int:
        """Compact small files of one day if there are enough; return their number.

        Rows do not change. The former files stay for readers of older versions, until a vacuum. Raises `LakeError`;
        then the table is unchanged.
        """
        if self._appended < COMPACTED_FILES_MIN:
            return 0
        self._appended = 0
        spec = contract().tables[self.name]
        with lake_errors(f"files of table {self.name} cannot be compacted"):
            self._delta.update_incremental()
            small = small_files(self._delta, spec.partition_by, without=self._unreadable)
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

    def _put_entry(self, content: bytes) -> bool:
        """Write the log entry of the next version, durable on return; return False if another program has taken that
        version.

        A store that has written and then failed refuses the retry, so the content is compared.
        """
        name = f"{LOG}/{self.version + 1:020}.json"
        if not self._place.put_new(name, content) and self._place.read(name) != content:
            return False
        self._delta.update_incremental()
        _sync_log(self._place, self.version)
        return True

    def _rows_of(self, file: SmallFile) -> pa.Table:
        try:
            with pq.ParquetFile(self._place.source(file.path), page_checksum_verification=True) as opened:
                return opened.read()
        except (OSError, pa.ArrowException):
            self._unreadable.add(file.path)
            raise


def _is_in(transaction: TransactionId, found: int | None) -> bool:
    return found is not None and found >= transaction.commit


def _fence(transactions: Mapping[TransactionId, int]) -> bytes:
    """Return a log entry that changes no rows and fences applications, each up to a transaction.

    The value of each is its last transaction in the table, repeated so that a concurrent commit of the application
    conflicts.
    """
    info = {"timestamp": time.time_ns() // 1_000_000, "operation": "FENCE", "operationParameters": {}}
    actions: list[dict[str, Any]] = [{"commitInfo": info}]
    for fenced, last in transactions.items():
        numbers = {fenced.application: last, fenced.application + _FENCED: fenced.commit}
        actions += [{"txn": {"appId": name, "version": at}} for name, at in numbers.items()]
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)


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
    _sync_log(place, 0)
    return delta


def _add_columns(place: LakePlace, delta: DeltaTable, wanted: pa.Schema) -> None:
    """Add missing columns of newer versions at the end of a table, null in existing rows."""
    found, fields = [field.name for field in delta.schema().fields], _delta_fields(wanted)
    added = fields[len(found) :]
    if added and found == [field.name for field in fields[: len(found)]] and all(field.nullable for field in added):
        delta.alter.add_columns(added)
        delta.update_incremental()
        _sync_log(place, int(delta.version()))
        log.info("added %d columns to table %s", len(added), place.name)


def _delta_fields(schema: pa.Schema) -> list[Any]:
    return list(Schema.from_arrow(schema).fields)


def _sync_log(place: LakePlace, version: int) -> None:
    """Sync the log after a commit: its entry, a checkpoint if it made one, and their names."""
    place.sync(LOG, (f"{version:020}.json", f"{version:020}.checkpoint.parquet", "_last_checkpoint"))


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
