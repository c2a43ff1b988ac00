"""What the C library's allocator is asked for; other libraries than glibc are asked for nothing."""

from __future__ import annotations

import ctypes


def trim_heap() -> None:
    """malloc_trim(3) of glibc; other C libraries have none."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return
    trim(0)
