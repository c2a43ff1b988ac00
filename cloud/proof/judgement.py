"""Accepted = landed + given up + still at the gateway, for each hour of each stream; whatever is not is a finding.

*Still at the gateway* is what is missing above the highest sequence that has landed, while the gateway's newest status
says that messages wait, or there is none newer than the statement. Below it something may wait only at a gateway that
sends its backlog in a lane of its own, and only as much as its status says. Pure: it reads nothing.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from bridge.manifest import ManifestStatement
from bridge.store_account import AddressAccount
from cloud.lake.sequences import SequenceSet, Span, Stream
from cloud.proof.landed import Landed
from cloud.proof.limits import STATUS_UNDER_WAY
from cloud.proof.statements import Finding, Kind

_WAITING = "\0waiting"
"""Used as a reason while an account is judged; no ledger has it."""


class GivenUp(NamedTuple):
    """A range of the ledger."""

    first: int
    last: int
    reason: str


class Backlog(NamedTuple):
    """The newest status of a gateway."""

    messages: int
    said_at: datetime.datetime
    """By the hub's clock."""


class HourLine(NamedTuple):
    """One statement of a stream, or what is above all of them (`hour` None)."""

    stream: Stream
    hour: int | None
    """UTC nanoseconds."""
    first: int
    last: int
    accepted: int
    landed: int
    given_up: Mapping[str, int]
    waiting: int
    unexplained: int
    twice: int


class Judged(NamedTuple):
    """One stream."""

    lines: Sequence[HourLine]
    findings: Sequence[Finding]


class Circumstances(NamedTuple):
    """What is known of a stream's gateway."""

    backlog: Backlog | None
    lanes: bool
    """It sends its backlog beside what is live."""


def judge_account(
    stream: Stream, account: AddressAccount, landed: Landed, taken_at: datetime.datetime, circumstances: Circumstances
) -> Judged:
    """Compare the rows that name a lower gateway as their origin with the account of its store.

    What the lower gateway has handed on may be at the gateway above it (`circumstances`), as with statements.
    """
    reasons = _by_reason(GivenUp(*msgspec.structs.astuple(loss)) for loss in account.given_up)
    left = SequenceSet()
    for waits in account.waiting:
        left.add(waits.first, waits.last)
    top = max(landed.there.mark, max((gone.spans[-1][1] for gone in reasons.values()), default=-1))
    span, above = (account.first, account.last), _may_wait(circumstances, taken_at)
    line, lost = _line(stream, None, span, landed, reasons | {_WAITING: left}, top, above, circumstances.lanes)
    given_up = dict(line.given_up)
    line = line._replace(waiting=line.waiting + given_up.pop(_WAITING, 0), given_up=given_up)
    findings = [Finding(Kind.HOLE, *stream, *hole, "accepted, and nothing says where it is") for hole in lost]
    findings += [Finding(Kind.TWICE, *stream, *twice, "in the lake more than once") for twice in landed.twice]
    return Judged([line], findings)


def judge(
    stream: Stream,
    landed: Landed,
    ledger: Iterable[GivenUp],
    statements: Iterable[tuple[ManifestStatement, datetime.datetime]],
    circumstances: Circumstances,
) -> Judged:
    """Hold statements (with when they landed), rows and ledger of one stream against each other."""
    reasons = _by_reason(ledger)
    top = max(landed.there.mark, max((gone.spans[-1][1] for gone in reasons.values()), default=-1))
    lines: list[HourLine] = []
    holes, covered = SequenceSet(), SequenceSet()
    for one, landed_at in sorted(statements, key=lambda each: (each[0].first_sequence, each[0].until)):
        waits = _may_wait(circumstances, landed_at)
        for first, last in covered.missing(one.first_sequence, one.last_sequence):
            line, lost = _line(stream, one.hour, (first, last), landed, reasons, top, waits, circumstances.lanes)
            lines.append(line)
            _add(holes, lost)
            covered.add(first, last)
    lowest = covered.spans[0][0] if covered.spans else landed.there.spans[0][0] if landed.there.spans else 0
    for first, last in covered.missing(lowest, top):
        judged = bool(covered.spans)  # else it may be a queue, of which others took some
        waits = not judged or circumstances.backlog is None or circumstances.backlog.messages > 0
        line, lost = _line(stream, None, (first, last), landed, reasons, top, waits, circumstances.lanes or not judged)
        lines.append(line)
        _add(holes, lost)
    findings = [Finding(Kind.HOLE, *stream, *hole, "accepted, and nothing says where it is") for hole in holes.spans]
    findings += [Finding(Kind.TWICE, *stream, *twice, "in the lake more than once") for twice in landed.twice]
    return Judged(lines, findings)


def _by_reason(ledger: Iterable[GivenUp]) -> dict[str, SequenceSet]:
    reasons: dict[str, SequenceSet] = {}
    for gone in ledger:
        reasons.setdefault(gone.reason, SequenceSet()).add(gone.first, gone.last)
    return reasons


def _may_wait(circumstances: Circumstances, landed_at: datetime.datetime) -> bool:
    """Something stated may be at the gateway still."""
    backlog = circumstances.backlog
    return backlog is None or backlog.messages > 0 or backlog.said_at <= landed_at + STATUS_UNDER_WAY


def _line(
    stream: Stream,
    hour: int | None,
    span: Span,
    landed: Landed,
    reasons: Mapping[str, SequenceSet],
    top: int,
    waits: bool,
    below: bool,
) -> tuple[HourLine, list[Span]]:
    """What became of a span, and the holes in it. `waits`: what is missing above `top` may be at the gateway, and what
    is missing below it too where `below`."""
    first, last = span
    missing = landed.there.missing(first, last)
    there = last + 1 - first - _count(missing)
    given_up: dict[str, int] = {}
    for reason, gone in reasons.items():
        left = [part for low, high in missing for part in gone.missing(low, high)]
        if (explained := _count(missing) - _count(left)) > 0:
            given_up[reason] = explained
        missing = left
    waiting = 0
    holes: list[Span] = []
    for low, high in missing:
        for part in _cut(low, high, top):
            if waits and (below or part[0] > top):
                waiting += part[1] + 1 - part[0]
            else:
                holes.append(part)
    twice = sum(min(high, last) + 1 - max(low, first) for low, high in landed.twice if low <= last and high >= first)
    accepted = last + 1 - first
    return HourLine(stream, hour, first, last, accepted, there, given_up, waiting, _count(holes), twice), holes


def _cut(low: int, high: int, top: int) -> Iterator[Span]:
    if low <= top < high:
        yield low, top
        yield top + 1, high
    else:
        yield low, high


def _add(holes: SequenceSet, spans: Iterable[Span]) -> None:
    for span in spans:
        holes.add(*span)


def _count(spans: Iterable[Span]) -> int:
    return sum(high + 1 - low for low, high in spans)
