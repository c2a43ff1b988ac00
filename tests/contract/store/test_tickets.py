"""A ticket alone reports the outcome of the commit that a change has joined."""

from __future__ import annotations

from random import Random

import pytest

from bridge.message import Run
from edge.broker.store.errors import StoreError, StoreFull
from edge.broker.store.records import Committed
from edge.broker.store.ticket import Ticket
from tests.contract.store.memory_log import MemoryLog, flush
from tests.contract.store.rig import Rig, fail_commits, heal, run_of


def append(rig: Rig, body: bytes = b"x", log: str = "a") -> Ticket:
    joined = rig.store.logs.append(rig.store.logs.open(log), run_of(body))
    assert isinstance(joined, Ticket)
    return joined


def too_much() -> bytes:
    """Return more data than `fail_commits` leaves room for."""
    return Random(1).randbytes(100_000)


class TestOneGroup:
    def test_all_changes_of_a_group_share_a_ticket(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        append(rig)
        rig.commit()
        joined = [
            append(rig),
            append(rig, log="b"),
            rig.store.state.put("kind", "key", b"value"),
            rig.store.state.delete("kind", "key"),
            rig.store.cursors.discard(cursor, 0, 0, []),
        ]
        assert len({id(ticket) for ticket in joined}) == 1
        assert not joined[0].decided

    def test_ticket_is_decided_by_the_end_of_its_own_commit(self, rig: Rig) -> None:
        first = append(rig)
        assert rig.store.commits.flush()
        second = append(rig)
        assert second is not first
        while rig.store.commits.committing:
            rig.turn()
        assert (first.decided, first.error, second.decided) == (True, None, False)
        rig.commit()
        assert (second.decided, second.error) == (True, None)

    def test_ticket_is_decided_before_listeners_are_called(self, rig: Rig) -> None:
        seen: list[bool] = []
        ticket = append(rig)
        rig.store.commits.listeners.append(lambda _: seen.append(ticket.decided))
        flush(rig)
        assert seen == [True]

    def test_any_flush_decides_it(self, rig: Rig) -> None:
        """A tool or a tick may seal a group that answers of another part wait for."""
        fail_commits(rig)
        ticket = append(rig, too_much())
        assert rig.store.commits.flush()
        heal_soon = append(rig)
        assert not rig.store.commits.flush()
        while rig.store.commits.committing:
            rig.turn()
        assert isinstance(ticket.error, StoreFull)
        heal(rig)
        rig.commit()
        assert heal_soon.error is None

    def test_unused_ticket_waits_for_nothing(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        cursor = rig.store.cursors.open("c", log, 0)
        rig.store.cursors.drop(cursor)
        ticket = rig.store.cursors.discard(cursor, 0, 0, [])
        assert (ticket.decided, ticket.error) == (True, None)

    def test_ticket_is_never_decided_twice(self) -> None:
        ticket = Ticket()
        ticket.decide(None)
        with pytest.raises(RuntimeError, match="decided already"):
            ticket.decide(StoreError("late"))
        assert ticket.error is None


class TestFailures:
    def test_ticket_reports_a_failed_commit(self, rig: Rig) -> None:
        fail_commits(rig)
        ticket = append(rig, too_much())
        flush(rig)
        assert ticket.decided
        assert isinstance(ticket.error, StoreFull)
        assert ticket.error is rig.commits[-1].error

    def test_state_kept_for_the_next_group_failed_in_this_one(self, rig: Rig) -> None:
        fail_commits(rig)
        ticket = rig.store.state.put("kind", "key", too_much())
        flush(rig)
        assert isinstance(ticket.error, StoreFull)
        heal(rig)
        rig.commit()
        assert isinstance(ticket.error, StoreFull)
        assert dict(rig.store.state.items("kind")) == {"key": too_much()}

    def test_ticket_of_a_group_that_cannot_be_sealed_is_decided(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def unreadable(_: object) -> dict[str, int]:
            raise StoreError("the medium cannot be read")

        with monkeypatch.context() as patched:
            patched.setattr(rig.store.medium, "sequences_of", unreadable)
            ticket = append(rig)
            flush(rig)
        assert ticket.decided
        assert "cannot be read" in str(ticket.error)
        after = append(rig)
        flush(rig)
        assert (after.decided, after.error) == (True, None)

    def test_ticket_is_decided_in_spite_of_an_error_in_the_store(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise neither this commit nor any other would release its answers."""

        def wrong(*_: object) -> None:
            raise KeyError("a mistake")

        with monkeypatch.context() as patched:
            patched.setattr(rig.store.medium, "commit", wrong)
            ticket = append(rig)
            flush(rig)
        assert "KeyError: see the log" in str(ticket.error)
        after = append(rig)
        flush(rig)
        assert (after.decided, after.error) == (True, None)

    def test_listener_that_raises_does_not_block_others(self, rig: Rig) -> None:
        told: list[Committed] = []

        def raises(_: Committed) -> None:
            raise ValueError("not mine")

        rig.store.commits.listeners[:] = [raises, told.append]
        append(rig)
        rig.store.commits.flush()
        with pytest.raises(ValueError, match="not mine"):
            rig.turn()
        assert len(told) == 1
        assert not rig.store.commits.committing
        append(rig)
        with pytest.raises(ValueError, match="not mine"):
            rig.store.close()
        assert len(told) == 2
        assert rig.store.state.put("kind", "key", b"").error is not None
        rig.store.commits.listeners.clear()


class TestClosing:
    def test_close_commits_and_decides(self, rig: Rig) -> None:
        under_way = append(rig)
        rig.store.commits.flush()
        gathered = append(rig)
        rig.store.close()
        assert (under_way.decided, under_way.error) == (True, None)
        assert (gathered.decided, gathered.error) == (True, None)

    def test_close_reports_what_it_cannot_commit(self, rig: Rig) -> None:
        append(rig)
        rig.commit()
        fail_commits(rig)
        ticket = append(rig, too_much())
        rig.store.close()
        assert isinstance(ticket.error, StoreFull)

    def test_change_after_the_last_group_is_refused(self, rig: Rig) -> None:
        late: list[Ticket] = []

        def committed(commit: Committed) -> None:
            late.append(append(rig))

        append(rig)
        rig.store.commits.listeners.append(committed)
        rig.store.close()
        assert [(ticket.decided, "closed" in str(ticket.error)) for ticket in late] == [(True, True)]

    def test_closed_store_accepts_nothing(self, rig: Rig) -> None:
        log = rig.store.logs.open("a")
        rig.commit()
        rig.store.close()
        with pytest.raises(StoreError, match="closed"):
            rig.store.logs.append(log, run_of(b"x"))
        for ticket in (rig.store.state.put("kind", "key", b""), rig.store.state.delete("kind", "key")):
            assert ticket.decided
            assert "closed" in str(ticket.error)


class TestMemory:
    def test_message_appended_after_reservation_is_decided_with_it(self, rig: Rig) -> None:
        """A message may arrive after the group that reserves its numbers was sealed, without a further commit."""
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        rig.store.logs.keep_in_memory(log, keep=True)
        first = append(rig)
        rig.store.commits.flush()
        second = append(rig)
        told: list[bool] = []
        rig.store.commits.listeners.append(lambda _: told.append(second.decided))
        while rig.store.commits.committing:
            rig.turn()
        assert first.decided
        assert (told, second.error) == ([True], None)
        assert rig.store.logs.bounds(log)[1] == 2

    def test_changes_beside_it_have_another_ticket(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        other = rig.store.logs.open("b")
        rig.store.logs.append(kept.log, Run("new", "device", 1, b"", [b"reserves"], 1))
        rig.store.commits.flush()
        joined = rig.store.logs.append(kept.log, Run("new", "device", 1, b"", [b"is taken with it"], 1))
        beside = rig.store.logs.append(other, run_of(b"goes by the disk", address="b"))
        while rig.store.commits.committing:
            rig.turn()
        assert isinstance(joined, Ticket)
        assert isinstance(beside, Ticket)
        assert (joined.decided, joined.error, beside.decided) == (True, None, False)
        rig.commit()
        assert (beside.decided, beside.error) == (True, None)

    def test_close_refuses_messages_waiting_for_numbers(self, rig: Rig) -> None:
        kept = MemoryLog(rig)
        joined = rig.store.logs.append(kept.log, Run("new", "device", 1, b"", [b"waits"], 1))
        rig.store.close()
        assert isinstance(joined, Ticket)
        assert joined.error is not None
