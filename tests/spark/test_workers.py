"""Work spread over processes: in order, without an end that nobody sees, and gone with whoever began it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from spark import schemas
from spark.here import anomalies, readings, workers
from tests.spark.lakes import message
from tests.support.processes import wait_until

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, threading
from spark.here import workers

def work(number):
    print(os.getpid(), flush=True)
    threading.Event().wait()

if __name__ == "__main__":
    list(workers.spread(work, range(2), 2))
"""


def squared(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is below 0")
    return number * number


def running(process: psutil.Process) -> bool:
    """Nobody may be there to take note of its end."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


class TestProcesses:
    def test_as_many_as_it_is_worth(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
        found = [workers.processes(amount, 100) for amount in (0, 199, 200, 10**9)]
        assert found == [1, 1, 2, workers.PROCESSES_MAX]

    def test_no_more_than_there_are_cores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        assert workers.processes(10**9, 1) == 2


class TestSpread:
    @pytest.mark.parametrize("processes", [1, 2])
    def test_results_come_in_the_order_of_the_tasks(self, processes: int) -> None:
        assert list(workers.spread(squared, range(30), processes)) == [number * number for number in range(30)]

    def test_tasks_are_made_as_they_are_needed(self) -> None:
        made: list[int] = []

        def tasks() -> Iterator[int]:
            for number in range(50):
                made.append(number)
                yield number

        results = workers.spread(squared, tasks(), 2)
        assert next(results) == 0
        assert len(made) == 2 * workers.AHEAD + 1
        list(results)
        assert len(made) == 50

    def test_an_error_is_raised_here(self) -> None:
        with pytest.raises(ValueError, match="-1 is below 0"):
            list(workers.spread(squared, [1, -1, 2], 2))

    @pytest.mark.timeout(60)
    def test_processes_end_with_the_one_that_began_them_however_that_ends(self, tmp_path: Path) -> None:
        program = tmp_path / "program.py"
        program.write_text(PROGRAM)
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True, env=environment) as parent:
            assert parent.stdout is not None
            children = [psutil.Process(int(parent.stdout.readline())) for _ in range(2)]
            parent.send_signal(signal.SIGKILL)
        wait_until(lambda: not any(map(running, children)), timeout_s=20.0, what="their end")


def test_what_is_packed_is_no_more_than_what_is_meant() -> None:
    rows = pa.table({"text": pa.array(["a", "b"] * 50_000).dictionary_encode(), "number": range(100_000)})
    some = rows.slice(500, 10)
    packed = workers.packed(some)
    assert len(packed) < 5_000
    assert workers.unpacked(packed).equals(some)


def test_messages_are_decoded_as_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "MESSAGES_A_TASK", 7)
    bodies = (b'{"t": 20.5, "n": 7, "s": "on"}', b"1.5", b"\xff", b'{"seq": 1}')
    rows = [message(number, body=bodies[number % 4], address=f"a/{number % 3}") for number in range(40)]
    kept = [{name: row[name] for name in readings.MESSAGE} for row in rows]
    schema = pa.schema([schemas.TELEMETRY.arrow.field(name) for name in readings.MESSAGE])
    parts = [pa.Table.from_pylist(part, schema) for part in (kept[:25], kept[25:])]
    alone, together = (list(readings.all_decoded(parts, (), processes)) for processes in (1, 2))
    for table in ("readings", "rejects"):
        one, other = (
            [row for each in found for row in getattr(each, table).to_pylist()] for found in (alone, together)
        )
        assert len(one) > 5
        assert one == other


def test_series_are_judged_as_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        message(number, ingested_at=message(number)["event_time"])
        | {"metric": f"m{number % 3}", "value": float(number % 7) + 1000 * (number % 599 == 598), "suspect": False}
        for number in range(1_800)
    ]
    kept = [{name: row[name] for name in anomalies.READING} for row in rows]
    schema = pa.schema([schemas.READINGS.arrow.field(name) for name in anomalies.READING])
    series = anomalies.Readings(anomalies.to_judge(pa.Table.from_pylist(kept, schema)))
    alone = series.judged([])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(anomalies, "VALUES_A_PROCESS", 100)
    together = series.judged([])
    assert len(alone[0]) > 0
    assert [table.to_pylist() for table in alone] == [table.to_pylist() for table in together]
