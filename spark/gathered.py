"""Few rows gathered in this process and written from here: a file a partition and one commit of delta-rs, for which
Spark's connector plans and runs half a dozen jobs.

What holds is what holds of the connector's writes: a table takes a transaction once, and a commit is there whole or
not at all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction, RemoveAction

from cloud.place.data_file import written
from cloud.place.place import Place
from spark import folding
from spark.age import Begun
from spark.folding import Held
from spark.log_segment import LogSegment, Opened
from spark.provenance import Provenance
from spark.transaction import ROWS, There, Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

InsteadOf = Literal["all"] | tuple[str, str] | None
"""What rows take the place of: all, those of a partition (column, value), or none."""
BYTES_MAX = 100_000_000
"""What the rows of one write take here, about, and in the JVM on their way."""
PART_BYTES = 64 * 1024 * 1024
"""Of rows that wait to be written to a file: as files are large enough, and a process has room for."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What is committed: under which transaction, what is said of it, what it takes the place of.

    `changed`: how many of the rows are new or others than before, where not all are.
    """

    transaction: Transaction
    said: Mapping[str, str]
    instead_of: InsteadOf = None
    changed: int | None = None


def commit(transaction: Transaction, made_of: Provenance | None, instead_of: InsteadOf = None) -> Commit:
    """The commit says what the table is made of from it on; without it, that it is in between."""
    said = {} if made_of is None else {"userMetadata": made_of.text()}
    return Commit(transaction, said, instead_of)


def gathered(rows: DataFrame, row_bytes: int) -> pa.Table | None:
    """All of these rows, which take so much each; None when they take more than `BYTES_MAX`."""
    rows_max = BYTES_MAX // row_bytes
    found: pa.Table = rows.limit(rows_max + 1).toArrow()
    return found if found.num_rows <= rows_max else None


def there(table: Opened, application: str) -> There:
    """A table as it was opened, and what it had taken of `application`."""
    return There(str(table.metadata().id), table.version(), table.transaction_version(application))


def write(place: Place, rows: pa.Table, commit: Commit) -> bool:
    """Write rows with the columns of a table into it; False where it has taken this transaction.

    Raises `Overtaken`, `WrittenTooLongAgo`, and what delta-rs raises; of several writers of an application at the same
    moment one does.
    """
    table = place.delta()
    fitting = rows.cast(pa.schema(table.schema().to_arrow()))
    return write_parts(table, place, by_partition(fitting, table.metadata().partition_columns), commit)


def write_parts(
    table: Opened,
    place: Place,
    parts: Iterable[tuple[Mapping[str, object], pa.Table]],
    commit: Commit,
    held: Sequence[Held] = (),
) -> bool:
    """Write rows, a file a partition, into a table as it was opened, in place of the files that held them; see `write`.

    `parts`: the columns of each partition, and its rows without these. They are not asked for where nothing is due.
    """
    if not commit.transaction.is_due(place.name, there(table, commit.transaction.application)):
        return False
    begun = Begun()
    files = [_written(place, partition, rows) for partition, rows in parts if rows.num_rows]
    _commit(table, place, files, commit, begun, held)
    return True


class Writer:
    """Rows written to the files of a table part by part, of which no more than `PART_BYTES` wait here, and committed
    together. Files that are not committed are deleted by upkeep."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._begun = Begun()
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._files: list[AddAction] = []

    @property
    def is_empty(self) -> bool:
        """Nothing was added."""
        return not self._waiting and not self._files

    def add(self, rows: pa.Table) -> None:
        """Add rows, which have the columns of the table. Raises `OSError`."""
        if rows.num_rows:
            self._waiting.append(rows)
            self._waiting_bytes += rows.nbytes
        if self._waiting_bytes > PART_BYTES:
            self._flush(self._place.delta())

    def commit(self, commit: Commit) -> bool:
        """Commit what was added, if only nothing; see `write`."""
        table, transaction = self._place.delta(), commit.transaction
        if not transaction.is_due(self._place.name, there(table, transaction.application)):
            return False
        self._flush(table)
        _commit(table, self._place, self._files, commit, self._begun)
        return True

    def _flush(self, table: deltalake.DeltaTable) -> None:
        if self._waiting:
            rows = _fitting(pa.concat_tables(self._waiting), pa.schema(table.schema().to_arrow()))
            parts = by_partition(rows, table.metadata().partition_columns)
            self._files += [_written(self._place, partition, part) for partition, part in parts]
        self._waiting, self._waiting_bytes = [], 0


def _fitting(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with these columns. Texts that stand in a dictionary stay there: they are written as they are."""
    columns = [
        column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column.cast(field.type)
        for field, column in zip(schema, rows.select(schema.names).columns, strict=True)
    ]
    fields = [field.with_type(column.type) for field, column in zip(schema, columns, strict=True)]
    return pa.table(columns, schema=pa.schema(fields))


def _written(place: Place, partition: Mapping[str, object], rows: pa.Table) -> AddAction:
    return written(place, [rows], {name: str(folding.said(value)) for name, value in partition.items()})


def _commit(
    table: Opened,
    place: Place,
    files: Sequence[AddAction],
    commit: Commit,
    begun: Begun,
    held: Sequence[Held] = (),
) -> None:
    """Name `files`, the first of which was begun then, in the log of a table as it was opened, in place of `held`."""
    transaction, now_ms = commit.transaction, time.time_ns() // 1_000_000
    removed = [RemoveAction(each.name, True, now_ms, each.file.size, dict(each.partition)) for each in held]
    begun.require_recent(place.name)
    said = dict(commit.said) | ({} if commit.changed is None else {ROWS: str(commit.changed)})
    if isinstance(table, LogSegment):
        marker = (transaction.application, transaction.version)
        if commit.instead_of is None and table.enter(_info(table, said, now_ms), marker, files, removed):
            return
        # Somebody has committed meanwhile, and delta-rs finds out whether that is a conflict; or a checkpoint is due.
        table = place.delta(table.version())
    table.create_write_transaction(
        [*files, *removed],
        mode="append" if commit.instead_of is None else "overwrite",
        schema=table.schema(),
        partition_by=table.metadata().partition_columns,
        partition_filters=[_filter(*commit.instead_of)] if isinstance(commit.instead_of, tuple) else None,
        commit_properties=deltalake.CommitProperties(
            custom_metadata=said,
            app_transactions=[deltalake.Transaction(transaction.application, transaction.version)],
            # What takes the place of what was read is committed behind that, or not at all.
            max_commit_retries=None if transaction.over is None else 0,
        ),
    )


def _info(table: LogSegment, said: Mapping[str, str], now_ms: int) -> dict[str, object]:
    """What a commit says of itself, as delta-rs has it of one that adds files."""
    how = {"mode": "Append", "partitionBy": json.dumps(table.metadata().partition_columns)}
    return {"timestamp": now_ms, "operation": "WRITE", "operationParameters": how, **said}


def _filter(column: str, value: str) -> tuple[str, str, str]:
    return column, "=", value


def by_partition(rows: pa.Table, partitions: Sequence[str]) -> Iterator[tuple[Mapping[str, object], pa.Table]]:
    """The columns of each partition that has rows, and its rows without these."""
    names = list(partitions)
    if not names:
        yield {}, rows
        return
    for key in rows.select(names).group_by(names).aggregate([]).to_pylist():
        chosen = rows
        for column, value in key.items():
            chosen = chosen.filter(pc.equal(chosen[column], pa.scalar(value, chosen[column].type)))
        yield key, chosen.drop_columns(names)
