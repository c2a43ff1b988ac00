"""Accepted = landed + given up + still at the gateway, for each statement of one address; plain Python.

The rule is the one of `waypost bridge prove`, with the same words; a contract test holds the two equal. Here nothing is
believed or doubted: who needs proof against forgery runs `prove`, which checks signatures and chains as well.

*Waiting* is what is missing above the highest sequence that has landed, while the gateway's newest status says that
messages wait, or there is none newer than the statement. Below it something may wait only at a gateway that sends its
backlog in a lane of its own. Whatever is missing and does not wait is *unexplained*.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

Span = tuple[int, int]
"""(first, last) sequence, both included."""

STATUS_UNDER_WAY: Final = timedelta(seconds=10)
"""A status that lands so much later than a statement was made after it: the hub gathers statuses for 5 s."""


class Statement(NamedTuple):
    """What a gateway says it accepted of an address in an hour."""

    hour: datetime
    until: datetime
    first: int
    last: int
    ingested_at: datetime


class Circumstances(NamedTuple):
    """What is known of an address's gateway."""

    waiting: int | None
    """Messages that its newest status says wait there; None when there is no status."""
    said_at: datetime | None
    """When that status landed."""
    lanes: bool
    """It sends its backlog beside what is live."""


class Line(NamedTuple):
    """What became of the messages of one statement, or of what is above all of them (`hour` None)."""

    hour: datetime | None
    first: int
    last: int
    accepted: int
    landed: int
    given_up: Mapping[str, int]
    waiting: int
    unexplained: int
    gaps: Sequence[tuple[int, int, str | None]]
    """Sequences (first, last) that were given up, with the reason, or that nothing explains; not those that wait."""


class Spans:
    """A set of sequences as ascending ranges that neither overlap nor touch."""

    __slots__ = ("spans",)

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self.spans: list[Span] = []
        for first, last in sorted(spans):
            self.add(first, last)

    @property
    def top(self) -> int:
        """The highest sequence; -1 when there is none."""
        return self.spans[-1][1] if self.spans else -1

    def missing(self, first: int, last: int) -> Iterator[Span]:
        """The parts of `first`..`last` that are not in the set, ascending."""
        for low, high in self.spans[bisect_left(self.spans, first, key=lambda span: span[1]) :]:
            if low > last:
                break
            if low > first:
                yield first, low - 1
            first = high + 1
        if first <= last:
            yield first, last

    def add(self, first: int, last: int) -> None:
        """Put `first`..`last` in."""
        low = high = bisect_left(self.spans, first - 1, key=lambda span: span[1])
        while high < len(self.spans) and self.spans[high][0] <= last + 1:
            first, last = min(first, self.spans[high][0]), max(last, self.spans[high][1])
            high += 1
        self.spans[low:high] = [(first, last)]


def judge(
    landed: Iterable[Span],
    given_up: Iterable[tuple[int, int, str]],
    statements: Iterable[Statement],
    circumstances: Circumstances,
    settled: Iterable[Span] = (),
) -> list[Line]:
    """Hold the statements, rows and ledger of one address against each other.

    `settled`: what other statements were of, of which all has landed; there is no line of that.
    """
    there, reasons = Spans(landed), _by_reason(given_up)
    top = max(there.top, max((gone.top for gone in reasons.values()), default=-1))
    lines: list[Line] = []
    covered = Spans(settled)
    for one in sorted(statements, key=lambda each: (each.first, each.until)):
        waits = _may_wait(circumstances, one.ingested_at)
        for span in list(covered.missing(one.first, one.last)):
            lines.append(_line(one.hour, span, there, reasons, top, waits=waits, below=circumstances.lanes))
            covered.add(*span)
    stated = bool(covered.spans)  # else it may be a queue, of which others took some
    lowest = covered.spans[0][0] if stated else there.spans[0][0] if there.spans else 0
    waits = not stated or circumstances.waiting is None or circumstances.waiting > 0
    for span in list(covered.missing(lowest, top)):
        below = circumstances.lanes or not stated
        lines.append(_line(None, span, there, reasons, top, waits=waits, below=below))
    return lines


def _by_reason(given_up: Iterable[tuple[int, int, str]]) -> dict[str, Spans]:
    reasons: dict[str, Spans] = {}
    for first, last, reason in given_up:
        reasons.setdefault(reason, Spans()).add(first, last)
    return reasons


def _may_wait(circumstances: Circumstances, landed_at: datetime) -> bool:
    """Something stated may be at the gateway still."""
    if circumstances.waiting is None or circumstances.said_at is None:
        return True
    return circumstances.waiting > 0 or circumstances.said_at <= landed_at + STATUS_UNDER_WAY


def _line(
    hour: datetime | None,
    span: Span,
    there: Spans,
    reasons: Mapping[str, Spans],
    top: int,
    *,
    waits: bool,
    below: bool,
) -> Line:
    """What became of a span. `waits`: what is missing above `top` may be at the gateway, and what is missing below it
    too where `below`."""
    first, last = span
    missing = list(there.missing(first, last))
    accepted = last + 1 - first
    there_count = accepted - _count(missing)
    given_up: dict[str, int] = {}
    gaps: list[tuple[int, int, str | None]] = []
    for reason, gone in reasons.items():
        left = [part for low, high in missing for part in gone.missing(low, high)]
        if explained := _count(missing) - _count(left):
            given_up[reason] = explained
            kept = Spans(left)
            gaps += [(*part, reason) for low, high in missing for part in kept.missing(low, high)]
        missing = left
    lost = [] if waits and below else [(low, min(high, top) if waits else high) for low, high in missing]
    lost = [(low, high) for low, high in lost if low <= high]
    gaps += [(low, high, None) for low, high in lost]
    unexplained = _count(lost)
    waiting = _count(missing) - unexplained
    return Line(hour, first, last, accepted, there_count, given_up, waiting, unexplained, sorted(gaps, key=_place))


def _place(gap: tuple[int, int, str | None]) -> int:
    return gap[0]


def _count(spans: Sequence[Span]) -> int:
    return sum(high + 1 - low for low, high in spans)
