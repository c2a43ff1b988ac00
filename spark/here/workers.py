"""Work that holds the interpreter, spread over processes: as many as there are cores, where there is much to do."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import active_children, get_context, parent_process, util
from typing import Final, TypeVar

import pyarrow as pa

PROCESSES_MAX: Final = 4
"""Processes, however many cores there are: each takes some 150 MB, and others have work on the machine, too."""
AHEAD: Final = 2
"""Tasks of each process that wait or are done and not taken: what they are of and what comes of them is in memory."""

Task = TypeVar("Task")
Result = TypeVar("Result")


def processes(amount: int, worth: int) -> int:
    """How many to take for so much, of which `worth` is worth the start of one, 0.7 s of a core; 1 is this one."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(PROCESSES_MAX, cores, amount // worth))


def spread(function: Callable[[Task], Result], tasks: Iterable[Task], processes: int) -> Iterator[Result]:
    """`function` of each task, in their order. It is one of a module, and what it is given and returns can be pickled.

    Raises what it raises, and `BrokenProcessPool` where a process was killed.
    """
    if processes == 1:
        yield from map(function, tasks)
        return
    # Begun anew, not forked: other threads of this process may hold any lock.
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin) as pool:
        waiting: deque[Future[Result]] = deque()
        for task in tasks:
            waiting.append(pool.submit(function, task))
            if len(waiting) > AHEAD * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _begin() -> None:
    """In a process that was begun. Ctrl-C is left to the one that began it, which says what is to be said; when that is
    gone, however it ended, nobody waits for this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def end() -> None:
    """End the processes that were begun, at once, where this one is about to end without Python's own way of ending,
    which names of their semaphores would outlive: their tracker complains of that."""
    for process in active_children():
        process.kill()
    util._run_finalizers(0)  # type: ignore[attr-defined]


def packed(rows: pa.Table) -> bytes:
    """Rows for another process, and no others: pickle would send all that these are a part of."""
    sink = pa.BufferOutputStream()
    whole = rows.unify_dictionaries()
    with pa.ipc.new_stream(sink, whole.schema) as stream:
        stream.write_table(whole)
    return bytes(sink.getvalue())


def unpacked(data: bytes) -> pa.Table:
    """What was `packed`."""
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()
