"""Time from a reading's landing until the windows have it, under continuous landing.

Commits to `telemetry`, one a second, play the hub; `waypost lake run --follow` is the real program. Each commit of
the windows names the version of `telemetry` that it contains, so the log shows the delay of each landed commit, to the
tenth of a second.

Two figures: from the start, for everything that lands before the program is warm; and warm, for everything that lands
in the minutes after. It is warm when each job with an interval of up to a minute has ended two passes. The first pass
creates the state of every series, processes the waiting messages, and compiles most of the code.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
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

from spark import lineage
from spark.jobs import catalog
from tests.bench import history
from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadFailed, LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Result, at_most
from tests.bench.scratch import scratch_folder

GATEWAYS: Final = 100
DEVICES: Final = 10
METRICS: Final = 10
READINGS_S: Final = GATEWAYS * DEVICES * METRICS
"""Readings a second: each device sends a message with all metrics once a second."""
WARM_S_MAX: Final = 400.0
PASSES_MIN: Final = 2
"""Passes of each job before the program counts as warm."""
MEASURED_S: Final = 300.0
GOLD: Final = "rollup_1m"
GOLD_S_MAX: Final = 15.0
GOLD_WAIT_S_MAX: Final = 300.0
LOOK_S: Final = 0.1
PASSES, SAID = "passes.json", "analytics.txt"
"""Files of the program's standard output and standard error."""
JOBS: Final[dict[str, tuple[str, ...]]] = {"all jobs": (), "rollups alone": ("rollups",)}


class Devices:
    """All devices: the messages of one second are one commit, as a hub's."""

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
    """Time of its appearance, in monotonic seconds."""


class Seen(NamedTuple):
    """A commit of the windows."""

    telemetry: int
    """Its version of `telemetry`."""
    at: float


class Watch:
    """Watches the windows' log, and records when each commit appeared."""

    def __init__(self, lake: Path) -> None:
        self.seen: list[Seen] = []
        self._table = lake / GOLD
        self._next = 0

    def look(self) -> None:
        now = time.monotonic()
        while (self._table / "_delta_log" / f"{self._next:020}.json").exists():
            made_of = dict(lineage.list_versions(DeltaTable(self._table, version=self._next)))[self._next]
            if made_of is not None and made_of.telemetry is not None:
                self.seen.append(Seen(made_of.telemetry.version, now))
            self._next += 1

    def has(self, version: int) -> bool:
        """Return True when the windows contain this version of `telemetry`."""
        return bool(self.seen) and self.seen[-1].telemetry >= version


class Passes:
    """Passes that the program reports, by job."""

    def __init__(self, said: Path, jobs: Sequence[str]) -> None:
        """`jobs`: jobs that have to be warm."""
        self.ended: Counter[str] = Counter()
        self._jobs = jobs
        self._said = said.open()

    def look(self) -> None:
        while line := self._said.readline():
            self.ended.update(job["job"] for job in json.loads(line)["jobs"])

    @property
    def warm(self) -> bool:
        """Return True when the program is warm; see the module."""
        return all(self.ended[job] >= PASSES_MIN for job in self._jobs)


@contextmanager
def _following(lake: Path, jobs: Sequence[str]) -> Iterator[psutil.Process]:
    """Run the real program, which reports its passes in files. Raises LoadFailed when it ends by itself."""
    command = [sys.executable, "-m", "spark.cli", "run", "--lake", str(lake), "--follow", "--json"]
    command += [word for job in jobs for word in ("--job", job)]
    with (lake.parent / PASSES).open("wb") as passes, (lake.parent / SAID).open("wb") as said:
        process = subprocess.Popen(command, stdout=passes, stderr=said)
    try:
        yield psutil.Process(process.pid)
        if process.poll() is not None:
            raise LoadFailed((lake.parent / SAID).read_text())
    finally:
        process.terminate()
        process.wait()


def _cpu_s(program: psutil.Process) -> float:
    """Return the processor time of a program and its child processes."""
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in (program, *program.children(recursive=True)):
            took = process.cpu_times()
            total += took.user + took.system + took.children_user + took.children_system
    return total


class Found(NamedTuple):
    """`cold_s`, `warm_s`: delay of each landed commit until the windows had it, sorted.

    `warm_after_s`: from the start. `passes`: of each job, in the time measured warm. `cores`: used by the program in
    that time.
    """

    cold_s: list[float]
    warm_s: list[float]
    warm_after_s: float
    passes: dict[str, int]
    cores: float


class Run:
    """One run of the program while readings land."""

    def __init__(self, folder: Path, devices: Devices, program: psutil.Process, jobs: Sequence[str]) -> None:
        self._folder, self._devices, self._program = folder, devices, program
        self._landed: list[Landed] = []
        self._watch = Watch(folder / "lake")
        self._passes = Passes(folder / PASSES, [job.name for job in catalog.select(jobs) if job.rhythm != "hourly"])
        self._begin = time.monotonic()

    def found(self) -> Found:
        while not self._passes.warm:
            if time.monotonic() > self._begin + WARM_S_MAX:
                raise LoadFailed(f"not warm after {WARM_S_MAX:.0f} s: {dict(self._passes.ended)}")
            self._land()
        first, warm_at, cpu_s, before = len(self._landed), time.monotonic(), _cpu_s(self._program), +self._passes.ended
        while time.monotonic() < warm_at + MEASURED_S:
            self._land()
        cores = (_cpu_s(self._program) - cpu_s) / (time.monotonic() - warm_at)
        passes = dict(self._passes.ended - before)
        self._finish()
        waits = list(_waits(self._landed, self._watch.seen))
        return Found(sorted(waits[:first]), sorted(waits[first:]), warm_at - self._begin, passes, cores)

    def _land(self) -> None:
        """Wait for the next second, and land its messages."""
        number = len(self._landed) + 1
        while time.monotonic() < self._begin + number:
            self._look()
        self._devices.land(self._folder / "lake", number)
        self._landed.append(Landed(number, time.monotonic()))

    def _finish(self) -> None:
        deadline = time.monotonic() + GOLD_WAIT_S_MAX
        while not self._watch.has(self._landed[-1].version):
            if time.monotonic() > deadline or not self._program.is_running():
                raise LoadFailed((self._folder / SAID).read_text())
            self._look()

    def _look(self) -> None:
        self._watch.look()
        self._passes.look()
        time.sleep(LOOK_S)


def _waits(landed: Sequence[Landed], seen: Sequence[Seen]) -> Iterator[float]:
    versions = [each.telemetry for each in seen]
    for version, at in landed:
        yield seen[bisect.bisect_left(versions, version)].at - at


def _p95(waits: Sequence[float]) -> float:
    return waits[int(0.95 * (len(waits) - 1))]


def _run(_load: LoadGenerators, _settings: Settings) -> list[Result]:
    results = []
    for words, jobs in JOBS.items():
        with scratch_folder() as scratch:
            folder, devices = Path(scratch), Devices()
            devices.land(folder / "lake", 0)
            with _following(folder / "lake", jobs) as program:
                found = Run(folder, devices, program, jobs).found()
        results.append(_result(words, found))
    return results


def _result(words: str, found: Found) -> Result:
    warm, p95 = found.warm_s, _p95(found.warm_s)
    for when, waits in ((f"from the start, {found.warm_after_s:.0f} s", found.cold_s), ("warm", warm)):
        times = f"{_p95(waits):.1f} s (p95), {statistics.median(waits):.1f} s (median), {waits[-1]:.1f} s (longest)"
        say(f"  {words}, {when}: {times}")
    passes = ", ".join(f"{name} {count}" for name, count in found.passes.items())
    say(f"  {words}: {found.cores:.2f} cores busy while warm; passes: {passes}")
    details: dict[str, Any] = {
        "median_s": statistics.median(warm),
        "longest_s": warm[-1],
        "cores": found.cores,
        "warm_after_s": found.warm_after_s,
        "cold_p95_s": _p95(found.cold_s),
    }
    about = f"{READINGS_S:,} readings/s of {GATEWAYS * DEVICES:,} devices, {words}, from landing to {GOLD}, warm, p95"
    return Result(f"gold-{words.partition(' ')[0]}", about, "s", p95, at_most(GOLD_S_MAX, p95), details=details)


BENCHMARK: Final = Benchmark("gold", "from landing to the windows with 10 000 readings a second", 900, _run)
