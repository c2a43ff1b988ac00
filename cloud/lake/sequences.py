"""Landed sequences of a stream: a set of ranges with a high-water mark.

One number would do if the messages of an address came in order. They do not: the live lane is ahead of the backlog
lane, and with a single mark the backlog would count as duplicate and be lost. Usually the set is one range that starts
at the first sequence ever seen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

Span = tuple[int, int]
"""(first, last) sequence, both included."""


class SequenceStream(NamedTuple):
    """Scope of sequence numbers: one address of one store of one gateway."""

    tenant: str
    gateway: str
    epoch: str
    address: str


class SequenceRange(NamedTuple):
    """Sequences ``first..last`` of a stream."""

    tenant: str
    gateway: str
    epoch: str
    address: str
    first: int
    last: int

    @property
    def stream(self) -> SequenceStream:
        return SequenceStream(self.tenant, self.gateway, self.epoch, self.address)


class SequenceSet:
    """Set of sequences as ascending ranges that neither overlap nor touch."""

    __slots__ = ("closed", "spans")

    def __init__(self, spans: Iterable[Span] = (), closed: int = -1) -> None:
        self.spans: list[Span] = list(spans)
        self.closed = closed
        """End of the highest hole that was closed; up to here the set may have sequences that never came. -1: none."""

    @property
    def mark(self) -> int:
        """High-water mark: highest landed sequence, -1 before the first."""
        return self.spans[-1][1] if self.spans else -1

    @property
    def contiguous(self) -> int:
        """Last sequence of the lowest range: no hole from the first one seen up to here; -1 before the first."""
        return self.spans[0][1] if self.spans else -1

    @property
    def holes(self) -> list[Span]:
        """Missing ranges below the mark: not arrived yet, or discarded."""
        return [(a[1] + 1, b[0] - 1) for a, b in zip(self.spans, self.spans[1:], strict=False)]

    def copy(self) -> SequenceSet:
        """Return an independent copy."""
        return SequenceSet(self.spans, self.closed)

    def missing(self, first: int, last: int) -> list[Span]:
        """Return the parts of ``first..last`` that are not in the set, ascending."""
        spans = self.spans
        if not spans or first > spans[-1][1]:  # the usual case
            return [(first, last)] if first <= last else []
        parts: list[Span] = []
        at = bisect_left(spans, first, key=lambda span: span[1])
        while first <= last:
            if at == len(spans) or spans[at][0] > last:
                parts.append((first, last))
                break
            if spans[at][0] > first:
                parts.append((first, spans[at][0] - 1))
            first = spans[at][1] + 1
            at += 1
        return parts

    def add(self, first: int, last: int, holes_max: int | None = None) -> list[Span]:
        """Add ``first..last``. Return the holes closed to keep `holes_max`, the lowest first."""
        spans = self.spans
        if spans and first == spans[-1][1] + 1:  # the usual case
            spans[-1] = (spans[-1][0], last)
            return []
        low = bisect_left(spans, first - 1, key=lambda span: span[1])
        high = low
        while high < len(spans) and spans[high][0] <= last + 1:
            high += 1
        if low < high:
            first, last = min(first, spans[low][0]), max(last, spans[high - 1][1])
        spans[low:high] = [(first, last)]
        surplus = 0 if holes_max is None else max(0, len(spans) - 1 - holes_max)
        if not surplus:
            return []
        closed = [(spans[at][1] + 1, spans[at + 1][0] - 1) for at in range(surplus)]
        spans[: surplus + 1] = [(spans[0][0], spans[surplus][1])]
        self.closed = max(self.closed, closed[-1][1])
        return closed
