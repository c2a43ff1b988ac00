"""Writes to tables: rows are appended, folded and replaced once, and conflicts are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import functions as F  # noqa: N812

from cloud.place.place import place_of
from spark import file_writer, folding, schemas, write_age
from spark.conflict import ConcurrentWrite
from spark.file_writer import TaskWriter
from spark.folding import Extent
from spark.lake import FormatUnknown, SparkLake
from spark.lineage import TableLineage, TableState, commits
from spark.sink import BatchTransaction, Sink
from spark.write_age import WrittenTooLongAgo
from tests.spark.gold import bucket
from tests.spark.lakes import START
from tests.support import delta_commits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLE = "throughput"
DAY = START.date()
HOW = {
    "bucket_s": "new.bucket_s",
    "received": "old.received + new.received",
    "ingested": "old.ingested + new.ingested",
    "lag_max_s": "greatest(old.lag_max_s, new.lag_max_s)",
}
Make = Callable[..., "DataFrame"]


# --- statistics of a log
# -----------------------------------------------------------------------------------------------


def added(name: str, low: str, high: str, first: str, last: str, day: date = DAY) -> AddAction:
    """Build a file of gateways from `low` to `high` and seconds from `first` to `last`; other columns have no
    statistics.
    """
    ends = f'"minValues":{{"gateway":"{low}","bucket":"{first}"}},"maxValues":{{"gateway":"{high}","bucket":"{last}"}}'
    return AddAction(name, 10, {"event_date": str(day)}, 0, True, f'{{"numRecords":5,{ends},"nullCount":{{}}}}')


def at(second: int) -> str:
    return f"{START + timedelta(seconds=second):%Y-%m-%dT%H:%M:%S}.000Z"


@pytest.fixture
def logged(tmp_path: Path) -> deltalake.DeltaTable:
    table = schemas.DERIVED[TABLE]
    columns = deltalake.Schema.from_json(table.columns.json())
    made = deltalake.DeltaTable.create(tmp_path / TABLE, columns, partition_by=list(table.partition_by))
    files: list[AddAction | RemoveAction] = [
        added("early", "gw1", "gw4", at(0), at(59)),
        added("late", "gw1", "gw4", at(60), at(119)),
        added("other", "gw7", "gw9", at(0), at(119)),
        added("tomorrow", "gw1", "gw9", at(0), at(119), DAY + timedelta(days=1)),
        AddAction("silent", 10, {"event_date": str(DAY)}, 0, True, "{}"),
    ]
    made.create_write_transaction(files, "append", made.schema(), list(table.partition_by))
    return deltalake.DeltaTable(tmp_path / TABLE)


@pytest.mark.parametrize(
    ("gateways", "seconds", "names"),
    [
        (("gw2", "gw3"), (10, 20), {"early"}),
        (("gw2", "gw8"), (50, 70), {"early", "late", "other"}),
        (("gw5", "gw6"), (0, 119), set()),
        (("gw1", "gw9"), (120, 300), set()),
        (("gw4", "gw7"), (119, 119), {"late", "other"}),
    ],
)
def test_files_whose_ends_are_elsewhere_cannot_hold_a_key_and_one_that_says_nothing_can(
    logged: deltalake.DeltaTable, gateways: tuple[str, str], seconds: tuple[int, int], names: set[str]
) -> None:
    first, last = (START + timedelta(seconds=second) for second in seconds)
    usual = {"tenant": "default", "lane": "live"}
    low, high = usual | {"gateway": gateways[0], "bucket": first}, usual | {"gateway": gateways[1], "bucket": last}
    held = folding.find_candidates(logged, schemas.DERIVED[TABLE], Extent(1, frozenset({(DAY,)}), low, high))
    assert {each.name for each in held} == names | {"silent"}
    assert {tuple(each.partition.items()) for each in held} == {(("event_date", str(DAY)),)}


def test_what_a_log_leaves_out_of_a_time_is_no_reason_to_pass_a_file_over(logged: deltalake.DeltaTable) -> None:
    """Statistics have milliseconds: the latest row of file `late` may be up to one later."""
    moment = START + timedelta(seconds=119, microseconds=999)
    ends = {"tenant": "default", "lane": "live", "gateway": "gw2", "bucket": moment}
    held = folding.find_candidates(logged, schemas.DERIVED[TABLE], Extent(1, frozenset({(DAY,)}), ends, ends))
    assert {each.name for each in held} == {"late", "silent"}


def test_a_table_without_files_holds_nothing(tmp_path: Path) -> None:
    table = schemas.DERIVED[TABLE]
    columns = deltalake.Schema.from_json(table.columns.json())
    made = deltalake.DeltaTable.create(tmp_path / TABLE, columns, partition_by=list(table.partition_by))
    ends = {"tenant": "t", "lane": "live", "gateway": "g", "bucket": START}
    assert folding.find_candidates(made, table, Extent(1, frozenset({(DAY,)}), ends, ends)) == []


# --- files of one task ------------------------------------------------------------------------------------------------


def written(tmp_path: Path, table: schemas.TableSchema, rows: Sequence[pa.RecordBatch]) -> list[tuple[str, int]]:
    """Return folder and rows of each file that a task reports to the driver."""
    writer = TaskWriter(place_of(tmp_path), table.arrow, table.partition_by, table.split_by)
    told = [row for batch in writer(rows) for row in batch.to_pylist()]
    for row in told:
        assert (tmp_path / row["path"]).stat().st_size == row["size"]
        assert pq.ParquetFile(tmp_path / row["path"]).metadata.num_rows == row["rows"]
    return sorted((row["path"].rpartition("/")[0], row["rows"]) for row in told)


def batch_of(table: schemas.TableSchema, *found: dict[str, Any]) -> pa.RecordBatch:
    required = {column.name for column in table.columns if not column.nullable}
    missing = sorted({name for row in found for name in required - set(row)})
    assert not missing, f"{table.name}: the row of this test needs a value of {missing}"
    rows = [{name: row.get(name) for name in table.arrow.names} for row in found]
    (batch,) = pa.Table.from_pylist(rows, table.arrow).combine_chunks().to_batches() or [None]
    return batch if batch is not None else pa.RecordBatch.from_pylist([], table.arrow)


def test_a_task_writes_a_file_for_each_partition(tmp_path: Path) -> None:
    table = schemas.THROUGHPUT
    days = [DAY, DAY + timedelta(days=1)]
    batches = [batch_of(table, *(bucket(n, 1, 2, event_date=day) for n in range(3))) for day in (*days, days[0])]
    assert written(tmp_path, table, batches) == [(f"event_date={days[0]}", 6), (f"event_date={days[1]}", 3)]
    assert written(tmp_path, table, [batch_of(table)]) == []


def test_a_task_writes_early_what_it_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = schemas.THROUGHPUT
    batches = [batch_of(table, *(bucket(n, 1, 2) for n in range(100))) for _ in range(4)]
    ((_, held),) = file_writer.split_by_partition(pa.table(batches[0]), table.partition_by)
    monkeypatch.setattr(file_writer, "FILE_BYTES_MAX", held.nbytes * 2 - 1)
    assert written(tmp_path, table, batches) == [(f"event_date={DAY}", 200)] * 2


def test_a_task_writes_early_only_the_largest_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, tomorrow = schemas.THROUGHPUT, DAY + timedelta(days=1)
    batches = [batch_of(table, bucket(0, 1, 2), bucket(1, 1, 2, event_date=tomorrow))]
    batches += [batch_of(table, *(bucket(n, 1, 2) for n in range(100)))] * 2
    ((_, held),) = file_writer.split_by_partition(pa.table(batches[1]), table.partition_by)
    monkeypatch.setattr(file_writer, "FILE_BYTES_MAX", held.nbytes)
    expected = [(f"event_date={DAY}", 100), (f"event_date={DAY}", 101), (f"event_date={tomorrow}", 1)]
    assert written(tmp_path, table, batches) == expected


def line(first: int, settled: bool) -> dict[str, Any]:
    """Build a row of `completeness_hourly`."""
    key = dict.fromkeys(("tenant", "gateway", "epoch", "address"), "x") | {"first_sequence": first}
    counts = dict.fromkeys(("last_sequence", "accepted", "landed", "waiting", "unexplained"), 1)
    return key | counts | {"given_up": "{}", "settled": settled, "hour": START}


def test_a_partition_of_a_boolean_is_named_as_the_log_has_it(tmp_path: Path) -> None:
    table = schemas.COMPLETENESS_HOURLY
    batch = batch_of(table, line(1, True), line(2, False), line(3, True))
    assert written(tmp_path, table, [batch]) == [("settled=false", 1), ("settled=true", 2)]


def test_pages_of_a_file_carry_checksums(tmp_path: Path) -> None:
    table = schemas.GATEWAY_BACKLOG
    row = {"tenant": "t", "waiting": 1, "said_at": START}
    written(tmp_path, table, [batch_of(table, *(row | {"gateway": f"gateway {n}"} for n in range(1000)))])
    (path,) = tmp_path.glob("*.parquet")
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(path, page_checksum_verification=True).read()


def window(minute: int) -> dict[str, Any]:
    at = START.replace(minute=minute, second=0)
    series = dict.fromkeys(("tenant", "gateway", "device", "address", "metric"), "x")
    numbers = dict.fromkeys(("min", "max", "sum", "mean", "last", "p50", "p95"), 1.0)
    counts = dict.fromkeys(("count", "last_sequence", "suspect"), 1) | {"event_hour": at.hour}
    times = dict.fromkeys(("window_start", "last_at", "revised_at"), at)
    return series | numbers | counts | times | {"sketch": b"", "event_date": at.date()}


def test_large_files_of_windows_end_between_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "SPLIT_ROWS", 10)
    minutes = [8] * 12 + [5, 6] * 4 + [6] * 4 + [7] * 3
    found = written(tmp_path, schemas.ROLLUP_1M, [batch_of(schemas.ROLLUP_1M, *map(window, minutes))])
    assert [rows for _, rows in found] in ([12, 15], [15, 12])
    files = [pq.ParquetFile(path).read()["window_start"].to_pylist() for path in tmp_path.rglob("*.parquet")]
    kept = sorted(sorted({at.minute for at in file}) for file in files)
    assert kept == [[5, 6], [7, 8]], "no file is smaller than a split, and no window is in two"


# --- folds
# -------------------------------------------------------------------------------------------------------------


def rows(seconds: range, gateway: str = "gw1", **override: Any) -> list[dict[str, Any]]:
    return [bucket(second, 1, 2, gateway=gateway, **override) for second in seconds]


def sink(lake: SparkLake, version: int) -> Sink:
    return Sink(lake, BatchTransaction("job", version), TableLineage({"x": TableState("id", version)}))


def fold(lake: SparkLake, frame: Make, version: int, *buckets: dict[str, Any]) -> delta_commits.Written:
    """Fold in one task; return the result."""
    lake.ensure(TABLE)
    path = Path(lake.path(TABLE))
    before = delta_commits.version(path)
    sink(lake, version).fold(TABLE, frame(TABLE, *buckets).coalesce(1), HOW)
    return delta_commits.written(path, before)


def found(lake: SparkLake) -> dict[tuple[str, datetime], tuple[int, int]]:
    table = lake.at(TABLE).delta().to_pyarrow_table().to_pylist()
    known = {(row["gateway"], row["bucket"]): (row["received"], row["ingested"]) for row in table}
    assert len(known) == len(table)
    return known


@pytest.fixture
def no_file_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewrite files only if they hold a key."""
    monkeypatch.setattr("spark.sink.SMALL_BYTES", 0)


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("no_file_is_small")
def test_only_files_that_hold_such_a_row_are_rewritten(lake: SparkLake, frame: Make) -> None:
    assert fold(lake, frame, 1, *rows(range(0, 40, 10)), *rows(range(0, 40, 10), "gw2")).removed == 0
    # Rows later than all others: no file is read or rewritten.
    assert fold(lake, frame, 2, *rows(range(40, 80, 10)), *rows(range(40, 80, 10), "gw2")).removed == 0
    # Rows between two others: the times of both files match, but neither has such a row.
    assert fold(lake, frame, 3, *rows(range(25, 26)), *rows(range(45, 46))).removed == 0
    # Change one row of one file.
    assert fold(lake, frame, 4, bucket(40, 10, 20)).removed == 1
    # A repeated batch or an earlier one is ignored.
    assert fold(lake, frame, 4, bucket(40, 10, 20)) == fold(lake, frame, 3, bucket(40, 10, 20))
    expected = {(gateway, START + timedelta(seconds=second)): (1, 2) for gateway in ("gw1", "gw2")
                for second in range(0, 80, 10)}  # fmt: skip
    expected |= {("gw1", START + timedelta(seconds=second)): (1, 2) for second in (25, 45)}
    expected["gw1", START + timedelta(seconds=40)] = (11, 22)
    assert found(lake) == expected
    newest = next(commits(lake.open(TABLE)))
    assert (newest.rows, newest.lineage) == (1, TableLineage({"x": TableState("id", 4)}))


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("no_file_is_small")
def test_files_no_larger_than_what_is_new_are_put_together_with_it(lake: SparkLake, frame: Make) -> None:
    fold(lake, frame, 1, *rows(range(0, 40, 20)))
    wrote = fold(lake, frame, 2, *rows(range(10, 50, 20)))
    assert (wrote.added, wrote.removed) == (1, 1)
    assert found(lake) == {("gw1", START + timedelta(seconds=second)): (1, 2) for second in range(0, 40, 10)}


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_batch_without_rows_is_taken(lake: SparkLake, frame: Make) -> None:
    fold(lake, frame, 1, *rows(range(0, 40, 20)))
    assert fold(lake, frame, 2) == delta_commits.Written()
    assert (len(found(lake)), lake.transaction_version(TABLE, "job")) == (2, 2)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_key_that_is_null_is_equal_to_itself(lake: SparkLake, frame: Make) -> None:
    name, how = "gateway_freshness", {}
    table = schemas.DERIVED[name]
    for column in table.columns.names:
        if column not in table.keys:
            how[column] = "old.rows + new.rows" if column == "rows" else f"new.{column}"
    lake.ensure(name)
    whole: dict[str, Any] = {"tenant": "t", "gateway": "g", "rows": 1, "late_rows": 0, "late_share": 0.0}
    whole |= {"suspect_rows": 0} | dict.fromkeys(("first_event_time", "last_event_time", "last_ingested_at"), START)
    for version in (1, 2):
        sink(lake, version).fold(name, frame(name, whole, whole | {"device": "d"}), how)
    kept = lake.at(name).delta().to_pyarrow_table(columns=["device", "rows"]).to_pylist()
    assert sorted((row["device"] or "", row["rows"]) for row in kept) == [("", 2), ("d", 2)]


def test_a_note_is_taken_once_and_is_no_change_of_rows(tmp_path: Path) -> None:
    lake = SparkLake(None, tmp_path)
    lake.ensure(TABLE)
    for version in (2, 2, 1):
        sink(lake, version).commit_empty(TABLE, TableLineage({"y": TableState("id", 7)}))
    newest, created = commits(lake.open(TABLE))
    assert (newest.rows, newest.lineage, newest.changes_rows) == (0, TableLineage({"y": TableState("id", 7)}), False)
    assert (lake.transaction_version(TABLE, "job"), created.version) == (2, 0)


def meanwhile(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Act after a write has read its table and before it commits."""
    write = file_writer.write

    def writes(*arguments: Any) -> Any:
        monkeypatch.setattr(file_writer, "write", write)
        do()
        return write(*arguments)

    monkeypatch.setattr(file_writer, "write", writes)


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("other", ["the same batch", "compaction"])
def test_of_two_who_change_the_same_rows_one_is_refused(
    lake: SparkLake, frame: Make, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    fold(lake, frame, 1, *rows(range(0, 40, 20)))
    fold(lake, frame, 2, *rows(range(40, 80, 20)))
    if other == "compaction":
        meanwhile(monkeypatch, lake.at(TABLE).delta().optimize.compact)
    else:
        meanwhile(monkeypatch, lambda: fold(lake, frame, 3, *rows(range(0, 80, 20))))
    with pytest.raises(ConcurrentWrite, match=TABLE):
        fold(lake, frame, 3, *rows(range(0, 80, 20)))
    assert {each[0] for each in found(lake).values()} == {1 if other == "compaction" else 2}


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_of_two_who_append_the_same_batch_one_does(
    lake: SparkLake, frame: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.ensure(TABLE)
    same = frame(TABLE, *rows(range(0, 40, 20)))
    meanwhile(monkeypatch, lambda: sink(lake, 1).append(TABLE, same))
    with pytest.raises(ConcurrentWrite):
        sink(lake, 1).append(TABLE, same)
    assert not sink(lake, 1).append(TABLE, same)
    assert len(found(lake)) == 2
    # Batches of two jobs do not conflict.
    meanwhile(
        monkeypatch,
        lambda: Sink(lake, BatchTransaction("other", 1), None).append(TABLE, frame(TABLE, bucket(90, 1, 1))),
    )
    second = sink(lake, 2)
    assert second.append(TABLE, frame(TABLE, bucket(80, 1, 1)))
    assert not second.append(TABLE, same)
    assert (len(found(lake)), second.rows_written) == (4, 1)
    newest = next(commits(lake.open(TABLE)))
    assert (newest.rows, newest.lineage) == (1, TableLineage({"x": TableState("id", 2)}))


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_what_takes_the_place_of_rows_leaves_those_that_came_since(lake: SparkLake, frame: Make) -> None:
    fold(lake, frame, 1, *rows(range(0, 40, 20)))
    read = lake.open(TABLE)
    fold(lake, frame, 2, *rows(range(40, 80, 20)))
    before, made = found(lake), frame(TABLE, bucket(0, 7, 7))
    with pytest.raises(ConcurrentWrite):
        sink(lake, 3).overwrite(TABLE, made, read=read)
    with pytest.raises(ConcurrentWrite):
        sink(lake, 3).append(TABLE, made, read=read)
    assert found(lake) == before
    assert sink(lake, 3).overwrite(TABLE, made, read=lake.open(TABLE))
    assert not sink(lake, 3).overwrite(TABLE, frame(TABLE))
    assert found(lake) == {("gw1", START): (7, 7)}
    newest = next(commits(lake.open(TABLE)))
    assert (newest.rows, newest.lineage) == (1, TableLineage({"x": TableState("id", 3)}))


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_what_takes_the_place_of_a_partition_leaves_the_others(lake: SparkLake, frame: Make) -> None:
    name = "completeness_hourly"
    lake.ensure(name)

    def kept() -> list[int]:
        return sorted(lake.at(name).delta().to_pyarrow_table()["first_sequence"].to_pylist())

    Sink(lake, None, None).append(name, frame(name, line(1, True), line(2, False)))
    Sink(lake, None, None).overwrite(name, frame(name, line(3, False)), ("settled", "false"))
    assert kept() == [1, 3]
    Sink(lake, None, None).overwrite(name, frame(name), ("settled", "false"))
    assert kept() == [1]
    Sink(lake, None, None).overwrite(name, frame(name, line(4, True)))
    assert kept() == [4]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_rows_are_removed_by_their_keys(lake: SparkLake, frame: Make) -> None:
    lake.ensure(TABLE)
    tomorrow = {"event_date": DAY + timedelta(days=1)}
    sink(lake, 1).append(TABLE, frame(TABLE, *rows(range(0, 40, 10)), *rows(range(0, 40, 10), "gw2", **tomorrow)))
    for _ in range(2):
        keys = frame(TABLE, *rows(range(0, 20, 10)))
        Sink(lake, None, None).remove(TABLE, keys, ("gateway", "bucket", "event_date"), "old.received = 1")
        assert len(found(lake)) == 6
    Sink(lake, None, None).remove(TABLE, frame(TABLE), ("gateway", "event_date"), "true")
    assert len(found(lake)) == 6


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_files_that_were_begun_so_long_ago_that_they_may_be_deleted_are_not_committed(
    lake: SparkLake, frame: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is suspended while a file is written."""
    now = [0.0]
    monkeypatch.setattr(write_age, "time_since_boot", lambda: now[0])
    lake.ensure(TABLE)

    def sleep() -> None:
        now[0] += 3600 * (write_age.WRITTEN_HOURS_MAX + 1)

    meanwhile(monkeypatch, sleep)
    with pytest.raises(WrittenTooLongAgo, match="25 h ago"):
        sink(lake, 1).append(TABLE, frame(TABLE, *rows(range(0, 40, 10))))
    assert (found(lake), lake.transaction_version(TABLE, "job")) == ({}, None)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_row_without_what_has_to_be_there_is_refused_and_leaves_nothing(lake: SparkLake, frame: Make) -> None:
    lake.ensure(TABLE)
    wrong = frame(TABLE, bucket(0, 1, 2)).withColumn("gateway", F.expr("nullif(gateway, gateway)"))
    with pytest.raises(Exception, match="gateway"):
        sink(lake, 1).append(TABLE, wrong)
    assert (lake.open(TABLE).version(), list(Path(lake.path(TABLE)).rglob("*.parquet"))) == (0, [])


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_table_whose_files_are_not_its_rows_is_not_folded_into(lake: SparkLake, frame: Make) -> None:
    """Another program has marked rows as deleted, in separate files."""
    fold(lake, frame, 1, *rows(range(0, 40, 20)))
    lake.session.sql(
        f"ALTER TABLE delta.`{lake.path(TABLE)}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    with pytest.raises(FormatUnknown):
        fold(lake, frame, 2, *rows(range(0, 40, 20)))


def test_a_column_without_a_way_to_be_folded_is_a_mistake(tmp_path: Path) -> None:
    lake = SparkLake(None, tmp_path)
    lake.ensure(TABLE)
    with pytest.raises(ValueError, match="columns"):
        sink(lake, 1).fold(TABLE, cast(Any, None), {"received": "new.received"})
