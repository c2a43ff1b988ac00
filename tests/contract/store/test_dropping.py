"""Drops and evictions: the removed messages, their ledger entries, and one commit for both."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.broker.store.limits import StoreLimits
from edge.broker.store.records import LedgerEntry, Loss
from tests.contract.store.rig import Rig, fail_commits, flat, heal, memory_rig, run_of, sqlite_rig

FEW = StoreLimits(ledger_entries_max=2, ledger_growing_max=2)


@pytest.fixture(params=["sqlite", "memory"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    made = sqlite_rig(tmp_path) if request.param == "sqlite" else memory_rig()
    yield made
    made.store.close()


@pytest.fixture(params=["sqlite", "memory"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    made = sqlite_rig(tmp_path, FEW) if request.param == "sqlite" else memory_rig(FEW)
    yield made
    made.store.close()


def loss(first: int, last: int, reason: str = "expired", address: str = "plant/7/temp", messages: int = 0) -> Loss:
    messages = messages or last - first + 1
    return Loss("c", address, first, last, messages, messages, reason, 5)


def ranges(entries: list[LedgerEntry] | tuple[LedgerEntry, ...]) -> list[tuple[str, str, int, int, int]]:
    return [(entry.subscription, entry.reason, entry.first, entry.last, entry.messages) for entry in entries]


def ledger(rig: Rig) -> list[tuple[str, str, int, int, int]]:
    return ranges(list(rig.store.ledger.entries(0, 1000)))


class TestDrop:
    def test_acknowledgement_and_entry_are_one_commit(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(b"0", b"1", b"2"))
        rig.commit()
        rig.store.cursors.discard(cursor, 0, 1, [loss(0, 1)])
        assert rig.store.commits.flush(), "an entry of the ledger does not wait for company"
        while rig.store.commits.committing:
            rig.turn()
        assert [record.position for record in rig.store.cursor_records()] == [2]
        assert ledger(rig) == [("c", "expired", 0, 1, 2)]

    def test_both_wait_for_a_successful_commit(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(b"0", b"1"))
        rig.commit()
        fail_commits(rig)
        rig.store.cursors.discard(cursor, 0, 0, [loss(0, 0)])
        rig.store.logs.append(log, run_of(b"x" * 100_000))
        assert rig.commit().error is not None
        assert [record.position for record in rig.store.cursor_records()] == [0]
        assert ledger(rig) == []
        heal(rig)
        rig.settle()
        assert [record.position for record in rig.store.cursor_records()] == [1]
        assert ledger(rig) == [("c", "expired", 0, 0, 1)]

    def test_drop_with_a_copy_shares_the_fate_of_the_copy(self, rig: Rig) -> None:
        log, dead = rig.store.logs.open("a"), rig.store.logs.open("dead")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.cursors.open("d", dead, 0)
        rig.store.logs.append(log, run_of(b"0", b"1"))
        rig.commit()
        fail_commits(rig)
        rig.store.logs.append(dead, run_of(b"x" * 100_000, address="dead"))
        rig.store.cursors.discard(cursor, 0, 0, [loss(0, 0)], if_kept=True)
        assert rig.commit().error is not None
        heal(rig)
        rig.settle()
        assert rig.store.cursors.record(cursor).position == 0
        assert ledger(rig) == []
        rig.store.logs.append(dead, run_of(b"0", address="dead"))
        rig.store.cursors.discard(cursor, 0, 0, [loss(0, 0)], if_kept=True)
        assert rig.store.cursors.record(cursor).position == 0
        rig.commit()
        assert rig.store.cursors.record(cursor).position == 1
        assert [record.position for record in rig.store.cursor_records()] == [1, 0]
        assert ledger(rig) == [("c", "expired", 0, 0, 1)]

    def test_dead_letter_is_not_evicted_too(self, rig: Rig) -> None:
        log, dead = rig.store.logs.open("a"), rig.store.logs.open("dead")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.cursors.open("d", dead, 0)
        rig.store.logs.append(log, run_of(b"0", b"1"))
        rig.commit()
        rig.store.logs.append(dead, run_of(b"1", address="dead"))
        rig.store.cursors.discard(cursor, 1, 1, [loss(1, 1, "rejected")], if_kept=True)
        rig.store.retention.evict(log, 2)
        rig.commit()
        assert sorted(ledger(rig)) == [("c", "evicted", 0, 0, 1), ("c", "rejected", 1, 1, 1)]

    def test_uncommitted_messages_cannot_be_dropped(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        with pytest.raises(ValueError, match="not committed"):
            rig.store.cursors.discard(cursor, 0, 0, [loss(0, 0)])
        rig.store.cursors.drop(cursor)
        rig.store.cursors.discard(cursor, 0, 0, [loss(0, 0)])  # no loss for any cursor


class TestLedger:
    def test_adjacent_losses_are_one_entry_under_a_new_number(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(*[b"m"] * 10))
        rig.commit()
        for first, reason in ((0, "expired"), (1, "expired"), (2, "rejected"), (3, "expired"), (5, "expired")):
            rig.store.cursors.discard(cursor, first, first, [loss(first, first, reason)])
            rig.commit()
        assert ledger(rig) == [
            ("c", "expired", 0, 1, 2),
            ("c", "rejected", 2, 2, 1),
            ("c", "expired", 3, 3, 1),
            ("c", "expired", 5, 5, 1),
        ]
        numbers = [entry.entry for entry in rig.store.ledger.entries(0, 10)]
        assert numbers == sorted(numbers) == list(dict.fromkeys(numbers))

    def test_entry_that_was_read_does_not_grow(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(*[b"m"] * 10))
        rig.commit()
        rig.store.cursors.discard(cursor, 0, 0, [loss(0, 0)])
        rig.commit()
        (read,) = rig.store.ledger.entries(0, 10)
        rig.store.cursors.discard(cursor, 1, 1, [loss(1, 1)])
        rig.commit()
        rig.store.cursors.discard(cursor, 2, 2, [loss(2, 2)])
        rig.commit()
        assert ranges(list(rig.store.ledger.entries(read.entry, 10))) == [("c", "expired", 1, 2, 2)]
        assert len(rig.store.ledger.entries(0, 1)) == 1

    def test_entry_that_was_read_to_keep_growing_comes_again(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(*[b"m"] * 10))
        rig.commit()
        read = 0
        for number in range(3):
            rig.store.cursors.discard(cursor, number, number, [loss(number, number)])
            rig.commit()
            entries = list(rig.store.ledger.entries(read, 10, keep_growing=True))
            assert ranges(entries) == [("c", "expired", 0, number, number + 1)]
            read = entries[-1].entry

    def test_ledger_is_bounded_and_counts_what_it_omits(self, small: Rig) -> None:
        log = small.store.logs.open("a")
        cursor = small.store.cursors.open("c", log, 0)
        small.store.logs.append(log, run_of(*[b"m"] * 40))
        small.commit()
        for first in range(0, 20, 2):
            small.store.cursors.discard(cursor, first, first, [loss(first, first)])
            small.commit()
        assert ledger(small) == [("c", "expired", 0, 0, 1), ("c", "expired", 2, 18, 9)]
        for first in range(20, 30):  # reasons without an entry to extend: then the oldest goes
            small.store.cursors.discard(cursor, first, first, [loss(first, first, f"reason {first}")])
            small.commit()
        assert [reason for _, reason, *_ in ledger(small)] == [f"reason {n}" for n in range(26, 30)]

    def test_ledger_continues_after_opening(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path)
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(*[b"m"] * 10))
        rig.commit()
        rig.store.cursors.discard(cursor, 0, 0, [loss(0, 0)])
        rig.commit()
        rig.reopen()
        rig.store.cursors.discard(cursor, 1, 1, [loss(1, 1)])
        rig.store.cursors.discard(cursor, 3, 3, [loss(3, 3)])
        rig.commit()
        assert ledger(rig) == [("c", "expired", 0, 1, 2), ("c", "expired", 3, 3, 1)]
        rig.store.close()


class TestEvict:
    def fill(self, rig: Rig, runs: int = 10) -> int:
        log = rig.store.logs.open("a")
        rig.store.cursors.open("slow", log, 0)
        for number in range(runs):
            rig.store.logs.append(log, run_of(b"%05d" % number * 20, b"%05d" % number * 20))
            rig.commit()
        return log

    def test_oldest_messages_are_evicted_and_every_affected_cursor_has_an_entry(self, rig: Rig) -> None:
        log = self.fill(rig)
        fast = rig.store.cursors.open("fast", log, 0)
        rig.commit()
        rig.store.cursors.acknowledge(fast, 0, 2)
        rig.store.retention.evict(log, 500)  # of 200 bytes each: three commits
        assert rig.store.retention.log_bytes(log) == 1500
        rig.store.logs.append(log, run_of(b"new"))
        rig.commit()
        assert rig.store.logs.bounds(log) == (6, 21)
        assert rig.store.retention.log_bytes(log) == 1403
        assert ledger(rig) == [("slow", "evicted", 0, 5, 6), ("fast", "evicted", 3, 5, 3)]
        assert [entry.bytes for entry in rig.store.ledger.entries(0, 10)] == [600, 300]
        assert [record.position for record in rig.store.cursor_records()] == [6, 6]
        assert flat(rig.read(log, 0))[0][:3] == (6, "plant/7/temp", 6)

    def test_cursor_loses_only_pending_messages(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.cursors.set_filter(cursor, lambda run: run.address == "b")
        for _ in range(4):
            rig.store.logs.append(log, run_of(b"x" * 100))
            rig.store.logs.append(log, run_of(b"x" * 100, address="b"))
            rig.commit()
        rig.store.retention.evict(log, 1)
        rig.commit()
        rig.store.retention.evict(log, 10_000)
        rig.commit()
        assert ledger(rig) == [("c", "evicted", 0, 3, 4)]
        assert rig.store.info().messages == rig.store.retention.log_bytes(log) == 0

    @pytest.mark.parametrize("seed", range(12))
    def test_eviction_limit_is_exact_to_the_message(self, rig: Rig, seed: int) -> None:
        dice = random.Random(seed)
        log = rig.store.logs.open("a")
        rig.store.cursors.open("slow", log, 0)
        rig.store.cursors.open("gone", rig.store.logs.open("b"), 0)
        for _ in range(6):
            for _ in range(dice.randrange(1, 4)):
                bodies = [bytes(dice.randrange(1, 60)) for _ in range(dice.randrange(1, 6))]
                rig.store.logs.append(log, run_of(*bodies, address=dice.choice(["a", "b"])))
            rig.commit()
        left = rig.read_all(log)
        while left:
            size = dice.randrange(1, 150)
            at_most = size + dice.randrange(0, 40)
            rig.store.retention.evict(log, size, at_most)
            if dice.random() < 0.3:
                more = dice.randrange(1, 50)
                at_most, size = size + more, size + more
                rig.store.retention.evict(log, more, more)
            rig.commit()
            now = rig.read_all(log)
            gone = sum(len(body) for *_, body in left) - sum(len(body) for *_, body in now)
            assert now == left[len(left) - len(now) :]
            assert gone <= at_most
            assert gone >= size or not now or gone + len(now[0][3]) > at_most
            assert rig.store.retention.log_bytes(log) == sum(len(body) for *_, body in now)
            if len(now) == len(left):
                rig.store.retention.evict(log, 1)  # the next message alone is larger
                rig.commit()
                now = rig.read_all(log)
            left = now
        entries = rig.store.ledger.entries(0, 1000)
        assert sum(entry.messages for entry in entries) == rig.store.logs.bounds(log)[1]

    def test_log_without_a_limit_is_not_restricted(self, rig: Rig) -> None:
        log = self.fill(rig)
        rig.store.retention.evict(log, 10, at_most=10)
        rig.store.retention.evict(log, 10)
        rig.store.retention.evict(log, 10, at_most=10)
        rig.commit()
        assert rig.store.retention.log_bytes(log) == 1_800

    def test_partly_evicted_run_is_restored_after_opening(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path)
        log = rig.store.logs.open("a")
        rig.store.cursors.open("slow", log, 0)
        rig.store.logs.append(log, run_of(*(b"%03d" % number for number in range(100))))
        rig.commit()
        rig.read(log, 50, bytes_max=10)  # part of the segment is cached
        rig.store.retention.evict(log, 30, at_most=31)
        rig.commit()
        assert [body for *_, body in rig.read_all(log)] == [b"%03d" % number for number in range(10, 100)]
        rig.reopen()
        assert rig.store.logs.bounds(log) == (10, 100)
        assert rig.store.retention.log_bytes(log) == 270
        assert rig.read_all(log)[0] == (10, "plant/7/temp", 10, b"010")
        rig.store.logs.append(log, run_of(b"new"))
        assert rig.commit().appended[0][1][:2] == (100, 100)
        rig.store.close()

    def test_failed_commit_evicts_nothing(self, rig: Rig) -> None:
        log = self.fill(rig)
        fail_commits(rig)
        rig.store.retention.evict(log, 500)
        rig.store.logs.append(log, run_of(b"x" * 100_000))
        assert rig.commit().error is not None
        assert rig.store.logs.bounds(log) == (0, 20)
        assert rig.store.retention.log_bytes(log) == 2000
        assert ledger(rig) == []
        heal(rig)
        rig.settle()
        assert rig.store.logs.bounds(log) == (0, 20), "who wants room asks again"

    def test_evicted_messages_stay_evicted_after_opening(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path)
        log = self.fill(rig)
        rig.store.retention.evict(log, 900)
        rig.commit()
        rig.reopen()
        assert rig.store.logs.bounds(log) == (10, 20)
        assert rig.store.retention.log_bytes(log) == 1000
        assert rig.store.info().bytes == 1000
        rig.store.logs.append(log, run_of(b"new"))
        assert rig.commit().appended[0][1][:2] == (20, 20)
        rig.store.close()

    def test_one_commit_evicts_a_bounded_number(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path, StoreLimits(evict_bytes_max=400))
        log = self.fill(rig)
        rig.store.retention.evict(log, 1_000)
        rig.commit()
        assert rig.store.retention.log_bytes(log) == 1_600
        rig.store.close()


def test_cursor_created_after_a_refused_commit_misses_nothing(rig: Rig) -> None:
    log = rig.store.logs.open("a")
    rig.commit()
    fail_commits(rig)
    rig.store.logs.append(log, run_of(b"x" * 100_000))
    assert rig.commit().error is not None
    rig.store.logs.append(log, run_of(b"x" * 100_000))
    assert rig.store.commits.flush()
    early = rig.store.cursors.open("made while that commit runs", log, 0)
    while rig.store.commits.committing:
        rig.turn()
    heal(rig)
    late = rig.store.cursors.open("made behind it", log, 0)
    assert [rig.store.cursors.record(cursor).position for cursor in (early, late)] == [0, 0]
    rig.store.logs.append(log, run_of(b"first"))
    rig.settle()
    assert [body for *_, body in rig.read_all(log)] == [b"first"]
