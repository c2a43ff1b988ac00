"""Transactions of all applications, read from the log of a Delta table."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from cloud.lake.faults import LakeError
from cloud.lake.lake import TransactionId
from cloud.lake.rows import record_rows
from cloud.lake.tables import LakeTable
from cloud.lake.transactions import ENTRIES_READ_MAX, TransactionLog
from cloud.place.folder import Folder

NOW_US = 1_795_250_665_237_123
TABLE = "gateway_status"


def state(number: int) -> pa.Table:
    row = {"tenant": "default", "gateway": f"gw{number}", "reported_at": NOW_US, "state": "running"}
    return record_rows(TABLE, [row], NOW_US)


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    table = LakeTable.open(tmp_path, TABLE)
    table.append(state(1), TransactionId("first", 7))
    table.append(state(2), TransactionId("second", 1))
    table.append(state(3))
    table.append(state(4), TransactionId("first", 8))
    return table


def test_last_commit_of_each_application(table: LakeTable) -> None:
    assert table.transactions() == {"first": 8, "second": 1}
    table.append(state(5), TransactionId("third", 2))
    assert table.transactions() == {"first": 8, "second": 1, "third": 2}


def test_fenced_applications_are_refused_and_known(table: LakeTable, tmp_path: Path) -> None:
    other = LakeTable.open(tmp_path, TABLE)
    table.fence({"first": 20, "second": 30})
    assert table.transactions() == {"first": 20, "second": 30}
    with pytest.raises(LakeError, match="fenced it"):
        other.append(state(6), TransactionId("first", 20))
    table.fence({"first": 10, "second": 31})
    assert table.transactions() == {"first": 20, "second": 31}, "a fence stays where it is"
    assert not table.settled(TransactionId("first", 15))
    assert other.transactions() == {"first": 20, "second": 31}, "a fenced commit needs no entry"
    assert table.settled(TransactionId("first", 8))
    other.append(state(6), TransactionId("first", 21))
    assert other.committed("first") == 21


def test_commit_that_arrives_while_the_log_is_read_again_is_found(
    table: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look for the commit and the look for its fence; the fence must not take the later version."""
    other, commit = LakeTable.open(tmp_path, TABLE), TransactionId("first", 9)
    look = LakeTable._is_fenced
    looks: list[TransactionId] = []

    def late(self: LakeTable, transaction: TransactionId) -> bool:
        looks.append(transaction)
        if len(looks) == 1:
            monkeypatch.setattr(LakeTable, "_is_fenced", look)
            other.append(state(9), commit)
            self._reopen()
        return look(self, transaction)

    monkeypatch.setattr(LakeTable, "_is_fenced", late)
    assert table.settled(commit)
    assert table.committed("first") == 9


def test_reader_that_is_far_behind_begins_with_the_last_checkpoint(table: LakeTable, tmp_path: Path) -> None:
    """A look after a day must not read each entry of the day, nor list them."""
    read, listed = list[str](), list[str]()

    class Counted(Folder):
        def read(self, name: str) -> bytes | None:
            read.append(name)
            return super().read(name)

        def names(self, folder: str) -> list[str]:
            listed.append(folder)
            return super().names(folder)

    log = TransactionLog(Counted(tmp_path / TABLE))
    log.read(table.version)
    for number in range(ENTRIES_READ_MAX + 5):
        table.append(state(number), TransactionId("later", number + 1))
    DeltaTable(tmp_path / TABLE).create_checkpoint()
    for number in range(3):
        table.append(state(number), TransactionId("third", number + 1))
    read.clear()
    listed.clear()
    assert log.read(table.version) == {"first": 8, "second": 1, "later": ENTRIES_READ_MAX + 5, "third": 3}
    assert (len(read), listed) == (1 + 3, []), "the name of the checkpoint, and the entries after it"
    (tmp_path / TABLE / "_delta_log" / "_last_checkpoint").write_text("{")
    assert TransactionLog(Counted(tmp_path / TABLE)).read(table.version) == log.read(table.version)
    assert listed == ["_delta_log"]


def test_checkpoint_replaces_entries(table: LakeTable, tmp_path: Path) -> None:
    log = tmp_path / TABLE / "_delta_log"
    DeltaTable(tmp_path / TABLE).create_checkpoint()
    for entry in log.glob("*.json"):
        if int(entry.stem) < table.version:
            entry.unlink()
    table.append(state(5), TransactionId("third", 2))
    found = LakeTable.open(tmp_path, TABLE).transactions()
    assert found == {"first": 8, "second": 1, "third": 2}


def test_checkpoint_in_parts_counts_when_it_is_complete(table: LakeTable, tmp_path: Path) -> None:
    log = tmp_path / TABLE / "_delta_log"
    schema = pa.schema({"txn": pa.struct({"appId": pa.string(), "version": pa.int64()})})
    for part, (name, number) in enumerate((("first", 8), ("second", 1)), 1):
        rows = [{"txn": {"appId": name, "version": number}}, {"txn": None}]
        pq.write_table(pa.Table.from_pylist(rows, schema), log / f"{4:020}.checkpoint.{part:010}.{2:010}.parquet")
    pq.write_table(pa.table({"add": [1]}), log / f"{5:020}.checkpoint.{1:010}.{2:010}.parquet")
    for number in range(4):
        (log / f"{number:020}.json").unlink()
    (log / f"{5:020}.json").write_text(json.dumps({"txn": {"appId": "third", "version": 3}}))
    assert TransactionLog(Folder(tmp_path / TABLE)).read(5) == {"first": 8, "second": 1, "third": 3}


def test_missing_entry_is_an_error(table: LakeTable, tmp_path: Path) -> None:
    (tmp_path / TABLE / "_delta_log" / f"{2:020}.json").unlink()
    with pytest.raises(OSError, match="lacks entries"):
        TransactionLog(Folder(tmp_path / TABLE)).read(table.version)
