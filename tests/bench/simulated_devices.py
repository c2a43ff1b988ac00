"""Five thousand simulated devices at one gateway: time until PUBACK, processor and memory of the gateway.

They differ in their shape, as in a fleet: steady, by the time of day, in bursts, and with a link that breaks. Each
keeps its readings until they are acknowledged.

`python -m tests.bench.simulated_devices PORT DEVICES INTERVAL_S SECONDS` is the process of the devices.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

import uvloop

from tests.bench.brokers import WaypostBroker
from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadFailed, LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Result
from tests.bench.sessions import absent_session
from tests.support.mqtt_link import LinkLost, MqttLink

DEVICES: Final = 5_000
INTERVALS_S: Final = (10.0, 1.0)
"""Mean times between two readings of a device."""
SECONDS: Final = 60.0
SECONDS_FULL: Final = 600.0
CONNECT_S: Final = 40.0
"""Time over which the devices connect, before anything counts."""
DAY_S: Final = 30.0
"""Time that passes as a day for devices that follow the time of day."""
BURST: Final = 10
"""Readings of a burst."""
LINK_S: Final = 40.0
"""Mean time after which a link breaks that does so."""
RETRY_S: Final = 2.0

PauseShape = Callable[[random.Random, float], Iterator[float]]
"""Yields the pauses before readings; the mean is given."""


def steady(chance: random.Random, mean_s: float) -> Iterator[float]:
    """Readings at a rate with some jitter."""
    while True:
        yield mean_s * (0.9 + 0.2 * chance.random())


def diurnal(chance: random.Random, mean_s: float) -> Iterator[float]:
    """More readings by day than at night."""
    while True:
        day = 1.0 + 0.8 * math.sin(2.0 * math.pi * time.monotonic() / DAY_S)
        yield mean_s * (0.5 + chance.random()) / day * 0.75


def bursty(chance: random.Random, mean_s: float) -> Iterator[float]:
    """Several readings at once, then a long pause."""
    while True:
        yield BURST * mean_s * (0.5 + chance.random())
        yield from [0.0] * (BURST - 1)


SHAPES: Final[tuple[tuple[PauseShape, bool, int], ...]] = (
    (steady, False, 50),
    (diurnal, False, 20),
    (bursty, False, 20),
    (steady, True, 10),
)
"""PauseShape, True for a link that breaks, and share of the devices in percent."""


class SimulatedSensor:
    """One device. It repeats readings that are not acknowledged after a break of its link."""

    def __init__(self, number: int, port: int, interval_s: float) -> None:
        self.waits: list[tuple[float, float]] = []
        """Monotonic time of each reading, and seconds until its PUBACK, on one connection."""
        self.breaks = 0
        self._name = f"sensor-{number}"
        self._port = port
        self._chance = random.Random(number)
        place, share = number % 100, 0
        for shape, breaks, percent in SHAPES:
            share += percent
            if place < share:
                self._pauses, self._breaks = shape(self._chance, interval_s), breaks
                break
        self._unacked: list[bytes] = []
        self._number = 0

    async def run(self) -> None:
        """Live until it is cancelled."""
        await asyncio.sleep(CONNECT_S * self._chance.random())
        while True:
            with contextlib.suppress(LinkLost, PermissionError):
                link = await MqttLink.open(self._port, self._name, "secret", lambda *_: None)
                if self._breaks:
                    asyncio.get_running_loop().call_later(self._chance.expovariate(1 / LINK_S), link.cut)
                await self._publish(link)
            self.breaks += 1
            await asyncio.sleep(RETRY_S * self._chance.random())

    async def _publish(self, link: MqttLink) -> None:
        topic = f"load/{self._name}/measurement"
        while self._unacked:
            await link.publish(topic, self._unacked[0])
            del self._unacked[0]
        for pause_s in self._pauses:
            await asyncio.sleep(pause_s)
            values = {"n": self._number, "temperature": round(self._chance.gauss(21, 2), 1), "battery": 3.61}
            self._number += 1
            self._unacked.append(json.dumps(values).encode())
            begun = time.monotonic()
            await link.publish(topic, self._unacked[-1])
            self.waits.append((begun, time.monotonic() - begun))
            del self._unacked[-1]


async def live(port: int, devices: int, interval_s: float, seconds: float) -> dict[str, float]:
    """Let devices connect and live; return the figures of the time after they have connected."""
    sensors = [SimulatedSensor(number, port, interval_s) for number in range(devices)]
    running = [asyncio.create_task(each.run()) for each in sensors]
    await asyncio.sleep(CONNECT_S + interval_s)
    print("connected", flush=True)
    begun = time.monotonic()
    await asyncio.sleep(seconds)
    ended = time.monotonic()
    print("ended", flush=True)
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    waits_ms = sorted(1e3 * wait_s for each in sensors for at, wait_s in each.waits if begun <= at < ended)
    shares = {f"p{100 * share:g}": waits_ms[int(share * len(waits_ms))] for share in (0.5, 0.99, 0.999)}
    breaks = sum(each.breaks for each in sensors)
    return {**shares, "per_s": len(waits_ms) / (ended - begun), "breaks": breaks, "devices": devices}


def _measured(waypost: WaypostBroker, interval_s: float, seconds: float) -> dict[str, float]:
    """Return the figures of one round."""
    words = (str(waypost.port("mqtt")), str(DEVICES), str(interval_s), str(seconds))
    command = [sys.executable, "-m", "tests.bench.simulated_devices", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "connected\n":
            raise LoadFailed("the devices have not connected")
        cpu_s, begun = waypost.cpu_s, time.monotonic()
        process.stdout.readline()
        cpu = (waypost.cpu_s - cpu_s) / (time.monotonic() - begun)
        resident_mib = waypost.resident_mib
        found: dict[str, float] = json.loads(process.stdout.readline())
    return {**found, "cpu_percent": 100 * cpu, "resident_mib": resident_mib}


def run(_load: LoadGenerators, settings: Settings) -> list[Result]:
    seconds, results = SECONDS_FULL if settings.full else SECONDS, []
    for interval_s in INTERVALS_S:
        with WaypostBroker() as waypost:
            absent_session(waypost)
            found = _measured(waypost, interval_s, seconds)
        name = f"{BENCHMARK.name}-{interval_s:g}s"
        say(f"  {name}: " + ", ".join(f"{key} {value:,.1f}" for key, value in found.items()))
        about = f"{DEVICES} devices, a reading each {interval_s:g} s: PUBACK"
        resident_mib = found["resident_mib"]
        results.append(Result(name, about, "ms, p99", found["p99"], resident_mib=resident_mib, details=found))
    return results


BENCHMARK: Final = Benchmark(
    "simulated-devices", f"{DEVICES} simulated devices of several shapes: PUBACK, processor, memory", 250, run
)

if __name__ == "__main__":
    print(json.dumps(uvloop.run(live(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))))
