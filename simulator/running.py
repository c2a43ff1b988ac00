"""Run of a simulation: starts the devices, shows progress, ends them in order, and returns the summary."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from simulator.device import FleetDevice, FleetDevicePlan, SimulationPace
from simulator.tally import DeviceTally, LatencyCounts

LOOK_S: Final = 1.0
"""Time between two looks at the progress."""
FILES_APART: Final = 200
"""Open files of the process that are not sockets of devices."""


RunTask = asyncio.Task[None]


class GroupRun(NamedTuple):
    """Devices of one group with their counts."""

    name: str
    devices: int
    tally: DeviceTally


class RunRates(NamedTuple):
    """Figures of one group in the time since the look before."""

    acknowledged_per_s: float
    latency: LatencyCounts


class GroupCounts(NamedTuple):
    """Counts of a group at a time."""

    at_s: float
    acknowledged: int
    latency: LatencyCounts


class SimulationRun:
    """All devices of a simulation in this process."""

    def __init__(self, plans: Sequence[FleetDevicePlan], pace: SimulationPace, connect_s: float) -> None:
        """`connect_s`: time over which the devices connect; figures of the whole run begin after it."""
        tallies = {plan.group.name: DeviceTally() for plan in plans}
        self.devices: Final = [FleetDevice(plan, tallies[plan.group.name], pace) for plan in plans]
        counts = {name: sum(plan.group.name == name for plan in plans) for name in tallies}
        self.groups: Final = tuple(GroupRun(name, counts[name], tally) for name, tally in tallies.items())
        self.started_s = time.monotonic()
        self.rates: dict[str, RunRates] = {}
        """Figures since the look before, by group."""
        self.draining = False
        """True when the readings have ended."""
        self._ended_s: float | None = None
        """Monotonic time at which the readings ended."""
        self._measured: dict[str, int] = {}
        """Readings acknowledged until then, by group."""
        self._stop = asyncio.Event()
        self._abort = asyncio.Event()
        self._connect_s = connect_s
        self._settled: dict[str, GroupCounts] = {}
        """Counts when the devices had had time to connect, by group."""
        self._seen: dict[str, GroupCounts] = {}

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_s

    def settled(self, group: GroupRun) -> RunRates:
        """Return rate and times until PUBACK of a group since the devices have connected, or since the start of a
        shorter run."""
        since = self._settled.get(group.name) or GroupCounts(self.started_s, 0, LatencyCounts())
        seconds = max((self._ended_s or time.monotonic()) - since.at_s, 1e-3)
        rate = (self._measured.get(group.name, group.tally.acknowledged) - since.acknowledged) / seconds
        return RunRates(rate, group.tally.latency.since(since.latency))

    def stop(self) -> None:
        """End the run in order; the second call ends it at once."""
        if self._stop.is_set():
            self._abort.set()
        self._stop.set()

    async def run(self, duration_s: float | None, drain_s: float, look: Callable[[], None]) -> None:
        """Run until the time is over or `stop` is called, then at most `drain_s` until all readings are acknowledged.

        `look` is called about once a second.
        """
        self.started_s = time.monotonic()
        tasks = [asyncio.create_task(each.run(), name=each.plan.login.device) for each in self.devices]
        looking = asyncio.create_task(self._look(look))
        try:
            with self._signals():
                await self._wait(duration_s, looking, tasks)
                self.draining = True
                self._ended_s = time.monotonic()
                self._measured = {group.name: group.tally.acknowledged for group in self.groups}
                for each in self.devices:
                    each.stop()
                everything = asyncio.gather(*tasks, return_exceptions=True)
                aborting = asyncio.ensure_future(self._abort.wait())
                await asyncio.wait((everything, aborting), timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
                aborting.cancel()
        finally:
            looking.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(looking, *tasks, return_exceptions=True)
        for task in tasks:
            if not task.cancelled():
                task.result()  # a fault of the simulator
        self._measure_rates()

    async def _wait(self, seconds: float | None, looking: RunTask, tasks: Sequence[RunTask]) -> None:
        """Wait for `stop` or the time. Raises the fault of a device, or of the view."""
        stopped = asyncio.create_task(self._stop.wait())
        failed = asyncio.create_task(_first_fault(tasks))
        try:
            await asyncio.wait((stopped, looking, failed), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for each in (looking, failed):
                if each.done():
                    each.result()
        finally:
            stopped.cancel()
            failed.cancel()

    async def _look(self, look: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._measure_rates()
            if not self._settled and self.elapsed_s >= self._connect_s:
                now = time.monotonic()
                self._settled = {
                    each.name: GroupCounts(now, each.tally.acknowledged, each.tally.latency.copy())
                    for each in self.groups
                }
            look()

    def _measure_rates(self) -> None:
        now = time.monotonic()
        for group in self.groups:
            tally = group.tally
            then, count, latency = self._seen.get(group.name) or (self.started_s, 0, LatencyCounts())
            rate = (tally.acknowledged - count) / max(now - then, 1e-3)
            self.rates[group.name] = RunRates(rate, tally.latency.since(latency))
            self._seen[group.name] = GroupCounts(now, tally.acknowledged, tally.latency.copy())

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


async def _first_fault(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for the first task that ends with an error, and raise it. A device ends only when it is stopped."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for each in done:
        each.result()
    await asyncio.Event().wait()


def raise_file_limit(devices: int) -> int | None:
    """Let this process open a socket for each device; return the limit if it is too low for that."""
    wanted = devices + FILES_APART
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        return None if allowed >= wanted else allowed
    return None
