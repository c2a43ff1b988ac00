"""Memory goes back to the system after a large landing.

Arrow's pool and glibc's heap keep what was freed for the next time: after one large batch the hub would stay at several
times its size for good, and be the one the kernel kills when another program needs memory.
"""

from __future__ import annotations

import gc

import pyarrow as pa

from edge.broker.listeners.heap import trim_heap


def give_back() -> None:
    """Takes some tens of milliseconds, nearly all of them without the interpreter's lock: for the landing's thread."""
    gc.collect(1)
    pa.default_memory_pool().release_unused()
    trim_heap()
