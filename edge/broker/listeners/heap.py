"""Tune Python's garbage collector, and trim the heap of glibc."""

from __future__ import annotations

import ctypes
import gc
from typing import Final

COLLECTED: Final = (5_000, 4, 100)
"""Thresholds of the three generations for `gc.set_threshold`.

The objects of a message live until its commit. With Python's threshold of 700 the collector visited them for nothing,
which took a twentieth of all work. 5 000 objects take 1 to 2 ms, in which no client is served. The higher generations
are collected as often as before."""


def collect_seldom(collected: tuple[int, int, int] = COLLECTED) -> None:
    """Configure the collector of a server once all modules are loaded.

    Their objects are excluded from collection, which would take 10 ms each time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*collected)


def trim_heap() -> None:
    """Release unused memory with malloc_trim(3) of glibc; do nothing with other C libraries."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return
    trim(0)
