"""Tables of one lake by name: their places, versions and rows. `spark.sink` writes them.

Landed tables are only read, and a missing one reads as empty; derived tables are created when first written. delta-rs
answers questions about a table (version, id, files, applied transactions) in milliseconds, without a query of Spark.
Spark's connector reads rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

import deltalake
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark text uses
from pyspark.sql.types import StructType

from cloud.place.place import LakeLocation, LakePlace, place_of
from spark import lineage, log_damage, schemas, table_errors
from spark.data_files import list_files
from spark.driver import SparkDriver
from spark.lineage import TableLineage, TableState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READER_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Delta features that leave the rows of a table as they are in its data files."""
_COLUMN_MAPPING_READER_VERSION = 2
BATCH_BYTES_MAX: Final = "256m"
"""Approximate size of the data files in a micro-batch. Decoded they take some hundred megabytes."""


class SchemaMismatch(RuntimeError):
    """A landed table lacks a column of the contract, or has it with another type."""


class FormatUnknown(RuntimeError):
    """A table uses a Delta feature that this program does not know."""


class SparkLake:
    """Tables of one lake, through one session of Spark that starts when it is first needed."""

    def __init__(self, spark: SparkSession | SparkDriver | None, lake: LakeLocation) -> None:
        self.driver = (
            spark if isinstance(spark, SparkDriver) else SparkDriver.running(spark) if spark else SparkDriver.none()
        )
        self.place = place_of(lake)

    @property
    def session(self) -> SparkSession:
        """Spark's session. Raises what `session.start` raises."""
        return self.driver.session()

    def with_session(self, session: SparkSession) -> SparkLake:
        """Return the same lake through another session, such as that of a streaming query."""
        return SparkLake(session, self.place)

    def path(self, name: str) -> str:
        """Return the path of a table for Spark, whether it exists or not."""
        return self.at(name).spark_uri

    def at(self, name: str) -> LakePlace:
        """Return the place of a table, whether it exists or not."""
        return self.place.at(name)

    def open(self, name: str, version: int | None = None) -> deltalake.DeltaTable:
        """Open a table as it is now, or at a version. Raises `TableNotFoundError` and `TableUnreadable`."""
        with table_errors.translate_errors(name):
            return self.at(name).delta(version)

    def find(self, name: str) -> deltalake.DeltaTable | None:
        """Open a table as it is now; None if it does not exist. Raises `TableUnreadable`."""
        try:
            return self.open(name)
        except TableNotFoundError:
            return None

    def state(self, name: str) -> TableState | None:
        """Return the id and version of a table; None if it does not exist."""
        table = self.find(name)
        return TableState(str(table.metadata().id), table.version()) if table is not None else None

    def version(self, name: str) -> int | None:
        """Return the version of a table; None if it does not exist."""
        table = self.find(name)
        return table.version() if table is not None else None

    def dated_state(self, name: str, version: int) -> TableState:
        """Return a table's state at a version, with the time of its commit."""
        table = self.open(name, version)
        with table_errors.translate_errors(name):
            return lineage.read_state(table)

    def lineage(self, name: str, version: int | None = None) -> TableLineage | None:
        """Return the lineage of a table now, or at `version`; None if it is unknown."""
        try:
            table = self.open(name, version)
        except TableNotFoundError:
            return None
        with table_errors.translate_errors(name):
            return lineage.read_lineage(table)

    def is_unchanged(self, name: str, before: TableState) -> bool:
        """Return whether a table still has the rows of an earlier state, apart from maintenance."""
        table = self.find(name)
        if table is None or str(table.metadata().id) != before.id or table.version() < before.version:
            return False
        with table_errors.translate_errors(name):
            return not lineage.rows_changed(table, before.version)

    def check_entries(self, name: str, after: int | None) -> None:
        """Raise `TableUnreadable` if a log entry after a version is damaged or missing (None: one of the newest).

        Spark and delta-rs take an empty entry for a commit without rows.
        """
        newest = self.open(name).version()
        first = max(newest - lineage.COMMITS_MAX, -1) if after is None else after
        with table_errors.translate_errors(name):
            damage = log_damage.find_damage(self.at(name), range(first + 1, newest + 1))
        if damage is not None:
            raise table_errors.make_unreadable(name, ValueError(damage))

    def rows(self, name: str) -> int:
        """Return the number of rows of a table, from the statistics in its log."""
        table = self.find(name)
        return int(table.count()) if table is not None else 0

    def rows_since(self, name: str, version: int | None) -> int:
        """Return how many rows a table has more than at `version`; all if that is None or no longer in the log."""
        before = 0
        if version is not None:
            with suppress(*table_errors.FAILURES):
                before = int(self.at(name).delta(version).count())
        return max(0, self.rows(name) - before)

    def transaction_version(self, name: str, application: str) -> int | None:
        """Return the last version of `application` that a table has committed."""
        table = self.find(name)
        return table.transaction_version(application) if table is not None else None

    def ensure(self, name: str) -> TableState:
        """Create a derived table if it does not exist."""
        state = self.state(name)
        return state if state is not None else self._create(name, "error")

    def recreate(self, name: str) -> TableState:
        """Create a derived table again, empty and with a new id. A table with a damaged log is deleted first."""
        if log_damage.find_damage(self.at(name)) is not None:
            self.at(name).clear()
        return self._create(name, "overwrite")

    def read(self, name: str, version: int | None = None) -> DataFrame:
        """Return the rows of a table, now or at a version, with exactly the columns of its schema; none if it is
        missing.

        Raises `SchemaMismatch` if the table does not match the schema.
        """
        if version is None and self.find(name) is None:
            return self.empty(name)
        reader = self.session.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return conform(reader.load(self.path(name)), name)

    def follow(self, name: str) -> DataFrame:
        """Return the rows that commits add to a table, as a stream. Commits that remove rows are skipped.

        Raises `SchemaMismatch` and `FormatUnknown`.
        """
        self.check_readable(name, self.open(name))
        reader = self.session.readStream.format("delta").option("skipChangeCommits", "true")
        return conform(reader.option("maxBytesPerTrigger", BATCH_BYTES_MAX).load(self.path(name)), name)

    def rows_of(self, name: str, paths: Sequence[str]) -> DataFrame:
        """Return the rows of some files of a table; columns that a file lacks are null.

        Only for tables that `check_readable` accepts.
        """
        fields = schema(name).columns
        if not paths:
            return self.empty(name)
        # Paths are names, not patterns.
        reader = self.session.read.schema(fields).option("basePath", self.path(name)).option("__globPaths__", "false")
        return reader.parquet(*(f"{self.path(name)}/{path}" for path in paths)).select(*fields.names)

    def files_since(self, name: str, version: int, upto: int) -> list[str] | None:
        """Return the files that a table has at version `upto` and did not have at `version`.

        They hold all rows added in between and, after compaction, older ones. None if the log no longer has that
        version.
        """
        try:
            before = {file.path for file in list_files(self.at(name).delta(version))}
        except table_errors.FAILURES:
            return None
        table = self.open(name, upto)
        self.check_readable(name, table)
        return [file.path for file in list_files(table) if file.path not in before]

    def empty(self, name: str) -> DataFrame:
        """Return no rows of a table, in a form that costs Spark no planning."""
        return self.session.createDataFrame([], schema(name).columns).limit(0)

    def check_readable(self, name: str, table: deltalake.DeltaTable) -> None:
        """Raise `SchemaMismatch` or `FormatUnknown` unless the files of a table hold its rows, column by column."""
        protocol = table.protocol()
        unknown = set(protocol.reader_features or ()) - _READER_FEATURES
        if unknown or protocol.min_reader_version == _COLUMN_MAPPING_READER_VERSION:
            what = ", ".join(sorted(unknown)) or "columnMapping"
            raise FormatUnknown(
                f"table {name} uses {what}, which this program cannot read: a newer one wrote it, use that"
            )
        conform_schema(StructType.fromJson(json.loads(table.schema().to_json())), name)

    def _create(self, name: str, mode: Literal["error", "overwrite"]) -> TableState:
        table = schemas.DERIVED[name]
        form = deltalake.Schema.from_json(table.columns.json())
        place, partitions = self.at(name), list(table.partition_by)
        place.make()
        # Readers skip files by these columns; statistics of all columns took most of the time of writing windows.
        properties = {"delta.dataSkippingStatsColumns": ",".join(key for key in table.keys if key not in partitions)}
        deltalake.DeltaTable.create(
            place.uri,
            form,
            mode=mode,
            partition_by=partitions,
            storage_options=place.storage_options,
            configuration=properties if table.keys else None,
        )
        state = self.state(name)
        if state is None:
            raise RuntimeError(f"table {name} vanished while it was created: {place.uri}")
        return state


def schema(name: str) -> schemas.TableSchema:
    """Return the schema of a table by its name."""
    return schemas.LANDED.get(name) or schemas.DERIVED[name]


def conform_schema(found: StructType, name: str) -> None:
    """Raise `SchemaMismatch` unless these columns include those of the table's schema."""
    present = {field.name: field.dataType for field in found.fields}
    for field in schema(name).columns.fields:
        if field.name not in present and not field.nullable:
            raise SchemaMismatch(f"table {name} has no column {field.name}")
        if present.get(field.name, field.dataType) != field.dataType:
            expected, other = field.dataType.simpleString(), present[field.name].simpleString()
            raise SchemaMismatch(f"table {name}: column {field.name} is {other}, the contract says {expected}")


def conform(rows: DataFrame, name: str) -> DataFrame:
    """Return the columns of a table's schema, in order; a nullable one that older files lack is null."""
    conform_schema(rows.schema, name)
    present = set(rows.columns)
    fields = schema(name).columns.fields
    return rows.select(
        *(
            F.col(field.name) if field.name in present else F.lit(None).cast(field.dataType).alias(field.name)
            for field in fields
        )
    )


def fit(rows: DataFrame, name: str) -> DataFrame:
    """Return `rows` cast and ordered like the columns of a table: the last step before every write."""
    return rows.select(*(F.col(field.name).cast(field.dataType).alias(field.name) for field in schema(name).columns))
