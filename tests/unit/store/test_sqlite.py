"""The store on disk: opening, closing, recovery, damage, bounds on work, tools that read it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlite_utils
from msgspec import structs

from bridge.message import Stored
from edge.broker.store import reader, schema, writer
from edge.broker.store.counters import ADDRESS_AGE_S
from edge.broker.store.errors import StoreBusy, StoreDamaged, StoreInaccessible, StoreTooNew
from edge.broker.store.limits import StoreLimits
from edge.broker.store.reader import ReadRequest
from edge.broker.store.segment import SegmentRow, decode
from edge.broker.store.sqlite import FILE_NAME, kept_copies
from edge.broker.store.sqlite_medium import SqliteMedium
from tests.contract.store.rig import Rig, fail_commits, flat, heal, run_of, sqlite_rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = sqlite_rig(tmp_path)
    yield made
    made.store.close()


def crash(rig: Rig, directory: Path, copy: Path) -> Rig:
    """Open a copy of the files as they are, as another process would after a crash."""
    copy.mkdir()
    for path in directory.glob("store.*"):
        (copy / path.name).write_bytes(path.read_bytes())
    return sqlite_rig(copy)


def change(directory: Path, statement: str, *parameters: object) -> int:
    with sqlite3.connect(directory / FILE_NAME) as connection:
        changed = connection.execute(statement, parameters).rowcount
    connection.close()
    return changed


NEXT = (*schema.MIGRATIONS, "ALTER TABLE log ADD COLUMN quota INTEGER NOT NULL DEFAULT 0;\n")
"""Migrations of a next program: columns with defaults, tables."""


def with_messages(directory: Path) -> tuple[Rig, int]:
    """Make a closed store with three messages in log `a`, the first one acknowledged."""
    rig = sqlite_rig(directory)
    log = rig.store.logs.open("a")
    cursor = rig.store.cursors.open("c", log, 0)
    rig.store.logs.append(log, run_of(b"a", b"b", b"c"))
    rig.commit()
    rig.store.cursors.acknowledge(cursor, 0, 0)
    rig.commit()
    rig.store.close()
    return rig, cursor


def migrate(directory: Path, *, compatible_from: int) -> None:
    """Migrate as the next program does at its start."""
    connection = sqlite3.connect(directory / FILE_NAME, isolation_level=None)
    schema.prepare(connection, NEXT, compatible_from)
    connection.close()


class TestCopies:
    """Whole copies of the store: those of killed commands are removed, those made on purpose stay and are named."""

    @pytest.mark.parametrize(
        "name",
        [
            "store.sqlite.salvage",
            "store.sqlite.salvage-wal",
            "store.sqlite.repairing",
            "store.sqlite.repairing-journal",
            "store.sqlite.schema-1-20260101T000000Z.part",
            "store.sqlite.schema-1-20260101T000000Z.part-journal",
        ],
    )
    def test_leftovers_of_a_killed_command_are_removed_at_the_next_start(self, tmp_path: Path, name: str) -> None:
        with_messages(tmp_path)
        (tmp_path / name).write_bytes(b"left")
        sqlite_rig(tmp_path).store.close()
        assert not (tmp_path / name).exists()

    def test_kept_copies_remain_and_are_named(self, tmp_path: Path) -> None:
        with_messages(tmp_path)
        kept = [tmp_path / f"store.sqlite.{kind}-20260101T000000Z" for kind in ("damaged", "schema-1")]
        for each in kept:
            each.write_bytes(b"kept")
        sqlite_rig(tmp_path).store.close()
        assert kept_copies(tmp_path) == dict.fromkeys(kept, 4)


class TestOpen:
    def test_all_state_is_restored(self, rig: Rig) -> None:
        epoch, log = rig.store.lineage.epoch, rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(*[b"%d" % i for i in range(10)]))
        rig.commit()
        rig.store.cursors.acknowledge(cursor, 0, 2)
        rig.store.cursors.acknowledge(cursor, 5, 6)
        rig.store.state.put("session", "s", b"v")
        rig.reopen()
        assert rig.store.lineage.epoch == epoch
        assert rig.store.logs.open("a") == log
        assert rig.store.cursors.open("c", log, 0) == cursor
        assert rig.store.cursors.record(cursor)[3:] == (3, [(5, 6)])
        assert list(rig.store.state.items("session")) == [("s", b"v")]
        assert len(rig.read_all(log)) == 10
        rig.store.logs.append(log, run_of(b"10"))
        assert [stored[:2] for _, stored in rig.commit().appended] == [(10, 10)]
        assert rig.store.logs.open("b") != log

    def test_crash_before_counting_loses_no_count(self, rig: Rig, tmp_path: Path) -> None:
        log, other = rig.store.logs.open("a"), rig.store.logs.open("b")
        rig.store.cursors.open("c", log, 0)
        for i in range(5):
            rig.store.logs.append(log, run_of(b"x", b"y", address=f"plant/{i % 2}"))
            rig.store.logs.append(other, run_of(b"z", address="plant/0"))
            rig.commit()
        after = crash(rig, tmp_path, tmp_path / "copy")
        assert after.store.logs.bounds(log) == rig.store.logs.bounds(log) == (0, 10)
        assert after.store.info()[:3] == rig.store.info()[:3]
        for each in (rig, after):
            for address in ("plant/0", "plant/1", "plant/2"):
                each.store.logs.append(log, run_of(b"x", address=address))
            assert [stored[:2] for _, stored in each.commit().appended] == [(10, 11), (11, 4), (12, 0)]
            each.settle()
            each.reopen()
            each.store.logs.append(log, run_of(b"x", address="plant/1"))
            assert [stored[:2] for _, stored in each.commit().appended] == [(13, 5)]
        after.store.close()

    def test_uncounted_messages_are_bounded(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path, StoreLimits(counted_commits_max=1000, counted_addresses_max=10))
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        rig.commit()
        for i in range(25):
            rig.store.logs.append(log, run_of(b"x", address=f"plant/{i}"))
            rig.commit()
        counted = sqlite_utils.Database(tmp_path / FILE_NAME)["address"].count
        assert counted == 20
        rig.store.close()

    def test_messages_of_a_new_log_are_counted_with_it(self, tmp_path: Path) -> None:
        """A series of thousands of new queues leaves no counters to write."""
        rig = sqlite_rig(tmp_path, StoreLimits(counted_commits_max=1000))
        for name in ("a", "b"):
            log = rig.store.logs.open(name)
            rig.store.logs.append(log, run_of(b"xy", b"z", address=f"plant/{name}"))
            rig.commit()
        rig.store.logs.append(log, run_of(b"x", address="plant/b"))
        rig.commit()
        file = sqlite_utils.Database(tmp_path / FILE_NAME)
        assert [(row["next"], row["bytes"]) for row in file["log"].rows] == [(2, 3), (2, 3)]
        assert {row["name"]: row["next"] for row in file["address"].rows} == {"plant/a": 2, "plant/b": 2}
        rig.settle()
        rig.reopen()
        rig.store.logs.append(log, run_of(b"x", address="plant/b"))
        assert [stored[:2] for _, stored in rig.commit().appended] == [(3, 3)]
        rig.store.close()

    PARTS = StoreLimits(
        counted_commits_max=2, counted_commits_many_max=100, counted_addresses_max=8, counted_addresses_many_max=8,
        counted_at_once=3, counted_logs_few=1, counted_bytes_deleting_max=100,
    )  # fmt: skip

    def counted(self, directory: Path) -> tuple[list[str], int]:
        """Return the addresses with counters on the medium, and the counted end of a log."""
        database = sqlite_utils.Database(directory / FILE_NAME)
        names = [row["name"] for row in database["address"].rows_where(order_by="name")]
        return names, next(iter(database["log"].rows))["next"]

    def test_counters_of_many_addresses_are_written_in_parts_by_name(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path, self.PARTS)
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        rig.commit()
        names = [f"plant/{i}" for i in range(8)]
        for name in reversed(names[1:]):
            rig.store.logs.append(log, run_of(b"x", address=name))
        rig.commit()
        assert self.counted(tmp_path) == ([], 0)
        later = ["z/1", "z/2", "z/3"], ["z/4", "z/5", "z/6"], ["z/7"]
        for more, count, position in zip((names[:1], *later), (0, 3, 6, 8), (0, 0, 0, 8), strict=True):
            for name in more:
                rig.store.logs.append(log, run_of(b"x", address=name))
            rig.commit()
            assert self.counted(tmp_path) == (names[:count], position)
        after = crash(rig, tmp_path, tmp_path / "copy")
        rig.store.logs.append(log, run_of(*[b"x"] * 9, address="plant/7"))
        rig.commit()
        for each, last in ((rig, 10), (after, 1)):
            for name, following in (("plant/0", 1), ("plant/5", 1), ("plant/7", last), ("z/6", 1)):
                each.store.logs.append(each.store.logs.open("a"), run_of(b"x", address=name))
                assert [stored.sequence for _, stored in each.commit().appended] == [following]
        after.store.close()
        rig.store.close()

    def test_failed_part_is_written_later(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path, self.PARTS)
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        for i in range(7):
            rig.store.logs.append(log, run_of(b"x", address=f"plant/{i}"))
        rig.commit()
        fail_commits(rig)
        for name in ("plant/0", "y/1", "y/2"):
            rig.store.logs.append(log, run_of(bytes(20_000), address=name))
        assert rig.commit().error is not None
        heal(rig)
        for i in range(7):
            rig.store.logs.append(log, run_of(b"x", address=f"z/{i}"))
            assert rig.commit().error is None
        assert len(self.counted(tmp_path)[0]) >= 7
        rig.reopen()
        for name, following in (*((f"plant/{i}", 1) for i in range(7)), ("y/1", 0), ("z/6", 1)):
            rig.store.logs.append(log, run_of(b"x", address=name))
            assert [stored.sequence for _, stored in rig.commit().appended] == [following]
        rig.store.close()

    def test_delay_of_counters_is_bounded(self, tmp_path: Path) -> None:
        """The last commit of the wait writes the counters of the first three quarters."""
        rig = sqlite_rig(tmp_path, structs.replace(self.PARTS, counted_commits_many_max=5, counted_addresses_max=50))
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        rig.commit()
        for _ in range(5):
            assert self.counted(tmp_path)[1] == 0
            for j in range(4):
                rig.store.logs.append(log, run_of(b"x", address=f"plant/{j}"))
            rig.commit()
        assert self.counted(tmp_path) == ([f"plant/{j}" for j in range(4)], 12)
        rig.store.close()

    def test_delay_of_counters_is_bounded_by_bytes(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path, structs.replace(self.PARTS, counted_bytes_many_max=4_940, counted_addresses_max=50))
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        rig.commit()
        for _ in range(5):
            assert self.counted(tmp_path)[1] == 0
            for j in range(4):
                rig.store.logs.append(log, run_of(bytes(240), address=f"plant/{j}"))
            rig.commit()
        assert self.counted(tmp_path) == ([f"plant/{j}" for j in range(4)], 12)
        rig.store.close()

    def test_names_count_towards_the_work_of_opening(self, tmp_path: Path) -> None:
        """Names count too, as empty bodies would let names of 64 KiB wait by the thousand."""
        rig = sqlite_rig(tmp_path, StoreLimits(counted_commits_max=1000, counted_bytes_max=1000))
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        rig.commit()
        for i in range(3):
            assert self.counted(tmp_path)[1] == 0
            rig.store.logs.append(log, run_of(b"", address=f"{i}".rjust(400, "x")))
            rig.commit()
        assert self.counted(tmp_path)[1] == 3
        rig.store.close()

    @pytest.mark.parametrize(("each", "parts"), [(1, [0, 4, 8, 11]), (2, [0, 5, 11, 16, 22])])
    def test_parts_are_written_in_time(self, tmp_path: Path, each: int, parts: list[int]) -> None:
        """The parts start with the 12th commit, at three quarters of the wait, and end with the 16th at the latest, so
        no commit writes much. `parts`: counters on the medium from the 12th commit on, with `each` addresses a
        commit."""
        limits = StoreLimits(
            counted_commits_max=1000, counted_commits_many_max=16, counted_addresses_max=50, counted_at_once=4
        )
        rig = sqlite_rig(tmp_path, limits)
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        rig.commit()
        found = []
        for i in range(11 + len(parts)):
            for j in range(each):
                rig.store.logs.append(log, run_of(b"x", address=f"plant/{i:02}{j}"))
            rig.commit()
            found.append(self.counted(tmp_path))
        ends = [0] * (len(parts) - 1) + [11 * each]
        assert [(len(names), position) for names, position in found[11:]] == list(zip(parts, ends, strict=True))
        after = crash(rig, tmp_path, tmp_path / "copy")
        for one in (rig, after):
            for name in ("plant/000", "plant/130", "z"):
                one.store.logs.append(one.store.logs.open("a"), run_of(b"x", address=name))
            assert [stored.sequence for _, stored in one.commit().appended] == [1, 1, 0]
        after.store.close()
        rig.store.close()

    def test_deletable_messages_are_counted_sooner(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path, structs.replace(self.PARTS, counted_addresses_max=50))
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        for i in range(10):
            for j in range(4):
                rig.store.logs.append(log, run_of(b"x", address=f"plant/{j}"))
            rig.commit()
            rig.store.cursors.acknowledge(cursor, 4 * i, 4 * i + 3)
        assert self.counted(tmp_path)[1] >= 20
        rig.store.close()

    def test_messages_arriving_during_the_count_are_deleted_later(self, tmp_path: Path) -> None:
        """The commit that ends a sweep deletes only the messages from before its start, though all are acknowledged."""
        rig = sqlite_rig(tmp_path, self.PARTS)
        log, other = rig.store.logs.open("a"), rig.store.logs.open("b")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.cursors.open("c", other, 0)
        rig.commit()
        for names in ("1234567", "0", "abc", "def"):
            for name in names:
                rig.store.logs.append(log, run_of(b"x", address=name))
            rig.commit()
        rig.store.cursors.acknowledge(cursor, 0, 13)
        rig.store.logs.append(other, run_of(b"x", address="g"))
        rig.commit()
        assert rig.store.logs.bounds(log) == (8, 14)
        rig.settle()
        assert rig.store.logs.bounds(log) == (14, 14)
        rig.store.close()

    def test_counters_of_many_logs_are_written_together(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path, self.PARTS)
        for i in range(3):
            log = rig.store.logs.open(f"log/{i}")
            rig.store.cursors.open(f"c{i}", log, 0)
            for j in range(4):
                rig.store.logs.append(log, run_of(b"x", address=f"plant/{i}{j}"))
            rig.commit()
        assert len(self.counted(tmp_path)[0]) == 12
        rig.store.close()

    @pytest.mark.parametrize("commits", [1, 1_000])
    def test_unused_addresses_leave_memory(self, tmp_path: Path, commits: int) -> None:
        """Addresses leave memory with or without counters on the medium."""
        rig = sqlite_rig(tmp_path, StoreLimits(counted_commits_max=commits, addresses_kept=3))
        log = rig.store.logs.open("a")
        for turn in range(3):
            for i in range(10):
                rig.store.logs.append(log, run_of(b"x", address=f"plant/{i}"))
                assert [stored[:2] for _, stored in rig.commit().appended] == [(10 * turn + i, turn)]
                assert len(rig.store.lineage._counters.sequences) + len(rig.store.lineage._counters._older) <= 5
        assert dict(rig.store.lineage.sequences()) == {f"plant/{i}": 3 for i in range(10)}
        rig.store.close()

    @pytest.mark.parametrize("commits", [1, 1_000])
    def test_addresses_seen_once_leave_memory_and_others_stay(self, tmp_path: Path, commits: int) -> None:
        """Addresses leave memory with or without counters on the medium."""
        rig = sqlite_rig(tmp_path, StoreLimits(counted_commits_max=commits, addresses_new_max=4))
        log, counters = rig.store.logs.open("a"), rig.store.lineage._counters
        for i in range(40):
            rig.store.logs.append(log, run_of(b"x", address=f"once/{i}"))
            rig.store.logs.append(log, run_of(b"x", address=f"often/{i % 2}"))
            assert rig.commit().appended[1][1].sequence == i // 2
            assert counters.sequences.keys() >= {f"often/{each}" for each in range(min(2, i + 1))}
            assert len(counters.sequences) <= 2 + 2 * 5
        for turn in (1, 2):
            for i in range(40):
                rig.store.logs.append(log, run_of(b"x", address=f"once/{i}"))
                assert [stored.sequence for _, stored in rig.commit().appended] == [turn]
        assert len(counters.sequences) == 42, "who came again stays"
        assert dict(rig.store.lineage.sequences()) == {f"once/{i}": 3 for i in range(40)} | {
            "often/0": 20,
            "often/1": 20,
        }
        rig.store.close()

    def test_returning_addresses_are_stored_once(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path, StoreLimits(addresses_kept=3))
        log = rig.store.logs.open("a")
        for turn in range(4):
            for i in range(10):
                rig.store.logs.append(log, run_of(b"x", address=f"plant/{i}"))
            assert {stored.sequence for _, stored in rig.commit().appended} == {turn}
            counters = rig.store.lineage._counters
            assert len(counters.sequences) + len(counters._older) == 10
            rig.now += ADDRESS_AGE_S
        rig.store.close()

    def test_address_counters_leave_memory_and_return(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path, StoreLimits(counted_commits_max=1, addresses_cached_max=3))
        assert isinstance(rig.store.medium, SqliteMedium)
        log = rig.store.logs.open("a")
        for turn in range(3):
            for i in range(10):
                rig.store.logs.append(log, run_of(b"x", address=f"plant/{i}"))
                assert [stored.sequence for _, stored in rig.commit().appended] == [turn]
                assert len(rig.store.lineage._counters.sequences) <= 4
        rig.store.close()

    def test_file_is_private(self, rig: Rig, tmp_path: Path) -> None:
        rig.store.logs.open("a")
        rig.commit()
        assert {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == dict.fromkeys(
            [FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm", "store.lock", "store.opened"], 0
        )

    def test_directory_is_created(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path / "new" / "data")
        rig.store.close()
        assert (tmp_path / "new" / "data" / FILE_NAME).stat().st_size > 0

    def test_durability_settings_are_set(self, rig: Rig) -> None:
        assert isinstance(rig.store.medium, SqliteMedium)
        connection = rig.store.medium.writer._connection
        settings = ("journal_mode", "synchronous", "secure_delete", "wal_autocheckpoint")
        assert [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in settings] == ["wal", 2, 0, 0]


class TestOtherPrograms:
    """The gateway shares the file with other programs, such as the sqlite3 shell."""

    @pytest.mark.parametrize("forked", [False, True])
    def test_program_that_opens_and_closes_the_file_leaves_the_log(
        self, rig: Rig, tmp_path: Path, forked: bool
    ) -> None:
        """SQLite deletes the log with the last connection, which it detects by locks that any close() of the process
        may drop."""
        log = rig.store.logs.open("a")
        rig.store.logs.append(log, run_of(b"0"))
        rig.commit()
        if forked:
            rig.store.lineage.fork("")
        wal = tmp_path / f"{FILE_NAME}-wal"
        before = wal.stat().st_ino
        look = "print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM segment').fetchone())"
        command = [sys.executable, "-W", "ignore", "-c", f"import sqlite3, sys; {look}", str(tmp_path / FILE_NAME)]
        assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "(1,)\n"
        assert wal.stat().st_ino == before
        rig.store.logs.append(log, run_of(b"1"))
        rig.commit()
        assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "(2,)\n"


class TestRefused:
    def test_second_process_is_refused(self, rig: Rig, tmp_path: Path) -> None:
        program = (
            "import sys; from pathlib import Path; from edge.broker.store.sqlite import open_store\n"
            "try: open_store(Path(sys.argv[1]), post=print)\n"
            "except Exception as error: print(type(error).__name__, error)"
        )
        ended = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
        )
        assert ended.stdout.startswith("StoreBusy")
        assert f"in use by process {os.getpid()};" in ended.stdout

    def test_second_store_in_this_process_is_refused_until_the_first_closes(self, rig: Rig, tmp_path: Path) -> None:
        with pytest.raises(StoreBusy, match=str(os.getpid())):
            sqlite_rig(tmp_path)
        rig.reopen()

    def test_newer_store_is_refused(self, tmp_path: Path) -> None:
        sqlite_rig(tmp_path).store.close()
        change(tmp_path, "UPDATE meta SET value = '99:99' WHERE key = 'compatible'")
        change(tmp_path, "PRAGMA user_version = 99")
        with pytest.raises(StoreTooNew, match=r"store\.sqlite: .*99"):
            sqlite_rig(tmp_path)
        change(tmp_path, f"PRAGMA user_version = {len(schema.MIGRATIONS)}")
        sqlite_rig(tmp_path).store.close()  # the refusal left no lock

    def test_previous_program_serves_a_compatible_migration(self, tmp_path: Path) -> None:
        rig, cursor = with_messages(tmp_path)
        epoch = rig.store.lineage.epoch
        migrate(tmp_path, compatible_from=len(schema.MIGRATIONS))
        went_back = sqlite_rig(tmp_path)
        assert went_back.store.lineage.epoch == epoch
        log = went_back.store.logs.open("a")
        assert went_back.store.cursors.open("c", log, 0) == cursor
        went_back.store.logs.append(log, run_of(b"d", b"e"))
        went_back.store.cursors.acknowledge(cursor, 1, 1)
        went_back.commit()
        went_back.store.close()
        with sqlite3.connect(tmp_path / FILE_NAME) as connection:
            assert schema.prepare(connection, NEXT, len(schema.MIGRATIONS)) == epoch
            shown = connection.execute("SELECT name, next_position, quota FROM logs JOIN log USING (name)").fetchall()
            assert shown == [("a", 5, 0)]
        connection.close()
        again = sqlite_rig(tmp_path)
        assert [body for *_, body in again.read_all(log)] == [b"a", b"b", b"c", b"d", b"e"]
        again.store.close()

    def test_store_unreadable_by_the_previous_program_is_refused_unchanged(self, tmp_path: Path) -> None:
        with_messages(tmp_path)
        migrate(tmp_path, compatible_from=len(NEXT))
        before = (tmp_path / FILE_NAME).read_bytes()
        with pytest.raises(StoreTooNew):
            sqlite_rig(tmp_path)
        assert (tmp_path / FILE_NAME).read_bytes() == before

    def test_file_that_is_no_database_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / FILE_NAME).write_bytes(b"not a database, not at all" * 100)
        with pytest.raises(StoreDamaged, match="not a store"):
            sqlite_rig(tmp_path)
        assert (tmp_path / FILE_NAME).read_bytes().startswith(b"not a database")

    def test_database_that_is_no_store_is_refused(self, tmp_path: Path) -> None:
        change(tmp_path, "CREATE TABLE theirs (x)")
        before = (tmp_path / FILE_NAME).read_bytes()
        with pytest.raises(StoreDamaged, match="not a store"):
            sqlite_rig(tmp_path)
        assert (tmp_path / FILE_NAME).read_bytes() == before, "it is still as its program left it"

    def test_directory_that_is_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "data").write_text("x")
        with pytest.raises(StoreInaccessible, match="data"):
            sqlite_rig(tmp_path / "data")

    def test_store_that_is_a_directory_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / FILE_NAME).mkdir()
        with pytest.raises(StoreInaccessible):
            sqlite_rig(tmp_path)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_directory_without_permission_is_refused(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o500)
        with pytest.raises(StoreInaccessible):
            sqlite_rig(tmp_path)
        tmp_path.chmod(0o700)


class TestDamage:
    def test_damaged_segment_is_skipped_by_every_cursor(
        self, rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        for i in range(3):
            rig.store.logs.append(log, run_of(b"%d" % i, b"x"))
            rig.commit()
        rig.reopen()
        assert change(tmp_path, "UPDATE segment SET data = zeroblob(40) WHERE key & 0xfff = 2") == 1
        assert [body for *_, body in rig.read_all(log)] == [b"0", b"x", b"2", b"x"]
        assert "positions 2 to 3 are damaged" in caplog.text
        assert rig.store.cursors.record(cursor).acknowledged == [(2, 3)]
        rig.store.cursors.acknowledge(cursor, 0, 1)
        assert rig.store.cursors.record(cursor).position == 4
        rig.settle()
        assert rig.store.logs.bounds(log) == (4, 6)

    def test_newest_messages_damaged_before_counting_are_handled(self, rig: Rig, tmp_path: Path) -> None:
        log = rig.store.logs.open("a")
        rig.commit()
        rig.store.logs.append(log, run_of(b"x"))
        rig.commit()
        change(tmp_path, "UPDATE segment SET crc = crc + 1")
        with pytest.raises(StoreDamaged, match="from position 0"):
            crash(rig, tmp_path, tmp_path / "copy")

    def test_damaged_ranges_of_a_cursor_are_handled(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path)
        rig.store.cursors.open("c", rig.store.logs.open("a"), 0)
        rig.store.close()
        change(tmp_path, "UPDATE cursor SET acknowledged = x'00'")
        with pytest.raises(StoreDamaged, match="cursor 'c'"):
            sqlite_rig(tmp_path)


class TestBoundedWork:
    def test_commit_deletes_a_bounded_number_and_the_next_continues(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path, StoreLimits(reclaim_rows_max=10))
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        for _ in range(35):
            rig.store.logs.append(log, run_of(b"x"))
            rig.commit()
        rig.store.cursors.acknowledge(cursor, 0, 34)
        firsts = []
        for _ in range(4):
            rig.commit()
            firsts.append(rig.store.logs.bounds(log)[0])
        assert firsts == [10, 20, 30, 35]
        rig.settle()
        rig.store.close()

    def test_deletion_is_bounded_by_bytes(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path, StoreLimits(reclaim_bytes_max=1000))
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        for _ in range(9):
            rig.store.logs.append(log, run_of(b"x" * 400))
            rig.commit()
        rig.store.cursors.acknowledge(cursor, 0, 8)
        rig.commit()
        assert rig.store.logs.bounds(log) == (3, 9)
        rig.settle()
        assert rig.store.logs.bounds(log) == (9, 9)
        assert rig.store.info().bytes == 0
        rig.store.close()

    def test_busy_store_deletes_only_when_it_counts(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path, StoreLimits(counted_commits_max=5))
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        firsts = []
        for i in range(11):
            rig.store.logs.append(log, run_of(b"x"))
            rig.commit()
            firsts.append(rig.store.logs.bounds(log)[0])
            rig.store.cursors.acknowledge(cursor, i, i)
        assert firsts == [0, 0, 0, 0, 4, 4, 4, 4, 4, 9, 9]
        rig.store.close()

    def test_messages_counted_later_are_deleted(self, tmp_path: Path) -> None:
        """Counted messages of an idle log are deleted without an acknowledgement, as its quota may be full."""
        rig = sqlite_rig(tmp_path, StoreLimits(reclaim_rows_max=2))
        log, other = rig.store.logs.open("a"), rig.store.logs.open("b")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.cursors.open("c", other, 0)
        for _ in range(5):
            rig.store.logs.append(log, run_of(b"x"))
            rig.commit()
        rig.store.cursors.acknowledge(cursor, 0, 4)
        rig.commit()
        rig.store.logs.append(log, run_of(b"x"))
        rig.commit()
        assert rig.store.logs.bounds(log) == (4, 6)
        rig.store.cursors.acknowledge(cursor, 5, 5)
        rig.store.logs.append(other, run_of(b"x"))
        rig.commit()
        assert rig.store.logs.bounds(log) == (5, 6)
        rig.settle()
        assert rig.store.logs.bounds(log) == (6, 6)
        rig.store.close()

    def test_space_is_reused(self, rig: Rig, tmp_path: Path) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        for i in range(40):
            rig.store.logs.append(log, run_of(b"x" * 500_000))
            rig.commit()
            rig.store.cursors.acknowledge(cursor, i, i)
            rig.settle()
        rig.reopen()
        assert (tmp_path / FILE_NAME).stat().st_size < 3_000_000

    def test_free_space_is_limited_by_medium_and_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Full:
            f_bavail, f_frsize = 0, 4096

        rig = sqlite_rig(tmp_path, StoreLimits(checkpoint_bytes=1_000_000))
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(b"x" * 100_000))
        rig.commit()
        monkeypatch.setattr(os, "statvfs", lambda _: Full)
        assert rig.store.retention.free_bytes() == 0, "the log has what the file is yet to grow by"
        for i in range(40):
            rig.store.logs.append(log, run_of(b"x" * 100_000))
            rig.commit()
            rig.store.cursors.acknowledge(cursor, i, i)
            rig.settle()
            if rig.store.retention.free_bytes():
                break
        assert (tmp_path / FILE_NAME).stat().st_size > 100_000, "moved into the file, where pages are free"
        assert rig.store.retention.free_bytes()
        rig.store.close()

    def test_large_commit_is_split_into_bounded_segments(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path, StoreLimits(segment_bytes_max=1000))
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        runs = [run_of(*[b"%4d" % i] * 100) for i in range(10)] + [run_of(b"y" * 5000), run_of(b"z")]
        for run in runs:
            rig.store.logs.append(log, run)
        committed = rig.commit()
        assert [stored.run for _, stored in committed.appended] == runs
        sizes = [row["body_bytes"] for row in sqlite_utils.Database(tmp_path / FILE_NAME)["segment"].rows]
        assert sorted(sizes) == [1, 800, 800, 800, 800, 800, 5000]
        assert [body for *_, body in rig.read_all(log)] == [body for run in runs for body in run.bodies]
        rig.store.close()

    def test_many_small_reads_decode_a_segment_once(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        decoded: list[int] = []

        def watched(row: SegmentRow, position: int) -> list[Stored]:
            decoded.append(position)
            return decode(row, position)

        monkeypatch.setattr(reader, "decode", watched)
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        for i in range(50):
            rig.store.logs.append(log, run_of(b"%d" % i))
        rig.commit()
        assert len(rig.read_all(log, bytes_max=1)) == 50
        assert decoded == [0]
        assert isinstance(rig.store.medium, SqliteMedium)
        assert not rig.store.medium.reader._partly_read

    def test_write_ahead_log_is_moved_into_the_file(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path, StoreLimits(checkpoint_bytes=100_000))
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        for _ in range(30):
            rig.store.logs.append(log, run_of(b"x" * 20_000))
            rig.commit()
        assert (tmp_path / FILE_NAME).stat().st_size > 300_000
        assert (tmp_path / f"{FILE_NAME}-wal").stat().st_size < 300_000
        rig.store.close()
        assert not (tmp_path / f"{FILE_NAME}-wal").exists()


class TestTools:
    def test_views_are_readable_while_the_store_runs(self, rig: Rig, tmp_path: Path) -> None:
        log = rig.store.logs.open("topic plant/#")
        cursor = rig.store.cursors.open("uplink", log, 0)
        rig.store.logs.append(log, run_of(b"123", b"4"))
        rig.commit()
        rig.store.logs.append(log, run_of(b"5"))
        rig.commit()
        rig.store.cursors.acknowledge(cursor, 0, 0)
        rig.settle()
        database = sqlite_utils.Database(tmp_path / FILE_NAME)
        rows = list(database["segments"].rows)
        assert [(r["log"], r["first_position"], r["last_position"], r["body_bytes"]) for r in rows] == [
            ("topic plant/#", 0, 1, 4),
            ("topic plant/#", 2, 2, 1),
        ]
        assert all(row["boot_id"] for row in rows)
        assert list(database["backlog"].rows) == [
            {"cursor": "uplink", "log": "topic plant/#", "position": 1, "next_position": 3, "behind": 2}
        ]
        assert list(database["logs"].rows) == [{"name": "topic plant/#", "first_position": 0, "next_position": 3}]
        database.close()

    def test_plans_seek_and_never_scan(self, rig: Rig, tmp_path: Path) -> None:
        connection = sqlite3.connect(tmp_path / FILE_NAME)
        deleting = {"first": 0, "limit": 9, "rows": 5, "bytes": 5}
        for statement, parameters in (
            (reader.SCAN, (0, 9)),
            (reader._SEEK, (0, 9)),
            (writer._DELETE, deleting),
        ):
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            assert any("SEARCH segment USING INTEGER PRIMARY KEY" in step for step in plan)
            assert not [step for step in plan if step.startswith("SCAN segment")]
        connection.close()


def test_read_during_deletion_starts_at_the_first_kept_message(rig: Rig) -> None:
    log = rig.store.logs.open("a")
    cursor = rig.store.cursors.open("c", log, 0)
    for _ in range(4):
        rig.store.logs.append(log, run_of(b"x"))
        rig.commit()
    rig.store.cursors.acknowledge(cursor, 0, 1)
    rig.settle()
    assert isinstance(rig.store.medium, SqliteMedium)
    runs = rig.store.medium.reader.read(ReadRequest(log, "a", 0, 4, 1000, print))
    assert [position for position, *_ in flat(runs)] == [2, 3]
