"""First pass of a new session over 2.4 million messages with four values each: processor time and memory.

The jobs of `values` run first, then all others, as in `lake run`. Processor time covers this program, the JVM from its
start, and its workers. Memory is the largest sum over these processes, with shared pages counted once. At the end the
rows of the tables are counted.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tests.bench import history
from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadFailed, LoadGenerators
from tests.bench.packages import say
from tests.bench.passes import Meter
from tests.bench.result import Result, at_most
from tests.bench.scratch import scratch_folder

if TYPE_CHECKING:
    from spark.jobs.job import AnalyticsJob

GATEWAYS, DEVICES = 40, 5
METRICS: Final = ("temperature", "humidity", "pressure", "load")
EVERY_S: Final = 24
"""Seconds between two messages of a device: two or three values in a window of a minute."""
STEPS: Final = 12_000
COMMIT_STEPS: Final = 400
"""80 000 messages: about the largest commit of the hub's landing when it catches up."""
MESSAGES: Final = GATEWAYS * DEVICES * STEPS
READINGS: Final = MESSAGES * len(METRICS)
START: Final = datetime(2026, 3, 14, tzinfo=UTC)
VALUES_CPU_S_MAX: Final = 300.0
ALL_CPU_S_MAX: Final = 600.0
RESIDENT_MIB_MAX: Final = 2_500e6 / 2**20
_SAMPLE_S: Final = 1.0
_S_US: Final = 1_000_000


class FirstPass(NamedTuple):
    """Processor time of the first jobs and of all jobs, and the largest memory."""

    values_cpu_s: float
    all_cpu_s: float
    resident_mib: float


def write(lake: Path) -> None:
    """Write the messages, as many commits as a hub makes when it catches up."""
    randoms = np.random.default_rng(1)
    for first in range(0, STEPS, COMMIT_STEPS):
        step, device = (
            each.ravel()
            for each in np.meshgrid(
                np.arange(first, first + COMMIT_STEPS), np.arange(GATEWAYS * DEVICES), indexing="ij"
            )
        )
        sent = (int(START.timestamp()) + step * EVERY_S) * _S_US + device * 1_000
        history.append(
            lake,
            "telemetry",
            len(step),
            {
                "gateway": _numbered("gateway", device // DEVICES),
                "address": _numbered("plant", device % DEVICES),
                "device": _numbered("device", device % DEVICES),
                "sequence": step,
                "lane": "live",
                "event_time": sent,
                "received_at": sent + 2_000,
                "ingested_at": sent + 1_500_000,
                "body": _bodies(len(step), randoms),
            },
        )


def _numbered(name: str, numbers: Any) -> pa.Array:
    return pa.array([f"{name}-{number:02}" for number in range(GATEWAYS)]).take(pa.array(numbers))


def _bodies(count: int, randoms: np.random.Generator) -> pa.Array:
    parts: list[Any] = []
    for number, metric in enumerate(METRICS):
        values = pa.array(np.round(randoms.normal(60, 5, count), 2)).cast(pa.string())
        parts += [f', "{metric}": ' if number else f'{{"{metric}": ', values]
    return pc.binary_join_element_wise(*parts, "}", "").cast(pa.binary())


class _Memory:
    """Largest memory of this program and its children while the block runs."""

    def __init__(self) -> None:
        self.most_mib = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        program = psutil.Process()
        while not self._over.wait(_SAMPLE_S):
            found = 0
            for process in (program, *program.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    found += process.memory_full_info().pss
            self.most_mib = max(self.most_mib, found / 2**20)


def _passed(lake: Path, log: Path) -> FirstPass:
    from spark import session  # noqa: PLC0415 - other benchmarks need none of it
    from spark.driver import SparkDriver  # noqa: PLC0415
    from spark.jobs import catalog, runner  # noqa: PLC0415
    from spark.lake import SparkLake  # noqa: PLC0415

    options = session.SessionOptions(load=runner.estimate_load(lake), log=log)
    driver = SparkDriver(lambda: session.start("waypost-bench", options))
    meter, costs = Meter(), list[float]()
    try:
        with _Memory() as memory:
            begin = meter.cpu_s()
            for jobs in _in_order(catalog.JOBS):
                for step in runner.run_pass(SparkLake(driver, lake), jobs, lambda _: None):
                    if step.error is not None:
                        raise LoadFailed(f"{step.job}: {step.error}")
                    say(f"    {step.job}: {step.seconds:.1f} s")
                costs.append(meter.cpu_s() - begin)
    finally:
        driver.stop()
    values, everything = costs
    return FirstPass(values, everything, memory.most_mib)


def _in_order(jobs: tuple[AnalyticsJob, ...]) -> Iterator[list[AnalyticsJob]]:
    yield [job for job in jobs if job.rhythm == "values"]
    yield [job for job in jobs if job.rhythm != "values"]


def _check(lake: Path) -> None:
    """Raise LoadFailed unless the tables have every reading once."""
    found = {"readings": int(DeltaTable(lake / "readings").count())}
    for name in ("rollup_1m", "rollup_1h", "rollup_1d"):
        found[name] = pc.sum(DeltaTable(lake / name).to_pyarrow_table(columns=["count"])["count"]).as_py()
    if any(count != READINGS for count in found.values()):
        raise LoadFailed(f"of {READINGS:,} readings the tables have {found}")


def _run(_load: LoadGenerators, settings: Settings) -> list[Result]:
    passes: list[FirstPass] = []
    with scratch_folder() as scratch:
        for number in range(settings.rounds):
            lake = Path(scratch) / str(number)
            write(lake)
            passes.append(_passed(lake, Path(scratch) / "spark.log"))
            _check(lake)
            say(f"  {number + 1}/{settings.rounds}: {passes[-1]}")
    about = f"a first pass over {MESSAGES:,} messages, {READINGS:,} readings"
    values, everything, memory = (statistics.median(column) for column in zip(*passes, strict=True))
    return [
        Result("first-values", f"readings and windows: {about}", "CPU s", values, at_most(VALUES_CPU_S_MAX, values)),
        Result("first-all", f"all jobs: {about}", "CPU s", everything, at_most(ALL_CPU_S_MAX, everything)),
        Result("first-memory", f"memory: {about}", "MiB", memory, at_most(round(RESIDENT_MIB_MAX), memory)),
    ]


BENCHMARK: Final = Benchmark("first", "a first pass over 2.4 million messages: processor time and memory", 400, _run)
