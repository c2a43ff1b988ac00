"""Appends to a Delta table: the log is not read again, and other programs commit next to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from deltalake import DeltaTable

from cloud.lake.faults import LakeError, TableMismatch
from cloud.lake.lake import TransactionId
from cloud.lake.limits import CHECKPOINT_EVERY, CHECKPOINT_SHARE, COMPACTED_FILES_MIN, PASSED_ENTRIES_MAX
from cloud.lake.tables import LakeTable
from cloud.place.folder import Folder
from tests.support.status_rows import gateways, state

NAME = "gateway_status"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    LakeTable.open(tmp_path, NAME)
    return tmp_path


def opened(lake: Path) -> LakeTable:
    return LakeTable.open(lake, NAME)


def entry(lake: Path, version: int) -> Path:
    return lake / NAME / "_delta_log" / f"{version:020}.json"


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count operations on the lake that are requests to a bucket."""
    found: Counter[str] = Counter()

    def counting(name: str) -> mock._patch[object]:
        real = getattr(Folder, name)

        def call(place: Folder, *arguments: object) -> object:
            found[name] += 1
            return real(place, *arguments)

        return mock.patch.object(Folder, name, call)

    with counting("delta"), counting("names"), counting("read"), counting("size"), counting("put_new"):
        yield found


class TestRequests:
    def test_append_writes_two_objects_and_looks_for_one(self, lake: Path) -> None:
        """The first one, or a look at a commit, has read the transactions."""
        table = opened(lake)
        assert table.committed("app") is None
        refresh = mock.patch.object(LakeTable, "_refresh", side_effect=AssertionError("the log is read again"))
        with counted() as found, refresh:
            for number in range(CHECKPOINT_EVERY - 1):
                table.append(state(number), TransactionId("app", number + 1))
        assert found == {"put_new": CHECKPOINT_EVERY - 1, "size": CHECKPOINT_EVERY - 1}
        assert len(gateways(lake)) == CHECKPOINT_EVERY - 1

    def test_append_reads_what_others_have_appended_since(self, lake: Path) -> None:
        here, there = opened(lake), opened(lake)
        assert here.committed("here") is None
        for number in range(4):
            there.append(state(number), TransactionId("there", number + 1))
        with counted() as found:
            assert here.append(state(9), TransactionId("here", 1)) == 5
        assert found == {"put_new": 5, "read": 4, "size": 1}
        assert there.append(state(10), TransactionId("there", 5)) == 6
        assert len(gateways(lake)) == 6

    def test_commit_of_another_writer_is_settled_without_reading_the_log_again(self, lake: Path) -> None:
        here, there = opened(lake), opened(lake)
        for number in range(CHECKPOINT_EVERY - 5):
            there.append(state(number), TransactionId("there", number + 1))
        assert here.committed("there") == CHECKPOINT_EVERY - 5
        there.append(state(9), TransactionId("there", CHECKPOINT_EVERY))
        with counted() as found:
            assert here.settled(TransactionId("there", CHECKPOINT_EVERY))
        assert found == {"read": 1, "size": 1}
        with counted() as found:
            assert not here.settled(TransactionId("late", 1))
        assert found == {"put_new": 1}

    def test_table_is_opened_again_after_many_versions_of_others(self, lake: Path) -> None:
        here, there = opened(lake), opened(lake)
        for number in range(3 * PASSED_ENTRIES_MAX):
            there.append(state(number))
        with counted() as found:
            here.append(state(99))
        assert found["delta"] == 1
        assert found["put_new"] == PASSED_ENTRIES_MAX + 1
        assert len(gateways(lake)) == 3 * PASSED_ENTRIES_MAX + 1

    def test_checkpoints_follow_between_landings(self, lake: Path) -> None:
        here, there = opened(lake), opened(lake)
        for number in range(CHECKPOINT_EVERY):
            (here, there)[number % 2].append(state(number))
            here.compact()
            there.compact()
        log = lake / NAME / "_delta_log"
        assert [path.name for path in log.glob("*.checkpoint.parquet")] == [
            f"{CHECKPOINT_EVERY:020}.checkpoint.parquet"
        ], "one of the two hubs makes it"
        assert len(gateways(lake)) == CHECKPOINT_EVERY

    def test_slow_checkpoints_are_rarer(self, lake: Path) -> None:
        took_s: list[float] = []

        def slow(_work: Callable[[], float]) -> Future[float]:
            took_s.append(2 * CHECKPOINT_EVERY * CHECKPOINT_SHARE)
            done: Future[float] = Future()
            done.set_result(took_s[-1])
            return done

        table = LakeTable.open(lake, NAME, start=slow)
        for number in range(4 * CHECKPOINT_EVERY):
            table.append(state(number))
            table.compact()
        assert len(took_s) == 3, "at 20, 40 and 80 versions"

    def test_failed_checkpoint_is_made_later(self, lake: Path, caplog: pytest.LogCaptureFixture) -> None:
        table = opened(lake)
        with mock.patch.object(DeltaTable, "create_checkpoint", side_effect=OSError("disk full")):
            for number in range(CHECKPOINT_EVERY):
                table.append(state(number))
                table.compact()
        assert "disk full" in caplog.text
        for number in range(CHECKPOINT_EVERY):
            table.append(state(number))
            table.compact()
        assert len(list((lake / NAME / "_delta_log").glob("*.checkpoint.parquet"))) == 1

    def test_one_checkpoint_at_a_time(self, lake: Path) -> None:
        under_way: list[Future[float]] = []

        def start(_work: Callable[[], float]) -> Future[float]:
            under_way.append(Future())
            return under_way[-1]

        table = LakeTable.open(lake, NAME, start=start)
        for number in range(3 * CHECKPOINT_EVERY):
            table.append(state(number))
            table.compact()
        assert len(under_way) == 1
        under_way[0].set_result(0.0)
        table.compact()
        assert len(under_way) == 2, "it was due in the meantime"


class TestOthers:
    def test_own_entry_with_a_refused_put_counts(self, lake: Path) -> None:
        """A store has written the entry, answered with an error, and refuses the next request."""
        table, put_new = opened(lake), Folder.put_new

        def refused(place: Folder, path: str, content: bytes) -> bool:
            assert put_new(place, path, content)
            return False

        with mock.patch.object(Folder, "put_new", refused):
            assert table.append(state(1), TransactionId("app", 1)) == 1
        assert gateways(lake) == ["gw1"]

    def test_number_that_another_process_has_used_is_rejected(self, lake: Path) -> None:
        here, there = opened(lake), opened(lake)
        there.append(state(1), TransactionId("app", 1))
        with pytest.raises(LakeError, match="rejected"):
            here.append(state(2), TransactionId("app", 1))
        assert gateways(lake) == ["gw1"]

    def test_fence_that_was_passed_holds_for_later_appends(self, lake: Path) -> None:
        here, there = opened(lake), opened(lake)
        assert not there.settled(TransactionId("app", 7))
        here.append(state(1), TransactionId("other", 1))
        for _ in range(2):
            with pytest.raises(LakeError, match="fenced"):
                here.append(state(2), TransactionId("app", 7))
        here.append(state(3), TransactionId("app", 8))
        assert gateways(lake) == ["gw1", "gw3"]

    def test_deleted_rows_stay_deleted(self, lake: Path) -> None:
        table = opened(lake)
        for number in range(3):
            table.append(state(number))
        DeltaTable(lake / NAME).delete("gateway = 'gw1'")
        table.append(state(3))
        assert gateways(lake) == ["gw0", "gw2", "gw3"]

    def test_columns_of_a_newer_program_stay(self, lake: Path) -> None:
        table = opened(lake)
        newer = DeltaTable(lake / NAME)
        newer.alter.add_columns([type(newer.schema().fields[0])("added", "string", nullable=True)])
        table.append(state(1))
        assert DeltaTable(lake / NAME).to_pyarrow_table().column("added").to_pylist() == [None]

    def test_table_that_demands_more_of_a_writer_is_refused(self, lake: Path) -> None:
        table = opened(lake)
        DeltaTable(lake / NAME).alter.add_constraint({"early": "reported_at > '1970-01-01'"})
        for _ in range(2):
            with pytest.raises(TableMismatch, match="checkConstraints"):
                table.append(state(1))
        with pytest.raises(TableMismatch, match="checkConstraints"):
            opened(lake).append(state(1))
        assert gateways(lake) == []

    @pytest.mark.parametrize("seen_by", ["settled", "transactions", "compact", "fence"])
    def test_table_that_demands_more_is_refused_for_good(self, lake: Path, seen_by: str) -> None:
        """Also when the change was read before an append met it, as the question for a refused commit does."""
        table, commit = opened(lake), TransactionId("hub", 1)
        for number in range(COMPACTED_FILES_MIN):
            table.append(state(number))
        DeltaTable(lake / NAME).alter.add_constraint({"early": "reported_at > '1970-01-01'"})
        match seen_by:
            case "settled":
                assert not table.settled(commit)
            case "transactions":
                assert table.transactions() == {}
            case "fence":
                table.fence({"another": 1})
            case "compact":
                assert table.compact() == 0
        for _ in range(2):
            with pytest.raises(TableMismatch, match="checkConstraints"):
                table.append(state(99), TransactionId("hub", 2))
        assert len(gateways(lake)) == COMPACTED_FILES_MIN

    def test_damaged_entry_of_another_program_is_reported(self, lake: Path) -> None:
        table = opened(lake)
        entry(lake, 1).write_bytes(b"[]\n")
        with pytest.raises(LakeError, match="damaged"):
            table.append(state(1))


class TestLongPause:
    """A hub that stood still for longer than log entries are kept finds the numbers of deleted ones free."""

    def cleaned(self, lake: Path) -> None:
        other = opened(lake)
        for number in range(CHECKPOINT_EVERY):
            other.append(state(number), TransactionId("other", number + 1))
            other.compact()
        for version in range(CHECKPOINT_EVERY - 1):
            entry(lake, version).unlink()

    @pytest.mark.parametrize("transaction", [TransactionId("app", 2), None])
    def test_its_append_is_refused_and_then_lands(self, lake: Path, transaction: TransactionId | None) -> None:
        still = opened(lake)
        still.append(state(98), TransactionId("app", 1))
        self.cleaned(lake)
        with pytest.raises(LakeError, match="long past"):
            still.append(state(99), transaction)
        if transaction is not None:
            assert not entry(lake, 2).exists()
            assert not still.settled(transaction)
            transaction = TransactionId("app", 3)
        still.append(state(99), transaction)
        assert len(gateways(lake)) == CHECKPOINT_EVERY + 2

    def test_its_append_counts_if_only_older_entries_were_deleted(self, lake: Path) -> None:
        table = opened(lake)

        def clean(step: str) -> None:
            if step == "committed":
                DeltaTable(lake / NAME).create_checkpoint()
                entry(lake, table.version - 1).unlink()

        for number, transaction in enumerate((TransactionId("app", 1), None)):
            with mock.patch.object(table, "_failpoint", clean):
                table.append(state(number), transaction)
        assert gateways(lake) == ["gw0", "gw1"]
