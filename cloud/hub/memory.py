"""Memory use of the hub: keep pandas out, and return memory after a large landing.

Arrow's pool and glibc's heap keep freed memory for the next use. After one large batch the hub would stay at several
times its size for good, and the kernel would kill it first when another program needs memory.
"""

from __future__ import annotations

import gc
import sys
from importlib.abc import MetaPathFinder
from typing import Final

import pyarrow as pa

from edge.broker.listeners.heap import trim_heap

COLLECTED: Final = (200_000, 4, 100)
"""Thresholds of the garbage collector, as `edge.broker.listeners.heap.COLLECTED`. A landing for
thousands of gateways creates 100 000 objects that are freed when it ends. Freed objects do not count, so the collector
usually scans none of them; scanning took a tenth of all work. When it runs it takes some 30 ms."""


def hide_pandas() -> None:
    """Hide pandas from this process. Call before the first landing.

    pyarrow imports pandas, where it is installed, when it makes its first array, only to check for pandas types. That
    costs 0.2 s of processor time and 57 MiB in the first landing.
    """
    sys.meta_path.insert(0, _WithoutPandas())


class _WithoutPandas(MetaPathFinder):
    """Import hook that reports pandas as not installed.

    ``None`` in `sys.modules` would do the same for Python, but compiled code of pyarrow takes it for the module: the
    first table it made ended in AttributeError.
    """

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("the hub does not use pandas", name=name)


def release_memory() -> None:
    """Return freed memory to the system.

    Takes some tens of milliseconds, nearly all of them without the interpreter's lock. For the landing's thread.
    """
    gc.collect(1)
    pa.default_memory_pool().release_unused()
    trim_heap()
