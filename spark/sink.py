"""Write derived tables: append and fold, each in one commit that a table accepts once.

Executors write the data files (`spark.file_writer`), and the driver names them in one commit of delta-rs with the
transaction of the batch: (application, version) = (id of the streaming query, number of the micro-batch). A batch that
is run again after a crash finds which tables have it.

Rows that replace others are committed only on the version of the table that they were derived from. A concurrent commit
of another writer, such as maintenance or another pass, makes it fail, and the batch is run again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import deltalake
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import Observation

from spark import conflict, file_writer, folding, session
from spark.file_writer import NewFiles
from spark.folding import TableFile
from spark.lake import SparkLake, fit, schema
from spark.lineage import ROWS, TableLineage
from spark.write_age import WriteClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SMALL_BYTES: Final = 64 * 1024
"""Size of files that are rewritten without checking whether they hold a key: a query takes as long."""
Replaced = Literal["all"] | tuple[str, str]
"""Rows to replace: all, or those of a partition (column, value)."""


@dataclass(frozen=True, slots=True)
class BatchTransaction:
    """A table accepts each (`application`, `version`) once, in rising order of version."""

    application: str
    version: int


class Sink:
    """Writes the outputs of one batch, each table once.

    `transaction` the batch; None for rows that are the same however often they are written.
    `lineage`     written into the commits.
    """

    def __init__(self, lake: SparkLake, transaction: BatchTransaction | None, lineage: TableLineage | None) -> None:
        self._lake = lake
        self._transaction = transaction
        self._lineage = lineage
        self.rows_written = 0
        """Rows that this has added or changed."""

    def has_batch(self, name: str) -> bool:
        """Return whether a table has this batch already."""
        return self._has_batch(self._lake.open(name))

    def append(
        self,
        name: str,
        rows: DataFrame,
        lineage: TableLineage | None = None,
        read: deltalake.DeltaTable | None = None,
    ) -> bool:
        """Append `rows`; return False if the table has this batch.

        `lineage`: instead of the batch's. `read`: the table as it was when `rows` were made. Raises `ConcurrentWrite`
        if it has changed since then.
        """
        table = read if read is not None else self._lake.open(name)
        if self._has_batch(table):
            return False
        files = self._write(name, fit(rows, name))
        self._commit(name, table, files.adds, self._properties(files.rows, lineage, None if read is None else 0))
        self.rows_written += files.rows
        return True

    def commit_empty(self, name: str, lineage: TableLineage | None = None) -> None:
        """Commit the transaction and the lineage without rows."""
        table = self._lake.open(name)
        if not self._has_batch(table):
            self._commit(name, table, [], self._properties(0, lineage))

    def overwrite(
        self,
        name: str,
        rows: DataFrame,
        replaced: Replaced = "all",
        read: deltalake.DeltaTable | None = None,
        lineage: TableLineage | None = None,
    ) -> bool:
        """Replace all rows, or those of a partition, by `rows`; return False if the table has this batch.

        `read`: the table as it was when `rows` were derived. Raises `ConcurrentWrite` if it has changed since then.
        """
        table = read if read is not None else self._lake.open(name)
        if self._has_batch(table):
            return False
        files = self._write(name, fit(rows, name))
        self._commit(name, table, files.adds, self._properties(files.rows, lineage, retries=0), replaced)
        self.rows_written += files.rows
        return True

    def fold(
        self, name: str, rows: DataFrame, how: Mapping[str, str], lineage: TableLineage | None = None
    ) -> DataFrame:
        """Fold partial aggregates into a table, in one commit, unless the table has this batch.

        A row with an existing key is combined with the old one, column by column, by `how`: SQL of `old` and `new`.
        Others are added. Files without such a row stay. `rows` is computed once and returned in that form. Raises
        `ConcurrentWrite`.
        """
        table = self._lake.open(name)
        folding.check_fold(schema(name), how)
        if self._has_batch(table):
            return fit(rows, name)
        seen = Observation()
        partials = session.checkpoint(folding.observe_extent(fit(rows, name), schema(name), seen))
        found = folding.read_extent(seen, schema(name))
        if found is None:
            self.commit_empty(name, lineage)
            return partials
        self._lake.check_readable(name, table)
        held = self._find_replaced(name, folding.find_candidates(table, schema(name), found), partials, found.rows)
        old = self._lake.rows_of(name, [file.path for file in held])
        folded = folding.fold_rows(old, partials, schema(name), how) if held else partials
        files = self._write(name, folded)
        now_ms = time.time_ns() // 1_000_000
        removes = [RemoveAction(each.name, True, now_ms, each.size, dict(each.partition)) for each in held]
        properties = self._properties(found.rows, lineage, retries=0)
        self._commit(name, table, [*files.adds, *removes], properties)
        self.rows_written += found.rows
        return partials

    def remove(self, name: str, keys: DataFrame, on: Sequence[str], condition: str) -> None:
        """Delete the rows that match a row of `keys` in the columns `on` and fulfil `condition`, SQL of `old`.

        Only files with such a row are rewritten; a repetition changes nothing.
        """
        from delta.tables import DeltaTable  # noqa: PLC0415 - half a second that `--help` must not pay

        chosen = session.checkpoint(keys.select(*on))
        matched = [f"old.{column} <=> new.{column}" for column in on]
        for column in (column for column in schema(name).partition_by if column in on):
            # Spelt out, so that only files of these partitions are read.
            found = ", ".join(f"'{row[0]}'" for row in chosen.select(column).distinct().collect())
            if not found:
                return
            matched.append(f"old.{column} IN ({found})")
        table = DeltaTable.forPath(self._lake.session, self._lake.path(name)).alias("old")
        merge = table.merge(chosen.alias("new"), " AND ".join([*matched, condition]))
        with conflict.translate_conflict(name):
            merge.whenMatchedDelete().execute()

    def _find_replaced(self, name: str, candidates: list[TableFile], rows: DataFrame, changed: int) -> list[TableFile]:
        """Return the files that have a row with a key of `rows`.

        If rewriting is less work than checking, all that can have one are returned.
        """
        if (
            sum(file.size for file in candidates) <= SMALL_BYTES
            or sum(file.rows or 0 for file in candidates) <= changed
        ):
            return candidates
        old = self._lake.rows_of(name, [file.path for file in candidates])
        holding = folding.find_holding(old, rows, schema(name))
        return [file for file in candidates if folding.file_name(file.path) in holding]

    def _write(self, name: str, rows: DataFrame) -> NewFiles:
        """Write data files of a table. Raises `WrittenTooLongAgo` if that took so long that they may be deleted."""
        clock = WriteClock()
        files = file_writer.write(rows, self._lake.at(name), schema(name))
        clock.require_recent(name)
        return files

    @staticmethod
    def _commit(
        name: str,
        table: deltalake.DeltaTable,
        actions: Sequence[AddAction | RemoveAction],
        properties: deltalake.CommitProperties,
        replaced: Replaced | None = None,
    ) -> None:
        """Commit to a table as it was opened; files that `actions` add take the place of `replaced` rows."""
        with conflict.translate_conflict(name):
            table.create_write_transaction(
                list(actions),
                mode="append" if replaced is None else "overwrite",
                schema=table.schema(),
                partition_by=table.metadata().partition_columns,
                partition_filters=[(replaced[0], "=", replaced[1])] if isinstance(replaced, tuple) else None,
                commit_properties=properties,
            )

    def _has_batch(self, table: deltalake.DeltaTable) -> bool:
        if self._transaction is None:
            return False
        applied = table.transaction_version(self._transaction.application)
        return applied is not None and applied >= self._transaction.version

    def _properties(
        self, rows: int, lineage: TableLineage | None, retries: int | None = None
    ) -> deltalake.CommitProperties:
        metadata = {ROWS: str(rows)}
        lineage = lineage if lineage is not None else self._lineage
        if lineage is not None:
            metadata["userMetadata"] = lineage.text()
        marks = None
        if self._transaction is not None:
            marks = [deltalake.Transaction(self._transaction.application, self._transaction.version)]
        return deltalake.CommitProperties(custom_metadata=metadata, app_transactions=marks, max_commit_retries=retries)
