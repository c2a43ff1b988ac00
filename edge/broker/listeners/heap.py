"""What Python's collector is asked for, and the C library's allocator: of other libraries than glibc nothing."""

from __future__ import annotations

import ctypes
import gc
from typing import Final

COLLECTED: Final = (5_000, 4, 100)
"""`gc.set_threshold`: objects made since the collector looked last at which it looks at them; how many such looks until
it looks at those of all of them; and how many of those until it looks at everything. What a message is made of lives
until its commit, so with Python's 700 the collector went through messages about to go: a twentieth of all work. Nobody
is served meanwhile: 5 000 objects take 1 to 2 ms, so what thousands of connections are made of is looked at in small
parts, and everything as seldom as before."""


def collect_seldom(collected: tuple[int, int, int] = COLLECTED) -> None:
    """For a process that serves, when all of its modules are there: these stay, and going through them again and again
    would cost 10 ms each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*collected)


def trim_heap() -> None:
    """malloc_trim(3) of glibc; other C libraries have none."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return
    trim(0)
