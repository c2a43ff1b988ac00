"""Statements on a store's writing connection, run on the writer's thread like all others.

A test's own thread may not use that connection. After a commit is answered, the writer may still checkpoint on it, and
two threads that execute statements on one connection at the same time see each other's results.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from edge.broker.store.group import CommitGroup
from edge.broker.store.writer import CommitJob, StoreWriter

DEADLINE_S = 20.0


def execute_on(writer: StoreWriter, text: str) -> None:
    """Execute a statement after an empty commit, and wait for it."""
    post, done = writer._post, threading.Event()

    def instead(_: Callable[[], None]) -> None:
        writer._post = post
        writer._connection.execute(text).fetchall()
        done.set()

    writer._post = instead
    writer.submit(CommitJob(CommitGroup(), (), None, None, None, partial(int)))
    assert done.wait(DEADLINE_S), f"the writer's thread never came to {text}"
