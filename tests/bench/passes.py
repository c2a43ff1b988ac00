"""Costs of a pass with ten thousand new messages, by job, over histories of different lengths.

A pass should cost only new messages and the rows that they touch, independent of history. The lakes differ only in
their days (`tests.bench.history`). One session lands the same new messages in each, in turn, and runs one job after the
other. Processor time covers this program, and the JVM with its workers where a job needs them. Files are those of the
jobs' commits.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadFailed, LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Result, at_most
from tests.bench.scratch import scratch_folder

if TYPE_CHECKING:
    from spark.driver import SparkDriver
    from spark.jobs.job import AnalyticsJob

DAYS: Final = (4, 64)
DAYS_FULL: Final = (4, 64, 400)
"""Days of 252 000 messages each: 1, 16 and 100 million messages."""
FIRST_COMMIT_STEPS: Final = 400
"""84 000 messages: the largest commit of the hub's landing when it catches up."""
NEW_STEPS: Final = 48
"""10 080 messages: slightly less than an hour of every device, so that a pass finds unfinished hours."""
TODAY_STEPS: Final = 2 * NEW_STEPS
"""Messages before the measurement: the current day has started, and Java has compiled its code."""
WARM_ROUNDS: Final = 1
GROWTH_MAX: Final = 1.3
"""Largest cost of a pass over many days, relative to a pass over one day."""


class Cost(NamedTuple):
    """Cost of one run of one job."""

    cpu_s: float
    read_mb: float
    """Megabytes read from files and sockets."""
    written_mb: float
    files_written: int
    files_removed: int


class Meter:
    """Resources that this program and its child processes have used so far."""

    def __init__(self) -> None:
        import psutil  # noqa: PLC0415 - other benchmarks need none of it

        self._program = psutil.Process()

    def cpu_s(self) -> float:
        """Return the processor time."""
        total = time.process_time()  # the kernel reports others in hundredths, and a pass may take two
        for process in self._program.children(recursive=True):
            took = process.cpu_times()
            total += took.user + took.system + took.children_user + took.children_system
        return total

    def read_bytes(self) -> int:
        """Return the bytes read, from a medium or a cache."""
        processes = (self._program, *self._program.children(recursive=True))
        return sum(process.io_counters().read_chars for process in processes)


class Subject:
    """Lake under measurement: its last step, and the cost of each job in each round."""

    def __init__(self, driver: SparkDriver, meter: Meter, root: Path, days: int) -> None:
        from spark.lake import SparkLake  # noqa: PLC0415

        self.root = root
        self.days = days
        self.costs: dict[str, list[Cost]] = {}
        self._lake = SparkLake(driver, root)
        self._meter = meter
        self._step = 0

    def land(self, steps: int, commit_steps: int) -> None:
        from tests.bench import history  # noqa: PLC0415

        for _ in range(0, steps, commit_steps):
            history.land(self.root, self._step, commit_steps)
            self._step += commit_steps

    def grow(self) -> None:
        """Extend the lake from one day to its number of days."""
        from tests.bench import history  # noqa: PLC0415

        history.grow(self.root, self.days)
        self._step = self.days * history.DAY_STEPS

    def pass_over(self) -> dict[str, Cost]:
        """Run every job once."""
        from spark.jobs import catalog  # noqa: PLC0415

        return {job.name: self._run(job) for job in catalog.JOBS}

    def round(self) -> None:
        self.land(NEW_STEPS, NEW_STEPS)
        found = self.pass_over()
        say(f"  {self.days} days: " + _words(found))
        for name, cost in found.items():
            self.costs.setdefault(name, []).append(cost)

    def check(self) -> None:
        """Raise LoadFailed unless the windows have every value once, and the accounts every message."""
        import deltalake  # noqa: PLC0415
        import pyarrow.compute as pc  # noqa: PLC0415

        from tests.bench import history  # noqa: PLC0415

        messages = self._step * history.SERIES
        expected = {
            ("rollup_1m", "count"): messages * len(history.METRICS),
            ("rollup_1d", "count"): messages * len(history.METRICS),
        }
        expected |= {("completeness", "distinct_sequences"): messages, ("completeness", "unexplained"): 0}
        for (name, column), count in expected.items():
            found = pc.sum(deltalake.DeltaTable(self.root / name).to_pyarrow_table(columns=[column])[column]).as_py()
            if found != count:
                raise LoadFailed(f"{self.days} days: {name} has {found:,} {column}, not {count:,}")

    def _run(self, job: AnalyticsJob) -> Cost:
        from spark.jobs import runner  # noqa: PLC0415
        from tests.support import delta_commits  # noqa: PLC0415

        before = {name: delta_commits.version(self.root / name) for name in job.outputs}
        cpu_s, read = self._meter.cpu_s(), self._meter.read_bytes()
        (step,) = runner.run_pass(self._lake, [job], lambda _: None)
        if step.error is not None:
            raise LoadFailed(f"{job.name}: {step.error}")
        cpu_s, read = self._meter.cpu_s() - cpu_s, self._meter.read_bytes() - read
        wrote = delta_commits.Written()
        for name, version in before.items():
            wrote = wrote.plus(delta_commits.written(self.root / name, version))
        return Cost(cpu_s, read / 1e6, wrote.size / 1e6, wrote.added, wrote.removed)


def _subjects(driver: SparkDriver, folder: Path, days: Sequence[int]) -> list[Subject]:
    from tests.bench import history  # noqa: PLC0415

    meter = Meter()
    first = Subject(driver, meter, folder / "first", 1)
    first.land(history.DAY_STEPS, FIRST_COMMIT_STEPS)
    say("  the first day goes through the jobs: " + _words(first.pass_over()))
    subjects = [Subject(driver, meter, folder / f"days-{count}", count) for count in days]
    for subject in subjects:
        shutil.copytree(first.root, subject.root)
        subject.grow()
        subject.land(TODAY_STEPS, NEW_STEPS)
        say(f"  {subject.days} days and a bit of today: " + _words(subject.pass_over()))
    return subjects


def _words(costs: dict[str, Cost]) -> str:
    return ", ".join(f"{name} {cost.cpu_s:.1f} s" for name, cost in costs.items())


def _results(subjects: Sequence[Subject]) -> list[Result]:
    from tests.bench import history  # noqa: PLC0415

    results = []
    shortest = subjects[0]
    for name, base in shortest.costs.items():
        for subject in subjects:
            costs = subject.costs[name]
            median = {field: statistics.median(getattr(cost, field) for cost in costs) for field in Cost._fields}
            growth = statistics.median(now.cpu_s / then.cpu_s for now, then in zip(costs, base, strict=True))
            messages = subject.days * history.DAY_MESSAGES
            results.append(
                Result(
                    f"passes-{name}", f"{NEW_STEPS * history.SERIES:,} new messages over {messages:,}", "CPU s",
                    median["cpu_s"], None if subject is shortest else at_most(GROWTH_MAX, growth, " x"),
                    f"{messages / 1e6:.0f} M", None, growth, details=median,
                )
            )  # fmt: skip
            read, wrote = f"reads {median['read_mb']:.1f} MB", f"writes {median['written_mb']:.1f} MB"
            files = f"in {median['files_written']:.0f} files for {median['files_removed']:.0f}"
            say(f"  {name} over {messages:,}: {median['cpu_s']:.2f} CPU s ({growth:.2f} x), {read}, {wrote} {files}")
    return results


def _run(_load: LoadGenerators, settings: Settings) -> list[Result]:
    from spark import session  # noqa: PLC0415
    from spark.driver import SparkDriver  # noqa: PLC0415

    with scratch_folder() as folder:
        options = session.SessionOptions(log=Path(folder) / "spark.log")
        driver = SparkDriver(lambda: session.start("waypost-bench", options))
        try:
            subjects = _subjects(driver, Path(folder), DAYS_FULL if settings.full else DAYS)
            for number in range(WARM_ROUNDS + settings.rounds):
                if number == WARM_ROUNDS:
                    for subject in subjects:
                        subject.costs.clear()
                for subject in subjects:
                    subject.round()
            for subject in subjects:
                subject.check()
            return _results(subjects)
        finally:
            driver.stop()


BENCHMARK: Final = Benchmark(
    "passes", "a pass with 10 000 new messages over histories of different lengths, by job", 1_500, _run
)
