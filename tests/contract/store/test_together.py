"""Changes that belong together are in one commit, or none of them is made."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from edge.broker.store.errors import StoreError, StoreFull
from edge.broker.store.meter import ByteMeter
from edge.broker.store.records import Loss
from tests.contract.store.memory_log import MemoryLog
from tests.contract.store.rig import Rig, fail_commits, heal, run_of

LOSS = Loss("c", "source", 2, 2, 1, 1, "rejected", 0)


def reasons(rig: Rig) -> list[str]:
    """Return the reasons in the loss ledger."""
    return sorted(entry.reason for entry in rig.store.ledger.entries(0, 100))


class Move:
    """Moves messages of one log to another one: appends a copy, and acknowledges the message."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.logs, self.cursors = rig, rig.store.logs, rig.store.cursors
        self.source, self.target = self.logs.open("source"), self.logs.open("target")
        self.cursor = self.cursors.open("c", self.source, 0)
        self.reader = self.cursors.open("c", self.target, 0)
        for number in range(3):
            self.logs.append(self.source, run_of(b"%d" % number, address="source"))
        rig.commit()

    def add(self, position: int, body: bytes = b"copy") -> None:
        self.logs.append(self.target, run_of(body, address="target"))
        self.cursors.discard(self.cursor, position, position, (), if_kept=True)

    @property
    def result(self) -> tuple[int, int]:
        """Return (messages left at the source, messages at the target)."""
        return self.cursors.backlog(self.cursor), self.logs.bounds(self.target)[1]


class TestTogether:
    def test_all_changes_have_the_ticket_of_the_block(self, rig: Rig) -> None:
        move = Move(rig)
        with rig.store.commits.together() as ticket:
            move.add(0)
            move.add(2)
        assert move.result == (3, 0)
        rig.commit()
        assert (ticket.decided, ticket.error) == (True, None)
        assert move.result == (1, 2)

    def test_no_flush_seals_the_group_inside(self, rig: Rig) -> None:
        move = Move(rig)
        with rig.store.commits.together():
            move.add(0)
            assert not rig.store.commits.flush()
            move.add(1)
        assert rig.store.commits.flush()
        while rig.store.commits.committing:
            rig.turn()
        assert move.result == (1, 2)

    def test_changes_made_before_and_after_the_block_stay(self, rig: Rig) -> None:
        move = Move(rig)
        move.add(0)
        with suppress(LookupError), rig.store.commits.together():
            move.add(1)
            raise LookupError
        move.add(2)
        rig.commit()
        assert move.result == (1, 2)
        assert rig.store.cursors.record(move.cursor).position == 1
        assert rig.store.retention.log_bytes(move.target) == 2 * len(b"copy")

    def test_removals_of_a_block_that_raises_are_undone(self, rig: Rig) -> None:
        move = Move(rig)
        before = rig.store.retention.log_bytes(move.source)
        with suppress(LookupError), rig.store.commits.together():
            rig.store.retention.evict(move.source, before)
            move.add(0)
            raise LookupError
        assert rig.store.retention.log_bytes(move.source) == before
        rig.settle()
        assert move.result == (3, 0)
        assert reasons(rig) == []

    def test_losses_and_removals_are_in_the_commit(self, rig: Rig) -> None:
        move = Move(rig)
        rig.store.retention.meter(move.source, ByteMeter())
        with rig.store.commits.together():
            rig.store.retention.evict(move.source, 1, 1)
            rig.store.cursors.discard(move.cursor, 2, 2, [LOSS], if_kept=True)
            move.add(1)
        rig.settle()
        assert move.result == (0, 1)
        assert reasons(rig) == ["evicted", "rejected"]

    def test_a_failed_commit_makes_none_of_them(self, rig: Rig) -> None:
        move = Move(rig)
        fail_commits(rig)
        with rig.store.commits.together() as ticket:
            rig.store.cursors.discard(move.cursor, 2, 2, [LOSS], if_kept=True)
            move.add(0, Random(1).randbytes(100_000))  # more than `fail_commits` leaves room for
        rig.commit()
        assert isinstance(ticket.error, StoreFull)
        heal(rig)
        rig.settle()
        assert move.result == (3, 0)
        assert reasons(rig) == []

    def test_a_log_in_memory_takes_nothing_inside(self, rig: Rig) -> None:
        memory, move = MemoryLog(rig), Move(rig)
        end = rig.store.logs.bounds(memory.log)[1]
        with rig.store.commits.together() as ticket:
            move.add(0)
            with pytest.raises(StoreError, match="no commit"):
                rig.store.logs.append(memory.log, run_of(b"x"))
        rig.commit()
        assert (ticket.error, move.result) == (None, (2, 1))
        assert rig.store.logs.bounds(memory.log)[1] == end

    def test_blocks_do_not_nest(self, rig: Rig) -> None:
        commits = rig.store.commits
        with pytest.raises(RuntimeError, match="together already"), commits.together(), commits.together():
            pass
        with commits.together():
            pass

    def test_the_store_is_not_closed_inside(self, rig: Rig) -> None:
        with pytest.raises(RuntimeError, match="is closed between"), rig.store.commits.together():
            rig.store.close()
