"""A gateway at the speed of a Raspberry Pi 4: a single core for about a third of the time.

It works like cpulimit, with periods too short to affect the measurement. The kernel's quota has periods of 0.1 s, and a
process that has used up its share pauses for the rest of one.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.bench.brokers import WaypostBroker
from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Result, at_least, at_most
from tests.bench.sessions import absent_session
from tests.bench.unlike import FLEET, UNLIKE

SHARE: Final = 0.35
"""Share of a core of this machine that equals a core of a Pi 4."""
PERIOD_S: Final = 0.004
"""Period in which the process runs for its share and pauses for the rest."""
RATE: Final = 10_000
PUBACK_MS_MAX: Final = 50.0
_SECONDS: Final = 10
_LOAD: Final = ("-c", str(FLEET), "-n", str(RATE * _SECONDS), "-q", "1", "-r", str(RATE), *UNLIKE)


@contextmanager
def slow(pid: int, share: float = SHARE) -> Iterator[None]:
    """Limit a process to one core, the first allowed, and this share of its time."""
    cores = os.sched_getaffinity(pid)
    ended = threading.Event()

    def limit() -> None:
        with suppress(ProcessLookupError):  # it has ended, which the measurement notices
            while not ended.wait(PERIOD_S * share):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(PERIOD_S * (1 - share))
                os.kill(pid, signal.SIGCONT)

    limiting = threading.Thread(target=limit, name="pace")
    _use(pid, {min(cores)})
    limiting.start()
    try:
        yield
    finally:
        ended.set()
        limiting.join()
        _use(pid, cores)


def _use(pid: int, cores: set[int]) -> None:
    """Pin all threads of a process to these cores; later threads inherit this. Ignores a process that has ended."""
    with suppress(FileNotFoundError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cores)


def _run(load: LoadGenerators, settings: Settings) -> list[Result]:
    rates: list[float] = []
    waits_ms: list[float] = []
    with WaypostBroker() as ours:
        absent_session(ours)
        with slow(ours.pid):
            for number in range(settings.rounds + 1):
                found = load.run("mqttload", ours.port("mqtt"), *_LOAD)
                said = f"{found['pub_per_s']:,.0f} msg/s, p99 {found['ack_us_p99'] / 1e3:,.1f} ms"
                say(f"  mqtt-pace {number}/{settings.rounds}: {said}")
                if number:  # the first round warms up
                    rates.append(found["pub_per_s"])
                    waits_ms.append(found["ack_us_p99"] / 1e3)
    rate, wait_ms = statistics.median(rates), statistics.median(waits_ms)
    return [
        Result("mqtt-pace", BENCHMARK.about, "msg/s", rate, at_least(0.99 * RATE, rate), details={"rounds": rates}),
        Result(
            "mqtt-pace-p99", "the same: PUBACK", "ms, p99", wait_ms, at_most(PUBACK_MS_MAX, wait_ms),
            details={"rounds": waits_ms},
        ),
    ]  # fmt: skip


BENCHMARK: Final = Benchmark(
    "mqtt-pace",
    f"MQTT QoS 1, unlike, {RATE:,} msg/s from {FLEET} connections, stored; one core at the pace of a Pi 4's",
    80,
    _run,
)
