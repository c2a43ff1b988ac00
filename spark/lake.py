"""The tables of one lake by name: where they are, at which versions, and their rows. Writing is `spark.sink`'s.

Landed tables are only read, and one that is not there yet reads as empty; derived tables are created when first
written. Questions about a table (version, id, files, applied transactions) are answered by delta-rs in milliseconds,
without a query of Spark; rows are read by Spark's connector.
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

from cloud.place.place import LakePlace, Somewhere, place_of
from spark import lineage, remedy, schemas, soundness
from spark.data_files import data_files
from spark.driver import Driver
from spark.lineage import TableLineage, TableState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READER_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Features of Delta under which the rows of a table are still the rows of its data files."""
_COLUMN_MAPPING_READER_VERSION = 2
BATCH_BYTES_MAX: Final = "256m"
"""Size of the data files in a micro-batch, about: decoded and held they take some hundred megabytes."""


class SchemaMismatch(RuntimeError):
    """A landed table lacks a column of the contract, or has it with another type."""


class FormatUnknown(RuntimeError):
    """A table uses a feature of Delta that this program does not know."""


class Lake:
    """The tables of one lake, through one session of Spark, which is started when it is first needed."""

    def __init__(self, spark: SparkSession | Driver | None, lake: Somewhere) -> None:
        self.driver = spark if isinstance(spark, Driver) else Driver.running(spark) if spark else Driver.none()
        self.place = place_of(lake)

    @property
    def session(self) -> SparkSession:
        """Spark's session. Raises what `session.start` raises."""
        return self.driver.session()

    def using(self, session: SparkSession) -> Lake:
        """Return the same lake through another session, as that of a streaming query."""
        return Lake(session, self.place)

    def path(self, name: str) -> str:
        """Return where table `name` is, there or not, as Spark names it."""
        return self.at(name).spark_uri

    def at(self, name: str) -> LakePlace:
        """Return where table `name` is, there or not."""
        return self.place.at(name)

    def open(self, name: str, version: int | None = None) -> deltalake.DeltaTable:
        """Open a table as it is, or was at a version. Raises `TableNotFoundError` and `TableUnreadable`."""
        with remedy.named(name):
            return self.at(name).delta(version)

    def find(self, name: str) -> deltalake.DeltaTable | None:
        """Open a table as it is; None where it does not exist. Raises `TableUnreadable`."""
        try:
            return self.open(name)
        except TableNotFoundError:
            return None

    def state(self, name: str) -> TableState | None:
        """Return id and version of a table; None where it does not exist."""
        table = self.find(name)
        return TableState(str(table.metadata().id), table.version()) if table is not None else None

    def version(self, name: str) -> int | None:
        """Return the version of a table; None where it does not exist."""
        table = self.find(name)
        return table.version() if table is not None else None

    def dated_state(self, name: str, version: int) -> TableState:
        """Return a table's state at a version, with the time of its commit."""
        table = self.open(name, version)
        with remedy.named(name):
            return lineage.dated(table)

    def lineage(self, name: str, version: int | None = None) -> TableLineage | None:
        """Return the lineage of a table as it is, or was at `version`; None where it is not known."""
        try:
            table = self.open(name, version)
        except TableNotFoundError:
            return None
        with remedy.named(name):
            return lineage.lineage_of(table)

    def is_unchanged(self, name: str, before: TableState) -> bool:
        """Return whether a table has the rows that it had at an earlier state: only maintenance has come since."""
        table = self.find(name)
        if table is None or str(table.metadata().id) != before.id or table.version() < before.version:
            return False
        with remedy.named(name):
            return not lineage.rows_changed(table, before.version)

    def check_entries(self, name: str, after: int | None) -> None:
        """Raise `TableUnreadable` where an entry of the log after a version is damaged, or missing; Spark and delta-rs
        take an empty one for a commit without rows. None: where one of the newest is."""
        newest = self.open(name).version()
        first = max(newest - lineage.COMMITS_MAX, -1) if after is None else after
        with remedy.named(name):
            damage = soundness.damage(self.at(name), range(first + 1, newest + 1))
        if damage is not None:
            raise remedy.unreadable(name, ValueError(damage))

    def rows(self, name: str) -> int:
        """Return the number of rows of a table, from the statistics in its log."""
        table = self.find(name)
        return int(table.count()) if table is not None else 0

    def rows_since(self, name: str, version: int | None) -> int:
        """Return how many rows a table has more than at `version`; all where that is None or no longer in the log."""
        before = 0
        if version is not None:
            with suppress(*remedy.FAILURES):
                before = int(self.at(name).delta(version).count())
        return max(0, self.rows(name) - before)

    def transaction_version(self, name: str, application: str) -> int | None:
        """Return the last version of `application` that table `name` has taken."""
        table = self.find(name)
        return table.transaction_version(application) if table is not None else None

    def ensure(self, name: str) -> TableState:
        """Create derived table `name` if it is not there."""
        state = self.state(name)
        return state if state is not None else self._create(name, "error")

    def recreate(self, name: str) -> TableState:
        """Create derived table `name` again, empty and under a new id. A table with a damaged log is deleted before."""
        if soundness.damage(self.at(name)) is not None:
            self.at(name).clear()
        return self._create(name, "overwrite")

    def read(self, name: str, version: int | None = None) -> DataFrame:
        """Return the rows of a table, now or at a version, with exactly the columns of its schema; none where it is
        not there.

        Raises `SchemaMismatch` where the table does not fit the schema.
        """
        if version is None and self.find(name) is None:
            return self.nothing(name)
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

        Only for a table that `check_readable` accepts.
        """
        fields = schema(name).columns
        if not paths:
            return self.nothing(name)
        # Paths are names, not patterns.
        reader = self.session.read.schema(fields).option("basePath", self.path(name)).option("__globPaths__", "false")
        return reader.parquet(*(f"{self.path(name)}/{path}" for path in paths)).select(*fields.names)

    def files_since(self, name: str, version: int, upto: int) -> list[str] | None:
        """Return the files that a table has at version `upto` and did not have at `version`: all rows added between
        are in them, and with compaction also older ones. None where the log no longer has that version."""
        try:
            before = {file.path for file in data_files(self.at(name).delta(version))}
        except remedy.FAILURES:
            return None
        table = self.open(name, upto)
        self.check_readable(name, table)
        return [file.path for file in data_files(table) if file.path not in before]

    def nothing(self, name: str) -> DataFrame:
        """Return no rows of a table, in a form that Spark plans nothing for."""
        return self.session.createDataFrame([], schema(name).columns).limit(0)

    def check_readable(self, name: str, table: deltalake.DeltaTable) -> None:
        """Raise `SchemaMismatch` or `FormatUnknown` unless the files of a table are its rows, column by column."""
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
        told = {"delta.dataSkippingStatsColumns": ",".join(key for key in table.keys if key not in partitions)}
        deltalake.DeltaTable.create(
            place.uri,
            form,
            mode=mode,
            partition_by=partitions,
            storage_options=place.storage_options,
            configuration=told if table.keys else None,
        )
        state = self.state(name)
        if state is None:
            raise RuntimeError(f"table {name} vanished while it was created: {place.uri}")
        return state


def schema(name: str) -> schemas.Table:
    """Return the columns of a table by its name."""
    return schemas.LANDED.get(name) or schemas.DERIVED[name]


def conform_schema(found: StructType, name: str) -> None:
    """Raise `SchemaMismatch` unless a table with these columns has those of table `name`'s schema."""
    there = {field.name: field.dataType for field in found.fields}
    for field in schema(name).columns.fields:
        if field.name not in there and not field.nullable:
            raise SchemaMismatch(f"table {name} has no column {field.name}")
        if there.get(field.name, field.dataType) != field.dataType:
            expected, other = field.dataType.simpleString(), there[field.name].simpleString()
            raise SchemaMismatch(f"table {name}: column {field.name} is {other}, the contract says {expected}")


def conform(rows: DataFrame, name: str) -> DataFrame:
    """Return the columns of table `name`'s schema, in order; a nullable one that older files lack is null."""
    conform_schema(rows.schema, name)
    there = set(rows.columns)
    fields = schema(name).columns.fields
    return rows.select(
        *(
            F.col(field.name) if field.name in there else F.lit(None).cast(field.dataType).alias(field.name)
            for field in fields
        )
    )


def fitted(rows: DataFrame, name: str) -> DataFrame:
    """Return `rows` cast and ordered as table `name` has its columns: the last step before every write."""
    return rows.select(*(F.col(field.name).cast(field.dataType).alias(field.name) for field in schema(name).columns))
