"""The end of a turn: one callback for all writers, and an exception affects its writer alone
(`bridge.transport.turn`)."""

from __future__ import annotations

import asyncio
import logging

import pytest

from bridge.transport.turn import turn_of

SECRET = "what a customer sends"


class Writer:
    """Writer that records its calls, and raises on request."""

    def __init__(self, order: list[str], name: str, *, fails: bool = False) -> None:
        self._order = order
        self._name = name
        self._fails = fails

    def write(self) -> None:
        self._order.append(self._name)
        if self._fails:
            raise ValueError(SECRET)


def test_all_writers_write_at_the_end_of_the_turn(caplog: pytest.LogCaptureFixture) -> None:
    async def turn() -> list[str]:
        order: list[str] = []
        found = turn_of(asyncio.get_running_loop())
        assert turn_of(asyncio.get_running_loop()) is found
        for name in ("first", "raises", "last"):
            found.add(Writer(order, name, fails=name == "raises"))
        order.append("in the turn")
        await asyncio.sleep(0)
        return order

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(turn()) == ["in the turn", "first", "raises", "last"]
    assert "a write raised ValueError" in caplog.text
    assert SECRET not in caplog.text


def test_early_write_is_not_repeated() -> None:
    async def turn() -> list[str]:
        order: list[str] = []
        found = turn_of(asyncio.get_running_loop())
        found.add(Writer(order, "early"))
        found.write()
        found.add(Writer(order, "late"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return order

    assert asyncio.run(turn()) == ["early", "late"]


@pytest.mark.parametrize("early", [False, True])
def test_writes_beyond_the_time_follow_in_later_turns(early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few writers use up the time of one turn."""
    monkeypatch.setattr("bridge.transport.turn.WRITE_S", -1.0)
    monkeypatch.setattr("bridge.transport.turn.WRITERS_AT_ONCE", 2)

    async def turns() -> list[list[str]]:
        order: list[str] = []
        found = turn_of(asyncio.get_running_loop())
        for number in range(5):
            found.add(Writer(order, str(number)))
        if early:
            found.write()
        seen = [list(order)]
        while len(order) < 5:
            await asyncio.sleep(0)
            seen.append(list(order))
        await asyncio.sleep(0)
        assert len(order) == 5
        return seen

    before = [["0", "1"]] if early else [[], ["0", "1"]]
    assert asyncio.run(turns()) == [*before, ["0", "1", "2", "3"], ["0", "1", "2", "3", "4"]]


def test_short_answer_does_not_wait_for_a_broadcast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few writers use up the time of one turn; those that are late write in each turn too."""
    monkeypatch.setattr("bridge.transport.turn.WRITE_S", -1.0)
    monkeypatch.setattr("bridge.transport.turn.WRITERS_AT_ONCE", 2)

    async def turns() -> str:
        order: list[str] = []
        found = turn_of(asyncio.get_running_loop())
        for letter in "abcdef":
            found.add(Writer(order, letter))
        await asyncio.sleep(0)
        found.add(Writer(order, "X"))
        await asyncio.sleep(0)
        for letter in "uvwxyz":
            found.add(Writer(order, letter))
        while len(order) < 13:
            await asyncio.sleep(0)
        return "".join(order)

    assert asyncio.run(turns()) == "ab" + "Xcd" + "uvef" + "wxyz"


def test_low_priority_writes_follow_the_others() -> None:
    async def turn() -> str:
        order: list[str] = []
        found = turn_of(asyncio.get_running_loop())
        found.unhurried = True
        found.add(Writer(order, "a"))
        found.unhurried = False
        found.add(Writer(order, "b"))
        await asyncio.sleep(0)
        return "".join(order)

    assert asyncio.run(turn()) == "ba"
