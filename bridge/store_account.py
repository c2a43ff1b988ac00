"""Account of a gateway's store: messages accepted for one forwarder, dropped with a ledger entry, and waiting.

`waypost store account` writes it at a gateway, `waypost prove --account` compares it with a lake.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

VERSION = 1

Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class AccountRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sequences ``first..last``."""

    first: Sequence
    last: Sequence


class AccountLoss(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sequences ``first..last`` that the loss ledger has for this forwarder."""

    first: Sequence
    last: Sequence
    reason: str


class AddressAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One address in one epoch: sequences ``first..last`` were accepted."""

    epoch: str
    address: str
    first: Sequence
    last: Sequence
    given_up: tuple[AccountLoss, ...]
    waiting: tuple[AccountRange, ...]
    """Not acknowledged by the peer."""


class StoreAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The account of one forwarder (CONNECTOR/NAME)."""

    forwarder: str
    taken_at: Sequence
    """UTC nanoseconds, by the clock of that machine."""
    addresses: tuple[AddressAccount, ...]
    version: Annotated[int, msgspec.Meta(ge=VERSION, le=VERSION)] = VERSION


def read_account(text: bytes) -> StoreAccount:
    """Return the account in a file of `waypost store account`. Raises `msgspec.MsgspecError`."""
    return msgspec.json.decode(text, type=StoreAccount)
