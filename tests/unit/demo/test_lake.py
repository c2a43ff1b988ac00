"""The demo's view of the lake, on tables written with delta-rs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.demo.accounting import Given, Row
from tests.demo.lake import Lake, Landed, reading_of


def telemetry(sequences: list[int]) -> pa.Table:
    count = len(sequences)
    return pa.table(
        {
            "gateway": ["gw1"] * count,
            "epoch": ["e"] * count,
            "address": ["a"] * count,
            "sequence": pa.array(sequences, pa.int64()),
            "body": [b'{"device": "d1", "seq": %d, "v": 1.5}' % sequence for sequence in sequences],
            "other": ["x"] * count,
        }
    )


def test_missing_lake_is_empty(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert lake.landed() == Landed()
    assert lake.rows() == []
    assert lake.ledger() == []


def test_rows_and_commits_are_counted_as_they_arrive(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    write_deltalake(tmp_path / "telemetry", telemetry([0, 1]))
    first = lake.landed()
    write_deltalake(tmp_path / "telemetry", telemetry([2]), mode="append")
    second = lake.landed()
    assert (first.rows, second.rows) == (2, 3)
    assert second.commits == first.commits + 1
    assert sorted(lake.rows())[2] == Row("gw1", "e", "a", 2, ("d1", 2))


def test_ledger_is_read(tmp_path: Path) -> None:
    given = {"gateway": ["gw1"], "epoch": ["e"], "address": ["a"], "first_sequence": [3], "last_sequence": [5]}
    write_deltalake(tmp_path / "ledger", pa.table(given))
    assert Lake(tmp_path).ledger() == [Given("gw1", "e", "a", 3, 5)]


@pytest.mark.parametrize("body", [b"", b"21.5", b"\xff\x00", b"[]", b'{"device": 1, "seq": 2}', b'{"device": "d"}'])
def test_other_bodies_are_not_readings(body: bytes) -> None:
    assert reading_of(body) is None
