"""Logs in memory: a bounded ring, readable immediately, never written; dropped messages are in the ledger."""

from __future__ import annotations

from random import Random

import pytest

from bridge.message import Stored
from edge.broker.store.errors import StoreFull
from edge.broker.store.ticket import Ticket
from tests.contract.store.memory_log import LIMITS, MemoryLog, finish_due_work, flush, wait
from tests.contract.store.rig import Rig, fail_commits, flat, heal, run_of


def ledger(rig: Rig) -> list[tuple[str, str, str, int, int, int]]:
    return [
        (entry.subscription, entry.address, entry.reason, entry.first, entry.last, entry.messages)
        for entry in rig.store.ledger.entries(0, 1000)
    ]


class TestAppending:
    def test_only_the_first_message_of_an_address_waits_for_its_numbers(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        rig.store.logs.keep_in_memory(log, keep=True)
        ticket = rig.store.logs.append(log, run_of(b"0"))
        assert isinstance(ticket, Ticket)
        assert flush(rig)
        assert (ticket.decided, ticket.error) == (True, None)
        taken = rig.store.logs.append(log, run_of(b"1", b"2"))
        assert isinstance(taken, Stored)
        assert flat([taken]) == [(1, "plant/7/temp", 1, b"1"), (2, "plant/7/temp", 2, b"2")]
        assert isinstance(rig.store.logs.append(log, run_of(b"3", address="other")), Ticket)
        assert isinstance(rig.store.logs.append(log, run_of(b"4")), Ticket), "it stays behind what waits in its log"
        flush(rig)
        assert flat([stored for _, stored in rig.commits[-1].appended]) == [
            (3, "other", 0, b"3"),
            (4, "plant/7/temp", 3, b"4"),
        ]

    def test_message_is_readable_at_once(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        kept.take(b"1", b"2")
        kept.take(b"3")
        assert rig.store.logs.bounds(kept.log) == (1, 4)
        assert rig.read_all(kept.log, 0, 1) == [(n, kept.address, n, b"%d" % n) for n in (1, 2, 3)]
        assert rig.read_all(kept.log, 2) == [(n, kept.address, n, b"%d" % n) for n in (2, 3)]
        assert rig.store.retention.log_bytes(kept.log) == 3
        assert (rig.store.info().memory_bytes, rig.store.totals().messages) == (3, 3)

    def test_messages_during_the_reservation_are_appended_with_the_first(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        rig.store.logs.keep_in_memory(log, keep=True)
        rig.store.logs.append(log, run_of(b"0"))
        rig.store.commits.flush()
        assert isinstance(rig.store.logs.append(log, run_of(b"1")), Ticket)
        assert isinstance(rig.store.logs.append(log, run_of(b"2")), Ticket)
        while rig.store.commits.committing:
            rig.turn()
        (commit,) = rig.commits
        assert flat([stored for _, stored in commit.appended]) == [(n, "plant/7/temp", n, b"%d" % n) for n in range(3)]
        assert isinstance(rig.store.logs.append(log, run_of(b"3")), Stored)
        assert rig.store.commits.pending_bytes == 0

    def test_earlier_messages_on_their_way_to_the_medium_come_first(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(b"0"))
        rig.store.commits.flush()
        rig.store.logs.append(log, run_of(b"1"))
        rig.store.logs.keep_in_memory(log, keep=True)
        assert isinstance(rig.store.logs.append(log, run_of(b"2")), Ticket)
        for _ in range(4):
            flush(rig)
        assert isinstance(rig.store.logs.append(log, run_of(b"3")), Stored)
        assert [body for *_, body in rig.read_all(log)] == [b"0", b"1", b"2", b"3"]
        assert rig.store.totals().memory_bytes == 2
        rig.store.cursors.acknowledge(cursor, 0, 3)
        finish_due_work(rig)
        assert rig.store.logs.bounds(log) == (4, 4)

    def test_burst_reserves_more_and_more(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        waited = 0
        for _ in range(4000):
            stored = rig.store.logs.append(kept.log, run_of(b"x"))
            if isinstance(stored, Ticket):
                waited += 1
                flush(rig)
            end = rig.store.logs.bounds(kept.log)[1]
            rig.store.cursors.acknowledge(kept.cursor, end - 1, end - 1)
            rig.now += 0.001
            flush(rig)
        assert waited == 0
        assert len(rig.commits) < 30

    def test_messages_beyond_any_reservation_are_appended_after_one_commit(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        bodies = [b"x"] * (LIMITS.memory_reserve_min + 5)
        assert isinstance(rig.store.logs.append(kept.log, run_of(*bodies)), Ticket)
        assert isinstance(rig.store.logs.append(kept.log, run_of(*bodies)), Ticket)
        flush(rig)
        assert len(rig.commits[-1].appended) == 2
        assert kept.take(b"next").sequence == 1 + 2 * len(bodies)

    def test_new_cursor_does_not_wait_for_consumed_messages(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        taken = kept.take(b"given to everybody")
        rig.store.cursors.acknowledge(kept.cursor, taken.position, taken.position)
        new = rig.store.cursors.open("new", kept.log, 0)
        assert rig.store.cursors.record(new).position == taken.position + 1

    def test_log_without_cursors_stores_nothing(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        rig.store.cursors.drop(kept.cursor)
        kept.take(b"x" * 100)
        assert rig.store.retention.log_bytes(kept.log) == 0

    def test_address_above_the_limit_takes_the_numbers_of_an_empty_one(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        for n in range(LIMITS.memory_addresses_max + 2):
            assert isinstance(rig.store.logs.append(kept.log, run_of(b"x", address=f"a/{n}")), Ticket)
            flush(rig)
            rig.store.cursors.acknowledge(kept.cursor, 0, rig.store.logs.bounds(kept.log)[1] - 1)
        assert len(rig.store._rings.numbers.reservations) <= LIMITS.memory_addresses_max
        rig.store.logs.append(kept.log, run_of(b"again"))
        flush(rig)
        assert flat([rig.commits[-1].appended[0][1]]) == [(6, kept.address, 1, b"again")]

    def test_address_above_the_limit_is_refused_where_all_have_messages(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        tickets = []
        for n in range(LIMITS.memory_addresses_max + 1):
            tickets.append(rig.store.logs.append(kept.log, run_of(b"x", address=f"a/{n}")))
            flush(rig)
        outcomes = [isinstance(ticket, Ticket) and type(ticket.error) for ticket in tickets]
        assert outcomes == [type(None)] * LIMITS.memory_addresses_max + [StoreFull]
        assert len(rig.read_all(kept.log)) == LIMITS.memory_addresses_max


class TestSettling:
    def test_nothing_is_ever_written(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        commits = 0
        for _ in range(100):
            taken = kept.take(b"x" * 30)
            rig.store.cursors.acknowledge(kept.cursor, taken.position, taken.position)
            commits += wait(rig, 0.5)
        kept.take(b"waits")
        commits += wait(rig, 1000)
        assert kept.segments() == 0
        assert commits <= 4
        assert rig.store.info().messages == 1
        assert rig.store.info().bytes == len(b"waits")

    def test_consumed_messages_leave_without_an_entry(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        other = rig.store.cursors.open("other", kept.log, 0)
        rig.store.cursors.set_filter(other, lambda run: run.address == "plant/8")
        for _ in range(40):
            taken = kept.take(b"x" * 300)
            rig.store.cursors.acknowledge(kept.cursor, taken.position, taken.position)
            flush(rig)
        wait(rig, 60)
        assert ledger(rig) == []
        assert rig.store._rings.cost <= LIMITS.memory_bytes_max

    def test_cursor_move_in_a_ring_causes_no_commit(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        taken = kept.take(b"x")
        rig.store.cursors.acknowledge(kept.cursor, taken.position, taken.position)
        assert rig.store.cursors.confirm(kept.cursor) is None
        assert wait(rig, 300) == 0

    def test_cursors_of_the_ring_survive_every_commit_without_other_moves(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        taken, before = kept.take(b"x"), rig.store.commits.moves_kept
        rig.store.cursors.acknowledge(kept.cursor, taken.position, taken.position)
        rig.store.state.put("kind", "key", b"")
        flush(rig)
        assert rig.store.commits.moves_kept == before + 1

    def test_idle_address_returns_its_reservation(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        kept.take(b"x")
        rig.store.cursors.acknowledge(kept.cursor, 1, 1)
        assert kept.address in rig.store._rings.numbers.reservations
        wait(rig, 8000)
        assert kept.address not in rig.store._rings.numbers.reservations
        assert isinstance(rig.store.logs.append(kept.log, run_of(b"y")), Ticket)
        flush(rig)
        assert flat([rig.commits[-1].appended[0][1]]) == [(2, kept.address, 2, b"y")]

    def test_used_or_non_empty_address_keeps_its_reservation(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        kept.take(b"waits")
        wait(rig, 12_000)
        assert kept.address in rig.store._rings.numbers.reservations
        kept.take(b"y")

    def test_message_during_the_return_of_numbers_waits(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        wait(rig, 3700)
        rig.now += 3700
        assert rig.store.commits.flush()
        assert isinstance(rig.store.logs.append(kept.log, run_of(b"late")), Ticket)
        while rig.store.commits.committing:
            rig.turn()
        assert kept.address not in rig.store._rings.numbers.reservations
        flush(rig)
        assert flat([rig.commits[-1].appended[0][1]]) == [(1, kept.address, 1, b"late")]
        kept.take(b"next")

    def test_unreturned_numbers_are_unused_until_a_commit_succeeds(self, rig: Rig) -> None:
        """The failed commit may be on the medium all the same, so its numbers are not reused yet."""
        kept = MemoryLog(rig)
        wait(rig, 3700)
        fail_commits(rig)
        rig.store.state.put("filler", "x", Random(1).randbytes(100_000))
        rig.now += 3700
        flush(rig)
        assert rig.commits[-1].error is not None
        assert isinstance(rig.store.logs.append(kept.log, run_of(b"waits")), Ticket)
        heal(rig)
        rig.now += 10
        flush(rig)
        kept.take(b"by a new reservation")


class TestFull:
    def test_oldest_messages_are_dropped_in_one_ledger_entry(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        commits = len(rig.commits)
        for n in range(100):
            while isinstance(rig.store.logs.append(kept.log, run_of(b"%0500d" % n)), Ticket):
                flush(rig)
            rig.now += 0.5
            flush(rig)
            assert rig.store._rings.cost <= LIMITS.memory_bytes_max
        wait(rig, 30)
        assert len(rig.commits) - commits <= 10
        (entry,) = ledger(rig)
        left = rig.read_all(kept.log)
        assert entry[:4] == ("c", kept.address, "evicted", 1)
        assert entry[4] - 1 + 1 == entry[5]
        assert [sequence for _, _, sequence, _ in left] == list(range(entry[4] + 1, left[-1][2] + 1))
        assert rig.store.cursors.record(kept.cursor).position == left[0][0]
        assert rig.store.retention.log_bytes(kept.log) == 500 * len(left)
        assert kept.segments() == 0

    def test_consumer_of_a_part_loses_the_rest(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        rig.store.cursors.open("other", kept.log, 1)
        taken = kept.take(*[b"x" * 100] * 10)
        rig.store.cursors.acknowledge(kept.cursor, taken.position + 2, taken.position + 3)
        kept.take(*[b"y" * 300] * 10)
        flush(rig)
        wait(rig, 30)
        assert sorted(ledger(rig)) == [
            ("c", kept.address, "evicted", 1, 2, 2),
            ("c", kept.address, "evicted", 5, 10, 6),
            ("other", kept.address, "evicted", 1, 10, 10),
        ]

    def test_all_logs_share_a_bound(self, rig: Rig) -> None:
        logs = [MemoryLog(rig, f"queue {n}", f"q/{n}") for n in range(3)]
        for _ in range(30):
            for kept in logs:
                while isinstance(rig.store.logs.append(kept.log, run_of(b"x" * 400, address=kept.address)), Ticket):
                    flush(rig)
                assert rig.store._rings.cost <= LIMITS.memory_total_bytes_max
        assert all(rig.store.retention.log_bytes(kept.log) for kept in logs)

    def test_message_above_all_bounds_is_alone(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        kept.take(b"small")
        kept.take(b"x" * 2 * LIMITS.memory_total_bytes_max)
        assert [len(body) for *_, body in rig.read_all(kept.log)] == [2 * LIMITS.memory_total_bytes_max]
        kept.take(b"small")
        assert [body for *_, body in rig.read_all(kept.log)] == [b"small"]

    @pytest.mark.parametrize("thins", [False, True])
    def test_quota_drops_the_oldest(self, rig: Rig, thins: bool) -> None:
        """Memory keeps no summaries: an address that thins drops its oldest messages."""
        kept = MemoryLog(rig)
        for n in range(10):
            kept.take(b"%010d" % n)
        (rig.store.retention.thin if thins else rig.store.retention.evict)(kept.log, 25)
        assert rig.store.retention.log_bytes(kept.log) == 70
        wait(rig, 30)
        assert ledger(rig) == [("c", kept.address, "evicted", 1, 3, 3)]
        assert [sequence for _, _, sequence, _ in rig.read_all(kept.log)] == list(range(4, 11))

    def test_dropping_is_limited_in_bytes(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        kept.take(*[b"%010d" % n for n in range(10)])
        rig.store.retention.evict(kept.log, 35, 35)
        assert rig.store.retention.log_bytes(kept.log) == 70
        rig.store.retention.evict(kept.log, 5, 5)
        assert rig.store.retention.log_bytes(kept.log) == 70
        assert [sequence for _, _, sequence, _ in rig.read_all(kept.log)] == list(range(4, 11))

    def test_messages_on_the_medium_are_dropped_before_those_in_memory(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(b"0" * 10))
        rig.commit()
        rig.store.logs.keep_in_memory(log, keep=True)
        rig.store.logs.append(log, run_of(b"1" * 10))
        flush(rig)
        rig.store.logs.append(log, run_of(b"2" * 10))
        rig.store.retention.evict(log, 15)
        wait(rig, 30)
        assert [body for *_, body in rig.read_all(log)] == [b"2" * 10]
        assert rig.store.retention.log_bytes(log) == 10
        assert sum(messages for *_, messages in ledger(rig)) == 2


class TestLeaving:
    def test_log_may_return_to_the_medium(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        kept.take(b"1")
        rig.store.logs.keep_in_memory(kept.log, keep=False)
        assert isinstance(rig.store.logs.append(kept.log, run_of(b"2")), Ticket)
        flush(rig)
        assert isinstance(rig.store.logs.append(kept.log, run_of(b"3")), Ticket)
        flush(rig)
        assert rig.read_all(kept.log) == [(n, kept.address, n, b"%d" % n) for n in (2, 3)]
        assert ledger(rig) == [("c", kept.address, "memory", 1, 1, 1)]
        assert not rig.store.logs.in_memory(kept.log)
        assert not rig.store._rings.numbers.reservations

    def test_log_may_return_to_memory(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        kept.take(b"1")
        rig.store.logs.keep_in_memory(kept.log, keep=False)
        rig.store.logs.keep_in_memory(kept.log, keep=True)
        assert isinstance(rig.store.logs.append(kept.log, run_of(b"2")), Ticket)
        for _ in range(3):
            flush(rig)
        rig.store.logs.append(kept.log, run_of(b"3"))
        for _ in range(3):
            flush(rig)
        assert rig.store.logs.in_memory(kept.log)
        assert rig.read_all(kept.log) == [(n, kept.address, n, b"%d" % n) for n in (2, 3)]

    def test_log_with_a_backlog_on_the_medium_continues_behind_it(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(b"0"))
        rig.commit()
        rig.store.logs.keep_in_memory(log, keep=True)
        rig.store.logs.append(log, run_of(b"1"))
        flush(rig)
        rig.store.logs.keep_in_memory(log, keep=False)
        rig.store.logs.append(log, run_of(b"2"))
        flush(rig)
        assert [body for *_, body in rig.read_all(log)] == [b"0", b"2"]
        rig.store.cursors.acknowledge(cursor, 0, 2)
        finish_due_work(rig)
        assert rig.store.logs.bounds(log) == (3, 3)

    def test_message_waiting_for_numbers_is_refused(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        ticket = rig.store.logs.append(kept.log, run_of(b"x", address="new"))
        rig.store.logs.keep_in_memory(kept.log, keep=False)
        assert isinstance(ticket, Ticket)
        assert ticket.error is not None

    def test_addresses_may_use_their_numbers_in_another_log(self, rig: Rig) -> None:
        kept, other = MemoryLog(rig), rig.store.logs.open("queue jobs")
        rig.store.cursors.open("c", other, 0)
        kept.take(b"waits")
        rig.store.logs.keep_in_memory(kept.log, keep=True)
        flush(rig)
        assert isinstance(rig.store.logs.append(kept.log, run_of(b"next")), Ticket)
        flush(rig)
        assert [body for *_, body in rig.read_all(kept.log)] == [b"waits", b"next"]


class TestFailing:
    def test_log_with_numbers_accepts_messages_and_recovers_with_the_medium(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        fail_commits(rig)
        rig.store.state.put("filler", "x", Random(1).randbytes(100_000))
        bodies, refused = [], 0
        for n in range(2 * LIMITS.memory_reserve_min):
            stored = rig.store.logs.append(kept.log, run_of(b"%d" % n))
            rig.now += 0.5
            flush(rig)
            if isinstance(stored, Stored):
                bodies.append(b"%d" % n)
            else:
                assert isinstance(stored.error, StoreFull)
                refused += 1
        assert len(bodies) >= LIMITS.memory_reserve_min // 2
        assert refused
        assert [body for *_, body in rig.read_all(kept.log)] == bodies
        heal(rig)
        wait(rig, 10)
        assert rig.commits[-1].error is None
        kept.take(b"on")
        assert [body for *_, body in rig.read_all(kept.log)] == [*bodies, b"on"]

    def test_messages_dropped_meanwhile_are_recorded_afterwards(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        for n in range(10):
            kept.take(b"%010d" % n)
        fail_commits(rig)
        rig.store.state.put("filler", "x", Random(1).randbytes(100_000))
        rig.store.retention.evict(kept.log, 30)
        wait(rig, 30)
        assert ledger(rig) == []
        heal(rig)
        wait(rig, 30)
        assert ledger(rig) == [("c", kept.address, "evicted", 1, 3, 3)]

    @pytest.mark.parametrize("name", ["topic plant/#", "queue jobs"])
    def test_numbers_of_a_failed_commit_are_not_used_in_memory(self, rig: Rig, name: str) -> None:
        """The failed commit may be on the medium all the same."""
        kept, other = MemoryLog(rig), rig.store.logs.open(name)
        finish_due_work(rig)
        fail_commits(rig)
        rig.store.state.put("filler", "x", Random(1).randbytes(100_000))
        rig.store.logs.append(other, run_of(b"refused", address="another" if other == kept.log else kept.address))
        flush(rig)
        assert rig.commits[-1].error is not None
        assert isinstance(rig.store.logs.append(kept.log, run_of(b"next")), Stored if other == kept.log else Ticket)
        heal(rig)
        flush(rig)
        kept.take(b"taken")
        assert [sequence for _, _, sequence, _ in rig.read_all(kept.log)] == [1, 2]
