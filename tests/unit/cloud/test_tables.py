"""Delta tables: entries of the log, and the effects of a power cut."""

from __future__ import annotations

import datetime
import json
import shutil
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from hypothesis import given
from hypothesis import strategies as st

from bridge.batch import decode, encode
from bridge.message import Run, Stored
from cloud.lake import compaction
from cloud.lake.contract import contract
from cloud.lake.delta import DeltaLake
from cloud.lake.faults import LakeError, TableMismatch
from cloud.lake.lake import TransactionId
from cloud.lake.limits import COMPACTED_FILES_MIN, LOG_KEPT_DAYS
from cloud.lake.rows import ReceivedBatch, record_rows, slices_of, telemetry_rows
from cloud.lake.sequences import SequenceRange, SequenceStream
from cloud.lake.tables import LakeTable
from cloud.place.data_file import merge_statistics, statistics
from cloud.place.folder import Folder
from tests.support.delta_commits import data_changes
from tests.support.status_rows import NOW_US, gateways, state


def test_appended_rows_are_read_by_any_reader(tmp_path: Path) -> None:
    table = LakeTable.open(tmp_path, "gateway_status")
    assert table.append(state(1), TransactionId("app", 1)) == 1
    assert table.append(state(2), TransactionId("app", 2)) == 2
    assert gateways(tmp_path) == ["gw1", "gw2"]
    assert table.committed("app") == 2
    assert table.committed("other") is None
    delta = DeltaTable(tmp_path / "gateway_status")
    assert delta.count() == 2
    assert delta.metadata().configuration == {"delta.logRetentionDuration": f"interval {LOG_KEPT_DAYS} days"}


def test_table_that_another_hub_creates_in_the_meantime_is_opened(tmp_path: Path) -> None:
    """Replicas start together on an empty lake."""
    first, delta, missing = LakeTable.open(tmp_path, "gateway_status"), Folder.delta, [TableNotFoundError("not yet")]

    def see_later(place: Folder) -> DeltaTable:
        if missing:
            raise missing.pop()
        return delta(place)

    with mock.patch.object(Folder, "delta", see_later):
        second = LakeTable.open(tmp_path, "gateway_status")
    assert second.identity == first.identity
    assert first.append(state(1), TransactionId("a", 1)) == 1
    assert second.append(state(2), TransactionId("b", 1)) == 2
    assert gateways(tmp_path) == ["gw1", "gw2"]


def test_torn_last_entry_is_removed(tmp_path: Path) -> None:
    table = LakeTable.open(tmp_path, "gateway_status")
    table.append(state(1), TransactionId("app", 1))
    table.append(state(2), TransactionId("app", 2))
    entry = tmp_path / "gateway_status" / "_delta_log" / f"{2:020}.json"
    for torn in (b"", entry.read_bytes()[:40]):
        entry.write_bytes(torn)
        again = LakeTable.open(tmp_path, "gateway_status", durable_version=1)
        assert again.committed("app") == 1
        assert again.append(state(3), TransactionId("app", 2)) == 2
        assert gateways(tmp_path) == ["gw1", "gw3"]


def test_durable_entry_is_never_removed(tmp_path: Path) -> None:
    table = LakeTable.open(tmp_path, "gateway_status")
    table.append(state(1), TransactionId("app", 1))
    entry = tmp_path / "gateway_status" / "_delta_log" / f"{1:020}.json"
    entry.write_bytes(b"")
    with pytest.raises(LakeError, match="damaged"):
        LakeTable.open(tmp_path, "gateway_status", durable_version=1)
    assert entry.exists()


def test_torn_checkpoint_is_removed(tmp_path: Path) -> None:
    table = LakeTable.open(tmp_path, "gateway_status")
    table.append(state(1), TransactionId("app", 1))
    DeltaTable(tmp_path / "gateway_status").create_checkpoint()
    log = tmp_path / "gateway_status" / "_delta_log"
    checkpoint = next(log.glob("*.checkpoint.parquet"))
    checkpoint.write_bytes(checkpoint.read_bytes()[:50])
    again = LakeTable.open(tmp_path, "gateway_status", durable_version=1)
    assert again.committed("app") == 1
    assert not list(log.glob("*.checkpoint.parquet"))


def test_other_columns_are_refused(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path / "ledger", pa.schema([pa.field("a", pa.string())]))
    with pytest.raises(TableMismatch, match="other columns"):
        LakeTable.open(tmp_path, "ledger")


def test_read_only_lake_is_reported(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file")
    with pytest.raises(LakeError, match="ledger"):
        LakeTable.open(tmp_path / "lake", "ledger")


def test_statistics_never_prune_an_existing_row() -> None:
    rows = state(1).drop_columns(["ingest_date"])
    found = statistics(rows)
    assert found["numRecords"] == 1
    stamp = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=NOW_US)
    low, high = (datetime.datetime.fromisoformat(found[side]["reported_at"]) for side in ("minValues", "maxValues"))
    assert low <= stamp <= high
    assert high - low <= datetime.timedelta(milliseconds=1)
    assert found["nullCount"]["version"] == 1
    assert "version" not in found["minValues"]
    assert json.loads(json.dumps(found)) == found


def test_long_text_is_left_out_of_the_statistics() -> None:
    rows = pa.table({"a": ["x" * 33, "y"], "b": ["k", "l"]})
    assert statistics(rows)["minValues"] == {"b": "k"}


def test_table_of_an_older_program_gets_later_columns(tmp_path: Path) -> None:
    """The manifests table of an older program had twelve columns and no row."""
    schema = contract().tables["manifests"].arrow_schema
    older = pa.schema([schema.field(number) for number in range(12)])
    assert older.names[-1] == "ingest_date"
    DeltaTable.create(tmp_path / "manifests", older, partition_by=["ingest_date"])
    table = LakeTable.open(tmp_path, "manifests")
    row = dict.fromkeys(("tenant", "gateway", "epoch", "address", "digest", "public_key"), "x")
    row |= dict.fromkeys(("first_sequence", "last_sequence", "count", "hour", "closing"), 1)
    table.append(record_rows("manifests", [row], NOW_US))
    assert LakeTable.open(tmp_path, "manifests").version == table.version
    (found,) = DeltaTable(tmp_path / "manifests").to_pyarrow_table().to_pylist()
    assert (found["public_key"], found["closing"], found["previous"]) == ("x", 1, None)


def test_column_of_another_type_is_refused(tmp_path: Path) -> None:
    schema = contract().tables["manifests"].arrow_schema
    other = pa.schema([schema.field(number) for number in range(11)])
    DeltaTable.create(tmp_path / "manifests", other.append(pa.field("ingest_date", pa.string())))
    with pytest.raises(TableMismatch, match="other columns"):
        LakeTable.open(tmp_path, "manifests")


class TestRangesOfATransaction:
    """Sequences of a commit with a damaged row in the registry."""

    APP: Final = "hub"

    def landed(self, lake: DeltaLake, commit: int, *streams: tuple[SequenceStream, int, int]) -> int:
        batches = []
        for stream, first, count in streams:
            run = Run(stream.address, "d", 0, b"", [b"x"] * count, 1_000)
            batches.append(
                ReceivedBatch(
                    stream.tenant,
                    stream.gateway,
                    decode(encode([Stored(-1, first, run)], space="s", epoch=stream.epoch)),
                )
            )
        slices = [
            piece
            for each, (_, first, count) in zip(batches, streams, strict=True)
            for piece in slices_of(each, [[(first, first + count - 1)]])
        ]
        return lake.append("telemetry", telemetry_rows(slices, NOW_US), TransactionId(self.APP, commit))

    def test_they_are_read_from_its_data_file(self, tmp_path: Path) -> None:
        lake = DeltaLake(tmp_path)
        one, two = SequenceStream("t", "gw1", "e", "a"), SequenceStream("u", "gw1", "f", "b")
        self.landed(lake, 1, (one, 5, 3), (two, 0, 2))
        later = self.landed(lake, 2, (one, 8, 1))
        found = lake.ranges_of("telemetry", TransactionId(self.APP, 1), later)
        assert found == [SequenceRange(*one, 5, 7), SequenceRange(*two, 0, 1)]
        shutil.move(tmp_path / "telemetry", tmp_path / "away")
        with pytest.raises(LakeError):
            lake.ranges_of("telemetry", TransactionId(self.APP, 1), later)
        shutil.move(tmp_path / "away", tmp_path / "telemetry")
        assert lake.ranges_of("telemetry", TransactionId(self.APP, 3), later) is None
        lake.fence("telemetry", {self.APP: 9})
        assert lake.ranges_of("telemetry", TransactionId(self.APP, 2), lake.versions["telemetry"]) == [
            SequenceRange(*one, 8, 8)
        ], "the fence names it too"

    def test_none_without_entry_or_file(self, tmp_path: Path) -> None:
        lake, stream = DeltaLake(tmp_path), SequenceStream("t", "gw1", "e", "a")
        version = self.landed(lake, 1, (stream, 0, 3))
        again = self.landed(lake, 2, (stream, 3, 3))
        DeltaTable(tmp_path / "telemetry").create_checkpoint()
        (tmp_path / "telemetry" / "_delta_log" / f"{version:020}.json").unlink()
        assert lake.ranges_of("telemetry", TransactionId(self.APP, 1), again) is None
        for file in (tmp_path / "telemetry").rglob("part-*.parquet"):
            file.unlink()
        assert lake.ranges_of("telemetry", TransactionId(self.APP, 2), again) is None

    def test_ledger(self, tmp_path: Path) -> None:
        lake, stream = DeltaLake(tmp_path), SequenceStream("t", "gw1", "e", "a")
        row = dict(stream._asdict(), first_sequence=3, last_sequence=4, bytes=1, reason="expired", decided_at=1)
        version = lake.append("ledger", record_rows("ledger", [row], NOW_US), TransactionId(self.APP, 1))
        assert lake.ranges_of("ledger", TransactionId(self.APP, 1), version) == [SequenceRange(*stream, 3, 4)]


class TestSettled:
    """A transaction that is settled as uncommitted stays uncommitted."""

    def ghost(self, number: int) -> bytes:
        """Return an entry of a sender that stopped waiting; the store may write it later."""
        rows = {"add": {"path": "gone.parquet", "partitionValues": {}, "size": 1, "modificationTime": 1}}
        marker = {"txn": {"appId": "app", "version": number}}
        return b"".join(json.dumps(action).encode() + b"\n" for action in (rows, marker))

    def test_commit_after_settling_is_refused(self, tmp_path: Path) -> None:
        place, table = Folder(tmp_path / "gateway_status"), LakeTable.open(tmp_path, "gateway_status")
        assert not table.settled(TransactionId("app", 1)), "also where there has been none"
        table.append(state(2), TransactionId("app", 2))
        assert table.settled(TransactionId("app", 2))
        before = table.version
        assert not table.settled(TransactionId("app", 3))
        assert not place.put_new(f"_delta_log/{before + 1:020}.json", self.ghost(3))
        assert table.append(state(4), TransactionId("app", 4)) == before + 2
        assert (table.committed("app"), gateways(tmp_path)) == (4, ["gw2", "gw4"])
        assert data_changes(tmp_path / "gateway_status", before + 1) == []

    def test_commit_before_settling_is_included(self, tmp_path: Path) -> None:
        table, other = (LakeTable.open(tmp_path, "gateway_status") for _ in range(2))
        committed, found = table.committed, list[int | None]()

        def looked(application: str) -> int | None:
            found.append(committed(application))
            if len(found) == 1:
                other.append(state(1), TransactionId("app", 1))
            return found[-1]

        with mock.patch.object(table, "committed", looked):
            assert table.settled(TransactionId("app", 1))
        assert (found, gateways(tmp_path)) == ([None, 1], ["gw1"])

    @pytest.mark.parametrize("moment", ["before it looks at the log", "before it commits"])
    def test_delayed_writer_commits_nothing(self, tmp_path: Path, moment: str) -> None:
        """Another hub has started from a copy of the data directory, with the same lake."""
        another = LakeTable.open(tmp_path, "gateway_status")
        held_up = LakeTable.open(tmp_path, "gateway_status")
        held_up.append(state(1), TransactionId("app", 1))

        def settle(*_: object, **__: object) -> None:
            assert not another.settled(TransactionId("app", 2))

        if moment == "before it commits":
            fenced = held_up._is_fenced
            delta = mock.patch.object(held_up, "_is_fenced", side_effect=lambda each: (fenced(each), settle())[0])
        else:
            delta = mock.patch.object(held_up, "_failpoint", side_effect=lambda step: step == "written" and settle())
        with delta, pytest.raises(LakeError):
            held_up.append(state(2), TransactionId("app", 2))
        assert gateways(tmp_path) == ["gw1"]
        held_up.append(state(3), TransactionId("app", 3))
        assert gateways(tmp_path) == ["gw1", "gw3"]


class TestCompaction:
    """Small files of a day become one: the rows stay, and readers of the commits see no change."""

    def filled(self, lake: Path, count: int) -> LakeTable:
        table = LakeTable.open(lake, "gateway_status")
        for number in range(count):
            table.append(state(number), TransactionId("app", number + 1))
        return table

    def names(self, count: int) -> list[str]:
        return sorted(f"gw{number}" for number in range(count))

    def test_compaction_above_the_limit_continues_later(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A busy hub has large small files: 13 of 64 may be merged at once, then the next 13, until few are left."""
        monkeypatch.setattr("cloud.lake.compaction.COMPACTED_ROWS_MAX", 13)
        monkeypatch.setattr("cloud.lake.compaction.SMALL_FILE_ROWS_MAX", 12)
        table = self.filled(tmp_path, 2 * COMPACTED_FILES_MIN)
        done = [table.compact() for _ in range(8)]
        assert done == [13] * 5 + [0] * 3
        files = len(DeltaTable(tmp_path / "gateway_status").file_uris())
        assert files == 2 * COMPACTED_FILES_MIN - 5 * 12
        assert gateways(tmp_path) == self.names(2 * COMPACTED_FILES_MIN)

    def test_files_up_to_the_limit_become_one(self, tmp_path: Path) -> None:
        table = self.filled(tmp_path, COMPACTED_FILES_MIN - 1)
        assert table.compact() == 0
        table.append(state(COMPACTED_FILES_MIN - 1), TransactionId("app", COMPACTED_FILES_MIN))
        before = LakeTable.open(tmp_path, "gateway_status")
        assert before.compact() == COMPACTED_FILES_MIN
        found = DeltaTable(tmp_path / "gateway_status")
        assert (len(found.file_uris()), found.count()) == (1, COMPACTED_FILES_MIN)
        assert gateways(tmp_path) == self.names(COMPACTED_FILES_MIN)
        assert before.committed("app") == COMPACTED_FILES_MIN
        assert data_changes(tmp_path / "gateway_status", found.version()) == []
        # Readers of an older version still succeed, and the next append follows.
        assert DeltaTable(tmp_path / "gateway_status", version=found.version() - 1).to_pyarrow_table().num_rows == 64
        assert table.append(state(64), TransactionId("app", 65)) == found.version() + 1
        assert gateways(tmp_path) == self.names(65)

    def test_existing_entry_with_a_refused_put_is_kept(self, tmp_path: Path) -> None:
        """A store has written the entry, answered with an error, and refuses the next request."""
        table, put_new = self.filled(tmp_path, COMPACTED_FILES_MIN), Folder.put_new

        def refused(place: Folder, path: str, content: bytes) -> bool:
            assert put_new(place, path, content)
            return False

        with mock.patch.object(Folder, "put_new", refused):
            assert table.compact() == COMPACTED_FILES_MIN
        assert len(DeltaTable(tmp_path / "gateway_status").file_uris()) == 1
        assert gateways(tmp_path) == self.names(COMPACTED_FILES_MIN)

    def test_kill_during_compaction_leaves_the_table_unchanged(self, tmp_path: Path) -> None:
        self.filled(tmp_path, COMPACTED_FILES_MIN)

        def dies(point: str) -> None:
            if point == "rewritten":
                raise InterruptedError

        dying = LakeTable.open(tmp_path, "gateway_status", failpoint=dies)
        with pytest.raises(LakeError):
            dying.compact()
        assert len(DeltaTable(tmp_path / "gateway_status").file_uris()) == COMPACTED_FILES_MIN
        assert LakeTable.open(tmp_path, "gateway_status").compact() == COMPACTED_FILES_MIN
        assert gateways(tmp_path) == self.names(COMPACTED_FILES_MIN)

    def test_concurrent_commits_remain(self, tmp_path: Path) -> None:
        self.filled(tmp_path, COMPACTED_FILES_MIN)

        def another(point: str) -> None:
            if point == "rewritten":
                DeltaTable(tmp_path / "gateway_status").delete("gateway = 'gw7'")

        table = LakeTable.open(tmp_path, "gateway_status", failpoint=another)
        assert table.compact() == 0
        assert gateways(tmp_path) == [name for name in self.names(COMPACTED_FILES_MIN) if name != "gw7"]
        assert table.append(state(64)) == DeltaTable(tmp_path / "gateway_status").version()

    def test_damaged_file_remains(self, tmp_path: Path) -> None:
        table = self.filled(tmp_path, COMPACTED_FILES_MIN)
        damaged = next((tmp_path / "gateway_status").rglob("*.parquet"))
        content = bytearray(damaged.read_bytes())
        content[len(content) // 3] ^= 1
        damaged.write_bytes(content)
        with pytest.raises(LakeError, match="cannot be compacted"):
            table.compact()
        assert len(DeltaTable(tmp_path / "gateway_status").file_uris()) == COMPACTED_FILES_MIN
        assert table.compact() == 0, "not again with each landing"
        for number in range(COMPACTED_FILES_MIN):
            table.append(state(number))
        assert table.compact() == 2 * COMPACTED_FILES_MIN - 1, "the others have not to wait for it"

    def test_files_of_many_rows_are_compacted_in_parts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Small files may hold many repeated rows, so a merge bounds its memory by rows, and works by row group."""
        monkeypatch.setattr(compaction, "COMPACTED_ROWS_MAX", 10)
        monkeypatch.setattr(compaction, "ROW_GROUP_BYTES", 3 * state(0).nbytes)
        table = self.filled(tmp_path, COMPACTED_FILES_MIN)
        assert table.compact() == 10
        found = DeltaTable(tmp_path / "gateway_status")
        assert (len(found.file_uris()), found.count()) == (COMPACTED_FILES_MIN - 9, COMPACTED_FILES_MIN)
        assert gateways(tmp_path) == self.names(COMPACTED_FILES_MIN)
        groups = [pa.parquet.ParquetFile(file).num_row_groups for file in found.file_uris()]
        assert max(groups) > 1

    def test_file_of_many_rows_is_not_small(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compaction, "SMALL_FILE_ROWS_MAX", 0)
        assert self.filled(tmp_path, COMPACTED_FILES_MIN).compact() == 0


_values = st.none() | st.integers(-3, 3)
_texts = st.none() | st.sampled_from(["", "a", "é", "x" * 33])
_rows = st.lists(st.tuples(_values, _texts), min_size=1, max_size=6)


@given(_rows, _rows)
def test_statistics_of_parts_add_up(one: list[tuple[Any, Any]], other: list[tuple[Any, Any]]) -> None:
    def table(rows: list[tuple[Any, Any]]) -> pa.Table:
        moments = [None if number is None else number * 1_001 for number, _ in rows]
        return pa.table(
            {
                "number": pa.array([number for number, _ in rows], pa.int64()),
                "text": pa.array([text for _, text in rows], pa.string()),
                "moment": pa.array(moments, pa.timestamp("us", "UTC")),
            }
        )

    whole = statistics(table(one + other))
    found = merge_statistics(statistics(table(one)), statistics(table(other)))
    assert (found["numRecords"], found["nullCount"]) == (whole["numRecords"], whole["nullCount"])
    for key in ("minValues", "maxValues"):
        # The whole file has no bound where one part has none, as that bound may be further out.
        assert {name: whole[key][name] for name in found[key]} == found[key]
        assert set(whole[key]) - set(found[key]) <= {"text"}
