"""Logs that are not in use are rows of the store, and behave like the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.broker.store.limits import StoreLimits
from edge.broker.store.log_cache import CALM_S
from edge.broker.store.meter import ByteMeter
from tests.contract.store.rig import Rig, fail_commits, heal, memory_rig, run_of, sqlite_rig

LIMITS = StoreLimits(logs_in_use_max=10, counted_commits_max=2)
QUEUES = 200


def made(rig: Rig, count: int = QUEUES, prefix: str = "queue") -> list[int]:
    """Make logs with a cursor and a message each, several in a commit."""
    logs = []
    for start in range(0, count, 20):
        for i in range(start, start + 20):
            log = rig.store.logs.open(f"{prefix} {i}")
            rig.store.cursors.make_idle(rig.store.cursors.open("queue", log, 0))
            rig.store.logs.append(log, run_of(b"%d" % i, address=str(i)))
            logs.append(log)
        rig.commit()
    rig.settle()
    rig.store.commits.flush()
    return logs


def in_use(rig: Rig) -> int:
    return len(rig.store._logs.in_use)


def test_few_logs_are_open(tmp_path: Path) -> None:
    rig = sqlite_rig(tmp_path, LIMITS)
    logs = made(rig)
    assert in_use(rig) <= 2 * LIMITS.logs_in_use_max
    assert rig.store.totals().messages == QUEUES
    assert [rig.store.logs.bounds(log) for log in logs] == [(0, 1)] * QUEUES
    assert sum(rig.store.cursors.backlog(rig.store.cursors.open("queue", log, 0)) for log in logs) == QUEUES
    assert in_use(rig) <= 2 * LIMITS.logs_in_use_max, "asked how much there is they stay at rest"
    rig.reopen()
    assert in_use(rig) == 0
    assert [log.bytes for log in rig.store.info().logs] == [len(b"%d" % i) for i in range(QUEUES)]
    assert [bodies for _, _, _, bodies in rig.read_all(logs[150])] == [b"150"]
    rig.store.close()


def test_fewer_logs_are_open_when_idle(tmp_path: Path) -> None:
    """Logs with pending counters are counted then."""
    limits = StoreLimits(
        logs_in_use_max=QUEUES, logs_in_use_calm_max=10, counted_logs_calm_max=20, counted_commits_max=1000
    )
    rig = sqlite_rig(tmp_path, limits)
    for log in made(rig):
        rig.store.logs.append(log, run_of(b"x", address=str(log)))
    rig.commit()
    assert in_use(rig) == QUEUES
    rig.store.commits.flush()
    assert in_use(rig) == QUEUES, "others may come"
    rig.commit()
    for _ in range(4):
        rig.now += CALM_S
        assert not rig.store.commits.flush(), "all is counted"
    assert in_use(rig) == limits.logs_in_use_calm_max
    rig.store.close()


def test_idle_log_is_used_during_a_failing_commit() -> None:
    rig = memory_rig(LIMITS)
    logs = made(rig)
    store = rig.store
    log, other = logs[3], logs[4]
    cursor = store.cursors.open("queue", log, 0)
    assert {log, other}.isdisjoint(store._logs.in_use)
    fail_commits(rig)
    store.logs.append(log, run_of(b"refused", address="3"))
    store.cursors.acknowledge(cursor, 0, 0)
    assert store.commits.flush()
    store.cursors.drop(store.cursors.open("queue", other, 0))
    rig.turn()
    assert rig.commits[-1].error is not None
    heal(rig)
    assert store.logs.bounds(log) == (0, 1)
    assert store.cursors.record(cursor).position == 1
    store.logs.append(log, run_of(b"kept", address="3"))
    assert rig.commit().error is None
    rig.settle()
    made(rig, 40, "more")  # so that they are idle again
    assert store.logs.bounds(log) == (1, 2)
    assert store.logs.bounds(other) == (1, 1), "nobody wanted it any more"
    with pytest.raises(KeyError):
        store.cursors.backlog(cursor + 1)
    assert store.cursors.backlog(cursor) == 1
    store.close()


def test_freed_log_is_created_again() -> None:
    rig = memory_rig(LIMITS)
    logs = made(rig)
    store = rig.store
    cursor = store.cursors.open("queue", logs[7], 0)
    store.cursors.acknowledge(cursor, 0, 0)
    rig.settle()
    assert store.logs.free(logs[7])
    assert store.logs.open("another") == logs[7]
    assert store.logs.open("queue 7") == QUEUES + 1
    rig.settle()
    with pytest.raises(KeyError):
        store.cursors.record(cursor)
    assert store.logs.bounds(logs[7]) == (1, 1)
    store.close()


def test_sizes_of_an_account_are_summed() -> None:
    rig = memory_rig(LIMITS)
    logs = made(rig)
    store, mine, other = rig.store, ByteMeter(), ByteMeter()
    assert all(store.retention.meter(log, mine) for log in logs)
    assert not store.retention.meter(logs[0], mine)
    assert store.retention.metered_bytes(mine) == sum(map(store.retention.log_bytes, logs)) > 0
    store.logs.append(logs[5], run_of(bytes(1000), address="5"))
    assert store.retention.metered_bytes(mine) == sum(map(store.retention.log_bytes, logs)), "what is on its way counts"
    rig.settle()
    assert store.retention.largest(mine, 1) == [logs[5]]
    store.retention.meter(logs[5], other)
    assert (store.retention.metered_bytes(other), store.retention.metered_bytes(mine)) == (
        1001,
        sum(map(store.retention.log_bytes, logs)) - 1001,
    )
    store.retention.evict(logs[5], 1001)
    rig.settle()
    assert store.retention.metered_bytes(other) == 0
    store.retention.meter(logs[5], None)
    assert sorted(store.retention.metered(mine)) == sorted(set(logs) - {logs[5]})
    store.close()


def test_slowest_of_many_cursors_is_found() -> None:
    rig = memory_rig(LIMITS)
    store = rig.store
    log = store.logs.open("topic")
    cursors = [store.cursors.open(f"c{i}", log, 0) for i in range(50)]
    for i in range(20):
        store.logs.append(log, run_of(b"%d" % i))
        rig.commit()
    for i, cursor in enumerate(cursors):
        store.cursors.acknowledge(cursor, 0, i % 10 + 5)
    rig.settle()
    assert store.logs.bounds(log)[0] == 6
    for cursor in cursors[0::10]:
        store.cursors.drop(cursor)
    rig.settle()
    assert store.logs.bounds(log)[0] == 7
    late = store.cursors.open("late", log, 0)
    for cursor in cursors:
        store.cursors.acknowledge(cursor, 0, 19)
    rig.settle()
    assert store.logs.bounds(log)[0] == 7
    store.cursors.drop(late)
    rig.settle()
    assert store.logs.bounds(log) == (20, 20)
    store.close()
