"""A table as its log says without delta-rs: what that says is the judge, and what it is left to do."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from cloud.place.folder import Folder
from cloud.place.place import LOG
from spark import folding, schemas
from spark.conflict import Overtaken
from spark.folding import Extent
from spark.here.times import MINUTE_US
from spark.here.windows import combined, of_readings
from spark.jobs import catalog, runner
from spark.log_segment import CHECKPOINT_EVERY, LogSegment
from spark.tables import Lake
from spark.transaction import Transaction
from tests.spark import lakes
from tests.spark.lakes import START, message
from tests.spark.windows import arrow, reading

TABLE = schemas.DERIVED["rollup_1m"]
DAY = START.date()
SAME = partial(combined, width_us=MINUTE_US)
INFO: dict[str, object] = {"operation": "WRITE"}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """One with an empty table, without a session."""
    made = Lake(None, tmp_path / "lake", here=True)
    made.ensure(TABLE.name)
    return made.for_job()


@pytest.fixture
def place(lake: Lake) -> Folder:
    found = lake.at(TABLE.name)
    assert isinstance(found, Folder)
    return found


def a_file(name: str, day: date, hour: int, first: int, gateways: tuple[str, str] | None = ("gw1", "gw4")) -> AddAction:
    """Of ten minutes from `first` on; it says nothing of its rows where it has no gateways."""
    told: dict[str, object] = {}
    if gateways is not None:
        start = START.replace(year=day.year, month=day.month, day=day.day, hour=hour, minute=first)
        low, high = (f"{at:%Y-%m-%dT%H:%M:%S}.000Z" for at in (start, start + timedelta(minutes=9)))
        ends = zip(("minValues", "maxValues"), gateways, (low, high), strict=True)
        told = {"numRecords": 5} | {end: {"gateway": each, "window_start": at} for end, each, at in ends}
    partition = {"event_date": str(day), "event_hour": str(hour)}
    return AddAction(f"event_date={day}/event_hour={hour}/{name}", 10, partition, 0, True, json.dumps(told))


def commit(
    place: Folder, files: list[AddAction], removed: list[AddAction] | None = None, marker: tuple[str, int] | None = None
) -> None:
    """By delta-rs."""
    gone = [RemoveAction(each.path, True, 0, each.size, each.partition_values) for each in removed or []]
    table, transactions = place.delta(), None if marker is None else [deltalake.Transaction(*marker)]
    properties = deltalake.CommitProperties(app_transactions=transactions)
    table.create_write_transaction(
        [*files, *gone], "append", table.schema(), list(TABLE.partition_by), commit_properties=properties
    )


def opened(place: Folder) -> LogSegment:
    found = LogSegment.opened(place)
    assert found is not None
    return found


def assert_as_delta_says(segment: LogSegment, place: Folder) -> None:
    table, protocol = place.delta(), segment.protocol()
    assert (segment.version(), segment.metadata().id) == (table.version(), table.metadata().id)
    assert segment.metadata().partition_columns == table.metadata().partition_columns
    assert segment.metadata().configuration == table.metadata().configuration
    assert (segment.schema(), segment.table_uri) == (table.schema(), str(place.path))
    assert (protocol.min_reader_version, protocol.reader_features) == (table.protocol().min_reader_version, None)
    for application in ("one", "other", "none"):
        assert segment.transaction_version(application) == table.transaction_version(application)
    usual = {"tenant": "t", "device": "d", "address": "a", "metric": "m"}
    days = [DAY + timedelta(days=day) for day in range(3)]
    for hours, gateway in (([0], "gw2"), ([0, 1, 2], "gw5"), ([7], "gw1")):
        ends = usual | {"gateway": gateway, "window_start": START.replace(hour=hours[0], minute=25)}
        late = ends | {"window_start": START.replace(hour=hours[-1], minute=50) + timedelta(days=3)}
        extents = [Extent((day, hour), 1, ends, late) for day in days for hour in hours]
        held, there = (folding.can_hold(each, TABLE, extents) for each in (segment, table))
        assert sorted(held, key=lambda file: file.name) == sorted(there, key=lambda file: file.name)


@pytest.mark.parametrize("seed", range(6))
def test_it_is_what_delta_says(place: Folder, seed: int) -> None:
    """Files come and go, checkpoints are made: whoever opens the table, and whoever has it open, sees what is there."""
    randoms = random.Random(seed)
    there: list[AddAction] = []
    kept = opened(place)
    for step in range(25):
        what = randoms.choice(["files", "files", "fold", "marker", "checkpoint", "property"])
        new = [
            a_file(
                f"{step}-{number}",
                DAY + timedelta(days=randoms.randrange(3)),
                randoms.randrange(3),
                randoms.randrange(0, 50, 10),
                randoms.choice([("gw1", "gw4"), ("gw3", "gw7"), None]),
            )
            for number in range(randoms.randrange(1, 5))
        ]
        if what == "checkpoint":
            place.delta().create_checkpoint()
        elif what == "property":
            place.delta().alter.set_table_properties({"delta.logRetentionDuration": f"interval {step + 1} days"})
        elif what == "marker":
            commit(place, [], marker=(randoms.choice(["one", "other"]), step))
        else:
            gone = randoms.sample(there, min(len(there), 2)) if what == "fold" else []
            commit(place, new, gone, ("one", step))
            there = [file for file in there if file not in gone] + new
        assert_as_delta_says(opened(place), place)
        if step % 3 == 0:
            # Of a checkpoint whose entry is not there it cannot be seen that the log is still the same.
            assert kept.is_brought_up_to_date()
            assert_as_delta_says(kept, place)


def test_what_it_enters_delta_reads(place: Folder) -> None:
    first, second = a_file("one", DAY, 0, 0), a_file("two of 50 %", DAY, 1, 0)
    assert opened(place).enter(INFO, ("one", 4), [first, second], [])
    assert_as_delta_says(opened(place), place)
    (held,) = folding.can_hold(opened(place), TABLE, [extent(DAY, 1)])
    gone = RemoveAction(held.name, True, 0, held.file.size, dict(held.partition))
    assert opened(place).enter(INFO, ("one", 5), [a_file("three", DAY, 1, 10)], [gone])
    assert_as_delta_says(opened(place), place)
    names = {Path(uri).name for uri in place.delta().file_uris()}
    assert (names, place.delta().transaction_version("one")) == ({"one", "three"}, 5)


def extent(day: date, hour: int) -> Extent:
    low: dict[str, Any] = dict.fromkeys(folding.ordered(TABLE), "") | {"window_start": START - timedelta(days=99)}
    high = dict.fromkeys(folding.ordered(TABLE), "~") | {"window_start": START + timedelta(days=99)}
    return Extent((day, hour), 1, low, high)


def test_of_several_who_enter_a_version_one_does(place: Folder) -> None:
    one, other = opened(place), opened(place)
    assert one.enter(INFO, ("one", 1), [a_file("one", DAY, 0, 0)], [])
    assert not other.enter(INFO, ("one", 1), [a_file("other", DAY, 0, 0)], [])
    assert [Path(uri).name for uri in place.delta().file_uris()] == ["one"]


def test_one_that_was_put_although_the_store_says_there_is_one_is_entered(
    place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Folder.put_new

    def put_and_refused(self: Folder, path: str, content: bytes) -> bool:
        put(self, path, content)
        return False

    monkeypatch.setattr(Folder, "put_new", put_and_refused)
    assert opened(place).enter(INFO, ("one", 1), [a_file("one", DAY, 0, 0)], [])


# --- what is left to delta-rs -----------------------------------------------------------------------------------------


def newest(place: Folder) -> Path:
    return max((place.path / LOG).glob("*.json"))


def an_entry(place: Folder, action: dict[str, Any]) -> None:
    version = int(newest(place).stem) + 1
    (place.path / LOG / f"{version:020}.json").write_text(json.dumps(action) + "\n")


def metadata(place: Folder, **override: Any) -> dict[str, Any]:
    entry = (place.path / LOG / f"{0:020}.json").read_text().splitlines()
    return {"metaData": next(json.loads(line)["metaData"] for line in entry if "metaData" in line[:20]) | override}


def newer_protocol(reader: int, writer: int) -> Callable[[Folder], None]:
    return lambda place: an_entry(place, {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer}})


def with_invariants(place: Folder) -> None:
    field = {"name": "x", "type": "long", "nullable": True, "metadata": {"delta.invariants": "{}"}}
    an_entry(place, metadata(place, schemaString=json.dumps({"type": "struct", "fields": [field]})))


def torn_checkpoint(place: Folder) -> None:
    commit(place, [])
    place.delta().create_checkpoint()
    found = max((place.path / LOG).glob("*.checkpoint.parquet"))
    found.write_bytes(found.read_bytes()[:-9])


LEFT: dict[str, Callable[[Folder], Any]] = {
    "a reader's feature": newer_protocol(3, 7),
    "a writer's feature": newer_protocol(1, 3),
    "a condition": with_invariants,
    "only appends": lambda place: an_entry(place, metadata(place, configuration={"delta.appendOnly": "true"})),
    "an empty entry": lambda place: (place.path / LOG / f"{2:020}.json").touch(),
    "a torn entry": lambda place: (place.path / LOG / f"{2:020}.json").write_text('{"commitInfo":{"timest'),
    "a gap": lambda place: (place.path / LOG / f"{3:020}.json").write_text("{}\n"),
    "no beginning": lambda place: (place.path / LOG / f"{0:020}.json").unlink(),
    "a torn checkpoint": torn_checkpoint,
    "no table": Folder.clear,
}


@pytest.mark.parametrize("what", LEFT)
def test_what_is_not_plain_is_left(place: Folder, what: str) -> None:
    commit(place, [])
    segment = opened(place)
    LEFT[what](place)
    assert LogSegment.opened(place) is None
    if what not in ("a gap", "no beginning", "a torn checkpoint"):  # which who has read it does not need any more
        assert not segment.is_brought_up_to_date()


class Store:
    """A place that is no folder."""

    def names(self, _folder: str) -> list[str]:
        raise AssertionError("its entries are not read one after the other")


def test_a_log_in_a_store_is_left() -> None:
    store: Any = Store()
    assert LogSegment.opened(store) is None


def test_a_table_that_was_made_anew_is_opened_anew(lake: Lake, place: Folder) -> None:
    """Its log goes further than the one that was there, or not so far: neither is gone on from."""
    for commits in (1, 5):
        assert (segment := opened(place)).is_brought_up_to_date()
        place.clear()
        Lake(None, lake.place, here=True).ensure(TABLE.name)
        for _ in range(commits):
            commit(place, [])
        assert not segment.is_brought_up_to_date()


# --- folds ------------------------------------------------------------------------------------------------------------


def fold(lake: Lake, version: int, minute: int, application: str = "job", table: str | None = None) -> None:
    rows = of_readings(arrow([reading(minute, START + timedelta(minutes=minute), 1.0)]), MINUTE_US)
    assert lake.fold_here(TABLE.name, rows, SAME, Transaction(application, version, table=table))


def counts(place: Folder) -> list[int]:
    found: list[int] = place.delta().to_pyarrow_table(columns=["count"])["count"].to_pylist()
    return sorted(found)


def test_a_fold_opens_no_file_of_the_log_but_those_of_its_partitions(
    lake: Lake, place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(place, [a_file(f"{hour}", DAY + timedelta(days=1), hour, 0) for hour in range(24)])
    fold(lake, 1, 0)
    monkeypatch.setattr(deltalake, "DeltaTable", None)  # nobody opens it as a whole
    monkeypatch.setattr(Folder, "delta", None)
    found = opened(place).files([(DAY, START.hour)], {"event_date": pa.date32(), "event_hour": pa.int32()})
    fold(lake, 2, 0)
    assert len(found) == 1
    state = lake.state(TABLE.name)
    assert state is not None
    assert (state.version, lake.transaction_version(TABLE.name, "job"), lake.rows_written(TABLE.name, 1)) == (3, 2, 2)


def test_a_pass_opens_none_of_the_tables_it_folds_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many files they have, and but for those that are small as they describe what is."""
    lake, whole = Lake(None, tmp_path / "lake", here=True), list[str]()
    delta = Folder.delta

    def noted(self: Folder, version: int | None = None) -> deltalake.DeltaTable:
        whole.append(self.name)
        return delta(self, version)

    jobs = catalog.chosen(["rollups", "hours"])
    for second in (0, 30):
        lakes.write(lake.place, "telemetry", [message(second, body=b"1.5")])
        monkeypatch.setattr(Folder, "delta", noted)
        whole.clear()
        steps = runner.one_pass(lake, jobs, lambda _: None)
        assert [step.error for step in steps] == [None] * 3
    assert not {"rollup_1m", "rollup_1h", "rollup_1d"} & set(whole)
    monkeypatch.undo()
    for name in ("rollup_1m", "rollup_1h", "rollup_1d"):
        assert lake.at(name).delta().to_pyarrow_table(columns=["count"])["count"].to_pylist() == [2]


@pytest.mark.parametrize("meanwhile", ["somebody adds files", "somebody takes the same"])
def test_who_adds_only_goes_on_behind_what_others_added(
    lake: Lake, place: Folder, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """delta-rs tells the two apart."""
    enter = LogSegment.enter

    def meanwhile_(self: LogSegment, *arguments: Any) -> bool:
        monkeypatch.undo()
        fold(Lake(None, lake.place, here=True), 1, 70, "job" if meanwhile == "somebody takes the same" else "other")
        return enter(self, *arguments)

    monkeypatch.setattr(LogSegment, "enter", meanwhile_)
    if meanwhile == "somebody adds files":
        fold(lake, 1, 0)
        assert (counts(place), place.delta().transaction_version("job")) == ([1, 1], 1)
    else:
        with pytest.raises(CommitFailedError):
            fold(lake, 1, 0)
        assert counts(place) == [1]


def test_a_fold_into_a_table_made_anew_is_refused(lake: Lake, place: Folder) -> None:
    state = lake.state(TABLE.name)
    assert state is not None
    fold(lake, 1, 0, table=state.id)
    place.clear()
    Lake(None, lake.place, here=True).ensure(TABLE.name)
    with pytest.raises(Overtaken):
        fold(lake, 2, 0, table=state.id)
    assert (counts(place), place.delta().version()) == ([], 0)


def test_delta_makes_its_checkpoints(lake: Lake, place: Folder) -> None:
    """Else a log would be read from its beginning until somebody looks after the table."""
    for _ in range(CHECKPOINT_EVERY - 3):
        commit(place, [])
    made = []
    for version in range(4):
        fold(lake, version, 0)
        checkpoints = (path.name for path in (place.path / LOG).glob("*.checkpoint.parquet"))
        made.append([int(name.partition(".")[0]) for name in checkpoints])
    last = CHECKPOINT_EVERY - 1
    assert made == [[], [last], [last], [last]]
    assert (counts(place), place.delta().version()) == ([4], last + 2)
