"""SIGKILL at random moments: messages reported as committed are there, once, in dense sequences."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from edge.broker.store.sqlite import FILE_NAME
from tests.contract.store.rig import sqlite_rig
from tests.fault.store.driver import Driven
from tests.fault.store.observe import LIMITS

KILLS = 10
LOGS = ("queue jobs", "topic plant/#")

APPENDER = """
import json, queue, random, sys
from pathlib import Path
from bridge.message import Run
from edge.broker.store.limits import StoreLimits
from edge.broker.store.sqlite import open_store

posted = queue.SimpleQueue()
limits = StoreLimits(counted_commits_max=7, checkpoint_bytes=300_000, segment_bytes_max=4_000, moves_delay_s=0.005)
store = open_store(Path(sys.argv[1]), post=posted.put, limits=limits)
dice = random.Random(int(sys.argv[2]))
logs = [store.logs.open(name) for name in sys.argv[3:]]
cursors = [store.cursors.open("slow", log, 0) for log in logs]

def committed(commit):
    assert commit.error is None, commit.error
    for log, stored in commit.appended:
        line = [log, stored.position, stored.run.address, stored.sequence, [b.decode() for b in stored.run.bodies]]
        sys.stdout.write(json.dumps(line) + "\\n")
    sys.stdout.flush()

store.commits.listeners.append(committed)
number = 0
while True:
    for _ in range(dice.randrange(1, 20)):
        number += 1
        name, size, count = f"{sys.argv[2]}-{number}", dice.randrange(300), dice.randrange(1, 9)
        bodies = [f"{name}-{i}".encode().ljust(size, b".") for i in range(count)]
        store.logs.append(dice.choice(logs), Run(f"plant/{dice.randrange(30)}", "device", 1, b"", bodies, 1))
    for cursor in cursors:
        position = store.cursors.record(cursor).position
        end = store.logs.bounds(store.cursors.record(cursor).log)[1]
        if end - position > 500:
            store.cursors.acknowledge(cursor, position, position + 399)
    store.state.put("number", sys.argv[2], str(number).encode())
    store.commits.flush()
    while store.commits.committing:
        posted.get()()
"""

Line = tuple[int, int, str, int, list[str]]


def append_until_killed(directory: Path, seed: int, after_s: float) -> list[Line]:
    """Run the appender for a while, kill it, and return the committed runs it reported in full."""
    process = subprocess.Popen(
        [sys.executable, "-c", APPENDER, str(directory), str(seed), *LOGS], stdout=subprocess.PIPE, env=os.environ
    )
    assert process.stdout is not None
    lines = [process.stdout.readline()]  # it has started to commit
    until = time.monotonic() + after_s
    while time.monotonic() < until:
        lines.append(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    lines += process.stdout.readlines()
    assert process.wait(timeout=30) == -signal.SIGKILL
    process.stdout.close()
    return [tuple(json.loads(line)) for line in lines if line.endswith(b"\n")]


def test_committed_messages_survive_sigkill(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    messages: dict[int, dict[int, tuple[str, int, bytes]]] = {1: {}, 2: {}}
    floors = {1: 0, 2: 0}
    for _ in range(KILLS):
        for log, position, address, sequence, bodies in append_until_killed(
            tmp_path, dice.randrange(1 << 32), dice.uniform(0.02, 0.35)
        ):
            for i, body in enumerate(bodies):
                assert position + i not in messages[log], "a position was given twice"
                messages[log][position + i] = (address, sequence + i, body.encode())
        check(tmp_path, messages, floors)
    assert sum(map(len, messages.values())) > 500
    assert min(floors.values()) > 0, "nothing was ever deleted"
    check_sequences(messages)


def check(directory: Path, messages: dict[int, dict[int, tuple[str, int, bytes]]], floors: dict[int, int]) -> None:
    """Check that each reported message is there unless its cursor passed it; unreported commits are added."""
    rig = sqlite_rig(directory)
    for log, known in messages.items():
        first, end = rig.store.logs.bounds(log)
        assert floors[log] <= first <= rig.store.cursor_records()[log - 1].position
        floors[log] = first
        found = {position: (address, sequence, body) for position, address, sequence, body in rig.read_all(log)}
        assert sorted(found) == list(range(first, end))
        for position, message in known.items():
            assert position < first or found[position] == message
        known.update(found)
        assert sorted(known) == list(range(end)), "a position was lost"
    rig.store.close()


def check_sequences(messages: dict[int, dict[int, tuple[str, int, bytes]]]) -> None:
    """Check that the sequences of every address are dense from 0, over both logs."""
    sequences: dict[str, list[int]] = {}
    for known in messages.values():
        for position in sorted(known):
            address, sequence, _ = known[position]
            sequences.setdefault(address, []).append(sequence)
    for address, given in sequences.items():
        assert sorted(given) == list(range(len(given))), address


def test_the_log_does_not_grow_with_every_kill(tmp_path: Path) -> None:
    """The log does not grow with every kill.

    Each process writes a part of the checkpoint interval; the next one continues the count.
    """
    data, sizes = tmp_path / "data", []
    for number in range(20):
        with Driven(data, dict(os.environ), tmp_path / "driver.log") as driven:
            for part in range(3):
                assert not driven.commit(f"{number}.{part}".ljust(9_000, "."))
        sizes.append((data / f"{FILE_NAME}-wal").stat().st_size)
    assert LIMITS.checkpoint_bytes < max(sizes) < 3 * LIMITS.checkpoint_bytes, sizes
    rig = sqlite_rig(data)
    assert rig.store.info().messages == 60
    rig.store.close()
