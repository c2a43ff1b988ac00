"""A manifest's statement: what a gateway accepted of one address in one hour, and the hash that chains it to the last.

Accepted are dense sequences, so a count and two ends say all of it. Each statement has the digest of the one before it
of the same address and epoch: none can be left out, put in or changed without the next one showing it. Statements made
together say how many they are, and those times are numbered: so the newest ones cannot be left out one by one either.

Sans-I/O and without cryptography: who has a key signs the digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

FORMAT: Final = "waypost manifest 1"
"""Begins what is hashed: the digest of one thing is not the digest of another."""

GENESIS: Final = ""
"""The digest before the first statement of an address in an epoch."""

HOUR_NS: Final = 3_600_000_000_000


class ManifestStatement(msgspec.Struct, frozen=True):
    """Times are UTC nanoseconds by the gateway's clock, whole microseconds, as the lake keeps them."""

    epoch: str
    address: str
    hour: int
    """Beginning of the hour in which the first of it may have been accepted."""
    until: int
    """When the statement was made: all of it had been accepted."""
    first_sequence: int
    last_sequence: int
    """One less than the first when nothing was accepted, but something was given up."""
    count: int
    given_up: Mapping[str, int]
    """Messages entered into the ledger meanwhile, by reason, once for each forwarder they were owed to."""
    clock_quality: str
    """`good` when the clock was kept right from the hour's beginning to its end, else `unknown`."""
    store_epoch: str
    """The epoch the store was in when the statement was made: a later one than `epoch` for what was left of that."""
    closing: int
    """Number of the statements made together, dense from 1 for each `store_epoch`."""
    statements: int
    """How many were made together."""
    previous: str
    """Digest of the statement before this one, or `GENESIS`."""
    digest: str = ""

    def sealed(self, gateway: str) -> ManifestStatement:
        """The same with its digest."""
        return msgspec.structs.replace(self, digest=digest_of(gateway, self))


def digest_of(gateway: str, statement: ManifestStatement) -> str:
    """SHA-256, 64 hex digits, of the statement as a JSON array without spaces: what a signature is of."""
    told: Sequence[object] = (
        FORMAT,
        gateway,
        statement.epoch,
        statement.address,
        statement.hour,
        statement.until,
        statement.first_sequence,
        statement.last_sequence,
        statement.count,
        sorted(statement.given_up.items()),
        statement.clock_quality,
        statement.store_epoch,
        statement.closing,
        statement.statements,
        statement.previous,
    )
    return hashlib.sha256(msgspec.json.encode(told)).hexdigest()
