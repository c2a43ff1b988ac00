"""The lake's Delta tables, each appended to by one writer, durable when `append` returns.

delta-rs keeps the log but syncs nothing to the medium (seen with strace: no fsync at all), so an acknowledgement after
its commit would outlive a power cut by luck only. Here a data file is written and synced first, then named in the log
by delta-rs, and then the log is synced. So the only thing a power cut can tear is the tail of the log, which nobody
has been told about: `Table.open` takes it away again. On an object store nothing tears: what was put there is whole.
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
from cloud.lake.compaction import SmallFile, entry, row_groups, small_files, together
from cloud.lake.contract import Table as TableContract
from cloud.lake.contract import contract
from cloud.lake.faults import LakeError, TableMismatch
from cloud.lake.lake import Transaction
from cloud.lake.limits import COMPACTED_FILES_MIN, FENCED_WITHIN, LOG_KEPT_DAYS
from cloud.place.data_file import written
from cloud.place.faults import explained
from cloud.place.place import LOG, Place, Somewhere, place_of
from edge.output.logs import describe_error

log = logging.getLogger(__name__)

_FENCED = "/fenced"
"""Behind an application's name: the name under which its last transaction stands that comes too late."""


@contextlib.contextmanager
def lake_errors(what: str) -> Iterator[None]:
    """What is raised within is a `LakeError`."""
    try:
        yield
    except (OSError, DeltaError) as error:
        raise LakeError(f"{what}: {explained(str(error))}") from error
    except pa.ArrowException as error:  # it may quote a value
        raise LakeError(f"{what}: {describe_error(error)}") from error


class Table:
    """One Delta table of the contract, at a place. For one thread, and one process at a time."""

    def __init__(self, name: str, place: Place, delta: DeltaTable, failpoint: Failpoint) -> None:
        self.name = name
        self._place = place
        self._delta = delta
        self._failpoint = failpoint
        self._appended = COMPACTED_FILES_MIN
        """Files since the table was looked at for small ones; what an earlier run left is looked at first."""
        self._unreadable: set[str] = set()
        """Files that are left as they are, for whoever puts copies of them back."""

    @classmethod
    def open(
        cls, lake: Somewhere, name: str, *, durable_version: int = -1, failpoint: Failpoint = no_failpoint
    ) -> Table:
        """Open a table, made empty when it is not there.

        `durable_version`: the newest version known to be on disk. A torn log entry after it is taken away: it belongs
        to a commit that nobody was told of. Raises `LakeError`, `TableMismatch`.
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
                delta = _created(place, spec)
            _add_columns(place, delta, spec.arrow_schema)
        table = cls(name, place, delta, failpoint)
        found = [(field.name, str(field.type)) for field in delta.schema().fields]
        wanted = [(field.name, str(field.type)) for field in _delta_fields(spec.arrow_schema)]
        if found != wanted:
            raise TableMismatch(f"table {name} in {lake} has other columns than this program writes: {found}")
        return table

    @property
    def identity(self) -> str:
        """The id the table was given when it was made."""
        return str(self._delta.metadata().id)

    @property
    def version(self) -> int:
        """The table version this writer has seen."""
        return int(self._delta.version())

    def committed(self, application: str) -> int | None:
        """The last commit id of an application that is in the table, read anew from disk; None for none."""
        with lake_errors(f"table {self.name} cannot be read"):
            self._delta = self._place.delta()
            found = self._delta.transaction_version(application)
            _sync_log(self._place, self.version)
        return None if found is None else int(found)

    def settled(self, transaction: Transaction) -> bool:
        """Whether a transaction is in the table, for good. Raises `LakeError`.

        A store may still put there what its sender has given up: an entry for the version behind the newest. And who
        writes under the same application, from a copy of a data directory, may be about to commit. So that version is
        taken, by an entry that says up to which transaction nothing more is taken, and whoever commits looks.
        """
        for _ in range(FENCED_WITHIN):
            found = self.committed(transaction.application)
            if _is_in(transaction, found):
                return True
            with lake_errors(f"table {self.name} cannot be written"):
                if self._entered(_fence(transaction, found or 0)):
                    return False
        raise LakeError(f"table {self.name} cannot be written: others commit to it again and again")

    def read(self, columns: Sequence[str], equal: Mapping[str, str]) -> Iterator[pa.Table]:
        """These columns of the rows whose columns `equal` these values, a data file at a time. Raises `LakeError`."""
        with lake_errors(f"table {self.name} cannot be read"):
            filters = [(column, "=", value) for column, value in equal.items()]
            for path in pa.table(self._place.delta().get_add_actions())["path"].to_pylist():
                source = self._place.source(unquote(path))
                yield pq.read_table(source, columns=list(columns), filters=filters or None, partitioning=None)

    def append(self, rows: pa.Table, transaction: Transaction | None = None) -> int:
        """Append rows (all of one partition) as one version, on disk on return; returns that version.

        The version carries the transaction. Raises `LakeError`; then the rows may or may not be in the table, and
        `committed` tells.
        """
        with lake_errors(f"table {self.name} cannot be written"):
            partitions = contract().tables[self.name].partition_by
            values = {column: str(rows.column(column)[0].as_py()) for column in partitions}
            action = written(self._place, [rows.drop_columns(list(partitions))], values)
            self._failpoint("written")
            transactions = None if transaction is None else [AppTransaction(*transaction)]
            self._delta.update_incremental()
            if transaction is not None and self._is_fenced(transaction):
                raise LakeError(f"table {self.name} takes commit {transaction.commit} no more: somebody has settled it")
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
            for version in range(before + 1, self.version + 1):  # compaction may have added one of its own
                _sync_log(self._place, version)
            self._failpoint("synced")
        self._appended += 1
        return self.version

    def _is_fenced(self, transaction: Transaction) -> bool:
        """By the version that was opened; of one that comes then, delta-rs tells that it names the application."""
        return _is_in(transaction, self._delta.transaction_version(transaction.application + _FENCED))

    def compact(self) -> int:
        """Put small files of one day together when there are enough of them; returns how many, 0 for none.

        Rows stay what they were, and the former files are kept for those who read older versions, until a vacuum.
        Raises `LakeError`; then the table is as it was.
        """
        if self._appended < COMPACTED_FILES_MIN:
            return 0
        self._appended = 0
        spec = contract().tables[self.name]
        with lake_errors(f"files of table {self.name} cannot be put together"):
            self._delta.update_incremental()
            small = small_files(self._delta, spec.partition_by, without=self._unreadable)
            files = together(small)
            if not files:
                return 0
            kept = pa.schema([field for field in spec.arrow_schema if field.name not in spec.partition_by])
            action = written(self._place, row_groups(map(self._rows_of, files), kept), dict(files[0].partition))
            self._failpoint("rewritten")
            if not self._entered(entry(files, action, action.modification_time)):
                self._place.delete(action.path)  # others have committed meanwhile: another time
                return 0
        if len(small) - len(files) >= COMPACTED_FILES_MIN:
            self._appended = COMPACTED_FILES_MIN  # go on the next time
        return len(files)

    def _entered(self, content: bytes) -> bool:
        """Make this the entry of the next version, on the medium on return; False where somebody else has one there. A
        store that had done it and answered with an error refuses when it is asked again: what is there tells."""
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


def _is_in(transaction: Transaction, found: int | None) -> bool:
    return found is not None and found >= transaction.commit


def _fence(transaction: Transaction, last: int) -> bytes:
    """A log entry that changes no rows: an application's transactions up to this one come too late. `last`: the last of
    it that is there, which is said once more, so that who commits for the application at the same moment meets it."""
    info = {"timestamp": time.time_ns() // 1_000_000, "operation": "FENCE", "operationParameters": {}}
    numbers = {transaction.application: last, transaction.application + _FENCED: transaction.commit}
    actions = [{"commitInfo": info}, *({"txn": {"appId": name, "version": at}} for name, at in numbers.items())]
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)


def _created(place: Place, spec: TableContract) -> DeltaTable:
    """An empty table, on the medium."""
    partitions, options = list(spec.partition_by), place.storage_options
    delta = DeltaTable.create(
        place.uri,
        spec.arrow_schema,
        partition_by=partitions,
        storage_options=options,
        configuration={"delta.logRetentionDuration": f"interval {LOG_KEPT_DAYS} days"},
    )
    _sync_log(place, 0)
    return delta


def _add_columns(place: Place, delta: DeltaTable, wanted: pa.Schema) -> None:
    """A table of an older program gets the columns that came later: at its end, null in the rows there are."""
    found, fields = [field.name for field in delta.schema().fields], _delta_fields(wanted)
    added = fields[len(found) :]
    if added and found == [field.name for field in fields[: len(found)]] and all(field.nullable for field in added):
        delta.alter.add_columns(added)
        delta.update_incremental()
        _sync_log(place, int(delta.version()))
        log.info("table %s has %d columns more", place.name, len(added))


def _delta_fields(schema: pa.Schema) -> list[Any]:
    return list(Schema.from_arrow(schema).fields)


def _sync_log(place: Place, version: int) -> None:
    """Sync what a commit left in the log: its entry, a checkpoint when it made one, and the names of both."""
    place.sync(LOG, (f"{version:020}.json", f"{version:020}.checkpoint.parquet", "_last_checkpoint"))


def _remove_torn_tail(place: Place, durable_version: int) -> None:
    """Take away the last entry when a power cut tore it; every one before it was synced before the next began.

    A checkpoint is derived from the log: a torn one is taken away whatever its version, and made again some day.
    """
    names = place.names(LOG)
    if not names:
        return
    newest = max((name for name in names if name.endswith(".checkpoint.parquet")), default=None)
    if newest is not None and not _readable(place, newest):
        log.warning("lake: checkpoint %s is torn and taken away: the log has it all", newest)
        place.delete(f"{LOG}/{newest}")
        place.delete(f"{LOG}/_last_checkpoint")
    entries = (name for name in names if name.endswith(".json"))
    last = max((name for name in entries if name.removesuffix(".json").isdigit()), default=None)
    if last is not None and not _whole(place.read(f"{LOG}/{last}")):
        # delta-rs takes an empty entry for an empty version, so nothing but this would notice.
        if int(last.removesuffix(".json")) <= durable_version:
            raise LakeError(
                f"{place.uri}/{LOG}/{last} is damaged although it was on disk: restore the lake from a copy"
            )
        log.warning("lake: %s/%s is torn, was never acknowledged, and is taken away", place.name, last)
        place.delete(f"{LOG}/{last}")
    place.sync(LOG, ())


def _readable(place: Place, checkpoint: str) -> bool:
    """True when a checkpoint's footer can be read: it is written last."""
    try:
        pq.ParquetFile(place.source(f"{LOG}/{checkpoint}")).close()
    except (OSError, pa.ArrowInvalid):
        return False
    return True


def _whole(entry: bytes | None) -> bool:
    """True when every line of a log entry is JSON and there is at least one."""
    try:
        lines = (entry or b"").decode().splitlines()
        return bool(lines) and all(isinstance(json.loads(line), dict) for line in lines)
    except ValueError:
        return False
