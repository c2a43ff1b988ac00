"""A process is limited to a share of one core, and runs freely afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.alone import medium_us
from tests.bench.pace import slow
from tests.support.processes import wait_until


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        yield process
        process.kill()


def state(pid: int) -> str:
    """Return one letter (proc(5)): R runs or is ready, T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_process_is_paused_at_intervals_and_runs_afterwards(busy: subprocess.Popen[bytes]) -> None:
    cores = os.sched_getaffinity(busy.pid)
    with slow(busy.pid):
        assert len(os.sched_getaffinity(busy.pid)) == 1
        wait_until(lambda: state(busy.pid) == "T", timeout_s=20, what="it is stopped", every_s=0.0007)
        wait_until(lambda: state(busy.pid) == "R", timeout_s=20, what="it goes on", every_s=0.0007)
    wait_until(lambda: state(busy.pid) == "R", timeout_s=20, what="it runs again")
    assert os.sched_getaffinity(busy.pid) == cores


def test_ended_process_is_ignored(busy: subprocess.Popen[bytes]) -> None:
    with slow(busy.pid):
        busy.kill()
        busy.wait(20)


def test_medium_is_delayed(tmp_path: Path) -> None:
    assert medium_us(tmp_path) > 0
