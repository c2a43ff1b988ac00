"""One suite for every store: the contract of `edge.broker.store.contract`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.broker.store.contract import Store
from edge.broker.store.errors import StoreError, StoreFull
from edge.broker.store.limits import TEXT_BYTES_MAX, StoreLimits
from edge.broker.store.sqlite_medium import SqliteMedium
from tests.contract.store.rig import Rig, fail_commits, flat, heal, memory_rig, run_of, sqlite_rig

SMALL = StoreLimits(segment_bytes_max=64, counted_commits_max=4, reclaim_rows_max=3, logs_in_use_max=0)


@pytest.fixture(params=["sqlite", "memory", "sqlite-small", "memory-small"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    limits = SMALL if request.param.endswith("small") else None
    made = sqlite_rig(tmp_path, limits) if request.param.startswith("sqlite") else memory_rig(limits)
    yield made
    made.store.close()


class TestAppend:
    def test_implementation_is_a_store(self, rig: Rig) -> None:
        store: Store = rig.store
        assert len(store.lineage.epoch) == 32
        assert int(store.lineage.epoch, 16) >= 0

    def test_positions_are_dense_in_the_log_and_sequences_in_the_address(self, rig: Rig) -> None:
        log, other = rig.store.logs.open("topic plant/#"), rig.store.logs.open("queue jobs")
        rig.store.logs.append(log, run_of(b"1", b"2", address="plant/1"))
        rig.store.logs.append(log, run_of(b"3", address="plant/2"))
        rig.store.logs.append(other, run_of(b"4", address="jobs"))
        rig.store.logs.append(log, run_of(b"5", address="plant/1"))
        rig.commit()
        rig.store.logs.append(log, run_of(b"6", address="plant/2"))
        rig.commit()
        appended = [(log, flat([stored])) for commit in rig.commits for log, stored in commit.appended]
        assert appended == [
            (log, [(0, "plant/1", 0, b"1"), (1, "plant/1", 1, b"2")]),
            (log, [(2, "plant/2", 0, b"3")]),
            (other, [(0, "jobs", 0, b"4")]),
            (log, [(3, "plant/1", 2, b"5")]),
            (log, [(4, "plant/2", 1, b"6")]),
        ]
        assert rig.store.logs.bounds(log) == (0, 5)
        assert rig.store.logs.bounds(other) == (0, 1)

    def test_sequences_name_the_next_of_every_address(self, rig: Rig) -> None:
        log = rig.store.logs.open("topic #")
        for round_ in range(6):
            rig.store.logs.append(log, run_of(b"1", b"2", address=f"a/{round_ % 2}"))
            rig.commit()
        assert dict(rig.store.lineage.sequences()) == {"a/0": 6, "a/1": 6}
        if isinstance(rig.store.medium, SqliteMedium):
            rig.reopen()
            assert dict(rig.store.lineage.sequences()) == {"a/0": 6, "a/1": 6}

    def test_sequences_of_an_address_continue_in_another_log(self, rig: Rig) -> None:
        for name in ("first", "second"):
            rig.store.logs.append(rig.store.logs.open(name), run_of(b"x", address="plant"))
            rig.commit()
        assert [stored.sequence for commit in rig.commits for _, stored in commit.appended] == [0, 1]

    def test_nothing_is_visible_before_the_commit(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(b"x"))
        assert rig.store.logs.bounds(log) == (0, 0)
        assert rig.read(log, 0) == []
        rig.commit()
        assert rig.read_all(log) == [(0, "plant/7/temp", 0, b"x")]

    def test_messages_during_a_commit_are_in_the_next_one(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        rig.store.logs.append(log, run_of(b"1"))
        assert (rig.store.commits.flush(), rig.store.commits.committing) == (True, True)
        rig.store.logs.append(log, run_of(b"2"))
        rig.store.logs.append(log, run_of(b"3"))
        assert not rig.store.commits.flush()
        while rig.store.commits.committing:
            rig.turn()
        assert len(rig.commits) == 1
        rig.commit()
        assert [body for _, stored in rig.commits[1].appended for body in stored.run.bodies] == [b"2", b"3"]

    def test_pending_bytes_are_those_not_yet_durable(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        rig.store.logs.append(log, run_of(b"12345"))
        rig.store.commits.flush()
        rig.store.logs.append(log, run_of(b"678"))
        assert rig.store.commits.pending_bytes == 8
        while rig.store.commits.committing:
            rig.turn()
        assert rig.store.commits.pending_bytes == 3
        rig.commit()
        assert rig.store.commits.pending_bytes == 0

    def test_empty_flush_commits_nothing(self, rig: Rig) -> None:
        rig.store.logs.open("a")
        rig.commit()
        assert not rig.store.commits.flush()
        assert not rig.store.commits.committing

    def test_run_without_messages_takes_no_position(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of())
        rig.store.logs.append(log, run_of(b"x"))
        assert [len(stored.run) for _, stored in rig.commit().appended] == [0, 1]
        assert rig.read_all(log) == [(0, "plant/7/temp", 0, b"x")]

    def test_every_field_of_a_run_is_restored(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        run = run_of(b"", b"x" * 70_000, b"y", address="größe/°C", device="gerät", properties=b"\x01\x00")
        run.flags = 0b11_1111
        rig.store.logs.append(log, run)
        rig.commit()
        runs = [stored.run for position in range(3) for stored in rig.read(log, position, 1)]
        assert b"".join(run.bodies[0] for run in runs) == b"x" * 70_000 + b"y"
        for kept in runs:
            kept.bodies = run.bodies
            assert kept == run

    @pytest.mark.parametrize("name", ["x" * (TEXT_BYTES_MAX + 1), "é" * 40_000, "\ud800"])
    def test_invalid_names_are_refused_at_once(self, rig: Rig, name: str) -> None:
        log = rig.store.logs.open("a")
        with pytest.raises(StoreError):
            rig.store.logs.append(log, run_of(b"x", address=name))
        with pytest.raises(StoreError):
            rig.store.logs.append(log, run_of(b"x", device=name))
        with pytest.raises(StoreError):
            rig.store.logs.open(name)
        with pytest.raises(StoreError):
            rig.store.state.put("kind", name, b"")
        assert rig.store.commits.pending_bytes == 0
        rig.store.logs.append(log, run_of(b"x", address="x" * TEXT_BYTES_MAX))
        assert rig.commit().error is None


class TestRead:
    def test_read_may_start_within_a_run(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(*(bytes([i]) * 10 for i in range(20))))
        rig.store.logs.append(log, run_of(b"z", address="other"))
        rig.commit()
        runs = rig.read(log, 13)
        assert runs[0].position == 13
        assert runs[0].sequence == 13
        assert flat(runs) + rig.read_all(log, flat(runs)[-1][0] + 1) == rig.read_all(log)[13:]
        assert rig.read_all(log)[20] == (20, "other", 0, b"z")

    def test_read_returns_at_least_one_run_up_to_the_limit(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        for _ in range(5):
            rig.store.logs.append(log, run_of(b"x" * 10, b"y" * 10))
        rig.commit()
        assert len(rig.read(log, 0, 1)) == 1
        assert len(rig.read(log, 0, 88)) == 2
        assert len(rig.read(log, 0, 131)) == 2
        assert len(rig.read(log, 0, 1000)) == 5
        assert len(rig.read_all(log, bytes_max=1)) == 10
        assert rig.read(log, 10) == []

    def test_logs_are_separate(self, rig: Rig) -> None:
        logs = [rig.store.logs.open(name) for name in "abc"]
        for log in logs:
            rig.store.cursors.open("c", log, 0)
        for _ in range(3):
            for log in logs:
                rig.store.logs.append(log, run_of(b"%d" % log))
            rig.commit()
        for log in logs:
            assert [body for *_, body in rig.read_all(log)] == [b"%d" % log] * 3


class TestAcknowledge:
    def test_cursors_move_over_contiguous_ranges(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(*[b"x"] * 20))
        rig.commit()
        rig.store.cursors.acknowledge(cursor, 0, 3)
        rig.store.cursors.acknowledge(cursor, 10, 12)
        rig.store.cursors.acknowledge(cursor, 6, 7)
        rig.store.cursors.acknowledge(cursor, 6, 7)
        record = rig.store.cursors.record(cursor)
        assert (record.position, record.acknowledged) == (4, [(6, 7), (10, 12)])
        assert rig.store.cursor_records()[0].position == 0
        assert rig.store.info().cursors[0].backlog == 11
        rig.commit()
        assert rig.store.cursor_records() == [record]
        rig.store.cursors.acknowledge(cursor, 4, 11)
        assert rig.store.cursors.record(cursor)[3:] == (13, [])

    def test_uncommitted_messages_cannot_be_acknowledged(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(b"x"))
        with pytest.raises(ValueError, match="not committed"):
            rig.store.cursors.acknowledge(cursor, 0, 0)

    def test_confirmed_move_is_not_delayed(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor, other = rig.store.cursors.open("c", log, 0), rig.store.cursors.open("other", log, 0)
        rig.store.logs.append(log, run_of(b"x", b"y"))
        rig.commit()
        assert rig.store.cursors.confirm(cursor) is None, "nothing was acknowledged"
        rig.store.cursors.acknowledge(cursor, 0, 0)
        rig.store.cursors.acknowledge(other, 0, 0)
        ticket = rig.store.cursors.confirm(cursor)
        assert ticket is not None
        assert rig.store.commits.flush()
        assert rig.store.cursors.confirm(cursor) is ticket, "its commit is under way"
        while rig.store.commits.committing:
            rig.turn()
        assert (ticket.decided, ticket.error) == (True, None)
        assert rig.store.cursors.confirm(cursor) is None
        assert not rig.store.commits.flush(), "the other move waits for company"

    def test_confirmed_move_waits_as_long_as_messages_may(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(b"x"))
        rig.commit()
        rig.store.logs.delay(log, 0.5)
        rig.store.cursors.acknowledge(cursor, 0, 0)
        ticket = rig.store.cursors.confirm(cursor)
        assert not rig.store.commits.flush()
        rig.now += 0.51
        assert rig.store.commits.flush()
        while rig.store.commits.committing:
            rig.turn()
        assert ticket is not None
        assert ticket.decided

    def test_moves_alone_wait_for_the_delay(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(b"x", b"y"))
        rig.commit()
        rig.store.cursors.acknowledge(cursor, 0, 0)
        assert not rig.store.commits.flush()
        rig.now += 0.049
        assert not rig.store.commits.flush()
        kept = rig.store.commits.moves_kept
        rig.now += 0.002
        assert rig.store.commits.flush()
        while rig.store.commits.committing:
            rig.turn()
        assert (rig.store.commits.moves_kept, rig.store.cursor_records()[0].position) == (kept + 1, 1)

    def test_moves_may_join_each_commit(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        lazy, prompt = (rig.store.cursors.open(name, log, 0) for name in "cd")
        rig.store.logs.append(log, run_of(b"x", b"y"))
        rig.settle()
        rig.store.cursors.move_with_each_commit(prompt)
        rig.store.cursors.acknowledge(lazy, 0, 0)
        rig.store.cursors.acknowledge(prompt, 0, 0)
        assert not rig.store.commits.flush(), "alone they wait as others do"
        kept = rig.store.commits.moves_kept
        rig.store.logs.append(log, run_of(b"z"))
        assert rig.store.commits.flush()
        while rig.store.commits.committing:
            rig.turn()
        assert {row.name: row.position for row in rig.store.medium.cursors()} == {"c": 0, "d": 1}
        assert rig.store.commits.moves_kept == kept, "a move still waits"
        rig.store.cursors.drop(prompt)
        rig.settle()
        assert {row.name: row.position for row in rig.store.medium.cursors()} == {"c": 1}
        assert rig.store.commits.moves_kept == kept + 1

    def test_messages_passed_by_every_cursor_are_deleted(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursors = [rig.store.cursors.open(name, log, 0) for name in "cd"]
        for i in range(10):
            rig.store.logs.append(log, run_of(b"%d" % i))
            rig.commit()
        rig.store.cursors.acknowledge(cursors[0], 0, 9)
        rig.settle()
        assert rig.store.logs.bounds(log) == (0, 10)
        rig.store.cursors.acknowledge(cursors[1], 0, 4)
        rig.settle()
        assert rig.store.logs.bounds(log) == (5, 10)
        assert [position for position, *_ in rig.read_all(log)] == [5, 6, 7, 8, 9]
        assert rig.store.info().bytes == 5
        rig.store.cursors.acknowledge(cursors[1], 5, 9)
        rig.settle()
        assert rig.store.logs.bounds(log) == (10, 10)
        assert (rig.store.info().messages, rig.store.info().bytes) == (0, 0)

    def test_sequences_continue_after_everything_was_deleted(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        for i in range(10):
            rig.store.logs.append(log, run_of(b"x"))
            assert [stored[:2] for _, stored in rig.commit().appended] == [(i, i)]
            rig.store.cursors.acknowledge(cursor, i, i)
            rig.settle()
        assert rig.store.logs.bounds(log) == (10, 10)

    def test_log_without_cursors_stores_nothing(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(*[b"x"] * 10))
        rig.commit()
        rig.store.cursors.drop(cursor)
        rig.settle()
        assert rig.store.logs.bounds(log) == (10, 10)
        rig.store.logs.append(log, run_of(b"y"))
        rig.settle()
        assert rig.store.logs.bounds(log) == (11, 11)
        rig.store.cursors.acknowledge(cursor, 0, 3)  # late: no effect
        assert rig.store.cursor_records() == []

    def test_removal_of_the_slowest_cursor_frees_its_messages(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        slow, fast = (rig.store.cursors.open(name, log, 0) for name in ("slow", "fast"))
        for _ in range(4):
            rig.store.logs.append(log, run_of(b"x"))
            rig.commit()
        rig.store.cursors.acknowledge(fast, 0, 2)
        rig.settle()
        rig.store.cursors.drop(slow)
        rig.settle()
        assert rig.store.logs.bounds(log) == (3, 4)

    def test_new_cursor_starts_at_the_first_stored_position(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        for _ in range(3):
            rig.store.logs.append(log, run_of(b"x"))
            rig.commit()
        rig.store.cursors.acknowledge(cursor, 0, 1)
        rig.settle()
        late = rig.store.cursors.open("late", log, 0)
        assert rig.store.cursors.record(late).position == 2
        assert rig.store.cursors.open("late", log, 9) == late
        assert rig.store.cursors.record(late).position == 2

    def test_new_cursor_starts_at_the_end_at_most(self, rig: Rig) -> None:
        """A position beyond the end would skip unseen messages."""
        log = rig.store.logs.open("a")
        rig.store.logs.append(log, run_of(b"x"))
        early = rig.store.cursors.open("early", log, 5)
        rig.commit()
        late = rig.store.cursors.open("late", log, 5)
        assert [rig.store.cursors.record(cursor).position for cursor in (early, late)] == [0, 1]


class TestState:
    def test_last_value_counts(self, rig: Rig) -> None:
        rig.store.state.put("session", "b", b"1")
        rig.store.state.put("session", "a", b"2")
        rig.store.state.put("retained", "a", b"3")
        rig.store.state.put("session", "b", b"4")
        rig.commit()
        assert list(rig.store.state.items("session")) == [("a", b"2"), ("b", b"4")]
        rig.store.state.delete("session", "b")
        rig.store.state.delete("session", "never there")
        rig.commit()
        assert list(rig.store.state.items("session")) == [("a", b"2")]
        assert list(rig.store.state.items("retained")) == [("a", b"3")]
        assert list(rig.store.state.items("nothing")) == []

    def test_value_is_readable_before_its_commit(self, rig: Rig) -> None:
        for key in ("a", "c", "e"):
            rig.store.state.put("session", key, b"1")
        rig.commit()
        rig.store.state.put("session", "d", b"2")
        rig.store.state.delete("session", "e")
        expected = [("a", b"1"), ("c", b"1"), ("d", b"2")]
        assert list(rig.store.state.items("session")) == expected
        assert rig.store.commits.flush()  # under way
        rig.store.state.put("session", "b", b"3")
        rig.store.state.put("session", "c", b"3")
        expected = [("a", b"1"), ("b", b"3"), ("c", b"3"), ("d", b"2")]
        assert list(rig.store.state.items("session")) == expected
        rig.settle()
        assert list(rig.store.state.items("session")) == expected

    def test_single_value_is_read_with_the_last_change(self, rig: Rig) -> None:
        def values() -> list[bytes | None]:
            return [rig.store.state.get("session", key) for key in "abc"]

        assert values() == [None, None, None]
        rig.store.state.put("session", "a", b"1")
        rig.store.state.put("session", "b", b"1")
        rig.store.state.put("other", "c", b"1")
        rig.commit()
        assert values() == [b"1", b"1", None]
        rig.store.state.put("session", "a", b"2")
        rig.store.state.delete("session", "b")
        assert values() == [b"2", None, None]
        fail_commits(rig)
        assert rig.store.commits.flush()  # under way
        rig.store.state.put("session", "b", b"3")
        assert values() == [b"2", b"3", None]
        while rig.store.commits.committing:
            rig.turn()
        assert values() == [b"2", b"3", None], "the commit has failed, and the next one has it"
        heal(rig)
        rig.settle()
        assert values() == [b"2", b"3", None]

    @pytest.mark.parametrize("when", ["gathered", "under way", "failed", "committed"])
    def test_deletion_is_undone_at_any_time(self, rig: Rig, when: str) -> None:
        rig.store.state.put("session", "a", b"1")
        rig.commit()
        rig.store.state.delete("session", "a")
        if when == "failed":
            fail_commits(rig)
            rig.commit()
            heal(rig)
        elif when != "gathered":
            assert rig.store.commits.flush()
        if when == "committed":
            rig.settle()
        rig.store.state.restore("session", "a", b"1")
        assert rig.store.state.get("session", "a") == b"1"
        rig.settle()
        rig.store.state.put("other", "b", b"")
        rig.commit()
        assert list(rig.store.state.items("session")) == [("a", b"1")]

    def test_many_items_are_in_order(self, rig: Rig) -> None:
        expected = [(f"{i:05}", b"%d" % i) for i in range(1000)]
        for key, value in reversed(expected):
            rig.store.state.put("session", key, value)
        rig.commit()
        assert list(rig.store.state.items("session")) == expected


class TestFailure:
    def test_failed_commit_leaves_no_gap(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(b"kept", b"too"))
        rig.commit()
        fail_commits(rig)
        rig.store.logs.append(log, run_of(b"x" * 100_000))
        failed = rig.commit()
        assert failed.appended == ()
        assert isinstance(failed.error, StoreFull)
        assert rig.store.logs.bounds(log) == (0, 2)
        assert rig.store.commits.pending_bytes == 0
        heal(rig)
        rig.store.logs.append(log, run_of(b"after"))
        assert [stored[:2] for _, stored in rig.commit().appended] == [(2, 2)]
        assert [body for *_, body in rig.read_all(log)] == [b"kept", b"too", b"after"]
        rig.store.cursors.acknowledge(cursor, 0, 2)
        rig.settle()
        assert rig.store.info().messages == 0

    def test_everything_except_messages_is_retried(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor, doomed = rig.store.cursors.open("c", log, 0), rig.store.cursors.open("doomed", log, 0)
        rig.store.logs.append(log, run_of(b"1", b"2"))
        rig.commit()
        fail_commits(rig)
        rig.store.cursors.acknowledge(cursor, 0, 0)
        rig.store.cursors.drop(doomed)
        rig.store.state.put("session", "s", b"old")
        rig.store.state.put("session", "t", b"kept")
        new_log = rig.store.logs.open("new")
        new_cursor = rig.store.cursors.open("n", new_log, 0)
        rig.store.logs.append(log, run_of(b"x" * 100_000))
        assert rig.store.commits.flush()
        rig.store.state.put("session", "s", b"new")
        while rig.store.commits.committing:
            rig.turn()
        assert rig.commits[-1].error is not None
        heal(rig)
        rig.settle()
        assert [(r.cursor, r.name, r.position) for r in rig.store.cursor_records()] == [
            (cursor, "c", 1),
            (new_cursor, "n", 0),
        ]
        assert list(rig.store.state.items("session")) == [("s", b"new"), ("t", b"kept")]
        rig.store.logs.append(new_log, run_of(b"y", address="elsewhere"))
        rig.commit()
        assert rig.read_all(new_log) == [(0, "elsewhere", 0, b"y")]

    def test_failure_is_retried_after_a_pause(self, rig: Rig) -> None:
        fail_commits(rig)
        rig.store.state.put("session", "s", b"x" * 100_000)
        assert rig.commit().error is not None
        assert not rig.store.commits.flush()
        rig.now += 0.9
        assert not rig.store.commits.flush()
        heal(rig)
        rig.now += 0.2
        assert rig.store.commits.flush()
        while rig.store.commits.committing:
            rig.turn()
        assert rig.commits[-1].error is None
        assert [key for key, _ in rig.store.state.items("session")] == ["s"]

    def test_retry_does_not_wait_for_the_delay_of_messages(self, rig: Rig) -> None:
        log = rig.store.logs.open("slow")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.logs.delay(log, 60.0)
        rig.store.logs.append(log, run_of(b"1"))
        rig.commit()
        rig.store.cursors.acknowledge(cursor, 0, 0)
        fail_commits(rig)
        rig.store.state.put("session", "s", b"x" * 100_000)
        assert rig.store.commits.flush()
        while rig.store.commits.committing:
            rig.turn()
        assert rig.commits[-1].error is not None
        heal(rig)
        rig.now += 0.9
        assert not rig.store.commits.flush()
        rig.now += 0.2
        assert rig.store.commits.flush()
        while rig.store.commits.committing:
            rig.turn()
        assert rig.commits[-1].error is None
        assert [key for key, _ in rig.store.state.items("session")] == ["s"]


class TestClose:
    def test_close_commits_gathered_changes_and_is_idempotent(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        rig.store.logs.append(log, run_of(b"1"))
        rig.store.commits.flush()
        rig.store.logs.append(log, run_of(b"2"))
        rig.store.close()
        rig.store.close()
        assert [stored.run.bodies for commit in rig.commits for _, stored in commit.appended] == [[b"1"], [b"2"]]
        assert not rig.store.commits.flush()
        with pytest.raises(StoreError, match="closed"):
            rig.store.logs.append(log, run_of(b"3"))

    def test_info_counts(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        rig.store.logs.append(log, run_of(b"123", b"4"))
        rig.commit()
        info = rig.store.info()
        assert (info.epoch, info.messages, info.bytes) == (rig.store.lineage.epoch, 2, 4)
        assert info.logs[0] == (log, "a", 0, 2, 4)
        assert info.cursors[0][1:] == ("c", log, 0, 2)


class TestDelay:
    def test_delayed_messages_share_a_commit(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        rig.commit()
        rig.store.logs.delay(log, 0.5)
        assert rig.store.commits.due_in() is None
        rig.store.logs.append(log, run_of(b"0"))
        assert rig.store.commits.due_in() == pytest.approx(0.5)
        rig.now += 0.4
        rig.store.logs.append(log, run_of(b"1"))
        assert not rig.store.commits.flush()
        assert rig.store.commits.due_in() == pytest.approx(0.1)
        rig.now += 0.1
        assert rig.store.commits.flush()
        assert rig.store.commits.due_in() is None
        while rig.store.commits.committing:
            rig.turn()
        assert [body for *_, body in rig.read_all(log)] == [b"0", b"1"]

    def test_undelayed_message_commits_delayed_ones(self, rig: Rig) -> None:
        slow, fast = rig.store.logs.open("slow"), rig.store.logs.open("fast")
        for log in (slow, fast):
            rig.store.cursors.open("c", log, 0)
        rig.commit()
        rig.store.logs.delay(slow, 5.0)
        rig.store.logs.append(slow, run_of(b"0", address="s"))
        assert not rig.store.commits.flush()
        rig.store.logs.append(fast, run_of(b"1", address="f"))
        assert rig.store.commits.flush()
        while rig.store.commits.committing:
            rig.turn()
        assert len(rig.commits[-1].appended) == 2

    def test_delayed_messages_are_bounded(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        rig.commit()
        rig.store.logs.delay(log, 5.0)
        size = StoreLimits().batch_bytes_max
        rig.store.logs.append(log, run_of(b"x" * (size - 1)))
        assert not rig.store.commits.flush()
        rig.store.logs.append(log, run_of(b"x"))
        assert rig.store.commits.flush()

    def test_moves_wait_as_long_as_the_messages_of_their_log(self, rig: Rig) -> None:
        log, other = rig.store.logs.open("a"), rig.store.logs.open("b")
        cursors = [rig.store.cursors.open("c", each, 0) for each in (log, other)]
        rig.store.logs.append(log, run_of(b"0"))
        rig.store.logs.append(other, run_of(b"0", address="o"))
        rig.settle()
        rig.store.logs.delay(log, 5.0)
        rig.store.cursors.acknowledge(cursors[0], 0, 0)
        assert not rig.store.commits.flush()
        rig.now += 4.9
        assert not rig.store.commits.flush()
        rig.store.cursors.acknowledge(cursors[1], 0, 0)
        assert rig.store.commits.flush(), "the other log's moves have waited long enough"

    def test_nothing_waits_after_the_delay_or_the_close(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path)
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        rig.commit()
        rig.store.logs.delay(log, 5.0)
        rig.store.logs.append(log, run_of(b"0"))
        rig.store.logs.delay(log, 0.0)
        assert rig.store.commits.flush()
        rig.store.logs.delay(log, 5.0)
        rig.store.logs.append(log, run_of(b"1"))
        rig.reopen()
        assert [body for *_, body in rig.read_all(log)] == [b"0", b"1"]
        rig.store.close()
