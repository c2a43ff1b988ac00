"""Makes statements about ranges of messages from the confirmed commits of the lake. For the registry's thread.

The marks of a stream name too much once it has had more than `HOLES_MAX` holes, because the lowest ones are closed. A
stream at that limit gets no statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bridge.landing_receipt import LandingStatement, MessageSpan, ReceiptOutcome
from bridge.limits import RECEIPT_STATEMENTS_MAX
from cloud.hub.groups import Key
from cloud.hub.registry.commits import LEDGER, TELEMETRY, RegistryCommits
from cloud.hub.registry.registry import Registry
from cloud.lake.faults import StreamInDoubt
from cloud.lake.limits import HOLES_MAX
from cloud.lake.sequences import SequenceSet, SequenceStream, Span


class _TableVersions(NamedTuple):
    """Versions of the tables that have everything that is confirmed."""

    telemetry: int
    ledger: int


def make_statements(registry: Registry, key: Key, spans: Iterable[MessageSpan], now_us: int) -> list[LandingStatement]:
    """Return statements about the parts of these ranges that have an outcome, at most `RECEIPT_STATEMENTS_MAX`.

    Raises `RegistryError`.
    """
    commits = registry.commits
    made: list[LandingStatement] = []
    versions: _TableVersions | None = None
    for span in spans:
        stream = SequenceStream(*key, span.epoch, span.address)
        parts = list(_outcomes(commits, stream, span))
        if parts and versions is None:
            versions = _TableVersions(commits.landed_version(TELEMETRY), commits.landed_version(LEDGER))
        for outcome, (first, last) in parts:
            if len(made) == RECEIPT_STATEMENTS_MAX or versions is None:
                return made
            landed = outcome is ReceiptOutcome.LANDED
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
                    version=versions.telemetry if landed else versions.ledger,
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
    if len(landed.holes) >= HOLES_MAX:
        return
    missing = landed.missing(span.first, span.last)
    for part in SequenceSet(missing).missing(span.first, span.last):
        yield ReceiptOutcome.LANDED, part
    for first, last in missing:
        for low, high in commits.dropped(stream, first, last):
            yield ReceiptOutcome.DROPPED, (max(low, first), min(high, last))
