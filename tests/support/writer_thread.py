"""Statements on a store's writing connection, run where every other statement of it runs: on the writer's thread.

A test's own thread may not use that connection. After a commit is answered the writer may still checkpoint on it, and
two threads that execute statements on one connection at a time see each other's results.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from edge.broker.store.group import Group
from edge.broker.store.writer import Job, Writer

DEADLINE_S = 20.0


class _Told(threading.Event):
    """A commit's end that runs something first; the writer's thread sets it."""

    def __init__(self, first: Callable[[], object]) -> None:
        super().__init__()
        self._first = first

    def set(self) -> None:
        self._first()
        super().set()


def execute_on(writer: Writer, text: str) -> None:
    """Execute a statement behind an empty commit, and wait for it."""
    group = Group(done=_Told(lambda: writer._connection.execute(text).fetchall()))
    writer.submit(Job(group, (), None, None, None, partial(int)))
    assert group.done.wait(DEADLINE_S), f"the writer's thread never came to {text}"
