"""Definition of a fuzzing target (`parsers.py`, `machines.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

SIZES: Final = (0, 1, 7, 100)
"""Sizes of the reads that a stream is cut into, chosen by its first byte; 0: one read."""


class Parser(NamedTuple):
    """Fuzzing target."""

    take: Callable[[bytes], object]
    raises: tuple[type[Exception], ...]
    """Exceptions that it may raise; any other is a finding."""
    seeds: Sequence[bytes]


def in_pieces(data: bytes, size: int) -> Iterator[bytes]:
    """Split the stream into reads of `size` bytes; 0: one read."""
    if not size:
        yield data
        return
    for start in range(0, len(data), size):
        yield data[start : start + size]


def reads(data: bytes) -> Iterator[bytes]:
    """Split a stream into reads as its first byte says."""
    return in_pieces(data[1:], SIZES[data[0] % len(SIZES)] if data else 0)
