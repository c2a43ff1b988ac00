"""How long it takes from a reading's landing until the windows have it, while readings land all the time.

The hub's part is played by commits to `telemetry`, one a second; `waypost analytics run --follow` is the product's
program. A commit of the windows says which version of `telemetry` it was made of, so how long each landed commit took
is seen in the log, to the tenth of a second.
"""

from __future__ import annotations

import bisect
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from numpy.typing import NDArray

from spark import provenance
from tests.bench import history
from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadFailed, LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Result, at_most

GATEWAYS: Final = 100
DEVICES: Final = 10
METRICS: Final = 10
READINGS_S: Final = GATEWAYS * DEVICES * METRICS
"""Each device sends a message of so many values once a second."""
WARM_S: Final = 90.0
"""Java compiles, and all windows and states begin."""
MEASURED_S: Final = 180.0
GOLD: Final = "rollup_1m"
GOLD_S_MAX: Final = 15.0
GOLD_WAIT_S_MAX: Final = 300.0
LOOK_S: Final = 0.1
JOBS: Final[dict[str, tuple[str, ...]]] = {"all jobs": (), "rollups alone": ("--job", "rollups")}


class Devices:
    """All of them: what they send in one second is one commit, as a hub's."""

    def __init__(self) -> None:
        number = np.arange(GATEWAYS * DEVICES)
        self._columns = {
            "gateway": _named("gateway", number // DEVICES),
            "address": _named("plant/device", number % DEVICES),
            "device": _named("device", number),
            "lane": "live",
        }
        self._randoms = np.random.default_rng(1)

    def land(self, lake: Path, sequence: int) -> None:
        count, now = GATEWAYS * DEVICES, time.time_ns() // 1_000
        sent = now - 1_000_000 + np.arange(count) * 1_000
        times = {"event_time": sent, "received_at": sent + 1_000, "ingested_at": np.full(count, now)}
        sequences = {"sequence": np.full(count, sequence), "body": self._bodies(count)}
        history.append(lake, "telemetry", count, self._columns | times | sequences)

    def _bodies(self, count: int) -> pa.Array:
        values = np.round(self._randoms.normal(60, 5, (METRICS, count)), 2)
        parts: list[Any] = []
        for number, column in enumerate(values):
            parts += [f'{", " if number else "{"}"value{number}": ', pa.array(column).cast(pa.string())]
        return pc.binary_join_element_wise(*parts, "}", "").cast(pa.binary())


def _named(name: str, numbers: NDArray[np.int64]) -> pa.Array:
    return pa.array([f"{name}-{number:04}" for number in numbers.tolist()])


class Landed(NamedTuple):
    """A commit of `telemetry`."""

    version: int
    at: float
    """When it was there; monotonic seconds."""


class Seen(NamedTuple):
    """A commit of the windows."""

    telemetry: int
    """The version of `telemetry` that it has."""
    at: float


class Watch:
    """Looks at the windows' log, and remembers when each commit was there."""

    def __init__(self, lake: Path) -> None:
        self.seen: list[Seen] = []
        self._table = lake / GOLD
        self._next = 0

    def look(self) -> None:
        now = time.monotonic()
        while (self._table / "_delta_log" / f"{self._next:020}.json").exists():
            made_of = dict(provenance.versions(DeltaTable(self._table, version=self._next)))[self._next]
            if made_of is not None and made_of.telemetry is not None:
                self.seen.append(Seen(made_of.telemetry.version, now))
            self._next += 1

    def has(self, version: int) -> bool:
        """The windows have this version of `telemetry`."""
        return bool(self.seen) and self.seen[-1].telemetry >= version


@contextmanager
def _following(lake: Path, options: Sequence[str]) -> Iterator[psutil.Process]:
    """The product's program. Raises LoadFailed when it ends by itself."""
    command = [sys.executable, "-m", "spark.cli", "run", "--lake", str(lake), "--follow", *options]
    with (lake.parent / "analytics.txt").open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        yield psutil.Process(process.pid)
        if process.poll() is not None:
            raise LoadFailed((lake.parent / "analytics.txt").read_text())
    finally:
        process.terminate()
        process.wait()


def _cpu_s(program: psutil.Process) -> float:
    """Processor time of a program and all that it has started."""
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in (program, *program.children(recursive=True)):
            took = process.cpu_times()
            total += took.user + took.system + took.children_user + took.children_system
    return total


class Found(NamedTuple):
    """`waits_s`: of each landed commit, until the windows had it, sorted."""

    waits_s: list[float]
    cores: float
    """Of which the program took all of the time."""


def _found(folder: Path, options: Sequence[str]) -> Found:
    lake, landed, cpu_s = folder / "lake", [], 0.0
    watch, devices = Watch(lake), Devices()
    devices.land(lake, 0)
    with _following(lake, options) as program:
        begin = time.monotonic()
        for number in range(1, int(WARM_S + MEASURED_S)):
            while time.monotonic() < begin + number:
                watch.look()
                time.sleep(LOOK_S)
            devices.land(lake, number)
            landed.append(Landed(number, time.monotonic()))
            if number == WARM_S:
                cpu_s = _cpu_s(program)
        cores = (_cpu_s(program) - cpu_s) / MEASURED_S
        deadline = time.monotonic() + GOLD_WAIT_S_MAX
        while not watch.has(landed[-1].version):
            if time.monotonic() > deadline or not program.is_running():
                raise LoadFailed((folder / "analytics.txt").read_text())
            watch.look()
            time.sleep(LOOK_S)
    return Found(sorted(_waits(landed[int(WARM_S) :], watch.seen)), cores)


def _waits(landed: Sequence[Landed], seen: Sequence[Seen]) -> Iterator[float]:
    versions = [each.telemetry for each in seen]
    for version, at in landed:
        yield seen[bisect.bisect_left(versions, version)].at - at


def _run(_load: LoadGenerators, _settings: Settings) -> list[Result]:
    results = []
    for words, options in JOBS.items():
        with tempfile.TemporaryDirectory(prefix="waypost-bench-", dir=Path.cwd() / "build") as folder:
            found = _found(Path(folder), options)
        waits = found.waits_s
        p95 = waits[int(0.95 * (len(waits) - 1))]
        details: dict[str, Any] = {"median_s": statistics.median(waits), "longest_s": waits[-1], "cores": found.cores}
        about = f"{READINGS_S:,} readings/s of {GATEWAYS * DEVICES:,} devices, {words}, from landing to {GOLD}, p95"
        results.append(
            Result(f"gold-{words.partition(' ')[0]}", about, "s", p95, at_most(GOLD_S_MAX, p95), details=details)
        )
        times = f"{p95:.1f} s (p95), {statistics.median(waits):.1f} s (median), {waits[-1]:.1f} s (longest)"
        say(f"  {words}: {times}; {found.cores:.2f} cores busy")
    return results


BENCHMARK: Final = Benchmark("gold", "from landing to the windows with 10 000 readings a second", 640, _run)
