"""SIGKILL between any two steps of changes that belong together: all of them are on disk, or none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.contract.store.rig import sqlite_rig

MOVED = 2
"""Messages of the block: it appends a copy of each at the target, and acknowledges it at the source."""

MOVER = """
import os, queue, signal, sys
from pathlib import Path
from bridge.message import Run
from edge.broker.store.records import Loss
from edge.broker.store.sqlite import open_store

folder, moved = Path(sys.argv[1]), int(sys.argv[2])

def run_of(address, body):
    return Run(address, "device", 1, b"", [body], 1)

def move(last):
    left = last

    def step(*_):
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    posted = queue.SimpleQueue()
    store = open_store(folder / str(last), post=posted.put)
    logs, cursors, commits = store.logs, store.cursors, store.commits

    def commit():
        assert commits.flush()
        while commits.committing:
            posted.get()()

    source, target, old = (logs.open(name) for name in ("source", "target", "old"))
    cursor, _, _ = (cursors.open("c", log, 0) for log in (source, target, old))
    for number in range(moved):
        logs.append(source, run_of("source", b"%d" % number))
    logs.append(old, run_of("old", b"dropped by the block"))
    commit()
    store.medium.writer._connection.set_trace_callback(step)
    step()
    with commits.together():
        for position in range(moved):
            logs.append(target, run_of("target", b"%d" % position))
            step()
            cursors.discard(cursor, position, position, [], if_kept=True)
            step()
        store.retention.evict(old, 1)
        step()
    step()
    commit()
    step()
    print("every step was reached", flush=True)
    os._exit(0)

last = 0
while True:
    child = os.fork()  # before a store is open: its threads would not be forked
    if not child:
        move(last)
    status = os.waitpid(child, 0)[1]
    last += 1
    if not status:
        print(last, flush=True)
        break
    assert status == signal.SIGKILL, status
"""


def test_kill_leaves_all_or_nothing(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", MOVER, str(tmp_path), str(MOVED)],
        capture_output=True,
        env=os.environ,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    kills = int(ended.stdout.splitlines()[-1]) - 1
    assert kills > 12  # the steps of the block, and each statement of its commit
    results = []
    for last in range(kills + 1):
        rig = sqlite_rig(tmp_path / str(last))
        logs, cursors = rig.store.logs, rig.store.cursors
        target = logs.bounds(logs.open("target"))[1]
        backlog = cursors.backlog(cursors.open("c", logs.open("source"), 0))
        lost = [entry.reason for entry in rig.store.ledger.entries(0, 100)]
        rig.store.close()
        assert target in (0, MOVED), last
        assert backlog == MOVED - target, last
        assert lost == (["evicted"] if target else []), last
        results.append(target)
    assert results == sorted(results)
    assert set(results) == {0, MOVED}
