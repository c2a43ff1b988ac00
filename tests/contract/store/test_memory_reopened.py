"""Logs kept in memory, opened again: after a crash the ledger says what of them may be gone; no name comes twice."""

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
from edge.broker.store.limits import Limits
from edge.broker.store.records import Loss
from edge.broker.store.reservation import MEMORY
from edge.broker.store.sqlite import FILE_NAME
from tests.contract.store.kept import LIMITS, Kept, crashed, flush, rest, wait
from tests.contract.store.rig import Rig, fail_commits, flat, heal, run_of, sqlite_rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = sqlite_rig(tmp_path / "store", LIMITS)
    yield made
    made.store.close()


class TestReopening:
    def test_nothing_is_lost_when_it_is_closed_in_order(self, rig: Rig, tmp_path: Path) -> None:
        kept = Kept(rig)
        kept.take(b"1", b"2", b"3")
        rig.store.acknowledge(kept.cursor, 2, 2)
        rig.reopen()
        assert not verify(tmp_path / "store" / FILE_NAME).findings
        rig.store.account_for_lost()
        rest(rig)
        assert rig.store.losses(0, 10) == []
        assert rig.read_all(kept.log) == [(1, kept.address, 1, b"1"), (3, kept.address, 3, b"3")]
        rig.store.append(kept.log, run_of(b"4"))
        flush(rig)
        assert flat([rig.commits[-1].appended[0][1]]) == [(4, kept.address, 4, b"4")]

    def test_after_a_crash_the_ledger_names_what_may_be_gone_and_no_name_comes_twice(
        self, rig: Rig, tmp_path: Path
    ) -> None:
        kept = Kept(rig)
        kept.take(b"written", b"written too")
        wait(rig, 6)
        kept.take(b"lost")
        again = crashed(rig, tmp_path / "again")
        again.store.account_for_lost()
        flush(again)
        (entry,) = again.store.losses(0, 10)
        assert (entry.subscription, entry.address, entry.first, entry.reason) == ("c", kept.address, 3, MEMORY)
        assert entry.last >= 3
        assert entry.messages == entry.last - 2
        assert [body for *_, body in again.read_all(kept.log)] == [b"written", b"written too"]
        again.store.append(kept.log, run_of(b"next"))
        flush(again)
        (((position, _, sequence, _),),) = [flat([stored]) for _, stored in again.commits[-1].appended]
        assert sequence == entry.last + 1
        assert position > 3
        assert again.store.cursor(kept.cursor).position == 1
        again.store.close()
        assert not verify(tmp_path / "again" / FILE_NAME).findings

    @pytest.mark.parametrize("closed", [False, True])
    def test_positions_stay_covered_when_it_is_kept_on_the_medium_from_then_on(
        self, rig: Rig, tmp_path: Path, closed: bool
    ) -> None:
        kept = Kept(rig)
        kept.take(b"waits")
        wait(rig, 6)
        taken = kept.take(b"taken")
        rig.store.acknowledge(kept.cursor, taken.position, taken.position)
        if closed:
            rig.reopen()
        else:
            rig.store.keep_in_memory(kept.log, keep=False)
            rest(rig)
        rig.store.append(kept.log, run_of(b"on the medium"))
        flush(rig)
        assert [body for *_, body in rig.read_all(kept.log)] == [b"waits", b"on the medium"]
        rig.store.close()
        assert not verify(tmp_path / "store" / FILE_NAME).findings

    def test_what_was_given_up_already_is_lost_once(self, rig: Rig, tmp_path: Path) -> None:
        kept = Kept(rig)
        taken = kept.take(b"1", b"2", b"3")
        loss = Loss("c", kept.address, taken.sequence + 1, taken.sequence + 1, 1, 1, "rejected", 1)
        rig.store.give_up(kept.cursor, taken.position + 1, taken.position + 1, [loss])
        flush(rig)
        again = crashed(rig, tmp_path / "again")
        again.store.account_for_lost()
        flush(again)
        named = [(entry.reason, entry.first, entry.messages) for entry in again.store.losses(0, 10)]
        assert named[0] == ("rejected", 2, 1)
        assert {(reason, first) for reason, first, _ in named[1:]} == {(MEMORY, 1), (MEMORY, 3)}
        again.store.close()

    def test_the_ledger_names_no_more_than_some_seconds_of_traffic(self, rig: Rig, tmp_path: Path) -> None:
        kept, limits = Kept(rig), Limits()
        for _ in range(1200):
            rig.now += 0.1
            taken = kept.take(b"given to everybody")
            rig.store.acknowledge(kept.cursor, taken.position, taken.position)
            flush(rig)
        assert len(rig.commits) <= 20, "and costs few commits"
        again = crashed(rig, tmp_path / "again")
        again.store.account_for_lost()
        flush(again)
        (entry,) = again.store.losses(0, 10)
        assert entry.first <= taken.sequence + 1
        assert taken.sequence <= entry.last
        assert entry.messages <= 10 * limits.memory_reserve_s
        again.store.close()

    def test_a_name_is_not_given_twice_where_another_log_has_the_address_too(self, rig: Rig, tmp_path: Path) -> None:
        kept, other = Kept(rig), rig.store.log("queue jobs")
        rig.store.open_cursor("c", other, 0)
        rest(rig)
        rig.store.append(other, run_of(b"on disk", address=kept.address))
        flush(rig)
        named = kept.take(b"in memory")
        again = crashed(rig, tmp_path / "again")
        again.store.account_for_lost()
        again.store.append(other, run_of(b"next", address=kept.address))
        flush(again)
        assert again.commits[-1].appended[-1][1].sequence > named.sequence
        again.store.close()
        assert not verify(tmp_path / "again" / FILE_NAME).findings

    def test_nor_where_the_other_log_takes_more_while_numbers_are_reserved(self, rig: Rig, tmp_path: Path) -> None:
        kept, other = Kept(rig), rig.store.log("queue jobs")
        rig.store.open_cursor("c", other, 0)
        rest(rig)
        kept.take(*[b"x"] * 40)  # few are left
        rig.store.append(other, run_of(*[b"on disk"] * 1000, address=kept.address))
        flush(rig)
        again = crashed(rig, tmp_path / "again")
        again.store.account_for_lost()
        again.store.append(other, run_of(b"next", address=kept.address))
        flush(again)
        assert again.commits[-1].appended[-1][1].sequence >= 1041
        again.store.close()

    def test_no_name_comes_twice_after_a_burst_and_a_quiet_time(self, rig: Rig, tmp_path: Path) -> None:
        kept = Kept(rig)

        def take() -> Stored | None:
            taken = rig.store.append(kept.log, run_of(b"x"))
            if not isinstance(taken, Stored):
                return None
            rig.store.acknowledge(kept.cursor, taken.position, taken.position)
            return taken

        for _ in range(2000):
            assert take()
            rig.now += 0.001
            flush(rig)
        rig.now += 1000
        rest(rig)
        while not rig.store._buffer.low:
            assert take()
        flush(rig)  # more are reserved, at the rate of the quiet time
        while (stored := take()) is not None:
            taken = stored
        again = crashed(rig, tmp_path / "again")
        again.store.account_for_lost()
        again.store.append(kept.log, run_of(b"next"))
        flush(again)
        ((_, following),) = again.commits[-1].appended
        assert following.sequence > taken.sequence
        assert following.position > taken.position
        again.store.close()

    @pytest.mark.parametrize("configured_first", [False, True])
    def test_a_log_is_kept_in_memory_again_before_or_after_it_is_accounted_for(
        self, rig: Rig, tmp_path: Path, configured_first: bool
    ) -> None:
        kept = Kept(rig)
        kept.take(b"lost")
        again = crashed(rig, tmp_path / "again")
        if configured_first:
            again.store.keep_in_memory(kept.log, keep=True)
        again.store.account_for_lost()
        again.store.keep_in_memory(kept.log, keep=True)
        flush(again)
        again.store.append(kept.log, run_of(b"next"))
        flush(again)
        assert [commit.error for commit in again.commits] == [None, None]
        assert [body for *_, body in again.read_all(kept.log)] == [b"next"]
        again.store.close()
        assert not verify(tmp_path / "again" / FILE_NAME).findings

    def test_whoever_was_not_owed_it_lost_nothing(self, rig: Rig, tmp_path: Path) -> None:
        kept = Kept(rig)
        rig.store.open_cursor("other", kept.log, 0)
        rest(rig)
        kept.take(b"lost")
        again = crashed(rig, tmp_path / "again")
        again.store.set_filter(again.store.open_cursor("other", kept.log, 0), lambda run: run.address == "plant/8")
        again.store.account_for_lost()
        flush(again)
        assert [entry.subscription for entry in again.store.losses(0, 10)] == ["c"]
        again.store.close()

    def test_it_is_accounted_for_once_and_not_before_it_is_asked_for(self, rig: Rig, tmp_path: Path) -> None:
        kept = Kept(rig)
        kept.take(b"lost")
        tool = crashed(rig, tmp_path / "again")
        tool.store.append(kept.log, run_of(b"imported"))
        tool.store.close()
        again = sqlite_rig(tmp_path / "again", LIMITS)
        again.store.account_for_lost()
        flush(again)
        assert len(again.store.losses(0, 10)) == 1
        again.reopen()
        again.store.account_for_lost()
        flush(again)
        assert len(again.store.losses(0, 10)) == 1
        assert [body for *_, body in again.read_all(kept.log)] == [b"imported"]
        again.store.close()

    def test_the_ledger_waits_for_a_medium_that_is_full(self, rig: Rig, tmp_path: Path) -> None:
        kept = Kept(rig)
        kept.take(b"lost")
        again = crashed(rig, tmp_path / "again")
        fail_commits(again)
        again.store.put("filler", "x", b"x" * 100_000)
        again.store.account_for_lost()
        flush(again)
        assert again.commits[-1].error is not None
        assert again.store.losses(0, 10) == []
        heal(again)
        again.now += 10
        flush(again)
        assert len(again.store.losses(0, 10)) == 1
        assert [key for key, _ in again.store.items(MEMORY)] == [str(kept.log)]
        again.store.close()

    def test_rot_on_the_medium_does_not_reach_what_is_in_memory(self, rig: Rig, tmp_path: Path) -> None:
        kept = Kept(rig)
        kept.take(b"rotten")
        wait(rig, 6)
        with closing(sqlite3.connect(tmp_path / "store" / FILE_NAME)) as other, other:
            other.execute("UPDATE segment SET crc = crc + 1")
        kept.take(b"in memory")
        assert rig.read_all(kept.log) == [(2, kept.address, 2, b"in memory")]
        flush(rig)
        assert [(entry.reason, entry.messages) for entry in rig.store.losses(0, 10)] == [("damaged", 1)]
        assert rig.store.cursor(kept.cursor).position == 2

    def test_positions_stay_covered_over_a_gap_wider_than_an_offset(self, rig: Rig, tmp_path: Path) -> None:
        kept = Kept(rig)
        kept.take(b"early")
        wait(rig, 6)
        state = rig.store._logs[kept.log]
        state.next += 1 << 33  # as if so many had been taken and acknowledged
        kept.rig.store._buffer.logs[kept.log].positions.end += 1 << 34
        kept.take(b"late")
        rig.store.acknowledge(kept.cursor, 2, state.next - 2)
        rig.reopen()
        assert not verify(tmp_path / "store" / FILE_NAME).findings
        assert [body for *_, body in rig.read_all(kept.log)] == [b"early", b"late"]

    def test_a_repair_takes_what_was_never_written_for_no_loss(self, rig: Rig, tmp_path: Path) -> None:
        kept = Kept(rig)
        kept.take(b"waits")
        wait(rig, 6)
        for n in range(20):
            taken = kept.take(b"%d" % n)
            rig.store.acknowledge(kept.cursor, taken.position, taken.position)
        rig.store.close()
        mended = repair(tmp_path / "store", write=True)
        assert (mended.lost_messages, mended.new_epoch, mended.messages) == (0, False, 1)
        assert not verify(tmp_path / "store" / FILE_NAME).findings
        again = sqlite_rig(tmp_path / "store", LIMITS)
        assert again.store.losses(0, 10) == []
        assert again.store.bounds(kept.log) == (1, 22)
        assert [body for *_, body in again.read_all(kept.log)] == [b"waits"]
        again.store.close()


class TestCopies:
    """A copy that was made while the store was open is told from the store before a number is given twice."""

    @staticmethod
    def is_older(copy: Rig, reached: Mapping[int, int], log: int, end: int) -> bool:
        """As a hub decides that knows `reached` of the store, and that its log goes to `end`."""
        ends = next(copy.store.opening_ends())
        assert ends is not None
        return any(number > ends.get(each, 0) for each, number in {**reached, log: end}.items())

    def test_one_whose_positions_are_reserved_for_longer_than_its_sequences(self, rig: Rig, tmp_path: Path) -> None:
        kept = Kept(rig)

        def take(address: str, count: int) -> int:
            """Publish and acknowledge; the next sequence of the address."""
            rig.store.append(kept.log, run_of(*[b"x"] * count, address=address))
            flush(rig)
            rig.now += 0.01
            rig.store.acknowledge(kept.cursor, 0, rig.store.bounds(kept.log)[1] - 1)
            return dict(rig.store.sequences())[address]

        following = take("plant/slow", 1)
        for _ in range(20):
            take(kept.address, 20)
        copy = crashed(rig, tmp_path / "copy")
        reserved = dict(copy.store.sequences())["plant/slow"]
        assert not self.is_older(copy, rig.store.reached, kept.log, rig.store.bounds(kept.log)[1])
        while following <= reserved:
            following = take("plant/slow", 1)
        end = rig.store.bounds(kept.log)[1]
        assert end < copy.store.bounds(kept.log)[1], "the positions alone do not tell"
        assert self.is_older(copy, rig.store.reached, kept.log, end)
        copy.store.close()

    def test_a_crash_is_no_copy(self, rig: Rig, tmp_path: Path) -> None:
        kept = Kept(rig)
        for number in range(3):
            kept.take(*[b"x"] * 10)
            wait(rig, 6)
            again = crashed(rig, tmp_path / f"again-{number}")
            assert not self.is_older(again, rig.store.reached, kept.log, rig.store.bounds(kept.log)[1])
            again.store.close()
        reached = rig.store.reached
        rig.reopen()
        assert rig.store.reached == {each: number + 1 for each, number in reached.items()}  # closing spills, too

    def test_a_failed_spill_takes_its_number_with_it(self, rig: Rig) -> None:
        kept = Kept(rig)
        before = rig.store.reached[0]
        kept.take(b"1")
        fail_commits(rig)
        rig.store.put("filler", "x", Random(1).randbytes(100_000))
        wait(rig, 6)
        assert rig.commits[-1].error is not None
        assert rig.store.reached[0] == before
        heal(rig)
        wait(rig, 6)
        assert rig.store.reached[0] > before + 1

    def test_a_store_that_never_kept_anything_in_memory_says_nothing_of_it(self, rig: Rig) -> None:
        rig.store.append(rig.store.log("topic #"), run_of(b"1"))
        flush(rig)
        assert rig.store.reached == {}
