"""Statements of gateways read from the lake: their signatures and chains."""

from __future__ import annotations

import base64
import binascii
import datetime
import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from bridge.manifest import GENESIS, ManifestStatement, digest_of
from cloud.lake.sequences import SequenceStream, Span
from edge.output.amounts import verb

COLUMNS = (
    *("tenant", "gateway", "epoch", "address", "hour", "until", "first_sequence", "last_sequence", "count", "given_up"),
    *("clock_quality", "store_epoch", "closing", "statements", "previous", "digest", "signature", "public_key"),
    "ingested_at",
)


class FindingKind(enum.Enum):
    """Kind of finding."""

    HOLE = "hole"
    """Accepted, and neither landed nor discarded nor waiting."""
    TWICE = "twice"
    """A message is in the lake more than once."""
    MISSING = "statement missing"
    """A statement of a chain or a closing is not in the lake."""
    FORGED = "statement forged"
    """A statement was changed, or signed with another key."""
    OVERLAP = "statements overlap"
    """Two statements cover the same messages and disagree."""


class ProofFinding(NamedTuple):
    """Unexplained difference; exit code 4."""

    kind: FindingKind
    tenant: str
    gateway: str
    epoch: str
    address: str
    first: int
    last: int
    words: str


class LandedStatement(NamedTuple):
    """Statement read from the lake."""

    stream: SequenceStream
    statement: ManifestStatement
    signature: str
    public_key: str
    ingested_at: datetime.datetime


class StatementKeys:
    """Signing key of each (tenant, gateway, epoch of its store): that of the first statement."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, str, str], tuple[datetime.datetime, str]] = {}

    def learn(self, signed: LandedStatement) -> None:
        """Record the key of a statement; the earliest one counts."""
        name = (signed.stream.tenant, signed.stream.gateway, signed.statement.store_epoch)
        found = (signed.ingested_at, signed.public_key)
        if name not in self.of or found < self.of[name]:
            self.of[name] = found

    def key(self, signed: LandedStatement) -> str:
        """Return the key that must have signed a statement."""
        return self.of[signed.stream.tenant, signed.stream.gateway, signed.statement.store_epoch][1]


def read_statement(row: Mapping[str, Any]) -> LandedStatement | str:
    """Read a row of `manifests`; return the error text for an invalid one."""
    try:
        fields = {name: row[name] for name in ManifestStatement.__struct_fields__}
        fields |= {name: _nanoseconds(row[name]) for name in ("hour", "until")}
        fields["given_up"] = msgspec.json.decode(row["given_up"], type=dict[str, int])
        statement = msgspec.convert(fields, ManifestStatement)
    except (msgspec.MsgspecError, TypeError, AttributeError) as error:
        return str(error)
    stream = SequenceStream(row["tenant"], row["gateway"], row["epoch"], row["address"])
    return LandedStatement(stream, statement, row["signature"] or "", row["public_key"] or "", row["ingested_at"])


def _nanoseconds(time: datetime.datetime) -> int:
    return (time - _EPOCH) // datetime.timedelta(microseconds=1) * 1_000


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def statement_fault(signed: LandedStatement, keys: StatementKeys) -> str | None:
    """Return why a statement is not valid; None if it is."""
    if digest_of(signed.stream.gateway, signed.statement) != signed.statement.digest:
        return "it was changed: its digest does not match"
    if signed.statement.count != signed.statement.last_sequence + 1 - signed.statement.first_sequence:
        return "its count does not match its sequences"
    if signed.public_key != keys.key(signed):
        return "it is signed with a different key than the gateway's first statements"
    if not _is_signed(signed.public_key, signed.signature, signed.statement.digest):
        return "its signature is not valid"
    return None


def _is_signed(public_key: str, signature: str, digest: str) -> bool:
    try:
        _key(public_key).verify(base64.b64decode(signature, validate=True), digest.encode())
    except (InvalidSignature, ValueError, binascii.Error):
        return False
    return True


@lru_cache(maxsize=1_024)
def _key(public_key: str) -> Ed25519PublicKey:
    """Decode a public key. Raises ValueError for an unknown kind."""
    algorithm, _, half = public_key.partition(":")
    if algorithm != "ed25519":
        raise ValueError(f"unknown kind of key {algorithm!r}")
    return Ed25519PublicKey.from_public_bytes(base64.b64decode(half, validate=True))


def chain_faults(stream: SequenceStream, chain: Iterable[ManifestStatement], *, whole: bool) -> Iterator[ProofFinding]:
    """Yield the gaps in the chain of one stream's valid statements. `whole`: the chain is known from its start."""
    ordered = sorted(chain, key=lambda one: (one.first_sequence, one.last_sequence, one.until))
    by_digest = {one.digest: one for one in ordered}
    followed: dict[str, ManifestStatement] = {}
    for index, one in enumerate(ordered):
        before = by_digest.get(one.previous)
        if before is None:
            known = one.previous == GENESIS or (index == 0 and not whole)
            if not known:
                stated_to = max((each.last_sequence for each in ordered[:index]), default=-1)
                yield _finding(FindingKind.MISSING, stream, (stated_to + 1, one.first_sequence - 1), _LACKS)
        elif before.last_sequence + 1 != one.first_sequence:
            yield _finding(FindingKind.FORGED, stream, _span(one), "it does not start where the previous one ends")
        rival = followed.setdefault(one.previous, one)
        if rival is not one and rival.store_epoch == one.store_epoch:
            yield _finding(FindingKind.OVERLAP, stream, _span(one), "two statements follow the same one")


_LACKS = "the statement before the next one is not in the lake"


def closing_faults(
    tenant: str, gateway: str, statements: Iterable[ManifestStatement], *, whole: bool
) -> Iterator[ProofFinding]:
    """Yield closings of a gateway with missing statements, and missing closings."""
    made: defaultdict[tuple[str, int], list[ManifestStatement]] = defaultdict(list)
    for one in statements:
        made[one.store_epoch, one.closing].append(one)
    for (epoch, number), together in sorted(made.items()):
        stream = SequenceStream(tenant, gateway, epoch, "")
        lacking = together[0].statements - len(together)
        if lacking > 0 and (whole or (epoch, number) != min(made)):
            closed = f"of the {together[0].statements} statements of closing {number}"
            words = f"{closed}, {lacking} {verb(lacking, 'is', 'are')} not in the lake"
            yield _finding(FindingKind.MISSING, stream, (0, -1), words)
    for epoch in sorted({epoch for epoch, _ in made}):
        numbers = sorted(number for each, number in made if each == epoch)
        expected = [0, *numbers] if whole else numbers
        for low, high in pairwise(expected):
            if high > low + 1:
                words = f"no statement of the closings {low + 1} to {high - 1} is in the lake"
                yield _finding(FindingKind.MISSING, SequenceStream(tenant, gateway, epoch, ""), (0, -1), words)


def _finding(kind: FindingKind, stream: SequenceStream, span: Span, words: str) -> ProofFinding:
    return ProofFinding(kind, *stream, *span, words)


def _span(one: ManifestStatement) -> Span:
    return (one.first_sequence, one.last_sequence)
