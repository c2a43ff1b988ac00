"""A hub takes no memory it has no use of, and gives back what a large landing needed.

Arrow's pool and glibc's heap keep what was freed for the next time: after one large batch the hub would stay at several
times its size for good, and be the one the kernel kills when another program needs memory.
"""

from __future__ import annotations

import gc
import sys
from importlib.abc import MetaPathFinder
from typing import Final

import pyarrow as pa

from edge.broker.listeners.heap import trim_heap

COLLECTED: Final = (200_000, 4, 100)
"""As `edge.broker.listeners.heap.COLLECTED`, of a hub: a landing of what thousands of gateways sent is made of 100 000
objects that go when it ends. What has gone does not count, so as a rule the collector looks at none of them, which
took a tenth of all work; where it does it takes some 30 ms."""


def keep_pandas_out() -> None:
    """For the whole process, before the first landing.

    pyarrow imports pandas, where it is installed, when it makes its first array: 0.2 s of processor time in the first
    landing, and 57 MiB, to ask whether a list is one of pandas' own.
    """
    sys.meta_path.insert(0, _WithoutPandas())


class _WithoutPandas(MetaPathFinder):
    """Pandas is not installed, for this process.

    ``None`` in `sys.modules` says so to Python, but compiled code of pyarrow takes it for the module, and the first
    table it made ended in AttributeError.
    """

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("a hub needs no pandas", name=name)


def give_back() -> None:
    """Takes some tens of milliseconds, nearly all of them without the interpreter's lock: for the landing's thread."""
    gc.collect(1)
    pa.default_memory_pool().release_unused()
    trim_heap()
