"""Logs kept in memory: named and read at once, written only when they wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from bridge.message import Stored
from edge.broker.store.errors import StoreFull
from edge.broker.store.ticket import Ticket
from tests.contract.store.kept import LIMITS, Kept, flush, made_rig, rest, wait
from tests.contract.store.rig import Rig, fail_commits, flat, heal, run_of


@pytest.fixture(params=["sqlite", "memory"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    made = made_rig(request.param, tmp_path)
    yield made
    made.store.close()


class TestTaking:
    def test_the_first_message_of_an_address_waits_for_the_disk_and_the_next_do_not(self, rig: Rig) -> None:
        log = rig.store.log("a")
        rig.store.open_cursor("c", log, 0)
        rig.store.keep_in_memory(log, keep=True)
        assert isinstance(rig.store.append(log, run_of(b"0")), Ticket)
        assert flush(rig)
        taken = rig.store.append(log, run_of(b"1", b"2"))
        assert isinstance(taken, Stored)
        assert flat([taken]) == [(1, "plant/7/temp", 1, b"1"), (2, "plant/7/temp", 2, b"2")]
        assert isinstance(rig.store.append(log, run_of(b"3", address="other")), Ticket)

    def test_what_is_taken_is_there_at_once(self, rig: Rig) -> None:
        kept = Kept(rig)
        kept.take(b"1", b"2")
        kept.take(b"3")
        assert rig.store.bounds(kept.log)[1] == 4
        assert rig.read_all(kept.log, 0, 1) == [(n, kept.address, n, b"%d" % n) for n in (1, 2, 3)]
        assert rig.read_all(kept.log, 2) == [(n, kept.address, n, b"%d" % n) for n in (2, 3)]
        assert rig.store.log_bytes(kept.log) == 3

    def test_what_came_while_something_waited_for_the_disk_is_taken_after_it(self, rig: Rig) -> None:
        log = rig.store.log("a")
        rig.store.open_cursor("c", log, 0)
        rig.store.keep_in_memory(log, keep=True)
        rig.store.append(log, run_of(b"0"))
        rig.store.flush()
        assert isinstance(rig.store.append(log, run_of(b"1")), Ticket)
        assert isinstance(rig.store.append(log, run_of(b"2")), Ticket)
        while rig.store.committing:
            rig.turn()
        (commit,) = rig.commits
        assert flat([stored for _, stored in commit.appended]) == [(n, "plant/7/temp", n, b"%d" % n) for n in range(3)]
        assert rig.store.gathered == 0
        assert isinstance(rig.store.append(log, run_of(b"3")), Stored)

    def test_a_burst_reserves_more_and_more(self, rig: Rig) -> None:
        kept = Kept(rig)
        waited = 0
        for _ in range(4000):
            stored = rig.store.append(kept.log, run_of(b"x"))
            if isinstance(stored, Ticket):
                waited += 1
                flush(rig)
            end = rig.store.bounds(kept.log)[1]
            rig.store.acknowledge(kept.cursor, end - 1, end - 1)
            rig.now += 0.001
            flush(rig)
        assert waited == 0
        assert len(rig.commits) < 30

    def test_a_new_cursor_does_not_wait_for_what_was_never_written(self, rig: Rig) -> None:
        kept = Kept(rig)
        taken = kept.take(b"given to everybody")
        rig.store.acknowledge(kept.cursor, taken.position, taken.position)
        new = rig.store.open_cursor("new", kept.log, 0)
        assert rig.store.cursor(new).position == taken.position + 1

    def test_a_log_without_cursors_keeps_nothing(self, rig: Rig) -> None:
        kept = Kept(rig)
        rig.store.drop_cursor(kept.cursor)
        kept.take(b"x" * 100)
        assert rig.store.log_bytes(kept.log) == 0

    def test_more_addresses_than_may_be_reserved_go_by_the_medium(self, rig: Rig) -> None:
        kept = Kept(rig)
        for n in range(LIMITS.memory_addresses_max + 2):
            assert isinstance(rig.store.append(kept.log, run_of(b"x", address=f"a/{n}")), Ticket)
            flush(rig)
        again = [
            isinstance(rig.store.append(kept.log, run_of(b"x", address=f"a/{n}")), Ticket)
            for n in range(LIMITS.memory_addresses_max + 2)
        ]  # fmt: skip
        assert again == [False, False, True, True, True]


class TestSettling:
    def test_what_is_acknowledged_soon_is_never_written(self, rig: Rig) -> None:
        kept = Kept(rig)
        commits = 0
        for _ in range(100):
            taken = kept.take(b"x" * 30)
            rig.store.acknowledge(kept.cursor, taken.position, taken.position)
            commits += wait(rig, 0.5)
        assert kept.segments() == 0
        assert commits <= 4
        assert rig.store.info().messages == 0
        assert rig.store.info().bytes == 0

    def test_what_waits_too_long_is_written(self, rig: Rig) -> None:
        kept = Kept(rig)
        kept.take(b"1")
        assert wait(rig, 4.5) == 0
        kept.take(b"2")
        assert wait(rig, 1.5) == 1
        assert kept.segments() >= 1
        kept.take(b"3")
        assert [body for *_, body in rig.read_all(kept.log)] == [b"1", b"2", b"3"]
        assert rig.store.log_bytes(kept.log) == 3
        rig.store.acknowledge(kept.cursor, 1, 3)
        rest(rig)
        assert kept.segments() == 0
        assert rig.store.log_bytes(kept.log) == 0

    def test_it_is_written_as_soon_after_a_time_when_all_was_taken(self, rig: Rig) -> None:
        kept = Kept(rig)
        wait(rig, 200)
        taken = kept.take(b"taken")
        rig.store.acknowledge(kept.cursor, taken.position, taken.position)
        wait(rig, 7)
        kept.take(b"waits")
        assert kept.segments() == 0
        wait(rig, 6)
        assert kept.segments() == 1

    def test_only_what_somebody_waits_for_is_written(self, rig: Rig) -> None:
        kept = Kept(rig)
        other = rig.store.open_cursor("other", kept.log, 0)
        rig.store.set_filter(other, lambda run: run.address == "plant/8")
        rig.store.append(kept.log, run_of(b"0", address="plant/8"))
        flush(rig)
        kept.take(b"a", b"b", b"c")
        kept.take(b"d", b"e", address="plant/8")
        kept.take(b"f")
        rig.store.acknowledge(kept.cursor, 1, 2)
        rig.store.acknowledge(kept.cursor, 4, 7)
        wait(rig, 6)
        assert rig.read_all(kept.log, 2) == [
            (3, kept.address, 2, b"b"),
            (5, "plant/8", 1, b"d"),
            (6, "plant/8", 2, b"e"),
        ]

    def test_what_nobody_wants_is_not_written(self, rig: Rig) -> None:
        kept = Kept(rig)
        other = rig.store.open_cursor("other", kept.log, 0)
        rig.store.set_filter(other, lambda run: False)
        taken = kept.take(b"x" * 10)
        rig.store.acknowledge(kept.cursor, taken.position, taken.position)
        wait(rig, 20)
        assert kept.segments() == 0
        assert rig.store.log_bytes(kept.log) == 0

    def test_above_its_bound_it_is_written_at_once_and_above_twice_as_much_nothing_is_taken(self, rig: Rig) -> None:
        kept = Kept(rig)
        rig.store.flush()
        size, taken = 500, 0
        while isinstance(rig.store.append(kept.log, run_of(b"x" * size)), Stored):
            taken += 1
            assert taken < 100
        assert 2 * LIMITS.memory_bytes_max <= taken * (size + 64) < 2 * LIMITS.memory_bytes_max + 2 * size
        assert flush(rig)
        assert rig.store._buffer.cost <= 64 + size
        assert rig.store.log_bytes(kept.log) == size * (taken + 1)
        assert len(rig.read_all(kept.log)) == taken + 1

    def test_all_logs_together_have_a_bound(self, rig: Rig) -> None:
        logs = [Kept(rig, f"queue {n}", f"q/{n}") for n in range(3)]
        taken = 0
        full: set[int] = set()
        while len(full) < len(logs):
            joined = {k.log: rig.store.append(k.log, run_of(b"x" * 400, address=k.address)) for k in logs}
            full = {log for log, each in joined.items() if isinstance(each, Ticket)}
            taken += 1
            assert taken < 100
        assert rig.store._buffer.cost <= LIMITS.memory_total_bytes_max + 3 * 464

    def test_cursors_are_written_now_and_then(self, rig: Rig) -> None:
        kept = Kept(rig)
        taken = kept.take(b"x")
        rig.store.acknowledge(kept.cursor, taken.position, taken.position)
        assert wait(rig, 59) == 0
        assert wait(rig, 2) == 1
        assert rig.store.cursors()[0].position == taken.position + 1
        assert wait(rig, 300) == 0

    def test_an_idle_address_gives_back_what_it_reserved(self, rig: Rig) -> None:
        kept = Kept(rig)
        kept.take(b"x")
        rig.store.acknowledge(kept.cursor, 1, 1)
        assert kept.address in rig.store._buffer.reservations
        wait(rig, 4000)
        assert kept.address not in rig.store._buffer.reservations
        assert isinstance(rig.store.append(kept.log, run_of(b"y")), Ticket)
        flush(rig)
        assert flat([rig.commits[-1].appended[0][1]]) == [(2, kept.address, 2, b"y")]

    def test_what_comes_while_an_address_gives_back_its_numbers_waits(self, rig: Rig) -> None:
        kept = Kept(rig)
        rig.now += 4000
        assert rig.store.flush()
        assert isinstance(rig.store.append(kept.log, run_of(b"late")), Ticket)
        while rig.store.committing:
            rig.turn()
        assert kept.address not in rig.store._buffer.reservations
        flush(rig)
        assert flat([rig.commits[-1].appended[0][1]]) == [(1, kept.address, 1, b"late")]
        kept.take(b"next")

    def test_numbers_that_could_not_be_given_back_are_given_to_nobody_until_a_commit_succeeds(self, rig: Rig) -> None:
        """The one that failed may be found on the medium all the same."""
        kept = Kept(rig)
        fail_commits(rig)
        rig.store.put("filler", "x", Random(1).randbytes(100_000))
        rig.now += 4000
        flush(rig)
        assert rig.commits[-1].error is not None
        assert isinstance(rig.store.append(kept.log, run_of(b"waits")), Ticket)
        heal(rig)
        flush(rig)
        kept.take(b"by the same reservation")

    def test_evicting_reaches_what_is_in_memory(self, rig: Rig) -> None:
        kept = Kept(rig)
        for n in range(10):
            kept.take(b"%010d" % n)
        rig.store.evict(kept.log, 100)
        flush(rig)
        assert rig.read_all(kept.log) == []
        assert rig.store.log_bytes(kept.log) == 0
        (entry,) = rig.store.losses(0, 10)
        assert (entry.reason, entry.first, entry.last, entry.messages) == ("evicted", 1, 10, 10)

    def test_a_log_goes_back_to_the_medium(self, rig: Rig) -> None:
        kept = Kept(rig)
        kept.take(b"1")
        rig.store.keep_in_memory(kept.log, keep=False)
        assert isinstance(rig.store.append(kept.log, run_of(b"2")), Ticket)
        flush(rig)
        assert isinstance(rig.store.append(kept.log, run_of(b"3")), Ticket)
        flush(rig)
        assert rig.read_all(kept.log) == [(n, kept.address, n, b"%d" % n) for n in (1, 2, 3)]
        assert not rig.store._buffer.logs
        assert not rig.store._buffer.reservations


class TestFailing:
    def test_it_takes_until_its_bound_and_goes_on_when_the_medium_does(self, rig: Rig) -> None:
        kept = Kept(rig)
        fail_commits(rig)
        bodies = []
        for n in range(40):
            body = Random(n).randbytes(500)  # no room is left, however it is packed
            if isinstance(rig.store.append(kept.log, run_of(body)), Stored):
                bodies.append(body)
            rig.now += 0.5
            flush(rig)
        assert 8 <= len(bodies) <= 16
        errors = [commit.error for commit in rig.commits]
        assert isinstance(errors[-1], StoreFull)
        assert [body for *_, body in rig.read_all(kept.log)] == bodies
        heal(rig)
        wait(rig, 10)
        assert rig.commits[-1].error is None
        assert kept.segments() >= 1
        assert [body for *_, body in rig.read_all(kept.log)] == bodies
        assert isinstance(rig.store.append(kept.log, run_of(b"on")), Stored)

    @pytest.mark.parametrize("name", ["topic plant/#", "queue jobs"])
    def test_numbers_of_a_commit_that_failed_are_given_to_nobody_in_memory(self, rig: Rig, name: str) -> None:
        """It may be found on the medium all the same."""
        kept, other = Kept(rig), rig.store.log(name)
        rest(rig)
        fail_commits(rig)
        rig.store.put("filler", "x", Random(1).randbytes(100_000))
        rig.store.append(other, run_of(b"refused", address="another" if other == kept.log else kept.address))
        flush(rig)
        assert rig.commits[-1].error is not None
        assert isinstance(rig.store.append(kept.log, run_of(b"next")), Ticket)
        heal(rig)
        flush(rig)
        assert flat([rig.commits[-1].appended[0][1]]) == [(1, kept.address, 1, b"next")]
        kept.take(b"taken")
