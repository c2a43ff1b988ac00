"""Few rows written from this process: once, whole, and as Spark's connector writes them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import CommitFailedError
from pyspark.sql import functions as F  # noqa: N812
from spark.gathered import Commit
from spark.transaction import Transaction

from cloud.place import data_file
from cloud.place.folder import Folder
from spark import age, gathered, schemas, verification
from spark.age import WrittenTooLongAgo
from spark.conflict import Overtaken
from spark.jobs import catalog, runner
from spark.lake import Lake
from spark.lineage import Lineage, State
from tests.spark import lakes
from tests.spark.lakes import START, message

SCHEMA = pa.schema(
    [pa.field("key", pa.string(), nullable=False), pa.field("kept", pa.bool_()), ("value", pa.float64())]
)
SAID = {"userMetadata": "{}"}


def rows(*keys: str, kept: bool = True) -> pa.Table:
    return pa.Table.from_pylist([{"key": key, "kept": kept, "value": float("nan")} for key in keys], SCHEMA)


@pytest.fixture
def place(tmp_path: Path) -> Folder:
    deltalake.DeltaTable.create(tmp_path / "table", SCHEMA, partition_by=["kept"])
    return Folder(tmp_path / "table")


def keys(place: Folder) -> list[str]:
    return sorted(place.delta().to_pyarrow_table()["key"].to_pylist())


def test_a_transaction_is_taken_once_also_an_empty_one(place: Folder) -> None:
    for _ in range(2):
        gathered.write(place, rows("a", "b"), Commit(Transaction("job", 1), SAID))
    gathered.write(place, rows(), Commit(Transaction("job", 2), SAID))
    gathered.write(place, rows("late"), Commit(Transaction("job", 1), SAID))
    assert (keys(place), place.delta().version(), place.delta().transaction_version("job")) == (["a", "b"], 2, 2)


def test_of_two_who_write_a_transaction_at_once_one_does(place: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have found that it was not taken."""
    behind = place.delta()
    gathered.write(place, rows("a"), Commit(Transaction("job", 1), SAID))
    monkeypatch.setattr(Folder, "delta", lambda *_: behind)
    with pytest.raises(CommitFailedError):
        gathered.write(place, rows("a"), Commit(Transaction("job", 1), SAID))
    monkeypatch.undo()
    assert keys(place) == ["a"]


def test_what_goes_on_from_another_place_is_not_written(place: Folder) -> None:
    gathered.write(place, rows("a"), Commit(Transaction("job", 3, begin=0), SAID))
    with pytest.raises(Overtaken, match="another pass"):
        gathered.write(place, rows("a", "b"), Commit(Transaction("job", 5, begin=2), SAID))
    gathered.write(place, rows("a"), Commit(Transaction("job", 3, begin=2), SAID))
    gathered.write(place, rows("b"), Commit(Transaction("job", 5, begin=3), SAID))
    assert keys(place) == ["a", "b"]


@pytest.mark.parametrize("late", [False, True])
def test_what_takes_the_place_of_rows_leaves_those_that_came_since(
    place: Folder, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """`late`: they come when it has looked already."""
    gathered.write(place, rows("a"), Commit(Transaction("job", 1), SAID))
    read = place.delta()
    gathered.write(place, rows("b"), Commit(Transaction("another job", 1), SAID))
    if late:
        monkeypatch.setattr(Folder, "delta", lambda *_: read)
    with pytest.raises(CommitFailedError if late else Overtaken):
        gathered.write(place, rows("c"), Commit(Transaction("job", 2, over=read.version()), SAID, "all"))
    monkeypatch.undo()
    assert keys(place) == ["a", "b"]
    gathered.write(place, rows("c"), Commit(Transaction("job", 2, over=place.delta().version()), SAID, "all"))
    assert keys(place) == ["c"]


def test_a_table_that_was_made_anew_takes_nothing_that_was_for_the_one_before(place: Folder) -> None:
    known = str(place.delta().metadata().id)
    deltalake.DeltaTable.create(place.uri, SCHEMA, mode="overwrite", partition_by=["kept"])
    with pytest.raises(Overtaken):
        gathered.write(place, rows("a"), Commit(Transaction("job", 1, table=known), SAID))
    assert keys(place) == []


def test_what_was_begun_so_long_ago_that_it_may_be_deleted_is_not_committed(
    place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is suspended while a file is written."""
    now = [0.0]
    monkeypatch.setattr(age, "awake_or_not", lambda: now[0])

    def written(*args: Any) -> Any:
        now[0] += 3600 * (age.WRITTEN_HOURS_MAX + 1)
        return data_file.written(*args)

    monkeypatch.setattr(gathered, "written", written)
    with pytest.raises(WrittenTooLongAgo, match="25 h ago"):
        gathered.write(place, rows("a"), Commit(Transaction("job", 1), SAID))
    assert (keys(place), place.delta().transaction_version("job")) == ([], None)


def test_what_takes_the_place_of_a_partition_leaves_the_others(place: Folder) -> None:
    gathered.write(place, pa.concat_tables([rows("a"), rows("b", kept=False)]), Commit(Transaction("job", 1), SAID))
    gathered.write(place, rows("c", kept=False), Commit(Transaction("job", 2), SAID, ("kept", "false")))
    assert keys(place) == ["a", "c"]
    gathered.write(place, rows(), Commit(Transaction("job", 3), SAID, ("kept", "false")))
    assert keys(place) == ["a"]
    gathered.write(place, rows("d"), Commit(Transaction("job", 4), SAID, "all"))
    assert keys(place) == ["d"]


def test_a_row_without_what_has_to_be_there_is_refused_and_leaves_nothing(place: Folder) -> None:
    wrong = pa.table({"key": pa.nulls(1, pa.string()), "kept": [True], "value": [1.0]})
    with pytest.raises(ValueError, match="key"):
        gathered.write(place, wrong, Commit(Transaction("job", 1), SAID))
    assert place.delta().version() == 0


def test_pages_carry_checksums(place: Folder) -> None:
    gathered.write(place, rows(*(f"key {n}" for n in range(1000))), Commit(Transaction("job", 1), SAID))
    (path,) = place.path.glob("*/*.parquet")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(path, page_checksum_verification=True).read()


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_rows_that_are_not_few_are_left_to_the_connector(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = (
        lake.session.range(11)
        .select(F.lit("t").alias("tenant"), F.lit("g").alias("gateway"))
        .withColumns({"waiting": F.lit(1), "said_at": F.lit(START)})
    )
    made_of = Lineage({"telemetry": State("id", 7)})
    lake.ensure("gateway_backlog")
    monkeypatch.setattr(gathered, "BYTES_MAX", 10 * schemas.GATEWAY_BACKLOG.row_bytes)
    lake.append("gateway_backlog", frame, Transaction("job", 1), made_of)
    monkeypatch.undo()
    lake.append("gateway_backlog", frame, Transaction("job", 2), made_of)
    entries = [lake.commit("gateway_backlog", version) for version in (1, 2)]
    engines = ["Spark" in entry.info.get("engineInfo", "") for entry in entries if entry is not None]
    assert (engines, lake.rows("gateway_backlog"), lake.rows_written("gateway_backlog", 0)) == ([True, False], 22, 22)
    assert [lake.provenance("gateway_backlog", version) for version in (1, 2)] == [made_of, made_of]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_long_texts_are_left_to_the_connector_however_few_they_are(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same text again and again takes next to nothing in the lake, and all of it here."""
    monkeypatch.setattr(gathered, "BYTES_MAX", 20 * schemas.READINGS.row_bytes)
    body = json.dumps({"said": "x" * 2_000}).encode()
    for first, last in ((0, 5), (5, 6)):
        lakes.write(lake.place, "telemetry", [message(number, body=body) for number in range(first, last)])
        steps = runner.one_pass(lake, catalog.chosen(["readings"]), lambda _: None)
        assert [step.error for step in steps] == [None]
    entries = [lake.commit("readings", version) for version in (1, 2)]
    engines = ["Spark" in entry.info.get("engineInfo", "") for entry in entries if entry is not None]
    assert (engines, lake.rows("readings")) == ([True, False], 6)


def _sent(number: int, **override: Any) -> dict[str, Any]:
    """Of two devices, some of it hours late, some of it not readable."""
    at = START + timedelta(seconds=37 * number)
    landed = at + timedelta(hours=3 if number % 5 == 0 else 0, seconds=2)
    body = b"\xff" if number % 7 == 0 else json.dumps({"t": number % 11, "up": {"uptime": number}}).encode()
    lane = "backlog" if number % 5 == 0 else "live"
    return message(
        number, at=at, ingested_at=landed, lane=lane, body=body, device=f"d{number % 2}", event_time=at, **override
    )


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_every_table_has_the_rows_the_connector_gives_it(lake: Lake, larger: Lake) -> None:
    """In a first pass and in one that folds into what is there; one statement is settled, one is not."""
    for each in (lake, larger):
        for first, last in ((0, 60), (60, 100)):
            lakes.write(each.place, "telemetry", [_sent(number) for number in range(first, last)])
            lakes.write(each.place, "manifests", [lakes.manifest(first, last + first - 1)])
            lakes.write(each.place, "gateway_status", [lakes.status(START + timedelta(hours=first), 3)])
            steps = runner.one_pass(each, catalog.JOBS, lambda _: None)
            assert [step.error for step in steps] == [None] * len(steps)
    assert _told(lake) == _told(larger)
    assert [table for table in verification.verified(lake.place, list(_told(lake))) if table.wrong] == []


def _told(lake: Lake) -> dict[str, list[tuple[Any, ...]]]:
    """Every derived table, without what a sketch or state is made of, and how far each commit says it is."""
    told = {}
    for name in filter(lambda name: lake.at(name).is_table(), schemas.DERIVED):
        columns = [field.name for field in schemas.DERIVED[name].columns.fields]
        shown = [column for column in columns if column not in ("sketch", "lags", "times", "state")]
        found = lake.at(name).delta().to_pyarrow_table(columns=shown).to_pylist()
        told[name] = sorted((tuple(_plain(value) for value in row.values()) for row in found), key=repr)
    return told


def _plain(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.12g}")
    return value.astimezone(UTC) if isinstance(value, datetime) else value
