"""What a target is (`parsers.py`, `machines.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

SIZES: Final = (0, 1, 7, 100)
"""Reads a stream is cut into, by its first byte; 0: one read."""


class Parser(NamedTuple):
    """One target."""

    take: Callable[[bytes], object]
    raises: tuple[type[Exception], ...]
    """What it may raise; anything else is a finding."""
    seeds: Sequence[bytes]


def in_pieces(data: bytes, size: int) -> Iterator[bytes]:
    """The stream as reads of `size` bytes; 0: one read."""
    if not size:
        yield data
        return
    for start in range(0, len(data), size):
        yield data[start : start + size]


def reads(data: bytes) -> Iterator[bytes]:
    """A stream whose first byte says how the rest is cut into reads."""
    return in_pieces(data[1:], SIZES[data[0] % len(SIZES)] if data else 0)
