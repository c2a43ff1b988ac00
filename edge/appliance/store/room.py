"""How long a store has room: the medium's, less the floor, less what the space and the addresses may keep.

What the bounds are is configuration (`edge.broker.retention.quotas` keeps them); how fast each log fills is measured
(`edge.appliance.store.figures`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from edge.broker.configuration import BrokerConfiguration
from edge.broker.model.address_policy import AddressPolicy, WhenFull
from edge.broker.model.addresses import AddressTable

NOTHING_KEPT: Final = AddressPolicy()
USED_UP: Final = 0.99
"""Of a quota: the next messages do not fit, or soon will not."""


class AddressFull(msgspec.Struct):
    """An address that uses up its quota before anything else is used up."""

    address: str
    """Pattern of the `Address` resource."""
    when_full: str
    hours: float


class StoreRoom(msgspec.Struct):
    """How long there is room. Hours are None where nothing arrives, nothing stays, or quotas end it before."""

    free_bytes: int
    """Of the medium."""
    reusable_bytes: int
    """Pages of the file that are free already."""
    usable_bytes: int
    """Of both together what messages may take: above the floor, within the quota of the space."""
    bytes_per_hour: float | None
    """Arriving lately, as stored."""
    hours_of_autonomy: float | None
    """Until something is refused or given up, by whatever bound, if nothing left the store from now on: an uplink that
    stays away."""
    hours_to_full: float | None
    """Until nothing more may be stored at the pace the backlog has grown since its oldest message."""
    first_full: AddressFull | None = None
    """The quota `hours_of_autonomy` ends at; None where it is the medium, the floor or the space."""
    used_up: list[str] = []
    """Addresses that keep (nearly) all their quota allows and refuse more: patterns of their resources."""


class LogUsage(NamedTuple):
    """A log: what it holds, bytes of bodies, and bytes an hour that arrive and that stay."""

    name: str
    bytes: int
    arriving: float
    staying: float


class StoreBounds:
    """What a gateway's configuration lets its store keep."""

    def __init__(
        self,
        *,
        floor_bytes: int = 0,
        space_bytes: int | None = None,
        table: AddressTable | None = None,
        policies: Mapping[str, AddressPolicy] | None = None,
    ) -> None:
        """Without arguments: no bounds but the medium's."""
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
        """Of the `Address` resource a log belongs to."""
        kind, _, name = log.partition(" ")
        return name if kind == "topic" else self._table.rule(name).pattern

    def policy(self, pattern: str) -> AddressPolicy:
        return self._policies.get(pattern, NOTHING_KEPT)

    def refuses(self, pattern: str, size: int) -> bool:
        """True when an address that keeps `size` bytes has no room within its own quota, and gives up nothing."""
        policy = self.policy(pattern)
        quota = policy.quota_bytes
        return quota is not None and policy.when_full is WhenFull.REJECT and size >= quota * USED_UP

    def usable(self, free: int, kept: Mapping[str, int]) -> int:
        """Of `free` bytes what messages may take while these patterns keep so much."""
        usable = free - self.floor_bytes
        if self.space_bytes is not None:
            patterns = kept.keys() | self._policies.keys()
            set_aside = sum(max(kept.get(each, 0), self.policy(each).reserve_bytes) for each in patterns)
            usable = min(usable, self.space_bytes - set_aside)
        return max(0, usable)


def room_of(logs: Sequence[LogUsage], free: int, reusable: int, bounds: StoreBounds, *, known: bool) -> StoreRoom:
    """`known`: some log says how fast messages arrive."""
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
    """When so many bytes have come in at these rates (bytes an hour), each of which ends when what it has `left` is
    used up; None: never."""
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
