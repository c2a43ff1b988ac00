"""Few rows gathered in this process and written from here: a file a partition and one commit of delta-rs, for which
Spark's connector plans and runs half a dozen jobs.

What holds is what holds of the connector's writes: a table takes a transaction once, and a commit is there whole or
not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction

from cloud.place.data_file import written
from cloud.place.place import Place
from spark import folding
from spark.age import Begun
from spark.provenance import Provenance
from spark.transaction import There, Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

InsteadOf = Literal["all"] | tuple[str, str] | None
"""What rows take the place of: all, those of a partition (column, value), or none."""
BYTES_MAX = 100_000_000
"""What the rows of one write take here, about, and in the JVM on their way."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What is committed: under which transaction, what is said of it, what it takes the place of."""

    transaction: Transaction
    said: Mapping[str, str]
    instead_of: InsteadOf = None


def commit(transaction: Transaction, made_of: Provenance | None, instead_of: InsteadOf = None) -> Commit:
    """The commit says what the table is made of from it on; without it, that it is in between."""
    said = {} if made_of is None else {"userMetadata": made_of.text()}
    return Commit(transaction, said, instead_of)


def gathered(rows: DataFrame, row_bytes: int) -> pa.Table | None:
    """All of these rows, which take so much each; None when they take more than `BYTES_MAX`."""
    rows_max = BYTES_MAX // row_bytes
    found: pa.Table = rows.limit(rows_max + 1).toArrow()
    return found if found.num_rows <= rows_max else None


def there(table: deltalake.DeltaTable, application: str) -> There:
    """A table as it was opened, and what it had taken of `application`."""
    return There(str(table.metadata().id), table.version(), table.transaction_version(application))


def write(place: Place, rows: pa.Table, commit: Commit) -> bool:
    """Write rows with the columns of a table into it; False where it has taken this transaction.

    Raises `Overtaken`, `WrittenTooLongAgo`, and what delta-rs raises; of several writers of an application at the same
    moment one does.
    """
    table = place.delta()
    fitting = rows.cast(pa.schema(table.schema().to_arrow()))
    if not commit.transaction.is_due(place.name, there(table, commit.transaction.application)):
        return False
    begun = Begun()
    parts = by_partition(fitting, table.metadata().partition_columns)
    files = [_written(place, partition, rows) for partition, rows in parts if rows.num_rows]
    _commit(table, place, files, commit, begun)
    return True


def _written(place: Place, partition: Mapping[str, object], rows: pa.Table) -> AddAction:
    return written(place, [rows], {name: str(folding.said(value)) for name, value in partition.items()})


def _commit(
    table: deltalake.DeltaTable, place: Place, files: Sequence[AddAction], commit: Commit, begun: Begun
) -> None:
    """Name `files`, the first of which was begun then, in the log of a table as it was opened."""
    transaction = commit.transaction
    begun.require_recent(place.name)
    table.create_write_transaction(
        list(files),
        mode="append" if commit.instead_of is None else "overwrite",
        schema=table.schema(),
        partition_by=table.metadata().partition_columns,
        partition_filters=[_filter(*commit.instead_of)] if isinstance(commit.instead_of, tuple) else None,
        commit_properties=deltalake.CommitProperties(
            custom_metadata=dict(commit.said),
            app_transactions=[deltalake.Transaction(transaction.application, transaction.version)],
            # What takes the place of what was read is committed behind that, or not at all.
            max_commit_retries=None if transaction.over is None else 0,
        ),
    )


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
