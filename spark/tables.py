"""Reading and writing the tables of one lake by name.

A lake is a place with Delta tables. Landed tables are only read, and one that is not there yet reads as empty; derived
tables are made when first written. Every write is idempotent: an append carries the application id and version of
Delta's transaction markers, a replacement is a pure function of its inputs and atomic.

The small questions about a table (which version, which id, was this transaction applied) are answered by its log
or by delta-rs, which makes tables too: in milliseconds, without a job in the JVM. Rows are read and written by Spark's
connector, or written from this process where they are few.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import deltalake
import pyarrow as pa
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark text uses
from pyspark.sql.types import StructType

from cloud.place.place import Place, Somewhere, place_of
from spark import delta_log, folding, gathered, remedy, schemas, session, soundness
from spark.driver import Driver
from spark.gathered import InsteadOf
from spark.handles import Handles
from spark.provenance import Provenance, State, last_change, provenance_of, state_of
from spark.remedy import TableUnreadable
from spark.replacement import Replacement
from spark.transaction import There, Transaction, rows_changed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_NOTING = threading.Lock()
"""Jobs run side by side, and one of them makes the table of notes."""
_POOL = "default"
"""Spark's name for the pool of whoever has chosen none."""
_CHOSEN = "waypost_chosen"
"""The view that a removal reads its rows by; each job's session has its own."""
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_READER_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Features of Delta under which the rows of a table are still what its data files have."""
_COLUMN_MAPPING_READER_VERSION = 2


class SchemaMismatch(RuntimeError):
    """A landed table lacks a column of the contract, or has it with another type."""


class FormatUnknown(RuntimeError):
    """A table uses a feature of Delta that this program does not know."""


class Lake:
    """The tables of one lake, through one session of Spark, if it is asked for.

    `few`: what there is are few rows, which are read file by file and written from this process (`spark.gathered`).
    `notes`: what its user has to be told beside what is returned; a job's own.
    """

    def __init__(
        self,
        spark: SparkSession | Driver | None,
        lake: Somewhere,
        pinned: Mapping[str, State | None] | None = None,
        *,
        few: bool = False,
        pool: str | None = None,
    ) -> None:
        """`pool`: where what Spark does for a job waits its turn; a lake with one has a session of its own."""
        self.driver = spark if isinstance(spark, Driver) else Driver.running(spark) if spark else Driver.none()
        self.place = place_of(lake)
        self._pinned = pinned or {}
        self.few = few
        self.notes: list[str] = []
        self._pool = pool
        self._handles = Handles(self.place, kept=pool is not None)
        self._session: SparkSession | None = None
        self._fits_few: bool | None = None

    @property
    def session(self) -> SparkSession:
        """Spark's, which is started for the first who asks. Raises what `session.start` raises."""
        if self._session is None:
            self._session = self._begun(self.driver.session())
        return self._session

    def _begun(self, started: SparkSession) -> SparkSession:
        if self._pool is None:
            return started
        # Tasks of each round get their share of the cores, however many another one has.
        started.sparkContext.setLocalProperty("spark.scheduler.pool", self._pool)
        own = started.newSession()
        if self._fits_few is not None:
            session.fit(own, few=self._fits_few)
        return own

    def fit(self, *, few: bool) -> None:
        """Set up the session of a job for a batch of few rows, or of more; see `session.fit`."""
        self._fits_few = few
        if self._session is not None:
            session.fit(self._session, few=few)

    def pin(self) -> Lake:
        """The same lake, in which the landed tables stay what they are now however much lands.

        One that cannot be opened is left to those who read it.
        """
        pinned: dict[str, State | None] = {}
        for name in schemas.LANDED:
            with suppress(TableUnreadable, delta_log.LogDamaged):
                pinned[name] = self._latest(name)
        return Lake(self.driver, self.place, pinned, few=self.few)

    def for_job(self, pool: str = _POOL) -> Lake:
        """The same lake through a session whose settings are its own: jobs run side by side and set some. It is for
        one thread, whose tasks wait their turn in this pool."""
        return Lake(self.driver, self.place, self._pinned, few=self.few, pool=pool)

    def path(self, name: str) -> str:
        """Where table `name` is, there or not, as Spark names it."""
        return self.at(name).spark_uri

    def at(self, name: str) -> Place:
        """Where table `name` is, there or not."""
        return self.place.at(name)

    def state(self, name: str) -> State | None:
        """Id and version of a table; None when there is none."""
        return self._pinned[name] if name in self._pinned else self._latest(name)

    def _latest(self, name: str) -> State | None:
        table = self._told(name)
        return state_of(table) if table is not None else None

    def state_at(self, name: str, version: int) -> State:
        """A table as it was at a version. Raises what delta-rs raises when the log does not have it any more."""
        return state_of(self._handles.open(name, version))

    def provenance(self, name: str, version: int | None = None) -> Provenance | None:
        """What a table was made of as it is, or was at `version`; None when that is not known."""
        entry = self.last_change(name, version)
        return provenance_of(entry) if entry is not None else None

    def last_change(self, name: str, version: int | None = None) -> delta_log.Entry | None:
        """The commit that the rows of a table are of as it is, or was at `version`; None when the log lacks it."""
        try:
            table = self._handles.open(name, version)
        except TableNotFoundError:
            return None
        return last_change(table)

    def ensure(self, name: str) -> State:
        """Make derived table `name` if it is not there."""
        state = self.state(name)
        return state if state is not None else self._create(name, "error")

    def recreate(self, name: str) -> State:
        """Make derived table `name` anew and empty, under a new id. One whose log is damaged is deleted before."""
        if soundness.damage(self.at(name)) is not None:
            self.at(name).clear()
        return self._create(name, "overwrite")

    def rows_written(self, name: str, after: int) -> int:
        """Rows that the commits after version `after` wrote, as the commits say of themselves."""
        table = self._told(name)
        entries = (self.commit(name, at) for at in range(after + 1, table.version() + 1 if table is not None else 0))
        return sum(_rows_written(entry) for entry in entries if entry is not None)

    def rows(self, name: str) -> int:
        """Rows of a table, from the statistics in its log."""
        table = self._open(name)
        return int(table.count()) if table is not None else 0

    def transaction_version(self, name: str, application: str) -> int | None:
        """The last version of `application` that table `name` has taken."""
        table = self._told(name)
        return table.transaction_version(application) if table is not None else None

    def there(self, name: str, application: str) -> There:
        """A table that is there as it is, whether it is pinned or not, and what it has taken of `application`."""
        return gathered.there(self.at(name).delta(), application)

    def read(self, name: str, version: int | None = None) -> DataFrame:
        """The rows of a table, with exactly the columns of its schema; none when it is not there.

        As it is, as it is pinned, or as it was at `version`. Raises `SchemaMismatch` when what is there does not fit
        the schema.
        """
        found = self.state(name)
        if found is None:
            return self._nothing(name)
        if self.few:
            at = version if version is not None else found.version
            self.check_readable(name, at)
            return self.rows_of(name, delta_log.files(self.opened(name, at)))
        reader = self.session.read.format("delta")
        if version is not None or name in self._pinned:
            reader = reader.option("versionAsOf", version if version is not None else found.version)
        return conform(reader.load(self.path(name)), name)

    def opened(self, name: str, version: int) -> deltalake.DeltaTable:
        """A table at a version, as its log has it. Raises what delta-rs raises when the log lacks it."""
        return self._handles.open(name, version)

    def commit(self, name: str, version: int) -> delta_log.Entry | None:
        """What one commit did; None when the log does not have it any more. Raises `delta_log.LogDamaged`."""
        return delta_log.entry(self.at(name), version)

    def rows_of(self, name: str, files: Sequence[delta_log.File]) -> DataFrame:
        """The rows of some files of a table, with exactly the columns of its schema; columns a file lacks are null.

        Only for a table that `check_readable` has found to be one.
        """
        fields = _schema(name).columns
        if not files:
            return self._nothing(name)
        paths = [f"{self.path(name)}/{file.path}" for file in files]
        # Names are names: no pattern is looked for in them.
        reader = self.session.read.schema(fields).option("basePath", self.path(name)).option("__globPaths__", "false")
        return reader.parquet(*paths).select(*fields.names)

    def statistics(self, name: str, paths: Collection[str]) -> dict[str, dict[str, Any]]:
        """What the log says of the values in these files of a table (`min.sequence`, ...); nothing of others."""
        table = self._open(name)
        rows = pa.table(table.get_add_actions(flatten=True)).to_pylist() if table is not None else []
        return {path: row for row in rows if (path := unquote(row["path"])) in paths}

    def note(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to a small table of notes, without Spark; those that are there already (by its keys) are not."""
        with _NOTING:
            self.ensure(name)
            table, keys = self.at(name).delta(), schemas.DERIVED[name].keys
            there = {tuple(row[key] for key in keys) for row in table.to_pyarrow_table(columns=list(keys)).to_pylist()}
            fresh = [dict(row) for row in rows if tuple(row[key] for key in keys) not in there]
            if fresh:
                data = pa.Table.from_pylist(fresh, schema=pa.schema(table.schema().to_arrow()))
                deltalake.write_deltalake(table, data, mode="append")

    def forget(self, name: str, predicate: str) -> None:
        """Delete rows of a small table of notes; all, where it is damaged."""
        try:
            table = self._open(name)
            with remedy.named(name):
                if table is not None:
                    table.delete(predicate)
        except TableUnreadable:
            if soundness.damage(self.at(name)) is None:
                raise
            self.recreate(name)

    def check_readable(self, name: str, version: int) -> None:
        """Raise `SchemaMismatch` or `FormatUnknown` unless the files of a table are its rows, column by column."""
        self._require_readable(name, self._handles.open(name, version))

    def _require_readable(self, name: str, table: deltalake.DeltaTable) -> None:
        protocol = table.protocol()
        unknown = set(protocol.reader_features or ()) - _READER_FEATURES
        if unknown or protocol.min_reader_version == _COLUMN_MAPPING_READER_VERSION:
            what = ", ".join(sorted(unknown)) or "columnMapping"
            raise FormatUnknown(
                f"table {name} uses {what}, which this program cannot read: a newer one wrote it, use that"
            )
        conform_schema(StructType.fromJson(json.loads(table.schema().to_json())), name)

    def append(
        self,
        name: str,
        rows: DataFrame | pa.Table,
        transaction: Transaction,
        made_of: Provenance | None = None,
    ) -> bool:
        """Append `rows`; False where `transaction` was applied already. Raises `Overtaken`, as all that writes."""
        return self._written(name, rows, transaction, made_of)

    def overwrite(
        self,
        name: str,
        rows: DataFrame | pa.Table,
        transaction: Transaction,
        made_of: Provenance | None,
        partition: tuple[str, str] | None = None,
    ) -> bool:
        """Put `rows` in place of all rows, or of those of a partition (column, value), in one commit; False where
        `transaction` was applied already. `rows` are of that partition."""
        return self._written(name, rows, transaction, made_of, partition or "all")

    def fold(
        self,
        name: str,
        rows: DataFrame,
        how: Mapping[str, str],
        transaction: Transaction,
        made_of: Provenance | None = None,
    ) -> DataFrame:
        """Fold partial aggregates into a table, in one commit, unless `transaction` was applied.

        A row whose keys are there becomes, column by column, what `how` says in SQL of `old` and `new`; others are
        added. Files without such a row stay, but for small ones. `rows` is computed once, and returned as it is kept.
        """
        table = _schema(name)
        if set(how) != set(table.columns.names) - set(table.keys) - set(table.partition_by):
            raise ValueError(f"table {name}: each column that is no key needs a way to be folded: {sorted(how)}")
        applied = self.transaction_version(name, transaction.application)
        if applied is not None and applied >= transaction.version:
            return fitted(rows, name)
        empty = not self.rows(name)
        if empty and self.few and (found := self._gathered(name, rows)) is not None:
            gathered.write(self.at(name), found, gathered.commit(transaction, made_of))
            return self.session.createDataFrame(found, table.columns) if found.num_rows else self._nothing(name)
        partials = session.kept(fitted(rows, name))
        extents = folding.extents(partials, table)
        with self._told_by_settings(made_of):
            replacement = Replacement(self.session, self.path(name), transaction)
            if transaction.is_due(name, replacement.there):
                held = self._held(name, replacement.there.version, partials, extents)
                old = self.rows_of(name, [each.file for each in held])
                written = self._by_partition(folding.folded(old, partials, table, how) if held else partials, table)
                replacement.commit(written, held, sum(extent.rows for extent in extents))
        return partials

    def _held(self, name: str, version: int, rows: DataFrame, extents: Sequence[folding.Extent]) -> list[folding.Held]:
        """The files of a table that are to be folded with these rows: all that have a row of the same key, and those
        that may have one where that is no more to write than the rows are."""
        self.check_readable(name, version)
        held = folding.can_hold(self.opened(name, version), _schema(name), extents)
        if sum(each.file.rows or 0 for each in held) <= sum(extent.rows for extent in extents):
            return held
        old = self.rows_of(name, [each.file for each in held])
        holding = folding.holding(old, rows, _schema(name))
        return [each for each in held if folding.name_of(each.file.path) in holding]

    def _by_partition(self, rows: DataFrame, table: schemas.Table) -> DataFrame:
        """One task for each partition where one is enough, so that there is a file of each and not one a task."""
        one_task = self.session.conf.get("spark.sql.shuffle.partitions") == "1"
        return rows if one_task or not table.partition_by else rows.hint("rebalance", *table.partition_by)

    def remove(self, name: str, keys: DataFrame, on: Sequence[str], condition: str) -> None:
        """Remove the rows of a table that are equal to a row of `keys` in the columns `on` and fulfil `condition`, SQL
        of `old`. Only files that hold such a row are written anew; done again it changes nothing."""
        chosen = session.kept(keys.select(*on))
        chosen.createOrReplaceTempView(_CHOSEN)
        matched = " AND ".join([f"old.{column} <=> new.{column}" for column in on])
        partitions = [column for column in _schema(name).partition_by if column in on]
        for column in partitions:
            found = ", ".join(_literal(row[0]) for row in chosen.select(column).distinct().collect())
            matched += f" AND old.{column} IN ({found})" if found else " AND false"
        self.session.sql(
            f"MERGE INTO delta.`{self.path(name)}` AS old USING {_CHOSEN} AS new "
            f"ON {matched} AND {condition} WHEN MATCHED THEN DELETE"
        )

    def _nothing(self, name: str) -> DataFrame:
        """No rows, of which Spark knows before it plans."""
        return self.session.createDataFrame([], _schema(name).columns).limit(0)

    def _written(
        self,
        name: str,
        rows: DataFrame | pa.Table,
        transaction: Transaction,
        made_of: Provenance | None,
        instead_of: InsteadOf = None,
    ) -> bool:
        """Write `rows`, from this process where they are few, or there; False where `transaction` was applied."""
        if isinstance(rows, pa.Table):
            return gathered.write(self.at(name), rows, gathered.commit(transaction, made_of, instead_of))
        if self.few and (found := self._gathered(name, rows)) is not None:
            return gathered.write(self.at(name), found, gathered.commit(transaction, made_of, instead_of))
        with self._told_by_settings(made_of):
            replacement = Replacement(self.session, self.path(name), transaction)
            if not transaction.is_due(name, replacement.there):
                return False
            held = () if instead_of is None else replacement.held(None if instead_of == "all" else instead_of)
            replacement.commit(fitted(rows, name), held)
        return True

    def _gathered(self, name: str, rows: DataFrame) -> pa.Table | None:
        """`rows` in this process; None where they are not few."""
        return gathered.gathered(fitted(rows, name), _schema(name).row_bytes)

    @contextmanager
    def _told_by_settings(self, made_of: Provenance | None) -> Iterator[None]:
        """Provenance of a commit that has no options: a setting of the session, which is this job's own."""
        if made_of is None:
            yield
            return
        self.session.conf.set(_USER_METADATA, made_of.text())
        try:
            yield
        finally:
            self.session.conf.unset(_USER_METADATA)

    def _told(self, name: str) -> deltalake.DeltaTable | None:
        """A table for who asks for none of its files, as it is or is pinned; None where there is none."""
        pinned = self._pinned.get(name)
        try:
            with remedy.named(name):
                return self._handles.open(name, pinned.version if pinned is not None else None)
        except TableNotFoundError:
            return None

    def _open(self, name: str) -> deltalake.DeltaTable | None:
        pinned = self._pinned.get(name)
        try:
            with remedy.named(name):
                return self._handles.open(name, pinned.version if pinned is not None else None)
        except TableNotFoundError:
            return None

    def _create(self, name: str, mode: Literal["error", "overwrite"]) -> State:
        table = schemas.DERIVED[name]
        form = deltalake.Schema.from_json(table.columns.json())
        place, partitions = self.at(name), list(table.partition_by)
        self._handles.forget(name)
        place.make()
        options = place.storage_options
        # Files are chosen by these only; statistics of all columns took most of the time of writing windows.
        told = {"delta.dataSkippingStatsColumns": ",".join(key for key in table.keys if key not in partitions)}
        deltalake.DeltaTable.create(
            place.uri,
            form,
            mode=mode,
            partition_by=partitions,
            storage_options=options,
            configuration=told if table.keys else None,
        )
        state = self.state(name)
        if state is None:
            raise RuntimeError(f"table {name} vanished while it was made: {place.uri}")
        return state


def _rows_written(entry: delta_log.Entry) -> int:
    if entry.info.get("operation") == "MERGE":  # what stays is written again where rows are removed
        return 0
    changed = rows_changed(entry.info)  # and where some are folded
    return changed if changed is not None else sum(file.rows or 0 for file in entry.added)


def _literal(value: object) -> str:
    """A partition's value as SQL."""
    return f"DATE'{value}'" if isinstance(value, date) else repr(value)


def _schema(name: str) -> schemas.Table:
    return schemas.LANDED.get(name) or schemas.DERIVED[name]


def conform_schema(found: StructType, name: str) -> None:
    """Raise `SchemaMismatch` unless a table with these columns has those of table `name`'s schema."""
    there = {field.name: field.dataType for field in found.fields}
    for field in _schema(name).columns.fields:
        if field.name not in there and not field.nullable:
            raise SchemaMismatch(f"table {name} has no column {field.name}")
        if there.get(field.name, field.dataType) != field.dataType:
            expected, other = field.dataType.simpleString(), there[field.name].simpleString()
            raise SchemaMismatch(f"table {name}: column {field.name} is {other}, the contract says {expected}")


def conform(rows: DataFrame, name: str) -> DataFrame:
    """The columns of table `name`'s schema, in order; a nullable one that older files lack is null."""
    conform_schema(rows.schema, name)
    there = set(rows.columns)
    fields = _schema(name).columns.fields
    return rows.select(
        *(
            F.col(field.name) if field.name in there else F.lit(None).cast(field.dataType).alias(field.name)
            for field in fields
        )
    )


def fitted(rows: DataFrame, name: str) -> DataFrame:
    """`rows` cast and ordered as table `name` has its columns; the last step before every write."""
    fitting: StructType = _schema(name).columns
    return rows.select(*(F.col(field.name).cast(field.dataType).alias(field.name) for field in fitting.fields))
