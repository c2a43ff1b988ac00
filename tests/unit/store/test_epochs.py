"""Epochs of a store: the epoch of each message, and the detection of an older copy of the store."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest

from bridge.message import Run
from edge.broker.store import openings
from edge.broker.store.limits import OPENINGS_MAX
from edge.broker.store.sqlite import FILE_NAME
from tests.contract.store.rig import Rig, sqlite_rig
from tests.support.stores import change


def append(rig: Rig, address: str, count: int = 1, log_name: str = "topic #") -> None:
    log = rig.store.logs.open(log_name)
    rig.store.cursors.open("c", log, 0)
    rig.store.logs.append(log, Run(address, "d", 1, b"", [b"x"] * count, 1))
    rig.commit()


def closed(data: Path, *addresses: str) -> tuple[str, list[str]]:
    """Open, append, close; return (epoch, known openings)."""
    rig = sqlite_rig(data)
    for address in addresses:
        append(rig, address)
    rig.store.close()
    return rig.store.lineage.epoch, list(rig.store.lineage.openings)


class TestOpenings:
    def test_each_opening_has_a_name_and_all_are_known(self, tmp_path: Path) -> None:
        _, first = closed(tmp_path)
        _, second = closed(tmp_path)
        assert len(first) == 1
        assert second[:1] == first
        assert len(set(second)) == 2
        assert openings.read_companion(tmp_path) == second[-1]

    def test_openings_are_bounded(self, tmp_path: Path) -> None:
        for _ in range(OPENINGS_MAX):
            _, known = closed(tmp_path)
        assert len(known) == OPENINGS_MAX
        oldest = known[0]
        _, known = closed(tmp_path)
        assert len(known) == OPENINGS_MAX
        assert oldest not in known

    def test_restart_is_not_a_copy(self, tmp_path: Path) -> None:
        epoch, _ = closed(tmp_path, "a")
        assert closed(tmp_path, "a")[0] == epoch

    @pytest.mark.parametrize("content", [b"", b"abc", b"\xff" * 33])
    def test_torn_companion_gives_no_information(self, tmp_path: Path, content: bytes) -> None:
        epoch, _ = closed(tmp_path, "a")
        (tmp_path / openings.COMPANION).write_bytes(content)
        assert closed(tmp_path)[0] == epoch

    def test_restored_file_is_detected(self, tmp_path: Path) -> None:
        epoch, _ = closed(tmp_path, "a", "a")
        copy = (tmp_path / FILE_NAME).read_bytes()
        closed(tmp_path, "a", "b")
        (tmp_path / FILE_NAME).write_bytes(copy)
        rig = sqlite_rig(tmp_path)
        append(rig, "a")
        append(rig, "b")
        assert rig.store.lineage.epoch != epoch
        assert list(rig.store.lineage.epochs.parts("a", 0, 2)) == [(epoch, 0, 1), (rig.store.lineage.epoch, 2, 2)]
        assert rig.store.lineage.epochs.of("b", 0) == rig.store.lineage.epoch
        rig.store.close()
        assert closed(tmp_path)[0] == rig.store.lineage.epoch

    def test_new_store_next_to_an_old_companion_is_new(self, tmp_path: Path) -> None:
        closed(tmp_path, "a")
        (tmp_path / FILE_NAME).unlink()
        rig = sqlite_rig(tmp_path)
        assert rig.store.lineage.epochs.single
        rig.store.close()

    def test_medium_that_records_no_opening_is_handled(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """The store starts without a new opening and keeps the earlier ones."""
        _, known = closed(tmp_path, "a")
        change(tmp_path / FILE_NAME, "CREATE TRIGGER full BEFORE INSERT ON opening BEGIN SELECT raise(FAIL, 'no'); END")
        assert closed(tmp_path, "a")[1] == known
        assert "cannot be recorded" in caplog.text

    def test_damaged_openings_identify_no_store(self, tmp_path: Path) -> None:
        """The ends of the opening before count, so a message gets a new name and never a used one."""
        rig = sqlite_rig(tmp_path)
        append(rig, "a")
        rig.reopen()
        shared = rig.store.lineage.openings[-1]
        append(rig, "a")
        rig.reopen()
        append(rig, "a")
        change(tmp_path / FILE_NAME, "UPDATE opening SET ends = '{', id = CAST(x'fe' AS TEXT) WHERE number = 3")
        rig.reopen()
        rig.store.lineage.fork(shared)
        assert list(rig.store.lineage.epochs.parts("a", 0, 2))[1:] == [(rig.store.lineage.epoch, 1, 2)]
        rig.store.close()


class TestManyLogs:
    """A start writes the ends of the logs that changed since an older opening."""

    LOGS = 400

    def started(self, data: Path, *addresses: str) -> list[str]:
        """Open, append to some, close; return the known openings."""
        rig = sqlite_rig(data)
        for address in addresses:
            append(rig, address, log_name=f"log {address}")
        rig.store.close()
        return list(rig.store.lineage.openings)

    def many(self, data: Path) -> None:
        rig = sqlite_rig(data)
        for i in range(self.LOGS):
            rig.store.logs.open(f"log {i}")
        rig.commit()
        append(rig, "a", log_name="log a")
        rig.store.close()

    def sizes(self, data: Path) -> list[int]:
        with contextlib.closing(sqlite3.connect(data / FILE_NAME)) as connection:
            return [size for (size,) in connection.execute("SELECT length(ends) FROM opening ORDER BY number")]

    def test_little_is_written_for_many_logs(self, tmp_path: Path) -> None:
        self.many(tmp_path)
        self.started(tmp_path, "a", "b")
        self.started(tmp_path, "b")
        self.started(tmp_path)
        first, whole, *others = self.sizes(tmp_path)
        assert first < 20
        assert whole > 6 * self.LOGS
        assert [size < 100 for size in others] == [True, True]
        rig = sqlite_rig(tmp_path)
        logs = {name: rig.store.logs.open(f"log {name}") for name in "ab"}
        ended = [ends for ends in rig.store.lineage.opening_ends() if ends is not None]
        assert [[ends.get(logs[name], 0) for name in "ab"] for ends in ended[:4]] == [[2, 2], [2, 2], [2, 1], [1, 0]]
        assert all(len(ends) >= self.LOGS for ends in ended[:4])
        rig.store.close()

    def test_log_that_others_refer_to_is_kept_as_long_as_they(self, tmp_path: Path) -> None:
        self.many(tmp_path)
        for _ in range(OPENINGS_MAX + 2):
            known = self.started(tmp_path, "a")
        assert len(known) == OPENINGS_MAX + 1
        assert sum(self.sizes(tmp_path)) < 20 * self.LOGS
        rig = sqlite_rig(tmp_path)
        assert all(ends is not None and len(ends) >= self.LOGS for ends in rig.store.lineage.opening_ends())
        rig.store.close()

    def test_many_changed_logs_are_written_completely(self, tmp_path: Path) -> None:
        self.many(tmp_path)
        rig = sqlite_rig(tmp_path)
        for i in range(self.LOGS):
            rig.store.logs.append(rig.store.logs.open(f"log {i}"), Run(str(i), "d", 1, b"", [b"x"], 1))
        rig.commit()
        rig.store.close()
        self.started(tmp_path)
        self.started(tmp_path, "a")
        assert [size > 6 * self.LOGS for size in self.sizes(tmp_path)] == [False, True, True, False]

    def test_copy_is_detected_by_its_changes(self, tmp_path: Path) -> None:
        self.many(tmp_path)
        self.started(tmp_path, "a")
        known = self.started(tmp_path, "a")
        self.started(tmp_path, "a")
        rig = sqlite_rig(tmp_path)
        epoch = rig.store.lineage.epoch
        rig.store.lineage.fork(known[-1])
        new = rig.store.lineage.epoch
        assert list(rig.store.lineage.epochs.parts("a", 0, 3)) == [(epoch, 0, 2), (new, 3, 3)]
        rig.store.close()

    def test_damaged_entry_invalidates_entries_that_refer_to_it(self, tmp_path: Path) -> None:
        self.many(tmp_path)
        self.started(tmp_path, "a")
        self.started(tmp_path, "a")
        change(tmp_path / FILE_NAME, "UPDATE opening SET ends = '{' WHERE number = 2")
        rig = sqlite_rig(tmp_path)
        newest, *others = rig.store.lineage.opening_ends()
        assert newest is not None
        assert others[:2] == [None, None]
        rig.store.close()


class TestFork:
    def test_fork_names_messages_since_the_shared_opening(self, tmp_path: Path) -> None:
        epoch, _ = closed(tmp_path, "a", "b")
        _, known = closed(tmp_path, "a", "c")  # the last one the hub knows
        closed(tmp_path, "a")
        rig = sqlite_rig(tmp_path)
        append(rig, "a", 3)
        rig.store.lineage.fork(known[-1])
        append(rig, "a")
        append(rig, "b")
        new = rig.store.lineage.epoch
        assert new != epoch
        assert list(rig.store.lineage.epochs.parts("a", 0, 6)) == [(epoch, 0, 1), (new, 2, 6)]
        assert list(rig.store.lineage.epochs.parts("b", 0, 1)) == [(epoch, 0, 0), (new, 1, 1)]
        assert list(rig.store.lineage.epochs.parts("c", 0, 1)) == [(epoch, 0, 0), (new, 1, 1)]
        assert rig.store.lineage.epochs.of("d", 0) == new
        assert (rig.store.lineage.epochs.start("a"), rig.store.lineage.epochs.start("d")) == (2, 0)
        assert sorted(rig.store.lineage.epochs.before()) == [(new, "a", 1), (new, "b", 0), (new, "c", 0)]
        rig.store.close()

    def test_copy_without_a_shared_opening_forks_completely(self, tmp_path: Path) -> None:
        """Messages up to the oldest known opening keep their name."""
        rig = sqlite_rig(tmp_path)
        append(rig, "a", 2)
        epoch = rig.store.lineage.epoch
        rig.store.lineage.fork("")
        assert list(rig.store.lineage.epochs.parts("a", 0, 1)) == [(rig.store.lineage.epoch, 0, 1)]
        assert rig.store.lineage.epoch != epoch
        rig.store.close()

    def test_store_may_fork_twice(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path)
        names = [rig.store.lineage.epoch]
        for _ in range(2):
            append(rig, "a", 2)
            rig.reopen()
            rig.store.lineage.fork(rig.store.lineage.openings[-2])
            names.append(rig.store.lineage.epoch)
        append(rig, "late")
        assert list(rig.store.lineage.epochs.parts("a", 0, 5)) == list(zip(names, (0, 2, 4), (1, 3, 5), strict=True))
        assert list(rig.store.lineage.epochs.parts("a", 1, 2)) == [(names[0], 1, 1), (names[1], 2, 2)]
        assert list(rig.store.lineage.epochs.parts("late", 0, 0)) == [(names[2], 0, 0)]
        rig.store.close()

    def test_copy_of_the_directory_is_detected(self, tmp_path: Path) -> None:
        """Only a client that has seen the later life can detect the copy."""
        closed(tmp_path / "data", "a")
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        epoch, later = closed(tmp_path / "data", "a")
        same, known = closed(tmp_path / "copy", "a")
        assert same == epoch
        assert later[-1] not in known
        assert later[0] in known

    def test_messages_only_in_memory_are_included(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path)
        log = rig.store.logs.open("topic #")
        rig.store.cursors.open("c", log, 0)
        rig.store.logs.keep_in_memory(log, keep=True)
        for _ in range(3):
            rig.store.logs.append(log, Run("a", "d", 1, b"", [b"x"], 1))
            if (
                not rig.store.info().memory_bytes and rig.store.commits.flush()
            ):  # the first message waits for its numbers
                while rig.store.commits.committing:
                    rig.turn()
        epoch = rig.store.lineage.epoch
        assert rig.store.info().memory_bytes
        rig.store.lineage.fork("")
        assert list(rig.store.lineage.epochs.parts("a", 0, 3)) == [(rig.store.lineage.epoch, 0, 3)]
        assert rig.store.lineage.epoch != epoch
        rig.store.close()
