"""Stores for tests of the tools, with fully known content."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NamedTuple

from bridge.message import Run
from edge.broker.store.limits import POSITION_BITS, StoreLimits
from edge.broker.store.sqlite import FILE_NAME
from tests.contract.store.rig import sqlite_rig

AT = 1_790_000_000_000_000_000
"""Received-at of the first message, UTC nanoseconds; each commit is a second later."""
SECOND = 1_000_000_000
QUEUE, TOPIC = "queue jobs", "topic plant/#"
FORWARDER = "forwarder/hub/plant"


class Made(NamedTuple):
    """A closed store."""

    path: Path
    epoch: str
    messages: int


def make(data: Path, commits: int = 20, *, limits: StoreLimits | None = None, crashed: bool = False) -> Made:
    """Create a queue and a topic log of `commits` segments each: 10 messages of one address, and 11 of one of seven.

    The queue's consumer has acknowledged 0-54, the forwarder 30-40. `crashed`: one further commit, and a copy of the
    files before the store is closed, so that the last segments are not counted yet.
    """
    home = data.with_name(data.name + "-open") if crashed else data
    rig = sqlite_rig(home, limits)
    store = rig.store
    queue, topic = store.logs.open(QUEUE), store.logs.open(TOPIC)
    consumer, forwarder = store.cursors.open("queue", queue, 0), store.cursors.open(FORWARDER, topic, 0)

    def append(i: int) -> None:
        at = AT + i * SECOND
        store.logs.append(queue, Run("jobs", "press1", 1, b"", [b'{"n": %d}' % (i * 10 + j) for j in range(10)], at))
        bodies = [b"%d" % (i * 10 + j) for j in range(10)]
        store.logs.append(topic, Run(f"plant/{i % 7}/temp", f"sensor{i % 7}", 33, b"", [*bodies, b"\xff\x00"], at))
        rig.commit()

    for i in range(commits):
        append(i)
    store.cursors.acknowledge(consumer, 0, 54)
    store.cursors.acknowledge(forwarder, 30, 40)
    store.state.put("session", "s", b"0123456789")
    rig.commit()
    if crashed:
        append(commits)
    else:
        rig.settle()
    made = Made(data / FILE_NAME, store.lineage.epoch, store.info().messages)
    if crashed:
        data.mkdir()
        for path in home.glob("store.sqlite*"):
            (data / path.name).write_bytes(path.read_bytes())
    store.close()
    return made


def change(path: Path, statement: str, *parameters: object) -> int:
    """Change rows as no gateway would; return their number."""
    connection = sqlite3.connect(path)
    try:
        with connection:
            return connection.execute(statement, parameters).rowcount
    finally:
        connection.close()


def key(log: int, position: int) -> int:
    """Return the key of a segment."""
    return log << POSITION_BITS | position


def rot(path: Path, log: int, position: int) -> None:
    """Flip a bit in the body bytes of a segment, as a card does: the row stays, but its checksum fails."""
    connection = sqlite3.connect(path)
    try:
        (data,) = connection.execute("SELECT data FROM segment WHERE key = ?", (key(log, position),)).fetchone()
        rotten = data[:-1] + bytes((data[-1] ^ 0x40,))
        with connection:
            connection.execute("UPDATE segment SET data = ? WHERE key = ?", (rotten, key(log, position)))
    finally:
        connection.close()
