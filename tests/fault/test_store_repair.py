"""Repair keeps valid data, puts the rest in the ledger, and lets the gateway start again."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from pathlib import Path

import msgspec
import pytest

from edge.appliance.main import run
from edge.appliance.store.recovery import repair as repairing
from edge.appliance.store.recovery.found_logs import RECOVERED
from edge.appliance.store.recovery.repair import repair
from edge.appliance.store.recovery.verification import verify
from edge.broker.delivery.durable import Declaration
from edge.broker.store.errors import StoreDamaged
from edge.broker.store.sqlite import FILE_NAME, open_store
from edge.output.errors import Exit
from tests.contract.store.rig import sqlite_rig
from tests.fault.store.repairs import Lost, leftovers, messages, repaired
from tests.support.seeds import chosen_seed
from tests.support.stores import FORWARDER, Made, change, key, make, rot

ROUNDS = 60
SEED = 19
"""Seed of the damage that every run of the tests makes; ``WAYPOST_SEED=random``, or a number, makes other."""


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return make(tmp_path / "data")


def owed(data: Path) -> set[tuple[str, int]]:
    """Return (address, sequence) of messages that a consumer group has not acknowledged."""
    rig = sqlite_rig(data)
    try:
        records = [rig.store.cursors.record(cursor.cursor) for cursor in rig.store.info().cursors]
        return {
            (address, sequence)
            for record in records
            for position, address, sequence, _ in rig.read_all(record.log, record.position)
            if not any(first <= position <= last for first, last in record.acknowledged)
        }
    finally:
        rig.store.close()


class TestKnown:
    def test_damaged_segment_is_lost_and_in_the_ledger(self, made: Made) -> None:
        before = messages(made.path.parent)
        rot(made.path, 1, 100)
        done = repaired(made)
        assert (done.new_epoch, done.epoch, done.lost_messages) == (False, made.epoch, 10)
        after = messages(made.path.parent)
        assert set(before) - set(after) == {("jobs", n) for n in range(100, 110)}
        assert Lost(made.path.parent).rows == [("queue", "jobs", 100, 109, 10)]
        assert all(before[name] == body for name, body in after.items())

    def test_second_repair_keeps_ledger_entry_of_the_first(self, made: Made) -> None:
        rot(made.path, 1, 100)
        repaired(made)
        rot(made.path, 2, 110)
        done = repaired(made)
        assert done.lost_messages == 11
        assert Lost(made.path.parent).rows == [
            ("queue", "jobs", 100, 109, 10), (FORWARDER, "plant/3/temp", 11, 21, 11)
        ]  # fmt: skip

    def test_damaged_acknowledged_messages_are_no_loss(self, made: Made) -> None:
        rot(made.path, 1, 50)
        change(made.path, "UPDATE cursor SET position = 60 WHERE name = 'queue'")
        assert repaired(made).lost_messages == 0
        assert Lost(made.path.parent).rows == []

    def test_unacknowledged_part_of_damaged_first_segment_is_lost(self, made: Made) -> None:
        rot(made.path, 1, 50)
        assert repaired(made).lost_messages == 5  # 50 to 54 are acknowledged
        assert Lost(made.path.parent).rows == [("queue", "jobs", 55, 59, 5)]

    def test_missing_newest_messages_are_counted_by_address_counter(self, made: Made) -> None:
        """The newest messages of a log without a row are counted by the counter of its address."""
        change(made.path, "DELETE FROM segment WHERE key >> 44 = 1 AND key >= ?", key(1, 150))
        change(made.path, "DELETE FROM log WHERE log = 1")
        done = repaired(made)
        assert (done.new_epoch, done.lost_messages) == (True, 50)
        assert Lost(made.path.parent).rows == [("queue", "jobs", 150, 199, 50)]

    def test_loss_of_whole_queue_is_in_the_ledger(self, made: Made) -> None:
        change(made.path, "UPDATE segment SET crc = crc + 1 WHERE key >> 44 = 1")
        done = repaired(made)
        assert (done.lost_messages, done.new_epoch) == (145, False)
        assert Lost(made.path.parent).rows == [("queue", "jobs", 55, 199, 145)]

    def test_wrong_start_of_log_loses_nothing(self, made: Made) -> None:
        change(made.path, "UPDATE log SET first = 150 WHERE log = 1")
        assert repaired(made).lost_messages == 0
        assert len(messages(made.path.parent)) == made.messages

    def test_impossible_end_of_log_starts_new_epoch_and_loses_nothing(self, made: Made) -> None:
        change(made.path, f"UPDATE log SET next = {1 << 50} WHERE log = 1")
        done = repaired(made)
        assert (done.lost_messages, done.new_epoch) == (0, True)
        assert len(messages(made.path.parent)) == made.messages

    def test_lost_uncounted_segment_starts_new_epoch(self, tmp_path: Path) -> None:
        made = make(tmp_path / "data", crashed=True)
        rot(made.path, 1, 200)
        with pytest.raises(StoreDamaged):
            open_store(made.path.parent, post=lambda _: None)
        done = repaired(made)
        assert done.new_epoch
        assert done.epoch != made.epoch
        names = messages(made.path.parent)
        assert max(sequence for address, sequence in names if address == "jobs") == 199
        with contextlib.closing(open_store(made.path.parent, post=lambda _: None)) as store:
            assert list(store.lineage.epochs.parts("jobs", 50, 215)) == [(made.epoch, 50, 209), (done.epoch, 210, 215)]
        assert ("jobs", 209) in Lost(made.path.parent)

    def test_newest_segment_without_addresses_starts_new_epoch(self, tmp_path: Path) -> None:
        made = make(tmp_path / "data", crashed=True)
        change(made.path, "UPDATE segment SET data = zeroblob(length(data)) WHERE key = ?", key(1, 200))
        done = repaired(made)
        assert done.new_epoch
        assert Lost(made.path.parent).rows == [("queue", "$log/queue jobs", 200, 200, 1)]  # at least
        with contextlib.closing(open_store(made.path.parent, post=lambda _: None)) as store:
            assert list(store.lineage.epochs.parts("jobs", 50, 209)) == [(made.epoch, 50, 199), (done.epoch, 200, 209)]

    @pytest.mark.parametrize(
        ("statement", "new_epoch", "note"),
        [
            ("DELETE FROM meta WHERE key = 'epoch'", True, "epoch"),
            ("UPDATE cursor SET acknowledged = x'4901' WHERE name = 'queue'", False, "out of order"),
            ("UPDATE cursor SET position = 999 WHERE name = 'queue'", False, "beyond"),
            ("UPDATE cursor SET log = 77 WHERE name = 'queue'", False, "is dropped"),
            ("DELETE FROM log WHERE log = 2", True, "is lost"),
            ("UPDATE address SET next = 3 WHERE name = 'jobs'", False, ""),
            ("UPDATE log SET bytes = 5 WHERE log = 1", False, ""),
        ],
    )
    def test_damaged_row_is_repaired_without_loss(self, made: Made, statement: str, new_epoch: bool, note: str) -> None:
        change(made.path, statement)
        done = repaired(made)
        assert done.new_epoch is new_epoch
        assert note in " ".join(done.notes)
        assert done.messages == made.messages
        with sqlite3.connect(made.path) as connection:
            kinds = connection.execute("SELECT kind FROM state WHERE kind = 'session'").fetchall()
        connection.close()
        assert kinds == [("session",)]

    def test_log_without_cursors_keeps_its_messages(self, made: Made) -> None:
        change(made.path, "DELETE FROM log WHERE log = 2")
        repaired(made)
        store = open_store(made.path.parent, post=lambda _: None)
        assert {log.name for log in store.info().logs} == {"queue jobs", f"{RECOVERED} 2"}
        assert {cursor.name for cursor in store.info().cursors} == {"queue", FORWARDER}
        store.close()


def tear(path: Path, table: str) -> None:
    """Make the first page of a table's tree unreadable."""
    connection = sqlite3.connect(path)
    (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)


class TestTrees:
    def test_groups_without_cursors_restart_at_first_stored_message(self, made: Made) -> None:
        declaration = Declaration(name="mqtt/s1", pattern="plant/+/temp")
        value = msgspec.msgpack.encode(declaration)
        change(made.path, "INSERT INTO state VALUES ('subscription', 'mqtt/s1', ?)", value)
        rot(made.path, 2, 110)
        tear(made.path, "cursor")
        tear(made.path, "sqlite_autoindex_cursor_1")
        done = repaired(made)
        assert "begins" in " ".join(done.notes) or "gets the kept messages again" in " ".join(done.notes)
        assert Lost(made.path.parent).rows == [("mqtt/s1", "plant/3/temp", 11, 21, 11)]
        with contextlib.closing(open_store(made.path.parent, post=lambda _: None)) as store:
            assert {(cursor.name, cursor.position) for cursor in store.cursor_records()} == {
                ("mqtt/s1", 0),
                ("queue", 50),
            }

    def test_groups_are_restored_from_the_index(self, made: Made) -> None:
        rot(made.path, 2, 110)
        tear(made.path, "cursor")
        repaired(made)
        assert Lost(made.path.parent).rows == [(FORWARDER, "plant/3/temp", 11, 21, 11)]
        with contextlib.closing(open_store(made.path.parent, post=lambda _: None)) as store:
            assert {(cursor.name, cursor.position) for cursor in store.cursor_records()} == {
                (FORWARDER, 0),
                ("queue", 50),
            }

    def test_loss_of_unknown_groups_is_in_the_ledger(self, made: Made) -> None:
        rot(made.path, 2, 110)
        tear(made.path, "cursor")
        tear(made.path, "sqlite_autoindex_cursor_1")
        repaired(made)
        assert Lost(made.path.parent).rows == [(RECOVERED, "plant/3/temp", 11, 21, 11)]
        with contextlib.closing(open_store(made.path.parent, post=lambda _: None)) as store:
            assert {cursor.name for cursor in store.cursor_records()} == {RECOVERED, "queue"}

    def test_counters_are_restored_from_the_messages(self, made: Made) -> None:
        tear(made.path, "address")
        assert repaired(made).new_epoch
        with contextlib.closing(open_store(made.path.parent, post=lambda _: None)) as store:
            assert dict(store.lineage.sequences())["jobs"] == 200

    def test_torn_root_of_segment_tree_loses_nothing(self, made: Made) -> None:
        before = messages(made.path.parent)
        tear(made.path, "segment")
        done = repaired(made)
        assert (done.messages, done.lost_messages, done.new_epoch) == (made.messages, 0, True)
        assert messages(made.path.parent) == before

    def test_loss_of_all_messages_is_in_the_ledger(self, made: Made) -> None:
        change(made.path, "UPDATE segment SET crc = crc + 1")
        tear(made.path, "segment")
        done = repaired(made)
        assert (done.messages, done.lost_messages) == (0, 145 + 209)
        lost = Lost(made.path.parent)
        assert ("jobs", 199) in lost
        assert ("plant/6/temp", 0) in lost

    def test_missing_epoch_is_repaired(self, made: Made) -> None:
        change(made.path, "INSERT INTO epoch VALUES (1, 'e', 0, 'x')")
        assert [finding.where for finding in verify(made.path).findings if finding.damage] == ["file"]
        with pytest.raises(StoreDamaged):
            open_store(made.path.parent, post=lambda _: None)
        done = repaired(made)
        assert "an epoch is missing" in " ".join(done.notes)
        assert done.epoch == made.epoch


class TestSafety:
    def test_a_dry_run_changes_nothing(self, made: Made, capsys: pytest.CaptureFixture[str]) -> None:
        rot(made.path, 1, 100)
        before = made.path.read_bytes()
        assert run(["store", "repair", "--data", str(made.path.parent)]) == Exit.INTEGRITY
        out, err = capsys.readouterr()
        assert "lost: 10 messages" in out
        assert "--yes makes" in err
        assert made.path.read_bytes() == before
        assert leftovers(made.path.parent) == set()
        assert list(made.path.parent.glob("*.damaged-*")) == []

    def test_command_repairs_once(self, made: Made, capsys: pytest.CaptureFixture[str]) -> None:
        rot(made.path, 1, 100)
        assert run(["store", "repair", "--data", str(made.path.parent), "--yes"]) == 0
        assert "repaired and verified" in capsys.readouterr().out
        assert run(["store", "repair", "--data", str(made.path.parent), "--yes"]) == 0
        assert "nothing to repair" in capsys.readouterr().out

    def test_command_is_refused_while_gateway_runs(self, made: Made, capsys: pytest.CaptureFixture[str]) -> None:
        rot(made.path, 1, 100)
        rig = sqlite_rig(made.path.parent)
        assert run(["store", "repair", "--data", str(made.path.parent), "--yes"]) == Exit.FAILED
        assert "stop the gateway" in capsys.readouterr().err
        rig.store.close()

    @pytest.mark.parametrize("step", range(4))
    def test_interrupted_repair_can_be_repeated(
        self, tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = make(tmp_path / "data", crashed=True)
        rot(made.path, 1, 100)
        calls: list[str] = []

        def cut(name: str, real: object) -> object:
            def call(*arguments: object, **options: object) -> object:
                calls.append(name)
                if len(calls) > step:
                    raise KeyboardInterrupt
                return real(*arguments, **options)  # type: ignore[operator]

            return call

        with monkeypatch.context() as patched:
            patched.setattr(repairing.os, "link", cut("link", repairing.os.link))
            patched.setattr(repairing.Path, "unlink", cut("unlink", Path.unlink))
            patched.setattr(repairing, "sync_path", cut("sync", repairing.sync_path))
            with pytest.raises(KeyboardInterrupt):
                repair(made.path.parent, write=True)
        if (made.path.parent / "store.sqlite.repaired").exists():
            with pytest.raises(StoreDamaged, match="interrupted"):
                open_store(made.path.parent, post=lambda _: None)
        for left in (*made.path.parent.glob("*.salvage*"), *made.path.parent.glob("*.repairing*")):
            left.unlink()
        repaired(made)
        assert len(messages(made.path.parent)) == made.messages - 10


def test_repair_after_random_damage_accounts_for_every_message(tmp_path: Path) -> None:
    """After damage anywhere, a repaired store is valid, contains only original messages, and accounts for the rest."""
    seed = chosen_seed(SEED)
    dice = random.Random(seed)
    make(tmp_path / "sound", 60)
    shutil.copytree(tmp_path / "sound", tmp_path / "read")
    expected, wanted = messages(tmp_path / "read"), owed(tmp_path / "read")
    repairs = 0
    for number in range(ROUNDS):
        data = tmp_path / str(number)
        shutil.copytree(tmp_path / "sound", data)
        made = Made(data / FILE_NAME, "", 0)
        content = bytearray(made.path.read_bytes())
        start = dice.randrange(len(content) // 4096) * 4096 + dice.choice((0, dice.randrange(40), dice.randrange(4096)))
        for offset in range(start, min(start + dice.choice((1, 16, 600)), len(content))):
            content[offset] ^= dice.randrange(1, 256)
        if number % 5 == 0:
            del content[dice.randrange(len(content)) :]
        made.path.write_bytes(content)
        if not verify(made.path).damaged:
            continue
        done = repaired(made)
        after = messages(data)
        assert all(expected[name] == body for name, body in after.items()), f"seed {seed}, round {number}"
        if not done.new_epoch:
            accounted = Lost(data)
            missing = {name for name in wanted if name not in after and name not in accounted}
            assert not missing, f"seed {seed}, round {number}"
        repairs += 1
        shutil.rmtree(data)
    assert repairs > ROUNDS // 4
