"""Manifests as they landed: read back, each believed or not, and put into the chains they belong to."""

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
from cloud.lake.sequences import Span, Stream
from edge.output.amounts import verb

COLUMNS = (
    *("tenant", "gateway", "epoch", "address", "hour", "until", "first_sequence", "last_sequence", "count", "given_up"),
    *("clock_quality", "store_epoch", "closing", "statements", "previous", "digest", "signature", "public_key"),
    "ingested_at",
)


class Kind(enum.Enum):
    """What may be wrong with a lake."""

    HOLE = "hole"
    """Accepted, and neither there nor given up nor waiting."""
    TWICE = "twice"
    """A message is there more than once."""
    MISSING = "statement missing"
    """A chain or a closing is not whole: a statement is not in the lake."""
    FORGED = "statement forged"
    """A statement is not what the gateway signed, or not by its key."""
    OVERLAP = "statements overlap"
    """Two statements are of the same messages and disagree."""


class Finding(NamedTuple):
    """Something unexplained; exit code 4."""

    kind: Kind
    tenant: str
    gateway: str
    epoch: str
    address: str
    first: int
    last: int
    words: str


class Signed(NamedTuple):
    """A statement as it landed."""

    stream: Stream
    said: ManifestStatement
    signature: str
    public_key: str
    ingested_at: datetime.datetime


class Keys:
    """The key of each (tenant, gateway, epoch of its store): the one it was stated with first."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, str, str], tuple[datetime.datetime, str]] = {}

    def learn(self, signed: Signed) -> None:
        """What came first is believed."""
        name = (signed.stream.tenant, signed.stream.gateway, signed.said.store_epoch)
        found = (signed.ingested_at, signed.public_key)
        if name not in self.of or found < self.of[name]:
            self.of[name] = found

    def key(self, signed: Signed) -> str:
        """What a statement must be signed with."""
        return self.of[signed.stream.tenant, signed.stream.gateway, signed.said.store_epoch][1]


def read(row: Mapping[str, Any]) -> Signed | str:
    """A row of `manifests`; in words, why it is none a gateway makes."""
    try:
        told = {name: row[name] for name in ManifestStatement.__struct_fields__}
        told |= {name: _nanoseconds(row[name]) for name in ("hour", "until")}
        told["given_up"] = msgspec.json.decode(row["given_up"], type=dict[str, int])
        said = msgspec.convert(told, ManifestStatement)
    except (msgspec.MsgspecError, TypeError, AttributeError) as error:
        return str(error)
    stream = Stream(row["tenant"], row["gateway"], row["epoch"], row["address"])
    return Signed(stream, said, row["signature"] or "", row["public_key"] or "", row["ingested_at"])


def _nanoseconds(time: datetime.datetime) -> int:
    return (time - _EPOCH) // datetime.timedelta(microseconds=1) * 1_000


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def doubt(signed: Signed, keys: Keys) -> str | None:
    """In words, why a statement is not believed."""
    if digest_of(signed.stream.gateway, signed.said) != signed.said.digest:
        return "it was changed: its digest is another one"
    if signed.said.count != signed.said.last_sequence + 1 - signed.said.first_sequence:
        return "its count is not that of its sequences"
    if signed.public_key != keys.key(signed):
        return "it is signed with another key than the gateway's first statements"
    if not _is_signed(signed.public_key, signed.signature, signed.said.digest):
        return "its signature does not fit"
    return None


def _is_signed(public_key: str, signature: str, digest: str) -> bool:
    try:
        _key(public_key).verify(base64.b64decode(signature, validate=True), digest.encode())
    except (InvalidSignature, ValueError, binascii.Error):
        return False
    return True


@lru_cache(maxsize=1_024)
def _key(public_key: str) -> Ed25519PublicKey:
    """Raises ValueError for what is no key of a kind known here."""
    algorithm, _, half = public_key.partition(":")
    if algorithm != "ed25519":
        raise ValueError(f"a key of kind {algorithm!r}")
    return Ed25519PublicKey.from_public_bytes(base64.b64decode(half, validate=True))


def chain_faults(stream: Stream, chain: Iterable[ManifestStatement], *, whole: bool) -> Iterator[Finding]:
    """What is missing in the chain of one stream, whose statements are believed. `whole`: it is known from its
    beginning on."""
    ordered = sorted(chain, key=lambda one: (one.first_sequence, one.last_sequence, one.until))
    by_digest = {one.digest: one for one in ordered}
    followed: dict[str, ManifestStatement] = {}
    for index, one in enumerate(ordered):
        before = by_digest.get(one.previous)
        if before is None:
            known = one.previous == GENESIS or (index == 0 and not whole)
            if not known:
                stated_to = max((each.last_sequence for each in ordered[:index]), default=-1)
                yield _finding(Kind.MISSING, stream, (stated_to + 1, one.first_sequence - 1), _LACKS)
        elif before.last_sequence + 1 != one.first_sequence:
            yield _finding(Kind.FORGED, stream, _span(one), "it does not begin where the one before it ends")
        rival = followed.setdefault(one.previous, one)
        if rival is not one and rival.store_epoch == one.store_epoch:
            yield _finding(Kind.OVERLAP, stream, _span(one), "two statements follow the same one")


_LACKS = "the statement before the one that follows is not in the lake"


def closing_faults(
    tenant: str, gateway: str, statements: Iterable[ManifestStatement], *, whole: bool
) -> Iterator[Finding]:
    """Statements of one gateway that were made together and are not all there, and times of which none is."""
    made: defaultdict[tuple[str, int], list[ManifestStatement]] = defaultdict(list)
    for one in statements:
        made[one.store_epoch, one.closing].append(one)
    for (epoch, number), together in sorted(made.items()):
        stream = Stream(tenant, gateway, epoch, "")
        lacking = together[0].statements - len(together)
        if lacking > 0 and (whole or (epoch, number) != min(made)):
            closed = f"of the {together[0].statements} statements of closing {number}"
            words = f"{closed}, {lacking} {verb(lacking, 'is', 'are')} not in the lake"
            yield _finding(Kind.MISSING, stream, (0, -1), words)
    for epoch in sorted({epoch for epoch, _ in made}):
        numbers = sorted(number for each, number in made if each == epoch)
        expected = [0, *numbers] if whole else numbers
        for low, high in pairwise(expected):
            if high > low + 1:
                words = f"no statement of the closings {low + 1} to {high - 1} is in the lake"
                yield _finding(Kind.MISSING, Stream(tenant, gateway, epoch, ""), (0, -1), words)


def _finding(kind: Kind, stream: Stream, span: Span, words: str) -> Finding:
    return Finding(kind, *stream, *span, words)


def _span(one: ManifestStatement) -> Span:
    return (one.first_sequence, one.last_sequence)
