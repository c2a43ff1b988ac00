"""Work that continues in the next turn of the loop."""

from __future__ import annotations

from collections import deque

import pytest

from edge.broker.delivery.ready import ReadySet, Work
from edge.broker.limits import READY_S


class Loop:
    """Turns of a loop, with a clock that work moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.turns: deque[Work] = deque()
        self.ready = ReadySet(self.turns.append, lambda: self.now_s)
        self.done: list[str] = []

    def work(self, name: str, *, took_s: float = 0.0, again: int = 0) -> Work:
        """Return work that takes some time and schedules itself again a few times."""
        left = [again]

        def work() -> None:
            self.done.append(name)
            self.now_s += took_s
            if left[0]:
                left[0] -= 1
                self.ready.add(work)

        return work

    def turn(self) -> list[str]:
        """Run one turn; return the work done in it."""
        self.done.clear()
        for _ in range(len(self.turns)):
            self.turns.popleft()()
        return list(self.done)


def test_work_is_done_in_the_next_turn_in_order() -> None:
    loop = Loop()
    for name in "abc":
        loop.ready.add(loop.work(name))
    assert loop.done == []
    assert loop.turn() == ["a", "b", "c"]
    assert not loop.turns


def test_work_added_twice_is_done_once() -> None:
    loop = Loop()
    work = loop.work("a")
    loop.ready.add(work)
    loop.ready.add(work)
    assert work in loop.ready
    assert loop.turn() == ["a"]


def test_work_that_adds_itself_is_done_once_a_turn() -> None:
    loop = Loop()
    loop.ready.add(loop.work("a", again=2))
    loop.ready.add(loop.work("b"))
    assert [loop.turn() for _ in range(4)] == [["a", "b"], ["a"], ["a"], []]


def test_turn_ends_when_its_share_is_used() -> None:
    loop = Loop()
    for name in "abcd":
        loop.ready.add(loop.work(name, took_s=READY_S * 0.6, again=1))
    assert [loop.turn() for _ in range(5)] == [["a", "b"], ["c", "d"], ["a", "b"], ["c", "d"], []]


def test_work_of_a_removed_owner_is_dropped() -> None:
    loop = Loop()
    gone = loop.work("gone")
    loop.ready.add(gone)
    loop.ready.discard(gone)
    assert loop.turn() == []


def test_exception_of_one_owner_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()

    def raises() -> None:
        raise LookupError("a bug")

    loop.ready.add(raises)
    loop.ready.add(loop.work("b"))
    assert loop.turn() == ["b"]
    assert "LookupError" in caplog.text


def test_all_is_done_at_once_without_turns() -> None:
    loop = Loop()
    loop.ready = ReadySet(None, lambda: loop.now_s)
    assert not loop.ready.has_turns
    loop.ready.add(loop.work("a", took_s=READY_S, again=3))
    assert loop.done == ["a"] * 4
