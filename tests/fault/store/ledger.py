"""Loss ledger, message by message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from edge.broker.store.eviction import EVICTED
from edge.broker.store.reservation import MEMORY

IN_RINGS: Final = ("memory/", "ring/")
"""Prefixes of addresses in memory: the timing decides what a full ring drops, so only `in_memory` checks them."""

Row = tuple[int, str, str, int, int, int, int, str]
"""Entry, subscription, address, first, last, messages, bytes, reason."""


class Lost(msgspec.Struct, frozen=True):
    """Message that was dropped for one consumer group."""

    subscription: str
    address: str
    sequence: int
    size: int
    reason: str


class Ledger(NamedTuple):
    """Count of dropped messages by name: one is correct. Excludes messages dropped by rings or lost in a crash."""

    messages: Counter[tuple[str, str, int]]
    """Messages by subscription, address, sequence."""
    reasons: Counter[tuple[str, str]]
    """Messages by subscription and reason."""
    sizes: Counter[str]
    """Bytes by subscription."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Ledger:
        ledger = cls(Counter(), Counter(), Counter())
        for _, subscription, address, first, last, messages, size, reason in rows:
            if is_of_ring(address, reason):
                continue
            ledger.messages.update((subscription, address, sequence) for sequence in range(first, last + 1))
            ledger.reasons[subscription, reason] += messages
            ledger.sizes[subscription] += size
        return ledger

    def with_losses(self, losses: Iterable[Lost]) -> Ledger:
        then = Ledger(self.messages.copy(), self.reasons.copy(), self.sizes.copy())
        for lost in losses:
            then.messages[lost.subscription, lost.address, lost.sequence] += 1
            then.reasons[lost.subscription, lost.reason] += 1
            then.sizes[lost.subscription] += lost.size
        return then

    def differences(self, rows: Sequence[Row], *, loose: bool) -> Iterator[str]:
        """Compare with another ledger. With `loose`, messages summarised and then evicted may have either reason."""
        shown = Ledger.of(rows)
        if shown.messages != self.messages:
            yield f"ledger {difference(shown.messages, self.messages)}"
        for row in rows:
            if row[5] != row[4] - row[3] + 1:
                yield f"ledger: {row[5]} messages counted in {row}"
        if not loose and (shown.reasons, shown.sizes) != self[1:]:
            yield f"ledger {difference(shown.reasons, self.reasons)}, bytes {difference(shown.sizes, self.sizes)}"


def is_of_ring(address: str, reason: str) -> bool:
    """Return whether the entry is about messages in memory; some addresses may also be on the medium."""
    return reason == MEMORY or (reason == EVICTED and address.startswith(IN_RINGS))


def difference(shown: dict[Any, Any], wanted: dict[Any, Any]) -> str:
    """Describe briefly where two tables differ."""
    keys = sorted(key for key in shown.keys() | wanted.keys() if shown.get(key) != wanted.get(key))
    return "; ".join(f"{key}: {shown.get(key)}, expected {wanted.get(key)}" for key in keys[:5]) + f" ({len(keys)})"
