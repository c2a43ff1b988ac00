"""One message at a time over one connection: time to its PUBACK, compared with the medium's time to store a page.

The medium is measured in the same rounds, with a file in the same folder: a page written into allocated space, and a
sync. No broker that syncs before it answers can be faster.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.bench.brokers import WaypostBroker
from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Result, at_most
from tests.bench.sessions import absent_session
from tests.bench.unlike import UNLIKE

TIMES_MAX: Final = 1.3
"""Longest PUBACK, relative to one write and sync."""
_LOAD: Final = ("-c", "1", "-w", "1", "-n", "2000", "-q", "1", *UNLIKE)
_PAGE: Final = bytes(4096)
_PAGES: Final = 500


def medium_us(folder: Path) -> float:
    """Return the median time of one page's write and fdatasync in this folder."""
    times = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        number = file.fileno()
        os.pwrite(number, _PAGE * _PAGES, 0)
        os.fsync(number)
        for page in range(_PAGES):
            begin = time.perf_counter()
            os.pwrite(number, _PAGE, page * len(_PAGE))
            os.fdatasync(number)
            times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def _run(load: LoadGenerators, settings: Settings) -> list[Result]:
    ours: list[float] = []
    medium: list[float] = []
    with WaypostBroker() as waypost:
        absent_session(waypost)
        load.run("mqttload", waypost.port("mqtt"), *_LOAD)
        for number in range(settings.rounds):
            before = medium_us(Path.cwd() / "build")
            ours.append(load.run("mqttload", waypost.port("mqtt"), *_LOAD)["ack_us_p50"])
            medium.append((before + medium_us(Path.cwd() / "build")) / 2)
            say(f"  mqtt-alone {number + 1}/{settings.rounds}: PUBACK {ours[-1]:,.0f}, medium {medium[-1]:,.0f} us")
    times = statistics.median(a / b for a, b in zip(ours, medium, strict=True))
    return [
        Result(
            "mqtt-alone", BENCHMARK.about, "us, p50", statistics.median(ours), at_most(TIMES_MAX, times),
            "write + sync", statistics.median(medium), times, details={"waypost_rounds": ours, "medium_rounds": medium},
        )
    ]  # fmt: skip


BENCHMARK: Final = Benchmark(
    "mqtt-alone", "MQTT QoS 1, one message at a time, stored: PUBACK, beside a page's write and sync", 30, _run
)
