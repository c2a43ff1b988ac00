"""Which sequences of one address have landed: a high-water mark and the ranges above it.

One number would do if an address came in order. It does not: the live lane runs ahead of the backlog lane, and a
single mark would then call the backlog a duplicate and lose it. So what has landed is a set of ranges; in the common
case it is one range, which starts at the first sequence ever seen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

Span = tuple[int, int]
"""(first, last) sequence, both included."""


class Stream(NamedTuple):
    """What sequences are counted in: one address of one store of one gateway."""

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
    def stream(self) -> Stream:
        return Stream(self.tenant, self.gateway, self.epoch, self.address)


class SequenceSet:
    """A set of sequences as ascending ranges that neither overlap nor touch."""

    __slots__ = ("spans",)

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self.spans: list[Span] = list(spans)

    @property
    def mark(self) -> int:
        """The high-water mark: highest sequence landed, -1 before the first."""
        return self.spans[-1][1] if self.spans else -1

    @property
    def contiguous(self) -> int:
        """Last sequence of the lowest range: everything from the first one seen up to here is there; -1 before."""
        return self.spans[0][1] if self.spans else -1

    @property
    def holes(self) -> list[Span]:
        """The ranges between the ranges: what has not come, or has been given up."""
        return [(a[1] + 1, b[0] - 1) for a, b in zip(self.spans, self.spans[1:], strict=False)]

    def copy(self) -> SequenceSet:
        """An independent copy."""
        return SequenceSet(self.spans)

    def missing(self, first: int, last: int) -> list[Span]:
        """The parts of ``first..last`` that are not in the set, ascending."""
        spans = self.spans
        if not spans or first > spans[-1][1]:  # as nearly always
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

    def add(self, first: int, last: int, holes_max: int | None = None) -> int:
        """Put ``first..last`` in. Returns how many holes were closed to keep `holes_max`, the lowest first."""
        spans = self.spans
        if spans and first == spans[-1][1] + 1:  # as nearly always
            spans[-1] = (spans[-1][0], last)
            return 0
        low = bisect_left(spans, first - 1, key=lambda span: span[1])
        high = low
        while high < len(spans) and spans[high][0] <= last + 1:
            high += 1
        if low < high:
            first, last = min(first, spans[low][0]), max(last, spans[high - 1][1])
        spans[low:high] = [(first, last)]
        surplus = 0 if holes_max is None else max(0, len(spans) - 1 - holes_max)
        if surplus:
            spans[: surplus + 1] = [(spans[0][0], spans[surplus][1])]
        return surplus
