"""Every value of every table equals that of an oracle without shared code, also after killed passes.

Not compared: copies of Sparkplug data that waits for its birth. A copy within a batch gives one reject, in another
batch a second one; if a copy lands after the birth, the replay of the first one reads both again.

The seed is printed; ``WAYPOST_SEED=n`` replays the messages and the moments. The promised 100 kills:
``WAYPOST_KILLS=100 ./waypost test tests/spark/test_oracle.py -m slow -s`` (ten without; about half a minute each).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark import java, session
from spark.cli import analytics
from spark.connector.jar_set import DELTA
from spark.connector.repository import ConnectorMissing
from spark.jobs.catalog import NAMES
from spark.transforms import clocks
from tests.spark import comparison, mixed, oracle
from tests.support.processes import wait_until
from tests.support.seeds import chosen_seed

ROOT: Final = Path(__file__).parents[2]
SEED: Final = 20_261_128
PASS_S_MAX: Final = 600.0
"""Longest pass on a busy machine."""
ORPHAN_S_MAX: Final = 60.0
"""Longest time that JVM and workers may outlive the command, on a busy machine."""
MARKER: Final = "WAYPOST_TEST_PASS"
"""Marks the pass in the environment of each of its processes."""
VICTIMS: Final = ("driver", "jvm", "worker")
NO_NETWORK: Final = {
    "JAVA_TOOL_OPTIONS": " ".join(
        f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort=9" for scheme in ("http", "https")
    ),
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "DEFAULT_ARTIFACT_REPOSITORY": "file:///nonexistent/",
}
"""Environment in which every proxy and every repository leads nowhere."""
HELD_S_MAX: Final = 3.0
"""Longest delay of a kill after the process starts, if it did not run at the chosen moment."""
COUNTED_AGAIN: Final = {
    "device_days": frozenset(("messages",)),
    "device_health": frozenset(("messages", "interval_s", "missed")),
}
"""Columns with known errors: the fold of `device_days` counts a copy of a message again if it lands after a pass. Empty
this table when that fold is fixed.
"""


class Pass:
    """A run of `waypost lake run` with all its processes."""

    def __init__(self, lake: Path, log: Path) -> None:
        self._name = f"{uuid.uuid4()}"
        # Tables must not depend on the machine's time zone.
        zone = {"TZ": "Europe/Berlin", "HOME": str(log.parent)}
        environment = os.environ | NO_NETWORK | zone | {"PYTHONPATH": str(ROOT), MARKER: self._name}
        command = [sys.executable, "-P", "-m", "edge.appliance.main", "lake", "run", "--lake", str(lake), "--json"]
        with log.open("a") as said:
            self.driver = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said)

    def processes(self) -> Iterator[psutil.Process]:
        """Yield each of its running processes."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                running = process.status() != psutil.STATUS_ZOMBIE
                if running and process.environ().get(MARKER) == self._name:
                    yield process

    def find(self, victim: str) -> psutil.Process | None:
        """Return the newest process of this kind; None before it starts."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if self._kind(process) == victim:
                    found.append((process.create_time(), process))
        return max(found, key=lambda one: one[0])[1] if found else None

    def _kind(self, process: psutil.Process) -> str:
        if process.pid == self.driver.pid:
            return "driver"
        return "jvm" if process.name() == "java" else "worker" if "pyspark" in " ".join(process.cmdline()) else "other"

    def end(self) -> int:
        """Wait until all its processes have ended; return the exit code of the command."""
        code = self.driver.wait(PASS_S_MAX)
        wait_until(lambda: not any(self.processes()), timeout_s=ORPHAN_S_MAX, what="the end of all its processes")
        return code

    def clear(self) -> None:
        """Kill remaining processes after a failed test."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.driver.kill()
        self.driver.wait()


def run(lake: Path, log: Path) -> float:
    """Run an undisturbed pass; return its seconds. Skips if the connector or Java is not set up."""
    try:
        DELTA.paths()
        java.find()
    except (ConnectorMissing, java.JavaMissing) as missing:
        pytest.skip(str(missing))
    begun = time.monotonic()
    one = Pass(lake, log)
    try:
        assert one.end() == 0, log.read_text()[-4_000:]
    finally:
        one.clear()
    return time.monotonic() - begun


@dataclass(frozen=True, slots=True)
class PassedLake:
    """Lake after undisturbed passes: what landed, and the output of the passes."""

    lake: Path
    landings: Sequence[mixed.Landing]
    log: Path


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)])
def passed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PassedLake:
    folder, landings = tmp_path_factory.mktemp("passed"), mixed.landings(chosen_seed(SEED), request.param, scale=0.6)
    made = PassedLake(folder / "lake", landings, folder / "passes.log")
    made.lake.mkdir(mode=0o700)
    for landing in made.landings:
        for part in landing.parts():
            part.write(made.lake)
        run(made.lake, made.log)
    return made


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_every_value_is_that_of_the_oracle(passed: PassedLake) -> None:
    assert oracle.differences(passed.lake, passed.landings, COUNTED_AGAIN) == []


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_pass_without_a_network_reports_its_jobs_and_leaves_the_lake_closed(passed: PassedLake) -> None:
    said = passed.log.read_text().splitlines()
    last: dict[str, Any] = json.loads(next(line for line in reversed(said) if line.startswith("{")))
    jobs = {job["job"]: job for job in last["jobs"]}
    assert {name: (job["state"], job["error"]) for name, job in jobs.items()} == dict.fromkeys(NAMES, ("done", None))
    assert jobs["messages"]["rows_in"] == len(passed.landings[-1].messages)
    assert all(any(line.startswith(f"{name} ") for line in said) for name in NAMES), "each job has a line of progress"
    for folder in ("gateway_freshness", "_checkpoints", "_logs"):
        made = list((passed.lake / folder).rglob("*"))
        assert made
        assert not [each for each in made if each.stat().st_mode & 0o077], "as closed to others as the lake"


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_pass_with_nothing_new_starts_no_spark(passed: PassedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise AssertionError("Spark was started")

    earlier = datetime.now(UTC) - timedelta(hours=1)  # rejects of wrong clocks are read again at each full hour
    monkeypatch.setattr(session, "start", start)
    monkeypatch.setattr(clocks, "now", lambda: earlier)
    done = CliRunner().invoke(analytics, ["run", "--lake", str(passed.lake)])
    assert (done.exit_code, done.output.count(" done ")) == (0, len(NAMES)), done.output


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(4 * 3600)
def test_every_value_is_that_of_the_oracle_after_kills(tmp_path: Path) -> None:
    seed, kills = chosen_seed(SEED), int(os.environ.get("WAYPOST_KILLS", "10"))
    lake, log, randoms = tmp_path / "lake", tmp_path / "passes.log", random.Random(seed)
    landings = mixed.landings(seed, kills + 2)
    landings[0].write(lake)
    whole_s = run(lake, log)
    happened: Counter[str] = Counter()
    for number, landing in enumerate(landings[1:-1], 1):
        before, meanwhile = landing.parts()
        before.write(lake)
        victim, moment_s = randoms.choice(VICTIMS), randoms.uniform(0, whole_s)
        how = killed(Pass(lake, log), victim, moment_s, randoms.uniform(0, HELD_S_MAX), partial(meanwhile.write, lake))
        happened[how] += 1
        print(f"kill {number} of {kills}: {victim} after {moment_s:.1f} s: {how}", flush=True)
    landings[-1].write(lake)
    run(lake, log)
    print(f"{kills} passes: {dict(happened)}")
    assert oracle.differences(lake, landings, COUNTED_AGAIN) == []


def killed(one: Pass, victim: str, moment_s: float, held_s: float, land: Callable[[], None]) -> str:
    """Kill a process of a pass at this moment, or `held_s` after its start; return the result.

    `land` is called while the pass runs.
    """
    try:
        has_ended = _ends_within(one, moment_s)
        land()
        process = one.find(victim)
        while process is None and not has_ended:
            has_ended = _ends_within(one, 0.05)
            process = one.find(victim)
            if process is not None:
                has_ended = _ends_within(one, held_s)
        if process is None or has_ended:
            return f"no {victim} killed, pass ended with {one.end()}"
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
        return f"{victim} killed, pass ended with {one.end()}"
    finally:
        one.clear()


def _ends_within(one: Pass, seconds: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        one.driver.wait(seconds)
        return True
    return False


class TestComparison:
    """The comparison finds each kind of difference."""

    TABLE: Final = comparison.Table("made", ("k",), "", frozenset(("sum",)), frozenset(("sketch",)))
    EXPECTED: Final[Sequence[Mapping[str, object]]] = (
        {"k": 1, "n": 2**53 + 1, "sum": 0.1 + 0.2, "p_low": 1.0, "p_high": 3.0, "unit": None},
        {"k": 2, "n": 5, "sum": None, "p_low": None, "p_high": None, "unit": "K"},
        {"k": 2, "n": 6, "sum": 1.0, "p_low": 2.0, "p_high": 2.0, "unit": "K"},
    )
    FOUND: Final[Sequence[Mapping[str, object]]] = (
        {"k": 2, "n": 6, "sum": 1.0, "p": 2.0, "unit": "K", "sketch": b""},
        {"k": 1, "n": 2**53 + 1, "sum": 0.3, "p": 2.0, "unit": None, "sketch": b""},
        {"k": 2, "n": 5, "sum": None, "p": None, "unit": "K", "sketch": b""},
    )

    def told(self, *found: Mapping[str, object]) -> list[str]:
        expected, there = (pa.Table.from_pylist([dict(row) for row in rows]) for rows in (self.EXPECTED, found))
        return list(comparison.compared(self.TABLE, expected, there))

    def test_rows_that_are_right(self) -> None:
        assert self.told(*self.FOUND) == []

    @pytest.mark.parametrize(
        ("wrong", "line"),
        [
            ({"n": 2**53}, "made [1].n: expected 9007199254740993, found 9007199254740992"),
            ({"sum": 0.30001}, "made [1].sum: expected 0.30000000000000004, found 0.30001"),
            ({"sum": None}, "made [1].sum: expected 0.30000000000000004, found None"),
            ({"p": 3.5}, "made [1].p: expected (1.0, 3.0), found 3.5"),
            ({"unit": "K"}, "made [1].unit: expected None, found 'K'"),
        ],
    )
    def test_a_value_that_is_wrong(self, wrong: Mapping[str, object], line: str) -> None:
        first, second, third = self.FOUND
        assert self.told(first, {**second, **wrong}, third) == [line]

    def test_rows_that_are_missing_or_there_twice(self) -> None:
        first, second, third = self.FOUND
        assert self.told(first, second) == ["made [2]: 2 rows expected, 1 found"]
        assert self.told(*self.FOUND, second) == ["made [1]: 1 rows expected, 2 found"]
        assert self.told(first, third) == ["made [1]: 1 rows expected, 0 found"]

    def test_columns_that_one_side_lacks(self) -> None:
        wider = [{**row, "more": 1} for row in self.FOUND]
        assert self.told(*wider) == [
            "made: columns ['more'] are in one of table and oracle only; see tests/spark/oracle.py"
        ]
