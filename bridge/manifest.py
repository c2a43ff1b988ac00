"""Statement of a manifest: the messages a gateway accepted for one address in one hour, in a hash chain.

Accepted sequences are dense, so a count and two ends describe them. Each statement has the digest of the previous one
of the same address and epoch, so removing, inserting or changing one is detected. Statements made together carry their
number, and these closings are numbered too, so the newest ones cannot be left out either.

Sans-I/O and without cryptography: the caller with the key signs the digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

FORMAT: Final = "waypost manifest 1"
"""First element of the hashed array (domain separation)."""

GENESIS: Final = ""
"""`previous` of the first statement of an address in an epoch."""

HOUR_NS: Final = 3_600_000_000_000


class ManifestStatement(msgspec.Struct, frozen=True):
    """One statement. Times are UTC nanoseconds by the gateway's clock, in whole microseconds as in the lake."""

    epoch: str
    address: str
    hour: int
    """Start of the hour in which the first message may have been accepted."""
    until: int
    """Time of the statement: all its messages had been accepted."""
    first_sequence: int
    last_sequence: int
    """One less than the first when nothing was accepted but messages were dropped."""
    count: int
    given_up: Mapping[str, int]
    """Messages entered into the loss ledger in that time, by reason, once for each forwarder that had to send them."""
    clock_quality: str
    """`good` when the clock was synchronized during the whole hour, else `unknown`."""
    store_epoch: str
    """Epoch of the store at the time of the statement: later than `epoch` for remaining messages of an earlier one."""
    closing: int
    """Number of this set of statements, dense from 1 for each `store_epoch`."""
    statements: int
    """Number of statements in this set."""
    previous: str
    """Digest of the statement before this one, or `GENESIS`."""
    digest: str = ""

    def sealed(self, gateway: str) -> ManifestStatement:
        """Return the statement with its digest."""
        return msgspec.structs.replace(self, digest=digest_of(gateway, self))


def digest_of(gateway: str, statement: ManifestStatement) -> str:
    """Return the SHA-256, 64 hex digits, of the statement as a JSON array without spaces; this is what is signed."""
    hashed: Sequence[object] = (
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
    return hashlib.sha256(msgspec.json.encode(hashed)).hexdigest()
