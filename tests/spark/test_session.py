"""A session is set up for the batch that comes next."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING, Final, cast

import pytest
from pyspark import SparkContext

from spark import session
from spark.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

REPLANS: Final = "spark.sql.adaptive.enabled"
TASKS: Final = "spark.sql.shuffle.partitions"
TASK_BYTES: Final = "spark.sql.adaptive.advisoryPartitionSizeInBytes"


def test_few_rows_are_one_task_a_stage_and_many_as_somebody_started(lake: Lake) -> None:
    job = lake.for_job().session
    usual = job.conf.get(REPLANS)
    session.fit(job)
    assert (job.conf.get(TASKS), job.conf.get(REPLANS)) == ("1", "false")
    session.fit(job, few=False)
    assert job.conf.get(REPLANS) == usual
    session.fit(job)
    assert lake.for_job().session.conf.get(REPLANS) == usual, "the next job's is as it was"


def test_what_people_wait_for_gets_the_next_core_and_large_rows_give_theirs_back_soon(lake: Lake) -> None:
    context = lake.session.sparkContext._jsc.sc()
    assert context.getPoolForName("values").get().minShare() == 1
    job = lake.for_job().session
    session.shorten_tasks(job)
    assert job.conf.get(TASK_BYTES) == "8m"
    assert lake.for_job().session.conf.get(TASK_BYTES) != "8m"


def test_what_somebody_has_told_stays() -> None:
    told = {TASKS: "9", "spark.waypost.told": f"spark.driver.memory,{TASKS}"}
    assert TASKS not in session.fitting(True, told)
    assert session.fitting(True, told)[REPLANS] == "false"
    many = session.fitting(False, {TASKS: "4"})
    assert many[TASKS] == "4"
    assert many[REPLANS] is None, "what Spark takes unless told"


class _Gateway:
    """Py4J's, as far as it is ended."""

    def __init__(self, *command: str) -> None:
        self.proc = subprocess.Popen(command, stdin=subprocess.PIPE)

    def shutdown(self) -> None:
        """It says nothing to the process."""


class _Broken:
    """A session whose JVM does not answer."""

    def stop(self) -> None:
        raise ConnectionError("the JVM does not answer")


def ended_by_stop(monkeypatch: pytest.MonkeyPatch, *command: str) -> int | None:
    """The code of a process in the JVM's place, of which the session cannot be stopped."""
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
