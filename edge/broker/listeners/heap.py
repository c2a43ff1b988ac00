"""What the C library's allocator is asked for; other libraries than glibc are asked for nothing."""

from __future__ import annotations

import ctypes
from typing import Final

from edge.broker.limits import KIB

M_MMAP_THRESHOLD: Final = -3
"""Of malloc.h."""
LARGE_BLOCK_BYTES: Final = 256 * KIB
"""uvloop's `SSL_READ_MAX_SIZE`. Reads of sockets without TLS are smaller and stay in the heap."""


def trim_heap() -> None:
    """malloc_trim(3) of glibc; other C libraries have none."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return
    trim(0)


def map_large_blocks() -> None:
    """Have glibc take every block of `LARGE_BLOCK_BYTES` from the kernel, and give it back when freed (mallopt(3)).

    By itself it keeps such blocks in its heap once one was freed, and what has been written of one remains resident
    under the next. uvloop has a block of that size for each TLS connection, and uses a page or two of it: 47 KiB a
    connection became 25. Other C libraries have no such setting.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
