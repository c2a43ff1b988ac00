"""Estimate the time until a store is full: by free space on the medium, and by the quotas of space and addresses.

`edge.broker.retention.quotas` enforces the configured limits, and `edge.appliance.store.figures` measures the rate at
which each log grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from edge.broker.configuration import BrokerConfiguration
from edge.broker.model.address_policy import AddressPolicy, WhenFull
from edge.broker.model.addresses import AddressTable

DEFAULT_POLICY: Final = AddressPolicy()
USED_UP: Final = 0.99
"""Share of a quota from which it counts as used up."""


class AddressFull(msgspec.Struct):
    """Address with the quota that is used up first."""

    address: str
    """Pattern of the `Address` resource."""
    when_full: str
    hours: float


class StoreRoom(msgspec.Struct):
    """Free space of a store, and the time until it is full. Hours are None when the store does not fill up: no messages
    arrive or stay, or quotas limit them before."""

    free_bytes: int
    """Free bytes of the medium."""
    reusable_bytes: int
    """Free pages in the database file, which new messages reuse."""
    usable_bytes: int
    """Bytes of these two that messages may use: above the floor, within the quota of the space."""
    bytes_per_hour: float | None
    """Rate of stored bytes."""
    hours_of_autonomy: float | None
    """Hours until messages are refused or dropped by any limit, if nothing leaves the store (no uplink)."""
    hours_to_full: float | None
    """Hours until the store is full if the backlog continues to grow at its average rate."""
    first_full: AddressFull | None = None
    """Address with the quota that limits `hours_of_autonomy`; None when the medium, the floor or the space does."""
    used_up: list[str] = []
    """Patterns of addresses that refuse messages because their quota is used up."""


class LogUsage(NamedTuple):
    """Usage of a log: bytes of bodies, bytes that arrive in an hour, and bytes of these that stay in the store."""

    name: str
    bytes: int
    arriving: float
    staying: float


class StoreBounds:
    """Limits of a store, from a gateway's configuration."""

    def __init__(
        self,
        *,
        floor_bytes: int = 0,
        space_bytes: int | None = None,
        table: AddressTable | None = None,
        policies: Mapping[str, AddressPolicy] | None = None,
    ) -> None:
        """The default limit is the medium alone."""
        self.floor_bytes = floor_bytes
        self.space_bytes = space_bytes
        self._table = table or AddressTable(())
        self._policies = policies or {}

    @classmethod
    def of(cls, configuration: BrokerConfiguration) -> StoreBounds:
        return cls(
            floor_bytes=configuration.limits.free_floor_bytes,
            space_bytes=configuration.quota_bytes,
            table=AddressTable(configuration.rules, configuration.default_rule),
            policies=configuration.policies,
        )

    def pattern(self, log: str) -> str:
        """Return the pattern of the `Address` resource of a log."""
        kind, _, name = log.partition(" ")
        return name if kind == "topic" else self._table.rule(name).pattern

    def policy(self, pattern: str) -> AddressPolicy:
        return self._policies.get(pattern, DEFAULT_POLICY)

    def refuses(self, pattern: str, size: int) -> bool:
        """Return True when an address with `size` bytes has used up its quota, and refuses further messages."""
        policy = self.policy(pattern)
        quota = policy.quota_bytes
        return quota is not None and policy.when_full is WhenFull.REJECT and size >= quota * USED_UP

    def usable(self, free: int, kept: Mapping[str, int]) -> int:
        """Return how many of the `free` bytes messages may use. `kept`: bytes stored for each pattern."""
        usable = free - self.floor_bytes
        if self.space_bytes is not None:
            patterns = kept.keys() | self._policies.keys()
            set_aside = sum(max(kept.get(each, 0), self.policy(each).reserve_bytes) for each in patterns)
            usable = min(usable, self.space_bytes - set_aside)
        return max(0, usable)


def room_of(logs: Sequence[LogUsage], free: int, reusable: int, bounds: StoreBounds, *, known: bool) -> StoreRoom:
    """Return the free space and the time until it is used up. `known`: at least one log has a measured rate."""
    kept: dict[str, int] = {}
    arriving: dict[str, float] = {}
    staying: dict[str, float] = {}
    for log in logs:
        pattern = bounds.pattern(log.name)
        kept[pattern] = kept.get(pattern, 0) + log.bytes
        arriving[pattern] = arriving.get(pattern, 0.0) + log.arriving
        staying[pattern] = staying.get(pattern, 0.0) + log.staying
    left = {
        pattern: float(max(0, quota - size))
        for pattern, size in kept.items()
        if (quota := bounds.policy(pattern).quota_bytes) is not None
    }
    usable = bounds.usable(free + reusable, kept)
    autonomy = hours_until(usable, arriving, left)
    ends = [(left[pattern] / rate, pattern) for pattern, rate in arriving.items() if rate and pattern in left]
    first = min(ends, default=None)
    full = None
    if first is not None and (autonomy is None or first[0] < autonomy):
        autonomy = first[0]
        full = AddressFull(first[1], bounds.policy(first[1]).when_full.value, first[0])
    rate = sum(arriving.values()) if known else None
    used_up = [pattern for pattern, size in kept.items() if bounds.refuses(pattern, size)]
    return StoreRoom(free, reusable, usable, rate, autonomy, hours_until(usable, staying, left), full, sorted(used_up))


def hours_until(room: float, rates: Mapping[str, float], left: Mapping[str, float]) -> float | None:
    """Return the hours until `room` bytes have arrived at these rates (bytes an hour); None: never.

    `left`: bytes after which a rate ends, by name.
    """
    ends = sorted((left[name] / rate if name in left else float("inf"), rate) for name, rate in rates.items() if rate)
    rate, at = sum(rate for _, rate in ends), 0.0
    for end, its_rate in ends:
        if rate <= 0 or room <= rate * (end - at):
            break
        room -= rate * (end - at)
        rate, at = rate - its_rate, end
    else:
        return None
    return at + room / rate if rate > 0 else None
