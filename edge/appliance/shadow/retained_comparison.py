"""Comparison of the retained messages of two brokers. Without I/O.

Both are read one after the other, while values change. So a difference counts only if a second reading finds the same
two values: whatever changed in between is settled by a later comparison.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from edge.appliance.shadow.address_comparison import digest_of


class RetainedState(enum.Enum):
    """Retained message of one address at both brokers."""

    EQUAL = "equal"
    MISSING = "missing"
    """Only the old broker has one."""
    EXTRA = "extra"
    """Only the gateway has one."""
    DIFFERS = "differs"
    """Both have one, with different payloads."""


class RetainedReading(NamedTuple):
    """Digests of the retained messages of both brokers by address."""

    old: Mapping[str, bytes]
    here: Mapping[str, bytes]


def digests(payloads: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the digests of retained messages."""
    return {address: digest_of(payload) for address, payload in payloads.items()}


def compare_retained(first: RetainedReading, second: RetainedReading) -> dict[str, RetainedState]:
    """Return the state of each address that has a retained message, after two readings of both brokers. Addresses that
    differ and changed between the readings are left out."""
    found: dict[str, RetainedState] = {}
    for address in second.old.keys() | second.here.keys():
        old, here = second.old.get(address), second.here.get(address)
        if old == here:
            found[address] = RetainedState.EQUAL
        elif (old, here) == (first.old.get(address), first.here.get(address)):
            found[address] = _difference(old, here)
    return found


def _difference(old: bytes | None, here: bytes | None) -> RetainedState:
    if here is None:
        return RetainedState.MISSING
    return RetainedState.EXTRA if old is None else RetainedState.DIFFERS
