"""Damage to a lake: each has a named outcome, costs no other gateway anything, and there is a way back that works."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from cloud.lake import tables as landed
from cloud.lake.contract import contract
from spark import delta_log, verification
from spark.jobs import catalog, runner
from spark.lake import Lake
from tests.spark import lakes
from tests.spark.lakes import START, message

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def land(lake: Lake, *rows: dict[str, Any]) -> Path:
    """One commit as the hub writes it; returns its data file."""
    lake.place.path.mkdir(exist_ok=True)
    table = landed.Table.open(lake.place.path, "telemetry")
    version = table.append(pa.Table.from_pylist(list(rows), schema=contract().tables["telemetry"].arrow_schema))
    entry = lake.commit("telemetry", version)
    assert entry is not None
    return Path(lake.path("telemetry")) / entry.added[0].path


def steps(lake: Lake, *names: str) -> dict[str, runner.Step]:
    return {step.job: step for step in runner.one_pass(lake, catalog.chosen(names), lambda _: None)}


def counted(lake: Lake) -> dict[str, int]:
    """Rows of each gateway, as `gateway_freshness` has them."""
    rows = deltalake.DeltaTable(lake.path("gateway_freshness")).to_pyarrow_table().to_pylist()
    return {row["gateway"]: row["rows"] for row in rows if row["device"] is None}


def flip(path: Path, count: int = 1) -> None:
    """Other bits in the middle of a file."""
    content = bytearray(path.read_bytes())
    for at in range(len(content) // 3, len(content) // 3 + count):
        content[at] ^= 0x10
    path.write_bytes(content)


def test_damaged_files_are_set_aside_and_named_and_come_back(lake: Lake, tmp_path: Path) -> None:
    """Of four gateways three have a file that is damaged, each in another way. The fourth does not notice."""
    paths = [
        land(lake, *(message(n, gateway=f"gw{number}", device=f"d{number}") for n in range(400))) for number in range(4)
    ]
    copies = shutil.copytree(lake.place.path, tmp_path / "copy")
    paths[0].unlink()
    paths[1].write_bytes(paths[1].read_bytes()[:-100])
    flip(paths[2], paths[2].stat().st_size // 3)  # of whatever columns: a job notices those that it reads
    step = steps(lake, "freshness")["freshness"]
    assert (step.state, step.rows_in, step.rows_out, counted(lake)) == ("done", 400, 2, {"gw3": 400})
    for path, gateway, why in zip(paths, ("gw0", "gw1", "gw2"), ("missing", "truncated", "damaged"), strict=False):
        (note,) = (note for note in step.notes if str(path) in note)
        assert f"{why}" in note
        assert f"400 rows of gateway {gateway}, sequences 0 to 399" in note
        assert "waypost analytics rebuild" in note
    aside = deltalake.DeltaTable(lake.path("set_aside")).to_pyarrow_table().to_pylist()
    assert {(row["job"], row["gateway_first"], row["rows"]) for row in aside} == {
        ("freshness", f"gw{number}", 400) for number in range(3)
    }
    (telemetry,) = verification.verified(lake.place.path, ["telemetry"])
    assert len(telemetry.wrong) == 3

    # Later data goes on as if nothing had been.
    land(lake, message(400, gateway="gw1", device="d1"))
    assert steps(lake, "freshness")["freshness"].notes == ()
    assert counted(lake) == {"gw1": 1, "gw3": 400}

    # The way back: copies of the files, and everything anew.
    for path in paths[:3]:
        shutil.copy(copies / path.relative_to(lake.place.path), path)
    runner.forget(lake, catalog.made_of(["freshness"]))
    assert steps(lake, "freshness")["freshness"].notes == ()
    assert counted(lake) == {"gw0": 400, "gw1": 401, "gw2": 400, "gw3": 400}
    assert deltalake.DeltaTable(lake.path("set_aside")).count() == 0
    (telemetry,) = verification.verified(lake.place.path, ["telemetry"])
    assert telemetry.wrong == ()


def test_a_damaged_derived_table_is_named_and_made_anew(lake: Lake) -> None:
    land(lake, message(0))
    steps(lake, "freshness")
    (path,) = deltalake.DeltaTable(lake.path("gateway_freshness")).file_uris()
    Path(path.removeprefix("file://")).unlink()
    land(lake, message(1))
    step = steps(lake, "freshness")["freshness"]
    assert (step.state, step.integrity) == ("failed", True)
    assert "gateway_freshness" in (step.error or "")
    assert "missing. `waypost analytics rebuild`" in (step.error or "")
    runner.forget(lake, catalog.made_of(["freshness"]))
    assert steps(lake, "freshness")["freshness"].state == "done"
    assert counted(lake) == {"gw1": 2}
    # Its log, too.
    log = Path(lake.path("gateway_freshness")) / "_delta_log"
    max(log.glob("*.json")).write_text('{"add":{"pa')
    land(lake, message(2))
    step = steps(lake, "freshness")["freshness"]
    assert (step.state, step.integrity) == ("failed", True)
    assert "table gateway_freshness cannot be read" in (step.error or "")
    runner.forget(lake, catalog.made_of(["freshness"]))
    steps(lake, "freshness")
    assert counted(lake) == {"gw1": 3}


def test_offsets_of_clocks_that_are_gone_are_set_aside_and_named(lake: Lake) -> None:
    """Every job that reads stamps reads that table whole: messages of gateways whose clocks were right are taken."""
    lakes.write(lake.place.path, "clock_offsets", [lakes.clock_offset(gateway="gw9")])
    (gone,) = deltalake.DeltaTable(lake.path("clock_offsets")).file_uris()
    lakes.write(lake.place.path, "clock_offsets", [lakes.clock_offset(gateway="gw8")])
    Path(gone.removeprefix("file://")).unlink()
    land(lake, message(0))
    step = steps(lake, "freshness")["freshness"]
    assert (step.state, counted(lake)) == ("done", {"gw1": 1})
    (note,) = step.notes
    assert "clock_offsets" in note
    assert "missing and set aside: 1 row of gateway gw9. Put back a copy of it" in note


def test_offsets_of_clocks_with_other_bytes_are_set_aside_and_named_by_spark_too(larger: Lake) -> None:
    """Each pass of each job that reads stamps failed, for ever."""
    for gateway in ("gw8", "gw9"):
        lakes.write(larger.place.path, "clock_offsets", [lakes.clock_offset(gateway=gateway)])
    (damaged, _) = deltalake.DeltaTable(larger.path("clock_offsets")).file_uris()
    flip(Path(damaged.removeprefix("file://")), 40)
    land(larger, message(0))
    found = steps(larger, "freshness", "readings")
    assert {step.state for step in found.values()} == {"done"}, [step.error for step in found.values()]
    assert (counted(larger), larger.rows("readings")) == ({"gw1": 1}, 1)
    for step in found.values():
        (note,) = step.notes
        assert "clock_offsets" in note
        assert "damaged and set aside: 1 row of gateway gw" in note
        assert "Put back a copy of it" in note
    assert deltalake.DeltaTable(larger.path("set_aside")).count() == 1


def test_a_rebuild_needs_no_notes_that_can_be_read(lake: Lake) -> None:
    paths = [land(lake, message(number)) for number in range(2)]
    paths[0].unlink()
    assert steps(lake, "freshness")["freshness"].notes
    log = Path(lake.path("set_aside")) / "_delta_log"
    max(log.glob("*.json")).write_text('{"add":{"pa')
    runner.forget(lake, catalog.made_of(["freshness"]))
    step = steps(lake, "freshness")["freshness"]
    assert (step.state, len(step.notes), counted(lake)) == ("done", 1, {"gw1": 1})


def entry(lake: Lake, version: int) -> Path:
    return Path(lake.path("telemetry")) / "_delta_log" / f"{version:020}.json"


def half(lake: Lake) -> None:
    newest = entry(lake, 2)
    newest.write_bytes(newest.read_bytes()[:150])


def empty(lake: Lake) -> None:
    entry(lake, 2).write_bytes(b"")


def missing(lake: Lake) -> None:
    entry(lake, 2).rename(entry(lake, 2).with_name("kept"))
    shutil.copy(entry(lake, 1), entry(lake, 3))


def commit(lake: Lake, action: dict[str, Any]) -> None:
    entry(lake, 3).write_text(json.dumps(action))


def newer_protocol(lake: Lake) -> None:
    commit(lake, {"protocol": {"minReaderVersion": 9, "minWriterVersion": 9}})


def newer_feature(lake: Lake) -> None:
    features = ["deletionVectors"]
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    commit(lake, {"protocol": {**versions, "readerFeatures": features, "writerFeatures": features}})


def other_type(lake: Lake) -> None:
    action = json.loads(next(line for line in entry(lake, 0).read_text().splitlines() if "metaData" in line))
    text = action["metaData"]["schemaString"]
    action["metaData"]["schemaString"] = text.replace(
        '"name":"sequence","type":"long"', '"name":"sequence","type":"string"'
    )
    assert action["metaData"]["schemaString"] != text
    commit(lake, action)


def cleaned(lake: Lake) -> None:
    deltalake.DeltaTable(lake.path("telemetry")).create_checkpoint()
    for version in range(3):
        entry(lake, version).unlink()


def rows_deleted(lake: Lake) -> None:
    deltalake.DeltaTable(lake.path("telemetry")).delete("sequence = 1")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (half, "Start the hub"),
        (empty, "is damaged (empty)"),
        (missing, "cannot be read"),
        (newer_protocol, "A newer program wrote it"),
        (newer_feature, "deletionVectors"),
        (other_type, "column sequence is string, the contract says bigint"),
        (cleaned, "log was cleaned"),
        (rows_deleted, "removed or replaced rows"),
    ],
)
def test_a_log_that_is_not_what_it_should_be(lake: Lake, harm: Callable[[Lake], None], words: str) -> None:
    """Version 1 was taken, 2 has landed since."""
    land(lake, message(0))
    (job,) = catalog.chosen(["freshness"])
    step = runner.one_pass(lake, [job], lambda _: None)[0]
    assert step.error is None
    land(lake, message(1))
    harm(lake)
    step = runner.one_pass(lake, [job], lambda _: None)[0]
    assert (step.state, step.integrity) == ("failed", True), step
    assert words in (step.error or "")
    assert counted(lake) == {"gw1": 1}, "what was made before is as it was"


def test_after_its_log_was_cleaned_a_rebuild_takes_the_table_as_it_is(lake: Lake) -> None:
    land(lake, message(0))
    steps(lake, "freshness")
    land(lake, message(1))
    land(lake, message(2))
    cleaned(lake)
    runner.forget(lake, catalog.made_of(["freshness"]))
    assert steps(lake, "freshness")["freshness"].rows_in == 3
    assert counted(lake) == {"gw1": 3}


def test_clocks_of_1970_and_2038_are_counted_and_spoil_nothing(lake: Lake) -> None:
    far_off = [datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC), datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC)]
    wrong = [message(n, gateway="wrong", event_time=at, received_at=at) for n, at in enumerate(far_off)]
    land(lake, *wrong, message(0), message(1))
    done = steps(lake)
    assert {step.state for step in done.values()} == {"done"}
    assert counted(lake) == {"gw1": 2, "wrong": 2}
    windows = deltalake.DeltaTable(lake.path("rollup_1m")).to_pyarrow_table().to_pylist()
    assert {row["gateway"]: row["suspect"] for row in windows if row["window_start"] < START} == {"wrong": 1}
    ahead = [row for row in windows if row["gateway"] == "wrong" and row["window_start"] > START]
    assert [row["window_start"] for row in ahead] == [START + timedelta(minutes=5)]


def test_an_entry_of_a_log_is_read_or_named(tmp_path: Path) -> None:
    lakes.write(tmp_path, "telemetry", [message(0), message(1)])
    found = delta_log.entry(tmp_path / "telemetry", 0)
    assert found is not None
    assert [file.rows for file in found.added] == [2]
    assert delta_log.entry(tmp_path / "telemetry", 1) is None
    (tmp_path / "telemetry" / "_delta_log" / f"{1:020}.json").write_text("{")
    with pytest.raises(delta_log.LogDamaged, match=r"0000001\.json is damaged"):
        delta_log.entry(tmp_path / "telemetry", 1)
