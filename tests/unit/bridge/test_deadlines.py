"""Deadlines of many connections share one timer: each check is on time, ends, and stops with its connection."""

from __future__ import annotations

import asyncio

from bridge.transport.deadlines import COARSE_S, FINE_S, HORIZON_S, Deadlines, DeadlineSlot, deadlines_of

LOADED_S = 5.0
"""Extra time that a machine under load may need."""


class Waiting:
    """Wait for one deadline as a driver does, and record each check."""

    def __init__(self, deadlines: Deadlines, after_s: float) -> None:
        self.deadline = asyncio.get_running_loop().time() + after_s
        self.done = asyncio.Event()
        self.looks: list[float] = []
        self._deadlines = deadlines
        self.slot = deadlines.watch(self, self.deadline)

    def check_deadline(self) -> None:
        now = asyncio.get_running_loop().time()
        self.looks.append(now)
        if now >= self.deadline:
            self.done.set()
        else:
            self.slot = self._deadlines.watch(self, self.deadline)


class Faulty:
    def check_deadline(self) -> None:
        raise ValueError("a fault of one")


def slot_after(deadlines: Deadlines, seconds: float) -> tuple[DeadlineSlot, float]:
    deadline = asyncio.get_running_loop().time() + seconds
    return deadlines.watch(Faulty(), deadline), deadline


async def within(waiting: Waiting) -> None:
    async with asyncio.timeout(LOADED_S + 5):
        await waiting.done.wait()


def test_checks_are_few_and_none_is_late() -> None:
    async def main() -> None:
        deadlines = deadlines_of(asyncio.get_running_loop())
        assert deadlines is deadlines_of(asyncio.get_running_loop())
        everybody = [Waiting(deadlines, after_s) for after_s in (0.3, 0.05, 0.0, -1.0, 2 * COARSE_S + 0.2)]
        for waiting in everybody:
            await within(waiting)
            assert waiting.looks[-1] - waiting.deadline < FINE_S + LOADED_S
            assert len(waiting.looks) <= 2

    asyncio.run(main())


def test_near_deadlines_have_fine_slots_and_far_ones_share_coarse_slots() -> None:
    async def main() -> None:
        deadlines = Deadlines()
        near, deadline = slot_after(deadlines, COARSE_S)
        assert 0 <= near.at - deadline <= FINE_S
        far, deadline = slot_after(deadlines, HORIZON_S / 2)
        assert 0 <= deadline - far.at <= COARSE_S
        further, _ = slot_after(deadlines, 100 * HORIZON_S)
        assert further.at - asyncio.get_running_loop().time() <= HORIZON_S

    asyncio.run(main())


def test_slots_are_few_for_any_number_of_deadlines() -> None:
    async def main() -> None:
        deadlines = Deadlines()
        slots = {slot_after(deadlines, number * 0.01)[0].at for number in range(20_000)}
        assert len(slots) <= (HORIZON_S + 2) / COARSE_S + 2 * COARSE_S / FINE_S + 2

    asyncio.run(main())


def test_closed_connections_are_not_checked() -> None:
    async def main() -> None:
        deadlines = Deadlines()
        left, stayed = Waiting(deadlines, 0.05), Waiting(deadlines, 0.05)
        left.slot.watched.discard(left)
        await within(stayed)
        assert not left.looks

    asyncio.run(main())


def test_exception_of_one_does_not_affect_others() -> None:
    async def main() -> None:
        faults: list[BaseException | None] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context["exception"]))
        deadlines = Deadlines()
        deadlines.watch(Faulty(), asyncio.get_running_loop().time())
        await within(Waiting(deadlines, 0.0))
        assert [str(fault) for fault in faults] == ["a fault of one"]

    asyncio.run(main())
