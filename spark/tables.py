"""Reading and writing the tables of one lake by name.

A lake is a folder of Delta tables. Landed tables are only read, and one that is not there yet reads as empty; derived
tables are made when first written. Every write is idempotent: an append carries the application id and version of
Delta's transaction markers, a replacement is a pure function of its inputs and atomic.

Table creation and the small questions about a table (which version, which id, was this transaction applied) go to
delta-rs, which answers in milliseconds without a job in the JVM; rows are read and written by Spark's connector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import deltalake
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark text uses
from pyspark.sql.types import StructType

from spark import schemas
from spark.provenance import COMMITS_MAX, TELEMETRY, Provenance, State, committed, rows_changed, state_of, versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession


class SchemaMismatch(RuntimeError):
    """A landed table lacks a column of the contract, or has it with another type."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """Delta's transaction marker: a table takes each (`application`, `version`) once, in rising order of version."""

    application: str
    version: int

    def options(self) -> dict[str, str]:
        """As options of Delta's writer."""
        return {"txnAppId": self.application, "txnVersion": str(self.version)}


class Lake:
    """The tables under one root folder, through one session."""

    def __init__(self, session: SparkSession, root: Path, pinned: Mapping[str, State | None] | None = None) -> None:
        self.session = session
        self.root = root.resolve()
        self._pinned = pinned or {}

    def pin(self) -> Lake:
        """The same lake, in which the landed tables stay what they are now however much lands; streams go on."""
        return Lake(self.session, self.root, {name: self._latest(name) for name in schemas.LANDED})

    def pin_as_of(self, telemetry: State) -> Lake:
        """The same lake, in which `telemetry` stays what it was at that version, and the others at that moment.

        Where only maintenance has followed that version it is taken as it is now: older files may be gone.
        """
        latest = self._open(TELEMETRY)
        if latest is None or telemetry.id != str(latest.metadata().id) or not rows_changed(latest, telemetry.version):
            return self.pin()
        others = (name for name in schemas.LANDED if name != TELEMETRY)
        return Lake(
            self.session,
            self.root,
            {TELEMETRY: telemetry, **{name: self._at(name, telemetry.committed_at) for name in others}},
        )

    def path(self, name: str) -> str:
        """Where table `name` is, there or not."""
        return str(self.root / name)

    def state(self, name: str) -> State | None:
        """Id and version of a table; None when there is none."""
        return self._pinned[name] if name in self._pinned else self._latest(name)

    def _latest(self, name: str) -> State | None:
        table = self._open(name)
        return state_of(table) if table is not None else None

    def _at(self, name: str, moment: datetime | None) -> State | None:
        """A table's newest version that was committed by `moment`; the newest of all where that is not known."""
        table, count = self._open(name), COMMITS_MAX
        while table is not None:
            commits = committed(table, count)
            for version, committed_at in commits:
                if moment is None or committed_at is None or committed_at <= moment:
                    return State(str(table.metadata().id), version, committed_at)
            if len(commits) < count:  # nothing was there yet; or what was is in a checkpoint alone
                return None if commits and commits[-1][0] == 0 else state_of(table)
            count *= 10
        return None

    def state_at(self, name: str, version: int) -> State:
        """A table as it was at a version. Raises what delta-rs raises when the log does not have it any more."""
        return state_of(deltalake.DeltaTable(self.path(name), version=version))

    def provenance(self, name: str, version: int | None = None) -> Provenance | None:
        """What a table was made of as it is, or was at `version`; None when that is not known."""
        try:
            table = deltalake.DeltaTable(self.path(name), version=version)
        except TableNotFoundError:
            return None
        ((_, made_of),) = versions(table)[:1] or ((0, None),)
        return made_of

    def ensure(self, name: str) -> State:
        """Make derived table `name` if it is not there."""
        state = self.state(name)
        return state if state is not None else self._create(name, "error")

    def recreate(self, name: str) -> State:
        """Make derived table `name` anew and empty, under a new id, whatever it was."""
        return self._create(name, "overwrite")

    def rows_written(self, name: str, after: int) -> int:
        """Rows that the commits after version `after` wrote, as the commits say of themselves."""
        table = self._open(name)
        count = table.version() - after if table is not None else 0
        if table is None or count <= 0:
            return 0
        metrics = (commit.get("operationMetrics") or {} for commit in table.history(count))
        return sum(int(each.get("numOutputRows", 0)) for each in metrics)

    def rows(self, name: str) -> int:
        """Rows of a table, from the statistics in its log."""
        table = self._open(name)
        return int(table.count()) if table is not None else 0

    def transaction_version(self, name: str, application: str) -> int | None:
        """The last version of `application` that table `name` has taken."""
        table = self._open(name)
        return table.transaction_version(application) if table is not None else None

    def read(self, name: str, version: int | None = None) -> DataFrame:
        """The rows of a table, with exactly the columns of its schema; none when it is not there.

        As it is, as it is pinned, or as it was at `version`. Raises `SchemaMismatch` when what is there does not fit
        the schema.
        """
        columns = _schema(name).columns
        found = self.state(name)
        if found is None:
            return self.session.createDataFrame([], columns)
        reader = self.session.read.format("delta")
        if version is not None or name in self._pinned:
            reader = reader.option("versionAsOf", version if version is not None else found.version)
        return conform(reader.load(self.path(name)), name)

    def stream(self, name: str, options: Mapping[str, str] | None = None) -> DataFrame:
        """A table's commits as a stream; the table must be there."""
        reader = self.session.readStream.format("delta").options(**(options or {}))
        return conform(reader.load(self.path(name)), name)

    def append(self, name: str, rows: DataFrame, transaction: Transaction, made_of: Provenance | None = None) -> None:
        """Append `rows` unless `transaction` was applied already."""
        writer = _told(fitted(rows, name).write.format("delta").mode("append"), made_of)
        writer.options(**transaction.options()).save(self.path(name))

    def replace_where(self, name: str, rows: DataFrame, predicate: str, made_of: Provenance | None = None) -> None:
        """Put `rows` in place of those that match `predicate`, in one commit. Rows outside it are refused by Delta."""
        writer = _told(fitted(rows, name).write.format("delta").mode("overwrite"), made_of)
        writer.option("replaceWhere", predicate).save(self.path(name))

    def overwrite(self, name: str, rows: DataFrame, transaction: Transaction, made_of: Provenance) -> None:
        """Put `rows` in place of all rows, in one commit, unless `transaction` was applied."""
        writer = _told(fitted(rows, name).write.format("delta").mode("overwrite"), made_of)
        writer.options(**transaction.options()).save(self.path(name))

    def _open(self, name: str) -> deltalake.DeltaTable | None:
        pinned = self._pinned.get(name)
        try:
            return deltalake.DeltaTable(self.path(name), version=pinned.version if pinned is not None else None)
        except TableNotFoundError:
            return None

    def _create(self, name: str, mode: Literal["error", "overwrite"]) -> State:
        table = schemas.DERIVED[name]
        # Spark's JSON form of a schema is the Delta protocol's own form of it.
        columns = deltalake.Schema.from_json(table.columns.json())
        deltalake.DeltaTable.create(self.path(name), columns, mode=mode, partition_by=list(table.partition_by))
        state = self.state(name)
        if state is None:
            raise RuntimeError(f"table {name} vanished while it was made: {self.path(name)}")
        return state


def _told(writer: DataFrameWriter, made_of: Provenance | None) -> DataFrameWriter:
    """The commit says what the table is made of from it on; without it, that it is in between."""
    return writer if made_of is None else writer.option("userMetadata", made_of.text())


def _schema(name: str) -> schemas.Table:
    return schemas.LANDED.get(name) or schemas.DERIVED[name]


def conform(rows: DataFrame, name: str) -> DataFrame:
    """The columns of table `name`'s schema, in order; a nullable one that older files lack is null."""
    there = {field.name: field.dataType for field in rows.schema.fields}
    selected = []
    for field in _schema(name).columns.fields:
        if field.name not in there:
            if not field.nullable:
                raise SchemaMismatch(f"table {name} has no column {field.name}")
            selected.append(F.lit(None).cast(field.dataType).alias(field.name))
            continue
        if there[field.name] != field.dataType:
            expected, found = field.dataType.simpleString(), there[field.name].simpleString()
            raise SchemaMismatch(f"table {name}: column {field.name} is {found}, the contract says {expected}")
        selected.append(F.col(field.name))
    return rows.select(*selected)


def fitted(rows: DataFrame, name: str) -> DataFrame:
    """`rows` cast and ordered as table `name` has its columns; the last step before every write."""
    columns: StructType = _schema(name).columns
    return rows.select(*(F.col(field.name).cast(field.dataType).alias(field.name) for field in columns.fields))
