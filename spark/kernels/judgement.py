"""Balance of each statement of one address: accepted = landed + dropped + still at the gateway; plain Python.

The rule and the words are those of `waypost prove`; a contract test compares them. Here statements are trusted:
for proof against forgery run `prove`, which also checks signatures and chains.

*Waiting* is what is missing above the highest landed sequence, while the gateway's newest status reports waiting
messages, or no status is newer than the statement. Below it, messages may wait only at a gateway that sends its backlog
in a separate lane. Whatever is missing and does not wait is *unexplained*.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

Span = tuple[int, int]
"""(first, last) sequence, both included."""

STATUS_UNDER_WAY: Final = timedelta(seconds=10)
"""A status that lands this much later than a statement was made after it: the hub gathers statuses for 5 s."""


class HourStatement(NamedTuple):
    """Statement of a gateway about the messages of an address that it accepted in an hour."""

    hour: datetime
    until: datetime
    first: int
    last: int
    ingested_at: datetime


class AccountCondition(NamedTuple):
    """State of an address's gateway."""

    waiting: int | None
    """Messages that wait there by its newest status; None without a status."""
    said_at: datetime | None
    """Time at which that status landed."""
    lanes: bool
    """The gateway sends its backlog in a separate lane."""


class AccountLine(NamedTuple):
    """Balance of one statement, or of the sequences above all statements (`hour` None)."""

    hour: datetime | None
    first: int
    last: int
    accepted: int
    landed: int
    given_up: Mapping[str, int]
    waiting: int
    unexplained: int
    gaps: Sequence[tuple[int, int, str | None]]
    """Sequences (first, last) that were dropped, with the reason, or that nothing explains; not those that wait."""


class SequenceRanges:
    """Set of sequences as ascending ranges that neither overlap nor touch."""

    __slots__ = ("spans",)

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self.spans: list[Span] = []
        for first, last in sorted(spans):
            self.add(first, last)

    @property
    def top(self) -> int:
        """Highest sequence; -1 if the set is empty."""
        return self.spans[-1][1] if self.spans else -1

    def missing(self, first: int, last: int) -> Iterator[Span]:
        """Yield the parts of `first`..`last` that are not in the set, ascending."""
        for low, high in self.spans[bisect_left(self.spans, first, key=lambda span: span[1]) :]:
            if low > last:
                break
            if low > first:
                yield first, low - 1
            first = high + 1
        if first <= last:
            yield first, last

    def add(self, first: int, last: int) -> None:
        """Add `first`..`last`."""
        low = high = bisect_left(self.spans, first - 1, key=lambda span: span[1])
        while high < len(self.spans) and self.spans[high][0] <= last + 1:
            first, last = min(first, self.spans[high][0]), max(last, self.spans[high][1])
            high += 1
        self.spans[low:high] = [(first, last)]


def judge(
    landed: Iterable[Span],
    given_up: Iterable[tuple[int, int, str]],
    statements: Iterable[HourStatement],
    condition: AccountCondition,
    settled: Iterable[Span] = (),
) -> list[AccountLine]:
    """Compare the statements, rows and ledger of one address.

    `settled`: sequences of statements that have landed completely; they have no line.
    """
    present, reasons = SequenceRanges(landed), _by_reason(given_up)
    top = max(present.top, max((gone.top for gone in reasons.values()), default=-1))
    lines: list[AccountLine] = []
    covered = SequenceRanges(settled)
    for one in sorted(statements, key=lambda each: (each.first, each.until)):
        waits = _may_wait(condition, one.ingested_at)
        for span in list(covered.missing(one.first, one.last)):
            lines.append(_line(one.hour, span, present, reasons, top, waits=waits, below=condition.lanes))
            covered.add(*span)
    stated = bool(covered.spans)  # else it may be a queue, of which others took some
    lowest = covered.spans[0][0] if stated else present.spans[0][0] if present.spans else 0
    waits = not stated or condition.waiting is None or condition.waiting > 0
    for span in list(covered.missing(lowest, top)):
        below = condition.lanes or not stated
        lines.append(_line(None, span, present, reasons, top, waits=waits, below=below))
    return lines


def _by_reason(given_up: Iterable[tuple[int, int, str]]) -> dict[str, SequenceRanges]:
    reasons: dict[str, SequenceRanges] = {}
    for first, last, reason in given_up:
        reasons.setdefault(reason, SequenceRanges()).add(first, last)
    return reasons


def _may_wait(condition: AccountCondition, landed_at: datetime) -> bool:
    """Return whether stated messages may still be at the gateway."""
    if condition.waiting is None or condition.said_at is None:
        return True
    return condition.waiting > 0 or condition.said_at <= landed_at + STATUS_UNDER_WAY


def _line(
    hour: datetime | None,
    span: Span,
    present: SequenceRanges,
    reasons: Mapping[str, SequenceRanges],
    top: int,
    *,
    waits: bool,
    below: bool,
) -> AccountLine:
    """Return the balance of a span.

    `waits`: what is missing above `top` may be at the gateway; with `below` also what is missing below it.
    """
    first, last = span
    missing = list(present.missing(first, last))
    accepted = last + 1 - first
    there_count = accepted - _count(missing)
    given_up: dict[str, int] = {}
    gaps: list[tuple[int, int, str | None]] = []
    for reason, gone in reasons.items():
        left = [part for low, high in missing for part in gone.missing(low, high)]
        if explained := _count(missing) - _count(left):
            given_up[reason] = explained
            kept = SequenceRanges(left)
            gaps += [(*part, reason) for low, high in missing for part in kept.missing(low, high)]
        missing = left
    lost = [] if waits and below else [(low, min(high, top) if waits else high) for low, high in missing]
    lost = [(low, high) for low, high in lost if low <= high]
    gaps += [(low, high, None) for low, high in lost]
    unexplained = _count(lost)
    waiting = _count(missing) - unexplained
    return AccountLine(
        hour, first, last, accepted, there_count, given_up, waiting, unexplained, sorted(gaps, key=_place)
    )


def _place(gap: tuple[int, int, str | None]) -> int:
    return gap[0]


def _count(spans: Sequence[Span]) -> int:
    return sum(high + 1 - low for low, high in spans)
