"""Balance of each stream and hour: accepted = landed + `given_up` + waiting. Any difference is a finding. Pure.

Missing sequences above the highest landed one count as waiting while the gateway's newest status reports a backlog, or
is not newer than the statement. Below it, sequences can only wait at a gateway that sends its backlog in a lane of its
own, and only as many as its status reports.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from bridge.manifest import ManifestStatement
from bridge.store_account import AddressAccount
from cloud.lake.sequences import SequenceSet, SequenceStream, Span
from cloud.proof.landed import LandedSequences
from cloud.proof.limits import STATUS_DELAY
from cloud.proof.statements import FindingKind, ProofFinding

_WAITING = "\0waiting"
"""Internal reason while an account is checked; no ledger uses it."""


class DiscardedRange(NamedTuple):
    """Range of discarded messages from the ledger."""

    first: int
    last: int
    reason: str


class ReportedBacklog(NamedTuple):
    """Backlog in the newest status of a gateway."""

    messages: int
    reported_at: datetime.datetime
    """Arrival by the hub's clock."""


class HourLine(NamedTuple):
    """Balance of one statement, or of the messages without statement (`hour` None)."""

    stream: SequenceStream
    hour: int | None
    """Start of the hour, UTC nanoseconds."""
    first: int
    last: int
    accepted: int
    landed: int
    given_up: Mapping[str, int]
    waiting: int
    unexplained: int
    twice: int


class StreamJudgement(NamedTuple):
    """Balances and findings of one stream."""

    lines: Sequence[HourLine]
    findings: Sequence[ProofFinding]


class SendingState(NamedTuple):
    """Messages that the gateway of a stream may still send."""

    backlog: ReportedBacklog | None
    lanes: bool
    """True if it sends its backlog in a lane of its own."""


def judge_account(
    stream: SequenceStream,
    account: AddressAccount,
    landed: LandedSequences,
    taken_at: datetime.datetime,
    sending: SendingState,
) -> StreamJudgement:
    """Compare the rows that name a lower gateway as their origin with the account of its store.

    Messages that the lower gateway has passed on may be at the gateway above it (`sending`), as with statements.
    """
    reasons = _by_reason(DiscardedRange(*msgspec.structs.astuple(loss)) for loss in account.given_up)
    left = SequenceSet()
    for waits in account.waiting:
        left.add(waits.first, waits.last)
    top = max(landed.there.mark, max((gone.spans[-1][1] for gone in reasons.values()), default=-1))
    span, above = (account.first, account.last), _may_wait(sending, taken_at)
    line, lost = _line(stream, None, span, landed, reasons | {_WAITING: left}, top, above, sending.lanes)
    given_up = dict(line.given_up)
    line = line._replace(waiting=line.waiting + given_up.pop(_WAITING, 0), given_up=given_up)
    findings = [
        ProofFinding(FindingKind.HOLE, *stream, *hole, "accepted, and missing without an explanation") for hole in lost
    ]
    findings += [
        ProofFinding(FindingKind.TWICE, *stream, *twice, "in the lake more than once") for twice in landed.twice
    ]
    return StreamJudgement([line], findings)


def judge(
    stream: SequenceStream,
    landed: LandedSequences,
    ledger: Iterable[DiscardedRange],
    statements: Iterable[tuple[ManifestStatement, datetime.datetime]],
    sending: SendingState,
) -> StreamJudgement:
    """Compare statements (with their landing times), rows and ledger of one stream."""
    reasons = _by_reason(ledger)
    top = max(landed.there.mark, max((gone.spans[-1][1] for gone in reasons.values()), default=-1))
    lines: list[HourLine] = []
    holes, covered = SequenceSet(), SequenceSet()
    for one, landed_at in sorted(statements, key=lambda each: (each[0].first_sequence, each[0].until)):
        waits = _may_wait(sending, landed_at)
        for first, last in covered.missing(one.first_sequence, one.last_sequence):
            line, lost = _line(stream, one.hour, (first, last), landed, reasons, top, waits, sending.lanes)
            lines.append(line)
            _add(holes, lost)
            covered.add(first, last)
    lowest = covered.spans[0][0] if covered.spans else landed.there.spans[0][0] if landed.there.spans else 0
    for first, last in covered.missing(lowest, top):
        judged = bool(covered.spans)  # else it may be a queue with other consumers
        waits = not judged or sending.backlog is None or sending.backlog.messages > 0
        line, lost = _line(stream, None, (first, last), landed, reasons, top, waits, sending.lanes or not judged)
        lines.append(line)
        _add(holes, lost)
    findings = [
        ProofFinding(FindingKind.HOLE, *stream, *hole, "accepted, and missing without an explanation")
        for hole in holes.spans
    ]
    findings += [
        ProofFinding(FindingKind.TWICE, *stream, *twice, "in the lake more than once") for twice in landed.twice
    ]
    return StreamJudgement(lines, findings)


def _by_reason(ledger: Iterable[DiscardedRange]) -> dict[str, SequenceSet]:
    reasons: dict[str, SequenceSet] = {}
    for gone in ledger:
        reasons.setdefault(gone.reason, SequenceSet()).add(gone.first, gone.last)
    return reasons


def _may_wait(sending: SendingState, landed_at: datetime.datetime) -> bool:
    """Return whether stated messages may still be at the gateway."""
    backlog = sending.backlog
    return backlog is None or backlog.messages > 0 or backlog.reported_at <= landed_at + STATUS_DELAY


def _line(
    stream: SequenceStream,
    hour: int | None,
    span: Span,
    landed: LandedSequences,
    reasons: Mapping[str, SequenceSet],
    top: int,
    waits: bool,
    below: bool,
) -> tuple[HourLine, list[Span]]:
    """Return the balance of a span, and its holes.

    `waits`: messages missing above `top` may be at the gateway; `below`: those missing below it too.
    """
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
