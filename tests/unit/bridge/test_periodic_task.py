"""Tasks that repeat their work and outlive its faults."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

import pytest

from bridge.periodic_task import PeriodicTask, end_task, wait_and_clear

log = logging.getLogger("tests.periodic")


class PlannedWork:
    """Work with one outcome each time, and the pauses after it; the last pause never ends."""

    def __init__(self, outcomes: Iterator[float | Exception | None]) -> None:
        self.pauses: list[float] = []
        self.over = asyncio.Event()
        self._outcomes = outcomes

    async def run(self) -> float | None:
        outcome = next(self._outcomes, None)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def waits(self, times: int) -> Callable[[float], Awaitable[None]]:
        async def wait(seconds: float) -> None:
            self.pauses.append(seconds)
            if len(self.pauses) >= times:
                self.over.set()
                await asyncio.Event().wait()

        return wait


def repeated(*outcomes: float | Exception | None) -> tuple[list[float], str | None]:
    """Return the pauses and the trouble after work with these outcomes."""

    async def run() -> tuple[list[float], str | None]:
        work = PlannedWork(iter(outcomes))
        task = PeriodicTask(
            "work", work.run, 5.0,
            log=log, failed="nothing is done", expected=(OSError,), wait=work.waits(len(outcomes)),
        )  # fmt: skip
        task.start()
        await work.over.wait()
        await task.stop()
        await task.stop()
        return work.pauses, task.trouble

    return asyncio.run(run())


def test_work_chooses_its_next_time() -> None:
    assert repeated(None, 2.0, None) == ([5.0, 2.0, 5.0], None)


def test_fault_is_logged_once_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    away, full = OSError("away"), OSError("full")
    assert repeated(away, away, full, None, away) == ([5.0] * 5, "away")
    assert [each.getMessage().rpartition(": ")[2] for each in caplog.records] == ["away", "full", "away"]
    assert not [each for each in caplog.records if each.exc_info]


def test_internal_error_has_its_traceback_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert repeated(ZeroDivisionError("secret"), ZeroDivisionError("other"), None) == ([5.0] * 3, None)
    [record] = caplog.records
    assert record.exc_info is not None
    assert "ZeroDivisionError" in record.getMessage()


def test_long_work_ends_its_trouble_itself() -> None:
    async def run() -> None:
        begun, twice = asyncio.Event(), iter((OSError("away"), None))

        async def work() -> None:
            fault = next(twice)
            if fault is not None:
                raise fault
            assert task.trouble == "away"
            task.note_success()
            begun.set()
            await asyncio.Event().wait()

        task = PeriodicTask("work", work, 0.0, log=log, failed="nothing is done", expected=(OSError,))
        task.start()
        await begun.wait()
        assert task.trouble is None
        task.cancel()

    asyncio.run(run())


def test_end_of_a_task_passes_on_what_it_raised() -> None:
    async def fail() -> None:
        raise LookupError

    async def run() -> None:
        await end_task(None)
        task = asyncio.create_task(fail())
        await asyncio.wait([task])
        with pytest.raises(LookupError):
            await end_task(task)

    asyncio.run(run())


def test_event_ends_a_wait_and_is_cleared() -> None:
    async def run() -> None:
        event = asyncio.Event()
        event.set()
        await wait_and_clear(event, 60.0)
        assert not event.is_set()
        await wait_and_clear(event, 0.0)

    asyncio.run(run())
