"""Threads of a serving process release the interpreter quickly (`edge.health.priority`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.health.priority import SWITCH_S, shorten_thread_switches
from tests.contract.store.rig import run_of, sqlite_rig


@pytest.fixture
def usual() -> Iterator[float]:
    interval = sys.getswitchinterval()
    yield interval
    sys.setswitchinterval(interval)


def test_switch_interval_is_set_once_and_not_changed_by_commits(usual: float, tmp_path: Path) -> None:
    shorten_thread_switches()
    assert usual > SWITCH_S
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    rig = sqlite_rig(tmp_path)
    log = rig.store.logs.open("a")
    for size in (1, 100_000):
        rig.store.logs.append(log, run_of(bytes(size)))
        rig.commit()
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    rig.store.close()
