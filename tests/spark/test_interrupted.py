"""An interrupted pass ends immediately at any point, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, cast

import psutil
import pytest

from spark import session
from spark.driver import SparkDriver
from tests.spark import lakes
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
AT_ONCE_S = 20.0
"""Time that a busy machine may need for a twentieth of a second; every interrupted command would run forever."""
WORDS = "interrupted: the tables are consistent, and the next run continues\n"
PROGRAM = """
import os, sqlite3, sys
from spark import cli
from spark.jobs.job import AnalyticsJob, JobResult

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"

class Step:
    name, inputs, outputs = "step", ("telemetry",), ()

    def run(self, lake):
        if what == "job":
            native()
        return JobResult(0, 0)

def native(*_):
    \"\"\"What has no ear for signals, as numpy and delta-rs have none.\"\"\"
    print(os.getpid(), flush=True)
    sqlite3.connect(":memory:").execute(ENDLESS).fetchall()

if __name__ == "__main__":
    what = sys.argv.pop(1)
    cli._select_jobs = lambda *_: [AnalyticsJob("step", "", (Step(),), rhythm="values")]
    if what == "upkeep":
        cli._maintain_by_need = native
    if what == "command":
        from spark import maintenance, verification
        from spark.jobs import replay
        from spark.report import queries
        maintenance.maintain = verification.verify = replay.ManualReplay.run = queries.read_without_broken = native
    cli.analytics.add_command(cli.report)
    cli.analytics()
"""


def is_running(process: psutil.Process) -> bool:
    """Return False for a zombie, which its parent has not reaped yet."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def is_at_work(process: psutil.Process) -> Callable[[], bool]:
    """Return a check that the process has used half a second more of processor time, as only real work does."""
    before = process.cpu_times().user
    return lambda: process.cpu_times().user > before + 0.5


def interrupted(folder: Path, number: int, what: str, *arguments: str) -> tuple[int, str]:
    """Signal a command on the lake in a folder once it is at work; return its exit code and output.

    Its processes must have ended as well.
    """
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(folder / "program.py"), what, *arguments, "--lake", str(folder / "lake")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            begun = psutil.Process(int(process.stdout.readline()))
            wait_until(is_at_work(begun), timeout_s=AT_ONCE_S, what="work outside of Python")
            process.send_signal(number)
            _, said = process.communicate(timeout=AT_ONCE_S)
        finally:
            process.kill()
    wait_until(lambda: not is_running(begun), timeout_s=AT_ONCE_S, what="the end of its process")
    return process.returncode, said


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("what", "number", "arguments", "ends"),
    [
        ("job", signal.SIGINT, (), (1, WORDS)),
        ("job", signal.SIGTERM, ("--follow",), (0, "")),
        ("upkeep", signal.SIGINT, (), (1, WORDS)),
    ],
)
def test_a_pass_ends_at_once(
    tmp_path: Path, what: str, number: int, arguments: Sequence[str], ends: tuple[int, str]
) -> None:
    lakes.write(tmp_path / "lake", "telemetry", [lakes.message(0)])
    (tmp_path / "program.py").write_text(PROGRAM)
    code, said = interrupted(tmp_path, number, what, "run", *arguments)
    passes = [line for line in said.splitlines(keepends=True) if " done " not in line]
    assert (code, "".join(passes)) == ends


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("maintain",), WORDS),
        (("verify",), "interrupted: not all files were checked, and nothing was changed\n"),
        (
            ("verify", "--drop"),
            "interrupted: run it again to finish; the removed files are listed in table set_aside\n",
        ),
        (("replay",), WORDS),
        (("report", "--json"), "interrupted: not all pages were written\n"),
    ],
)
def test_other_commands_end_as_soon(tmp_path: Path, arguments: Sequence[str], words: str) -> None:
    lakes.write(tmp_path / "lake", "telemetry", [lakes.message(0)])
    assert interrupted(tmp_path, signal.SIGTERM, "command", *arguments) == (1, words)


@pytest.mark.timeout(120)
def test_spark_that_is_being_started_is_not_waited_for_and_ended_once_it_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, up = threading.Event(), threading.Event()
    stopped: list[object] = []
    monkeypatch.setattr(session, "stop", stopped.append)
    started = cast("SparkSession", object())

    def start() -> SparkSession:
        asked.set()
        assert up.wait(AT_ONCE_S)
        return started

    driver = SparkDriver(start)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(driver.session)
        assert asked.wait(AT_ONCE_S)
        driver.stop()
        assert not stopped
        up.set()
        with pytest.raises(RuntimeError, match="stopped"):
            asking.result(AT_ONCE_S)
    assert stopped == [started]
    with pytest.raises(RuntimeError, match="stopped"):
        driver.session()
