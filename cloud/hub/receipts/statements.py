"""Makes statements about ranges of messages from the confirmed commits of the lake. For the registry's thread.

The marks of a stream name too much once it has had more than `HOLES_MAX` holes, because the lowest ones are closed.
Closed holes are in the ledger, so up to the highest of them the ledger is believed before the marks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from bridge.landing_receipt import LandingStatement, MessageSpan, ReceiptOutcome
from bridge.limits import RECEIPT_STATEMENTS_MAX
from cloud.hub.groups import Key
from cloud.hub.registry.commit_states import LEDGER, TELEMETRY
from cloud.hub.registry.commits import RegistryCommits
from cloud.hub.registry.registry import Registry
from cloud.lake.faults import StreamInDoubt
from cloud.lake.sequences import SequenceSet, SequenceStream, Span

OVERLAPS_MAX: Final = 128
"""Ranges of the ledger read for one range of messages."""


class _TableVersions(NamedTuple):
    """Versions of the tables that have everything that is confirmed."""

    telemetry: int
    ledger: int


def make_statements(registry: Registry, key: Key, spans: Iterable[MessageSpan], now_us: int) -> list[LandingStatement]:
    """Return statements about the parts of these ranges that have an outcome, by sequence in each range, at most
    `RECEIPT_STATEMENTS_MAX`.

    Raises `RegistryError`.
    """
    commits = registry.commits
    made: list[LandingStatement] = []
    versions: _TableVersions | None = None
    for span in spans:
        stream = SequenceStream(*key, span.epoch, span.address)
        parts = sorted(_outcomes(commits, stream, span), key=lambda part: part[1])
        if parts and versions is None:
            versions = _TableVersions(commits.landed_version(TELEMETRY), commits.landed_version(LEDGER))
        for outcome, (first, last) in parts:
            landed = outcome is ReceiptOutcome.LANDED
            if len(made) == RECEIPT_STATEMENTS_MAX or versions is None:
                return made
            version = versions.telemetry if landed else versions.ledger
            if version < 0:
                continue  # a restored registry: the next commit shows the version
            made.append(
                LandingStatement(
                    tenant=stream.tenant,
                    gateway=stream.gateway,
                    epoch=stream.epoch,
                    address=stream.address,
                    first=first,
                    last=last,
                    outcome=outcome,
                    table=TELEMETRY if landed else LEDGER,
                    version=version,
                    stated_at=now_us,
                )
            )
    return made


def _outcomes(
    commits: RegistryCommits, stream: SequenceStream, span: MessageSpan
) -> Iterator[tuple[ReceiptOutcome, Span]]:
    try:
        landed = commits.landed(stream)
    except StreamInDoubt:
        return
    first, last = span.first, span.last
    absent = SequenceSet(landed.missing(first, last))
    dropped: list[Span] = []
    if absent.spans or first <= landed.closed:
        dropped = commits.dropped(stream, first, last, OVERLAPS_MAX)
    for low, high in dropped:
        if low <= landed.closed:
            absent.add(low, min(high, landed.closed))
    if len(dropped) == OVERLAPS_MAX and dropped[-1][0] <= landed.closed:
        absent.add(dropped[-1][0], landed.closed)  # the ledger may have more
    there = SequenceSet(absent.missing(first, last))
    for part in there.spans:
        yield ReceiptOutcome.LANDED, part
    for low, high in dropped:
        for part in there.missing(max(low, first), min(high, last)):
            yield ReceiptOutcome.DROPPED, part
