"""Settings of a streaming query's batches, and termination of a JVM that does not answer."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import pytest
from pyspark import SparkContext

from spark import session
from spark.jobs.stream import MicroBatch, StreamStep
from spark.lake import SparkLake
from tests.spark import lakes
from tests.spark.lakes import message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SETTINGS: Final = ("spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled")


def test_batches_have_the_settings_of_the_session_whatever_the_checkpoint_says(lake: SparkLake) -> None:
    """A grown lake is not processed by the single task of its first checkpoint."""
    found: list[tuple[str | None, ...]] = []

    def take(batch: MicroBatch) -> None:
        found.append(tuple(batch.rows.sparkSession.conf.get(name) for name in SETTINGS))
        batch.sink.commit_empty("outages")

    step = StreamStep("settings", "telemetry", ("outages",), revision=1, process=take)
    other = lake.session.newSession()
    other.conf.set(SETTINGS[0], "7")
    for number, one in enumerate((lake.with_session(other), lake)):
        lakes.write(lake.place, "telemetry", [message(number)])
        step.run(one)
    assert found == [("1", "false")] * 2


class FollowingSession:
    """Session of endless passes, in a thread of one rhythm."""

    def __init__(self, tasks: str | None, rhythm: str | None) -> None:
        self.sparkContext = self
        self._tasks = tasks
        self._rhythm = rhythm

    def getConf(self) -> dict[str, str]:
        return {"spark.waypost.background.tasks": self._tasks} if self._tasks is not None else {}

    def getLocalProperty(self, name: str) -> str | None:
        assert name == "spark.scheduler.pool"
        return self._rhythm


@pytest.mark.parametrize(
    ("tasks", "rhythm", "expected"),
    [("1", "messages", 1), ("3", "hourly", 3), ("1", "values", None), (None, "messages", None), ("1", None, 1)],
)
def test_endless_passes_leave_a_core_to_the_values(tasks: str | None, rhythm: str | None, expected: int | None) -> None:
    assert session.background_tasks(cast("SparkSession", FollowingSession(tasks, rhythm))) == expected


def test_a_file_in_a_folder_with_a_space_is_found(lake: SparkLake, tmp_path: Path) -> None:
    """A checkout may be in a folder with a space; Spark opens `session.POOLS` by a URL at its start."""
    file = tmp_path / "a new place" / "pools.xml"
    file.parent.mkdir()
    file.write_text("one line\n")
    assert lake.session.read.text(session.hadoop_url(file)).count() == 1
    opened = lake.session.sparkContext.getConf().get("spark.scheduler.allocation.file")
    assert opened == session.hadoop_url(session.POOLS)


class _Gateway:
    """Py4J's gateway with its shutdown."""

    def __init__(self, *command: str) -> None:
        self.proc = subprocess.Popen(command, stdin=subprocess.PIPE)

    def shutdown(self) -> None:
        """Do not reach the process."""


class _Broken:
    """Session with a JVM that does not answer."""

    def stop(self) -> None:
        raise ConnectionError("the JVM does not answer")


def ended_by_stop(monkeypatch: pytest.MonkeyPatch, *command: str) -> int | None:
    """Return the exit code of a process that replaces the JVM of a session that cannot stop."""
    gateway = _Gateway(*command)
    monkeypatch.setattr(SparkContext, "_gateway", gateway)
    monkeypatch.setattr(SparkContext, "_jvm", None)
    with pytest.raises(ConnectionError):
        session.stop(cast("SparkSession", _Broken()))
    assert SparkContext._gateway is None
    return gateway.proc.returncode


def test_the_jvm_of_a_session_that_cannot_be_stopped_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended_by_stop(monkeypatch, "cat") == 0


def test_a_jvm_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "STOP_SECONDS_MAX", 0.1)
    assert ended_by_stop(monkeypatch, "sleep", "600") == -signal.SIGKILL
