"""Logs in memory after a restart: the ledger lists messages that may be lost, and no name is used twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from bridge.message import Stored
from edge.appliance.store.recovery.repair import repair
from edge.appliance.store.recovery.verification import verify
from edge.broker.store.limits import StoreLimits
from edge.broker.store.records import Loss
from edge.broker.store.reservation import MEMORY
from edge.broker.store.sqlite import FILE_NAME
from tests.contract.store.memory_log import LIMITS, MemoryLog, finish_due_work, flush, reopen_after_crash, wait
from tests.contract.store.rig import Rig, fail_commits, flat, heal, run_of, sqlite_rig

SEGMENT = (
    "020102000000070006000000000001000100000000002a36fe9c9717010000000000000000000000070006000000"
    "000001000100000000002a36fe9c9717040000000000000003000000706c616e742f37646576696365706c616e74"
    "2f3764657669636509097370696c6c656420317370696c6c65642034"
)
"""Two of four positions; the others were acknowledged before the write."""
SPILLED = f"""
UPDATE log SET first = 1, next = 49, bytes = 18 WHERE log = 1;
INSERT INTO segment VALUES (17592186044417, 4, 18, 1, 1007000000000, 3579590099, x'{SEGMENT}');
UPDATE cursor SET position = 1, acknowledged = x'490100000002000000' WHERE cursor = 1;
INSERT INTO address VALUES ('plant/7', 49);
INSERT INTO state VALUES ('memory', '1', x'05000000000000003100000000000000');
INSERT INTO state VALUES ('memory', '1 plant/7', x'05000000000000003100000000000000');
INSERT INTO state VALUES ('spills', 'count', x'0200000000000000');
"""
"""Log of a version that spilled messages: positions and sequences 5 to 48 are reserved."""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = sqlite_rig(tmp_path / "store", LIMITS)
    yield made
    made.store.close()


class TestReopening:
    def test_orderly_close_records_exactly_the_lost_messages(self, rig: Rig, tmp_path: Path) -> None:
        kept = MemoryLog(rig)
        kept.take(b"1", b"2", b"3")
        rig.store.cursors.acknowledge(kept.cursor, 2, 2)
        rig.reopen()
        assert not verify(tmp_path / "store" / FILE_NAME).findings
        rig.store.ledger.account_for_crash()
        finish_due_work(rig)
        lost = [(entry.reason, entry.first, entry.last, entry.messages) for entry in rig.store.ledger.entries(0, 10)]
        assert lost == [(MEMORY, 1, 1, 1), (MEMORY, 3, 3, 1)]
        assert rig.read_all(kept.log) == []
        assert [key for key, _ in rig.store.state.items(MEMORY)] == [str(kept.log)]
        rig.store.logs.append(kept.log, run_of(b"4"))
        flush(rig)
        assert flat([rig.commits[-1].appended[0][1]]) == [(4, kept.address, 4, b"4")]
        assert rig.read_all(kept.log) == [(4, kept.address, 4, b"4")]

    def test_close_with_empty_memory_loses_nothing(self, rig: Rig, tmp_path: Path) -> None:
        kept = MemoryLog(rig)
        taken = kept.take(b"1")
        rig.store.cursors.acknowledge(kept.cursor, taken.position, taken.position)
        rig.reopen()
        assert not verify(tmp_path / "store" / FILE_NAME).findings
        assert rig.store.ledger.entries(0, 10) == []
        assert rig.store.logs.bounds(kept.log) == (2, 2)

    def test_ledger_records_possible_losses_of_a_crash_and_names_are_unique(self, rig: Rig, tmp_path: Path) -> None:
        kept = MemoryLog(rig)
        kept.take(b"lost", b"lost too")
        kept.take(b"lost as well")
        again = reopen_after_crash(rig, tmp_path / "again")
        again.store.ledger.account_for_crash()
        flush(again)
        (entry,) = again.store.ledger.entries(0, 10)
        assert (entry.subscription, entry.address, entry.reason) == ("c", kept.address, MEMORY)
        assert entry.first <= 1
        assert entry.last >= 3
        assert entry.messages == entry.last - entry.first + 1 <= LIMITS.memory_reserve_min + 1
        assert again.read_all(kept.log) == []
        again.store.logs.append(kept.log, run_of(b"next"))
        flush(again)
        (((position, _, sequence, _),),) = [flat([stored]) for _, stored in again.commits[-1].appended]
        assert sequence == entry.last + 1
        assert position > 3
        assert again.store.cursors.record(kept.cursor).position == position
        again.store.close()
        assert not verify(tmp_path / "again" / FILE_NAME).findings

    def test_backlog_on_the_medium_survives_a_crash(self, rig: Rig, tmp_path: Path) -> None:
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(b"on the medium"))
        rig.commit()
        rig.store.logs.keep_in_memory(log, keep=True)
        rig.store.logs.append(log, run_of(b"in memory"))
        flush(rig)
        again = reopen_after_crash(rig, tmp_path / "again")
        again.store.ledger.account_for_crash()
        flush(again)
        assert [body for *_, body in again.read_all(log)] == [b"on the medium"]
        (entry,) = again.store.ledger.entries(0, 10)
        assert (entry.first, entry.reason) == (1, MEMORY)
        again.store.logs.append(log, run_of(b"next"))
        flush(again)
        assert [body for *_, body in again.read_all(log)] == [b"on the medium", b"next"]
        again.store.close()
        assert not verify(tmp_path / "again" / FILE_NAME).findings

    def test_messages_dropped_by_a_full_ring_are_recorded_once_at_any_crash(self, rig: Rig, tmp_path: Path) -> None:
        kept = MemoryLog(rig)
        kept.take(*[b"x" * 100] * 10)
        rig.store.retention.evict(kept.log, 300)
        wait(rig, 30)
        rig.store.retention.evict(kept.log, 200)
        again = reopen_after_crash(rig, tmp_path / "again")
        again.store.ledger.account_for_crash()
        flush(again)
        named = [n for entry in again.store.ledger.entries(0, 10) for n in range(entry.first, entry.last + 1)]
        assert len(set(named)) == len(named)
        assert {*named} >= {*range(1, 11)}
        again.store.close()

    @pytest.mark.parametrize("closed", [False, True])
    @pytest.mark.parametrize("backlog", [False, True])
    def test_positions_stay_covered_when_the_log_moves_to_the_medium(
        self, rig: Rig, tmp_path: Path, closed: bool, backlog: bool
    ) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        for n in range(2):
            rig.store.logs.append(log, run_of(b"waits" if n else b"done"))
            flush(rig)
        rig.store.cursors.acknowledge(cursor, 0, 0 if backlog else 1)
        finish_due_work(rig)
        rig.store.logs.keep_in_memory(log, keep=True)
        rig.store.logs.append(log, run_of(b"taken"))
        flush(rig)
        rig.store.cursors.acknowledge(cursor, 2, 2)
        if closed:
            rig.reopen()
        else:
            rig.store.logs.keep_in_memory(log, keep=False)
            finish_due_work(rig)
        rig.store.logs.append(log, run_of(b"on the medium"))
        flush(rig)
        assert [body for *_, body in rig.read_all(log)] == [b"waits"] * backlog + [b"on the medium"]
        rig.store.close()
        assert not verify(tmp_path / "store" / FILE_NAME).findings

    def test_dropped_messages_are_recorded_once(self, rig: Rig, tmp_path: Path) -> None:
        kept = MemoryLog(rig)
        taken = kept.take(b"1", b"2", b"3")
        loss = Loss("c", kept.address, taken.sequence + 1, taken.sequence + 1, 1, 1, "rejected", 1)
        rig.store.cursors.discard(kept.cursor, taken.position + 1, taken.position + 1, [loss])
        flush(rig)
        again = reopen_after_crash(rig, tmp_path / "again")
        again.store.ledger.account_for_crash()
        flush(again)
        named = [(entry.reason, entry.first, entry.messages) for entry in again.store.ledger.entries(0, 10)]
        assert named[0] == ("rejected", 2, 1)
        assert {(reason, first) for reason, first, _ in named[1:]} == {(MEMORY, 0), (MEMORY, 3)}
        again.store.close()

    def test_ledger_covers_only_some_seconds_of_traffic(self, rig: Rig, tmp_path: Path) -> None:
        kept, limits = MemoryLog(rig), StoreLimits()
        for _ in range(1200):
            rig.now += 0.1
            taken = kept.take(b"given to everybody")
            rig.store.cursors.acknowledge(kept.cursor, taken.position, taken.position)
            flush(rig)
        assert len(rig.commits) <= 20, "and costs few commits"
        again = reopen_after_crash(rig, tmp_path / "again")
        again.store.ledger.account_for_crash()
        flush(again)
        (entry,) = again.store.ledger.entries(0, 10)
        assert entry.first <= taken.sequence + 1
        assert taken.sequence <= entry.last
        assert entry.messages <= 1.5 * 10 * limits.memory_reserve_s
        again.store.close()

    def test_name_is_unique_where_another_log_has_the_address(self, rig: Rig, tmp_path: Path) -> None:
        kept, other = MemoryLog(rig), rig.store.logs.open("queue jobs")
        rig.store.cursors.open("c", other, 0)
        finish_due_work(rig)
        rig.store.logs.append(other, run_of(b"on disk", address=kept.address))
        flush(rig)
        named = kept.take(b"in memory")
        again = reopen_after_crash(rig, tmp_path / "again")
        again.store.ledger.account_for_crash()
        again.store.logs.append(other, run_of(b"next", address=kept.address))
        flush(again)
        assert again.commits[-1].appended[-1][1].sequence > named.sequence
        again.store.close()
        assert not verify(tmp_path / "again" / FILE_NAME).findings

    def test_name_is_unique_where_another_log_appends_during_a_reservation(self, rig: Rig, tmp_path: Path) -> None:
        kept, other = MemoryLog(rig), rig.store.logs.open("queue jobs")
        rig.store.cursors.open("c", other, 0)
        finish_due_work(rig)
        kept.take(*[b"x"] * 40)  # few are left
        rig.store.logs.append(other, run_of(*[b"on disk"] * 1000, address=kept.address))
        flush(rig)
        again = reopen_after_crash(rig, tmp_path / "again")
        again.store.ledger.account_for_crash()
        again.store.logs.append(other, run_of(b"next", address=kept.address))
        flush(again)
        assert again.commits[-1].appended[-1][1].sequence >= 1041
        again.store.close()

    def test_name_is_unique_after_a_burst_and_an_idle_time(self, rig: Rig, tmp_path: Path) -> None:
        kept = MemoryLog(rig)

        def take() -> Stored | None:
            taken = rig.store.logs.append(kept.log, run_of(b"x"))
            if not isinstance(taken, Stored):
                return None
            rig.store.cursors.acknowledge(kept.cursor, taken.position, taken.position)
            return taken

        for _ in range(2000):
            assert take()
            rig.now += 0.001
            flush(rig)
        rig.now += 1000
        finish_due_work(rig)
        while not rig.store._rings.numbers.are_due:
            assert take()
        flush(rig)  # more are reserved, at the rate of the quiet time
        while (stored := take()) is not None:
            taken = stored
        again = reopen_after_crash(rig, tmp_path / "again")
        again.store.ledger.account_for_crash()
        again.store.logs.append(kept.log, run_of(b"next"))
        flush(again)
        ((_, following),) = again.commits[-1].appended
        assert following.sequence > taken.sequence
        assert following.position > taken.position
        again.store.close()

    @pytest.mark.parametrize("configured_first", [False, True])
    def test_log_may_return_to_memory_before_or_after_the_account(
        self, rig: Rig, tmp_path: Path, configured_first: bool
    ) -> None:
        kept = MemoryLog(rig)
        kept.take(b"lost")
        again = reopen_after_crash(rig, tmp_path / "again")
        if configured_first:
            again.store.logs.keep_in_memory(kept.log, keep=True)
        again.store.ledger.account_for_crash()
        again.store.logs.keep_in_memory(kept.log, keep=True)
        flush(again)
        again.store.logs.append(kept.log, run_of(b"next"))
        flush(again)
        assert [commit.error for commit in again.commits] == [None, None]
        assert [body for *_, body in again.read_all(kept.log)] == [b"next"]
        again.store.close()
        assert not verify(tmp_path / "again" / FILE_NAME).findings

    def test_cursor_without_pending_messages_has_no_loss(self, rig: Rig, tmp_path: Path) -> None:
        kept = MemoryLog(rig)
        rig.store.cursors.open("other", kept.log, 0)
        finish_due_work(rig)
        kept.take(b"lost")
        again = reopen_after_crash(rig, tmp_path / "again")
        again.store.cursors.set_filter(
            again.store.cursors.open("other", kept.log, 0), lambda run: run.address == "plant/8"
        )
        again.store.ledger.account_for_crash()
        flush(again)
        assert [entry.subscription for entry in again.store.ledger.entries(0, 10)] == ["c"]
        again.store.close()

    def test_losses_are_recorded_once_and_on_request(self, rig: Rig, tmp_path: Path) -> None:
        kept = MemoryLog(rig)
        kept.take(b"lost")
        tool = reopen_after_crash(rig, tmp_path / "again")
        tool.store.logs.append(kept.log, run_of(b"imported"))
        tool.store.close()
        again = sqlite_rig(tmp_path / "again", LIMITS)
        again.store.ledger.account_for_crash()
        flush(again)
        assert len(again.store.ledger.entries(0, 10)) == 1
        again.reopen()
        again.store.ledger.account_for_crash()
        flush(again)
        assert len(again.store.ledger.entries(0, 10)) == 1
        assert [body for *_, body in again.read_all(kept.log)] == [b"imported"]
        again.store.close()

    def test_ledger_waits_for_a_full_medium(self, rig: Rig, tmp_path: Path) -> None:
        kept = MemoryLog(rig)
        kept.take(b"lost")
        again = reopen_after_crash(rig, tmp_path / "again")
        fail_commits(again)
        again.store.state.put("filler", "x", b"x" * 100_000)
        again.store.ledger.account_for_crash()
        flush(again)
        assert again.commits[-1].error is not None
        assert again.store.ledger.entries(0, 10) == []
        heal(again)
        again.now += 10
        flush(again)
        assert len(again.store.ledger.entries(0, 10)) == 1
        assert [key for key, _ in again.store.state.items(MEMORY)] == [str(kept.log)]
        again.store.close()

    def test_damage_on_the_medium_does_not_affect_memory(self, rig: Rig, tmp_path: Path) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(b"rotten"))
        rig.commit()
        rig.store.logs.keep_in_memory(log, keep=True)
        with closing(sqlite3.connect(tmp_path / "store" / FILE_NAME)) as other, other:
            other.execute("UPDATE segment SET crc = crc + 1")
        rig.store.logs.append(log, run_of(b"in memory"))
        flush(rig)
        assert [body for *_, body in rig.read_all(log)] == [b"in memory"]
        flush(rig)
        assert [(entry.reason, entry.messages) for entry in rig.store.ledger.entries(0, 10)] == [("damaged", 1)]
        assert rig.store.cursors.record(cursor).position == 1

    def test_repair_does_not_report_unwritten_positions_as_losses(self, rig: Rig, tmp_path: Path) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(b"waits"))
        rig.commit()
        rig.store.logs.keep_in_memory(log, keep=True)
        for n in range(20):
            rig.store.logs.append(log, run_of(b"%d" % n))
            flush(rig)
            rig.store.cursors.acknowledge(cursor, n + 1, n + 1)
        rig.store.close()
        mended = repair(tmp_path / "store", write=True)
        assert (mended.lost_messages, mended.new_epoch, mended.messages) == (0, False, 1)
        assert not verify(tmp_path / "store" / FILE_NAME).findings
        again = sqlite_rig(tmp_path / "store", LIMITS)
        assert again.store.ledger.entries(0, 10) == []
        assert again.store.logs.bounds(log) == (0, 21)
        assert [body for *_, body in again.read_all(log)] == [b"waits"]
        again.store.close()


class TestEarlierVersions:
    """Killed store file of a version that spilled waiting messages."""

    def test_spilled_messages_are_delivered_and_reserved_ones_recorded(self, rig: Rig, tmp_path: Path) -> None:
        log = rig.store.logs.open("topic plant/#")
        rig.store.cursors.open("c", log, 0)
        finish_due_work(rig)
        rig.store.close()
        with closing(sqlite3.connect(tmp_path / "store" / FILE_NAME)) as file, file:
            file.executescript(SPILLED)
        assert not verify(tmp_path / "store" / FILE_NAME).damaged
        again = sqlite_rig(tmp_path / "store", LIMITS)
        again.store.ledger.account_for_crash()
        again.store.logs.keep_in_memory(log, keep=True)
        flush(again)
        (entry,) = again.store.ledger.entries(0, 10)
        assert (entry.subscription, entry.address, entry.reason) == ("c", "plant/7", MEMORY)
        assert (entry.first, entry.last, entry.messages) == (5, 48, 44)
        there = [(position, sequence, body) for position, _, sequence, body in again.read_all(log)]
        assert there == [(1, 1, b"spilled 1"), (4, 4, b"spilled 4")]
        again.store.logs.append(log, run_of(b"next", address="plant/7"))
        flush(again)
        assert [body for *_, body in again.read_all(log)] == [b"spilled 1", b"spilled 4", b"next"]
        assert again.read_all(log)[-1][2] == 49
        again.store.close()
        assert not verify(tmp_path / "store" / FILE_NAME).findings


class TestCopies:
    """A copy made while the store was open is recognised before it reuses a number."""

    @staticmethod
    def is_older(copy: Rig, reached: Mapping[int, int], log: int, end: int) -> bool:
        """Decide as a hub that knows `reached` of the store and the end of its log."""
        ends = next(copy.store.lineage.opening_ends())
        assert ends is not None
        return any(number > ends.get(each, 0) for each, number in {**reached, log: end}.items())

    def test_copy_with_positions_reserved_longer_than_sequences_is_detected(self, rig: Rig, tmp_path: Path) -> None:
        kept = MemoryLog(rig)

        def take(address: str, count: int) -> int:
            """Publish and acknowledge; return the next sequence of the address."""
            rig.store.logs.append(kept.log, run_of(*[b"x"] * count, address=address))
            flush(rig)
            rig.now += 0.01
            rig.store.cursors.acknowledge(kept.cursor, 0, rig.store.logs.bounds(kept.log)[1] - 1)
            return dict(rig.store.lineage.sequences())[address]

        following = take("plant/slow", 1)
        for _ in range(20):
            take(kept.address, 20)
        copy = reopen_after_crash(rig, tmp_path / "copy")
        reserved = dict(copy.store.lineage.sequences())["plant/slow"]
        assert not self.is_older(copy, rig.store.lineage.reached, kept.log, rig.store.logs.bounds(kept.log)[1])
        while following <= reserved:
            following = take("plant/slow", 1)
        end = rig.store.logs.bounds(kept.log)[1]
        assert end < copy.store.logs.bounds(kept.log)[1], "the positions alone do not tell"
        assert self.is_older(copy, rig.store.lineage.reached, kept.log, end)
        copy.store.close()

    def test_crash_is_not_a_copy(self, rig: Rig, tmp_path: Path) -> None:
        kept = MemoryLog(rig)
        for number in range(3):
            kept.take(*[b"x"] * 10)
            wait(rig, 6)
            again = reopen_after_crash(rig, tmp_path / f"again-{number}")
            assert not self.is_older(again, rig.store.lineage.reached, kept.log, rig.store.logs.bounds(kept.log)[1])
            again.store.close()
        reached = rig.store.lineage.reached
        rig.reopen()
        assert rig.store.lineage.reached == {
            each: number + 1 for each, number in reached.items()
        }  # unused numbers are released

    def test_copy_made_before_numbers_were_returned_is_detected(self, rig: Rig, tmp_path: Path) -> None:
        """The numbers go to other addresses, in commits without a trace of it, while the copy still owns them."""
        kept = MemoryLog(rig)
        copy = reopen_after_crash(rig, tmp_path / "copy")
        rig.store.logs.keep_in_memory(kept.log, keep=False)
        flush(rig)
        rig.store.logs.append(kept.log, run_of(b"next"))
        flush(rig)
        assert rig.store.logs.bounds(kept.log)[1] < copy.store.logs.bounds(kept.log)[1]
        assert self.is_older(copy, rig.store.lineage.reached, kept.log, rig.store.logs.bounds(kept.log)[1])
        copy.store.close()

    def test_failed_reservation_returns_its_number(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        before = rig.store.lineage.reached[0]
        fail_commits(rig)
        rig.store.state.put("filler", "x", Random(1).randbytes(100_000))
        rig.store.logs.append(kept.log, run_of(b"x", address="another"))
        flush(rig)
        assert rig.commits[-1].error is not None
        assert rig.store.lineage.reached[0] == before
        heal(rig)
        rig.now += 10
        rig.store.logs.append(kept.log, run_of(b"x", address="another"))
        flush(rig)
        assert rig.store.lineage.reached[0] > before + 1

    def test_store_without_memory_logs_records_nothing(self, rig: Rig) -> None:
        rig.store.logs.append(rig.store.logs.open("topic #"), run_of(b"1"))
        flush(rig)
        assert rig.store.lineage.reached == {}
