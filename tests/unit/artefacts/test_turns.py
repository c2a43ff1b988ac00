"""Turns of parts of images: one after the other, with a pause for messages behind each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from edge.appliance.artefacts import turns
from edge.appliance.artefacts.turns import PartTurns

PAUSE_S = 0.02


@pytest.fixture(autouse=True)
def pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PART_PAUSE_S_MIN", PAUSE_S)


class Clock:
    """Clock that only a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run(test: Callable[[PartTurns, Clock], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        clock = Clock()
        await test(PartTurns(clock), clock)

    asyncio.run(main())


async def seconds_until(turn: Coroutine[Any, Any, None]) -> float:
    """Return the seconds until a turn is there."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await turn
    return loop.time() - begun


def test_first_part_does_not_wait() -> None:
    async def test(parts: PartTurns, _clock: Clock) -> None:
        taking = asyncio.ensure_future(parts.take())
        await asyncio.sleep(0)
        assert taking.done()

    run(test)


def test_parts_go_in_their_order_with_pauses() -> None:
    async def test(parts: PartTurns, _clock: Clock) -> None:
        order: list[int] = []

        async def part(number: int) -> None:
            await parts.take()
            order.append(number)

        loop = asyncio.get_running_loop()
        begun = loop.time()
        await asyncio.gather(*map(part, range(5)))
        assert order == [0, 1, 2, 3, 4]
        assert loop.time() - begun >= 4 * PAUSE_S

    run(test)


def test_pause_grows_with_the_time_of_a_part() -> None:
    async def test(parts: PartTurns, clock: Clock) -> None:
        await parts.take()
        clock.now += 0.01  # sending it takes this long
        assert await seconds_until(parts.take()) >= 0.01 * turns.PART_PAUSES > PAUSE_S

    run(test)


def test_pause_grows_with_other_work_of_the_loop() -> None:
    async def test(parts: PartTurns, clock: Clock) -> None:
        await parts.take()
        waiting = asyncio.ensure_future(parts.take())
        await asyncio.sleep(0)  # the pause begins
        await asyncio.sleep(0)
        clock.now += PAUSE_S + 0.01  # and ends 10 ms too late
        await waiting
        assert await seconds_until(parts.take()) >= 0.01 * turns.PART_PAUSES

    run(test)


def test_pause_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PART_PAUSE_S_MAX", PAUSE_S)

    async def test(parts: PartTurns, clock: Clock) -> None:
        await parts.take()
        clock.now += 1_000.0
        async with asyncio.timeout(30):
            await parts.take()

    run(test)


@pytest.mark.parametrize("given", [False, True])
def test_turn_of_a_device_that_has_gone_goes_to_the_next(*, given: bool) -> None:
    """`given`: it goes just when it has been given the turn."""

    async def test(parts: PartTurns, _clock: Clock) -> None:
        await parts.take()
        gone, next_one = asyncio.ensure_future(parts.take()), asyncio.ensure_future(parts.take())
        await asyncio.sleep(0)
        if given:
            parts._give()
        gone.cancel()
        async with asyncio.timeout(30):
            await next_one
            await parts.take()

    run(test)
