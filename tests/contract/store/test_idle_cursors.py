"""Idle cursors exist only as rows of the store, and work like the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.message import Run
from edge.broker.store.limits import SLOWEST_AGAIN_S, StoreLimits
from edge.broker.store.records import Loss
from tests.contract.store.rig import Rig, fail_commits, heal, memory_rig, run_of, sqlite_rig

SMALL = StoreLimits(segment_bytes_max=64, counted_commits_max=1, logs_in_use_max=0)


@pytest.fixture(params=["memory", "sqlite"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    rig = memory_rig(SMALL) if request.param == "memory" else sqlite_rig(tmp_path, SMALL)
    yield rig
    rig.store.close()


class Readers:
    """Log with some cursors; those in `idle` are rows only."""

    def __init__(self, rig: Rig, *names: str) -> None:
        self.rig = rig
        self.log = rig.store.logs.open("log")
        self.cursors = {name: rig.store.cursors.open(name, self.log, 0) for name in names}
        for cursor in self.cursors.values():
            rig.store.cursors.record(cursor)  # use it
        rig.commit()

    def __getitem__(self, name: str) -> int:
        return self.cursors[name]

    def append(self, count: int) -> None:
        for i in range(count):
            self.rig.store.logs.append(self.log, run_of(b"%d" % i))
            self.rig.commit()

    def rest(self, *names: str) -> None:
        for name in names:
            assert self.rig.store.cursors.make_idle(self[name])
            assert self[name] in self.idle

    @property
    def idle(self) -> set[int]:
        return set(self.cursors.values()) - self.rig.store.cursors._states.keys()

    def positions(self) -> dict[str, int]:
        found = [record for name in self.cursors for record in self.rig.store.cursors.named(name)]
        return {record.name: record.position for record in found}

    def settle(self) -> None:
        """Wait until the medium has searched for the slowest cursor, and messages behind all cursors are deleted."""
        for _ in range(4):
            self.rig.settle()
            self.rig.now += SLOWEST_AGAIN_S
            self.rig.store.commits.flush()
            self.rig.read(self.log, 0)  # answered after earlier requests


def test_idle_cursor_works_like_any_other(rig: Rig) -> None:
    readers = Readers(rig, "a", "b")
    readers.append(3)
    readers.rest("a", "b")
    assert [rig.store.cursors.backlog(readers[name]) for name in "ab"] == [3, 3]
    assert rig.store.cursors.open("a", readers.log, 2) == readers["a"]
    assert rig.store.cursors.name(readers["b"]) == "b"
    assert readers.idle == {readers["a"], readers["b"]}, "it is not made an object for a question"
    rig.store.cursors.acknowledge(readers["a"], 0, 1)
    assert readers.positions() == {"a": 2, "b": 0}
    readers.settle()
    assert readers.positions() == {"a": 2, "b": 0}
    assert readers.idle == {readers["a"], readers["b"]}, "nothing has used it since"
    assert rig.store.cursors.record(readers["b"]).position == 0
    readers.settle()
    assert readers.idle == {readers["a"]}
    assert [(info.name, info.position, info.backlog) for info in rig.store.info().cursors] == [("a", 2, 1), ("b", 0, 3)]


def test_cursor_with_unsaved_state_does_not_become_idle(rig: Rig) -> None:
    readers = Readers(rig, "a", "b")
    readers.append(3)
    new = rig.store.cursors.open("new", readers.log, 0)
    assert not rig.store.cursors.make_idle(new), "it is not on disk"
    rig.commit()
    assert rig.store.cursors.make_idle(new)
    rig.store.cursors.acknowledge(readers["a"], 2, 2)
    rig.commit()
    assert not rig.store.cursors.make_idle(readers["a"]), "something above it is acknowledged"
    rig.store.cursors.acknowledge(readers["b"], 0, 0)
    assert not rig.store.cursors.make_idle(readers["b"]), "it has moved"
    rig.commit()
    rig.store.cursors.discard(readers["b"], 1, 1, [Loss("b", "plant/7/temp", 1, 1, 1, 1, "why", 1)])
    assert not rig.store.cursors.make_idle(readers["b"]), "what it gave up is on its way"
    rig.commit()
    assert rig.store.cursors.make_idle(readers["b"])


def test_messages_passed_by_all_are_deleted(rig: Rig) -> None:
    readers = Readers(rig, "a", "b", "in use")
    readers.append(6)
    readers.rest("a", "b")
    rig.store.cursors.pass_all(readers.log, readers.cursors.values(), 4)
    assert readers.positions() == {"a": 4, "b": 4, "in use": 4}
    readers.settle()
    assert readers.idle == {readers["a"], readers["b"]}
    assert rig.store.logs.bounds(readers.log) == (4, 6)
    rig.store.cursors.pass_all(readers.log, [readers["a"]], 6)
    rig.store.cursors.acknowledge(readers["in use"], 4, 5)
    readers.settle()
    assert rig.store.logs.bounds(readers.log) == (4, 6), "b wants it"
    rig.store.cursors.drop(readers["b"])
    readers.settle()
    assert rig.store.logs.bounds(readers.log) == (6, 6)
    with pytest.raises(ValueError, match="not committed"):
        rig.store.cursors.pass_all(readers.log, [readers["a"]], 7)


def test_new_cursor_keeps_its_messages(rig: Rig) -> None:
    """A cursor that becomes idle during the search for the slowest one keeps its messages."""
    readers = Readers(rig, "a", "late")
    readers.append(6)
    readers.rest("a")
    rig.store.cursors.acknowledge(readers["late"], 0, 0)
    rig.store.cursors.pass_all(readers.log, [readers["a"]], 6)
    rig.settle()
    rig.now += SLOWEST_AGAIN_S
    rig.store.commits.flush()  # starts the search
    readers.rest("late")
    readers.settle()
    assert rig.store.logs.bounds(readers.log) == (1, 6)
    rig.store.cursors.pass_all(readers.log, [readers["late"]], 6)
    readers.settle()
    assert rig.store.logs.bounds(readers.log) == (6, 6)


def test_failed_commit_moves_them_later(rig: Rig) -> None:
    readers = Readers(rig, "a", "b", "c")
    readers.append(3)
    readers.rest("a", "b", "c")
    fail_commits(rig)
    rig.store.cursors.pass_all(readers.log, readers.cursors.values(), 2)
    rig.store.state.put("kind", "key", b"x" * 100_000)
    rig.now += 1.0
    assert rig.store.commits.flush()
    assert rig.store.cursors.record(readers["b"]).position == 2, "as an object while the commit runs"
    rig.store.cursors.drop(readers["c"])
    while rig.store.commits.committing:
        rig.turn()
    assert rig.commits[-1].error is not None
    assert rig.store.cursors.named("c") == []
    assert readers.positions() == {"a": 2, "b": 2}
    heal(rig)
    readers.settle()
    assert {record.name: record.position for record in rig.store.cursor_records()} == {"a": 2, "b": 2}
    assert rig.store.logs.bounds(readers.log) == (2, 3)


def test_evicted_messages_of_idle_cursors_are_recorded(rig: Rig) -> None:
    readers = Readers(rig, "nothing", "wants", "had")
    filters = {"nothing": False, "wants": True, "had": True}

    def wants_of(name: str) -> object:
        return lambda run: filters[name] and isinstance(run, Run)

    rig.store.cursors.set_filters(wants_of)  # type: ignore[arg-type]
    readers.append(2)
    readers.rest("nothing", "wants", "had")
    rig.store.cursors.pass_all(readers.log, [readers["had"]], 1)  # pending in the commit that evicts
    rig.store.retention.evict(readers.log, 2)
    rig.settle()
    lost = [(each.subscription, each.first, each.last) for each in rig.store.ledger.entries(0, 10)]
    assert sorted(lost) == [("had", 1, 1), ("wants", 0, 1)]
    assert readers.positions() == {"nothing": 2, "wants": 2, "had": 2}


def test_idle_cursors_survive_a_restart(tmp_path: Path) -> None:
    rig = sqlite_rig(tmp_path, SMALL)
    readers = Readers(rig, "a", "b", "c")
    readers.append(4)
    readers.rest("a", "b")
    rig.store.cursors.pass_all(readers.log, [readers["a"]], 3)
    rig.settle()
    rig.reopen()
    assert readers.positions() == {"a": 3, "b": 0, "c": 0}
    for name in "abc":
        assert rig.store.cursors.make_idle(readers[name])
    rig.store.cursors.pass_all(readers.log, readers.cursors.values(), 3)
    readers.settle()
    assert rig.store.logs.bounds(readers.log) == (3, 4)
    rig.store.close()
