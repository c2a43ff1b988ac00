"""Folding into a table: what is written anew, what stays, and who is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import deltalake
import pytest
from deltalake.transaction import AddAction, RemoveAction
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from spark.replacement import Replacement
from spark.transaction import Transaction

from spark import folding, schemas
from spark.conflict import Overtaken
from spark.folding import Extent
from spark.lake import FormatUnknown, Lake
from spark.lineage import Lineage, State
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


# --- what a log says --------------------------------------------------------------------------------------------------


def added(name: str, low: str, high: str, first: str, last: str, day: date = DAY) -> AddAction:
    """A file of gateways from `low` to `high`, of the seconds from `first` to `last`; of the others nothing is said."""
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
    held = folding.can_hold(logged, schemas.DERIVED[TABLE], [Extent((DAY,), 1, low, high)])
    assert {each.name for each in held} == names | {"silent"}
    assert {tuple(each.partition.items()) for each in held} == {(("event_date", str(DAY)),)}


def test_what_a_log_leaves_out_of_a_time_is_no_reason_to_pass_a_file_over(logged: deltalake.DeltaTable) -> None:
    """Milliseconds: the latest row of file `late` may be up to one later than is said."""
    moment = START + timedelta(seconds=119, microseconds=999)
    ends = {"tenant": "default", "lane": "live", "gateway": "gw2", "bucket": moment}
    held = folding.can_hold(logged, schemas.DERIVED[TABLE], [Extent((DAY,), 1, ends, ends)])
    assert {each.name for each in held} == {"late", "silent"}


def test_a_table_without_files_holds_nothing(tmp_path: Path) -> None:
    table = schemas.DERIVED[TABLE]
    columns = deltalake.Schema.from_json(table.columns.json())
    made = deltalake.DeltaTable.create(tmp_path / TABLE, columns, partition_by=list(table.partition_by))
    ends = {"tenant": "t", "lane": "live", "gateway": "g", "bucket": START}
    assert folding.can_hold(made, table, [Extent((DAY,), 1, ends, ends)]) == []


# --- what a fold does -------------------------------------------------------------------------------------------------


def rows(seconds: range, gateway: str = "gw1", **override: Any) -> list[dict[str, Any]]:
    return [bucket(second, 1, 2, gateway=gateway, **override) for second in seconds]


def fold(lake: Lake, frame: Make, version: int, *buckets: dict[str, Any]) -> delta_commits.Written:
    """What the fold wrote."""
    lake.ensure(TABLE)
    path = Path(lake.path(TABLE))
    before = delta_commits.version(path)
    one_file = frame(TABLE, *buckets).coalesce(1)
    lake.fold(TABLE, one_file, HOW, Transaction("job", version), Lineage({"x": State("id", version)}))
    return delta_commits.written(path, before)


def found(lake: Lake) -> dict[tuple[str, datetime], tuple[int, int]]:
    table = lake.at(TABLE).delta().to_pyarrow_table().to_pylist()
    known = {(row["gateway"], row["bucket"]): (row["received"], row["ingested"]) for row in table}
    assert len(known) == len(table)
    return known


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_only_files_that_hold_such_a_row_are_written_anew(larger: Lake, frame: Make) -> None:
    assert fold(larger, frame, 1, *rows(range(0, 40, 10)), *rows(range(0, 40, 10), "gw2")).removed == 0
    # Later than all there is: nothing is read, nothing is written anew.
    assert fold(larger, frame, 2, *rows(range(40, 80, 10)), *rows(range(40, 80, 10), "gw2")).removed == 0
    # Between two that are there, by their times in both files, and a row of neither.
    assert fold(larger, frame, 3, *rows(range(25, 26)), *rows(range(45, 46))).removed == 0
    # One row of one file.
    wrote = fold(larger, frame, 4, bucket(40, 10, 20))
    assert wrote.removed == 1
    # The same again is not taken, nor is what was before it.
    assert fold(larger, frame, 4, bucket(40, 10, 20)) == fold(larger, frame, 3, bucket(40, 10, 20))
    expected = {(gateway, START + timedelta(seconds=second)): (1, 2) for gateway in ("gw1", "gw2")
                for second in range(0, 80, 10)}  # fmt: skip
    expected |= {("gw1", START + timedelta(seconds=second)): (1, 2) for second in (25, 45)}
    expected["gw1", START + timedelta(seconds=40)] = (11, 22)
    assert found(larger) == expected
    assert larger.rows_written(TABLE, 0) == 8 + 8 + 2 + 1
    made_of = larger.provenance(TABLE)
    assert made_of is not None
    assert made_of.sources == {"x": State("id", 4)}


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_files_no_larger_than_what_is_new_are_put_together_with_it(larger: Lake, frame: Make) -> None:
    fold(larger, frame, 1, *rows(range(0, 40, 20)))
    wrote = fold(larger, frame, 2, *rows(range(10, 50, 20)))
    assert (wrote.added, wrote.removed) == (1, 1)
    assert found(larger) == {("gw1", START + timedelta(seconds=second)): (1, 2) for second in range(0, 40, 10)}


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_key_that_is_null_is_equal_to_itself(larger: Lake, frame: Make) -> None:
    name, how = "gateway_freshness", {}
    table = schemas.DERIVED[name]
    for column in table.columns.names:
        if column not in table.keys:
            how[column] = "old.rows + new.rows" if column == "rows" else f"new.{column}"
    larger.ensure(name)
    whole: dict[str, Any] = {"tenant": "t", "gateway": "g", "rows": 1, "late_rows": 0, "late_share": 0.0}
    whole |= {"suspect_rows": 0} | dict.fromkeys(("first_event_time", "last_event_time", "last_ingested_at"), START)
    for version in (1, 2):
        made = frame(name, whole, whole | {"device": "d"})
        larger.fold(name, made, how, Transaction("job", version))
    kept = larger.at(name).delta().to_pyarrow_table(columns=["device", "rows"]).to_pylist()
    assert sorted((row["device"] or "", row["rows"]) for row in kept) == [("", 2), ("d", 2)]


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("meanwhile", ["takes the same transaction", "puts the files together"])
def test_of_two_who_change_the_same_one_is_refused(larger: Lake, frame: Make, meanwhile: str) -> None:
    fold(larger, frame, 1, *rows(range(0, 40, 20)))
    fold(larger, frame, 2, *rows(range(40, 80, 20)))
    opened = larger.at(TABLE).delta()
    ends = {"tenant": "default", "lane": "live", "gateway": "gw1"}
    extent = Extent((DAY,), 9, ends | {"bucket": START}, ends | {"bucket": START + timedelta(seconds=80)})
    held = folding.can_hold(opened, schemas.DERIVED[TABLE], [extent])
    late = Replacement(larger.session, larger.path(TABLE), Transaction("job", 3))
    assert (len(held), late.there.version, late.there.applied) == (2, opened.version(), 2)
    if meanwhile == "takes the same transaction":
        fold(larger, frame, 3, bucket(100, 1, 2))
    else:
        opened.optimize.compact()
    before = found(larger)
    with pytest.raises(Py4JJavaError, match="Concurrent"):
        late.commit(larger.read(TABLE), held, 4)
    assert found(larger) == before


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_what_goes_on_from_another_place_is_not_written(larger: Lake, frame: Make) -> None:
    """Another pass has taken a part of the batch while this one computed it, by whichever way it is written."""
    state = larger.ensure(TABLE)
    fold(larger, frame, 3, *rows(range(0, 40, 10)))
    before, made = found(larger), frame(TABLE, *rows(range(0, 60, 10)))
    late = Transaction("job", 5, begin=2)
    writers: list[Callable[[], object]] = [
        lambda: larger.fold(TABLE, made, HOW, late),
        lambda: larger.append(TABLE, made, late),
        lambda: larger.overwrite(TABLE, made, Transaction("job", 5, over=state.version), None),
        lambda: larger.append(TABLE, made, Transaction("job", 5, table="another")),
    ]
    for write in writers:
        with pytest.raises(Overtaken):
            write()
    assert found(larger) == before
    assert larger.overwrite(TABLE, made, Transaction("job", 5, 3, state.id, state.version + 1), None)
    assert not larger.append(TABLE, made, late)
    assert len(found(larger)) == 6


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_who_takes_the_place_of_all_rows_does_not_of_those_that_come_meanwhile(larger: Lake, frame: Make) -> None:
    fold(larger, frame, 1, *rows(range(0, 40, 10)))
    late = Replacement(larger.session, larger.path(TABLE), Transaction("other job", 1))
    held = late.held(None)
    fold(larger, frame, 2, *rows(range(40, 80, 10)))
    before = found(larger)
    with pytest.raises(Py4JJavaError, match="Concurrent"):
        late.commit(larger.read(TABLE).limit(0), held)
    assert (len(held), found(larger)) == (1, before)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_table_whose_files_are_not_its_rows_is_not_folded_into(larger: Lake, frame: Make) -> None:
    """Another program has marked rows as deleted beside the files."""
    fold(larger, frame, 1, *rows(range(0, 40, 20)))
    larger.session.sql(
        f"ALTER TABLE delta.`{larger.path(TABLE)}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    with pytest.raises(FormatUnknown):
        fold(larger, frame, 2, *rows(range(0, 40, 20)))


def test_a_column_that_nobody_says_how_to_fold_is_a_mistake(tmp_path: Path) -> None:
    lake = Lake(cast(Any, None), tmp_path)
    with pytest.raises(ValueError, match="no key needs a way"):
        lake.fold(TABLE, cast(Any, None), {"received": "new.received"}, Transaction("job", 1))
