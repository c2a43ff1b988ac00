"""Freed logs: their numbers are reused, but their positions never repeat."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.message import Run
from edge.broker.store.errors import StoreFull
from tests.contract.store.rig import Rig, fail_commits, heal, memory_rig, sqlite_rig


@pytest.fixture(params=["memory", "sqlite"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Rig:
    return memory_rig() if request.param == "memory" else sqlite_rig(tmp_path)


def append(rig: Rig, log: int, *bodies: bytes) -> None:
    rig.store.logs.append(log, Run("a", "d", 1, b"", list(bodies)))


def emptied(rig: Rig, name: str) -> int:
    """Create a log with three messages that are all acknowledged."""
    log = rig.store.logs.open(name)
    cursor = rig.store.cursors.open("c", log, 0)
    append(rig, log, b"1", b"2", b"3")
    rig.commit()
    rig.store.cursors.acknowledge(cursor, 0, 2)
    rig.settle()
    return log


def test_number_is_reused_and_positions_continue(rig: Rig) -> None:
    log = emptied(rig, "queue a")
    assert rig.store.logs.free(log)
    rig.commit()
    assert rig.store.logs.open("queue b") == log
    cursor = rig.store.cursors.open("c", log, 0)
    assert rig.store.cursors.record(cursor).position == 3
    append(rig, log, b"4")
    committed = rig.commit()
    assert [(stored.position, stored.sequence) for _, stored in committed.appended] == [(3, 3)]
    assert rig.store.logs.open("queue a") != log


def test_name_may_be_reused_in_the_same_commit(rig: Rig) -> None:
    first, second = emptied(rig, "queue a"), emptied(rig, "queue b")
    assert rig.store.logs.free(second)
    assert rig.store.logs.free(first)
    assert rig.store.logs.open("queue a") == second
    assert rig.store.logs.open("queue b") == first
    assert rig.commit().error is None
    assert {info.name: info.log for info in rig.store.info().logs} == {"queue a": second, "queue b": first}


def test_log_is_found_by_its_name_until_it_is_freed(rig: Rig) -> None:
    assert rig.store.logs.find("queue a") is None
    log = emptied(rig, "queue a")
    assert rig.store.logs.find("queue a") == log
    assert rig.store.logs.name(log) == "queue a"
    assert rig.store.logs.free(log)
    assert rig.store.logs.find("queue a") is None
    with pytest.raises(IndexError):
        rig.store.logs.name(log + 1000)


def test_log_with_content_or_pending_changes_is_not_freed(rig: Rig) -> None:
    log = emptied(rig, "queue a")
    append(rig, log, b"")
    assert not rig.store.logs.free(log)
    rig.commit()
    assert not rig.store.logs.free(log)
    assert rig.store.logs.open("queue a") == log


def test_freed_log_is_not_listed(rig: Rig) -> None:
    assert rig.store.logs.free(emptied(rig, "queue a"))
    rig.commit()
    assert rig.store.info().logs == []
    assert rig.store.info().cursors == []


def test_freed_logs_are_known_after_a_restart(tmp_path: Path) -> None:
    rig = sqlite_rig(tmp_path)
    log = emptied(rig, "queue a")
    other = emptied(rig, "queue b")
    assert rig.store.logs.free(log)
    rig.commit()
    rig.reopen()
    assert rig.store.logs.open("queue b") == other
    assert rig.store.logs.open("queue c") == log
    append(rig, log, b"4")
    rig.commit()
    rig.reopen()
    assert rig.store.logs.bounds(log)[1] == 4
    assert rig.store.logs.open("queue c") == log


def test_failed_commit_is_retried(rig: Rig) -> None:
    log = emptied(rig, "queue a")
    fail_commits(rig)
    assert rig.store.logs.free(log)
    assert rig.store.logs.open("queue c") == log
    append(rig, log, bytes(1 << 20))
    assert isinstance(rig.commit().error, StoreFull)
    heal(rig)
    rig.settle()
    assert {info.name: info.log for info in rig.store.info().logs} == {"queue c": log}
    assert rig.store.logs.open("queue a") != log
    append(rig, log, b"4")
    assert [stored.position for _, stored in rig.commit().appended] == [3]
