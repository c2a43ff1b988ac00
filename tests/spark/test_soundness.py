"""Damage check: only a damaged table is deleted, and one that cannot be reached stays. No JVM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import deltalake
import pytest
from deltalake.exceptions import CommitFailedError, DeltaError

from cloud.place.faults import ObjectStoreError
from cloud.place.folder import Folder
from spark import log_damage
from spark.lake import SparkLake
from tests.spark import gold
from tests.spark.lakes import START

TABLE = "gateway_backlog"


@pytest.fixture
def lake(tmp_path: Path) -> SparkLake:
    """Table of three commits and a checkpoint, without the log entries before it."""
    lake = SparkLake(None, tmp_path)
    lake.ensure(TABLE)
    commit(lake, "a")
    deltalake.DeltaTable(tmp_path / TABLE).create_checkpoint()
    entry(lake, 0).unlink()
    commit(lake, "b")
    commit(lake, "c")
    assert log_damage.find_damage(lake.at(TABLE)) is None
    return lake


def commit(lake: SparkLake, gateway: str) -> None:
    row = {"tenant": "t", "gateway": gateway, "waiting": 1, "said_at": START}
    deltalake.write_deltalake(lake.path(TABLE), gold.table(TABLE, [row]), mode="append")


def log(lake: SparkLake) -> Path:
    return Path(lake.path(TABLE)) / "_delta_log"


def entry(lake: SparkLake, version: int) -> Path:
    return log(lake) / f"{version:020}.json"


def torn(lake: SparkLake) -> None:
    entry(lake, 3).write_bytes(entry(lake, 3).read_bytes()[:100])


def empty(lake: SparkLake) -> None:
    entry(lake, 3).write_bytes(b"")


def missing(lake: SparkLake) -> None:
    entry(lake, 2).unlink()


def torn_checkpoint(lake: SparkLake) -> None:
    (checkpoint,) = log(lake).glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-50])


@pytest.mark.parametrize("harm", [torn, empty, missing, torn_checkpoint])
def test_what_is_damaged_is_made_anew(lake: SparkLake, harm: Callable[[SparkLake], None]) -> None:
    harm(lake)
    assert log_damage.find_damage(lake.at(TABLE)) is not None
    lake.recreate(TABLE)
    assert (lake.rows(TABLE), log_damage.find_damage(lake.at(TABLE))) == (0, None)


@pytest.mark.parametrize(
    "refusal",
    [
        CommitFailedError("another pass was faster"),
        DeltaError("Generic S3 error: 503 Slow Down"),
        ObjectStoreError("the store does not answer"),
    ],
)
def test_a_table_that_cannot_be_made_anew_now_stays(
    lake: SparkLake, monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    before = sorted(path.name for path in Path(lake.path(TABLE)).rglob("*"))

    def refused(*_: object, **__: object) -> None:
        raise refusal

    monkeypatch.setattr(deltalake.DeltaTable, "create", refused)
    with pytest.raises(type(refusal)):
        lake.recreate(TABLE)
    assert sorted(path.name for path in Path(lake.path(TABLE)).rglob("*")) == before
    assert lake.rows(TABLE) == 3


def test_what_a_store_does_not_give_out_now_is_not_damaged(lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object) -> bytes:
        raise ObjectStoreError("503 Slow Down")

    torn(lake)
    monkeypatch.setattr(Folder, "read", late)
    with pytest.raises(ObjectStoreError):
        lake.recreate(TABLE)
    assert entry(lake, 3).exists()
