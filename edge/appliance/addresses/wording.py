"""Policy of an address in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from edge.broker.model.address_policy import AddressPolicy, DurabilityMode, Redelivery, WhenFull
from edge.broker.model.addresses import AddressType
from edge.output.amounts import counted, size, span

_TYPES: Final = {
    AddressType.QUEUE: "Every message is stored, and goes to one of the consumers.",
    AddressType.DEADLETTER: "Keeps messages that could not be delivered, until a consumer takes them.",
    AddressType.TOPIC: "Every subscriber gets a copy. It is stored for forwarders and durable subscriptions only.",
    AddressType.SUBSCRIPTION: "Messages of its topic wait here for one consumer.",
    AddressType.ANYCAST: "Every message goes to one connected consumer. Nothing is stored: without one it is refused.",
    AddressType.MULTICAST: "All connected consumers get a copy, and nothing is stored: without one it is refused.",
}
_WHEN_FULL: Final = {
    WhenFull.REJECT: "new messages are refused",
    WhenFull.DROP_OLDEST: "the oldest messages are dropped",
    WhenFull.THIN: "old messages are thinned to a summary",
}
_STORED: Final = (AddressType.QUEUE, AddressType.DEADLETTER, AddressType.TOPIC, AddressType.SUBSCRIPTION)


def policy_sentences(kind: AddressType, policy: AddressPolicy) -> list[str]:
    """Return what happens to messages of an address."""
    found = [_TYPES[kind]]
    if kind in _STORED:
        found += [*_room(policy), _durability(policy), *_times(policy), *_redelivery(policy.redelivery)]
        found += _destinations(policy)
        if policy.receipts is not None:
            found.append("A message may request a signed receipt once a hub has it in the lake.")
    if policy.consumers_max is not None:
        found.append(f"At most {counted(policy.consumers_max, 'consumer')} at one time.")
    return found


def _room(policy: AddressPolicy) -> Iterator[str]:
    full = _WHEN_FULL[policy.when_full]
    if policy.quota_bytes is None:
        yield f"It may use the whole space of the gateway; when that is full, {full}."
    else:
        yield f"Keeps up to {size(policy.quota_bytes)}; then {full}."
    if policy.reserve_bytes:
        yield f"{size(policy.reserve_bytes)} of the space are reserved for it."


def _durability(policy: AddressPolicy) -> str:
    durability = policy.durability
    if durability.mode is DurabilityMode.MEMORY:
        return "Acknowledged at once and kept in memory only: a power cut loses its messages."
    if durability.mode is DurabilityMode.BATCH:
        wait = f"{durability.delay_s * 1000:.0f} ms"
        return f"Acknowledged when it is on disk. A commit waits up to {wait}, which saves the card."
    return "Acknowledged when it is on disk."


def _times(policy: AddressPolicy) -> Iterator[str]:
    if policy.ttl_max_s is not None:
        yield f"A message expires after {span(policy.ttl_max_s)} at most."
    if policy.ttl_min_s is not None:
        yield f"No message expires within {span(policy.ttl_min_s)}."


def _redelivery(redelivery: Redelivery) -> Iterator[str]:
    if redelivery.attempts_max is not None:
        yield f"Delivered at most {counted(redelivery.attempts_max, 'time')}."
    if redelivery.delay_s:
        yield f"A failed delivery is repeated after {span(redelivery.delay_s)}."


def _destinations(policy: AddressPolicy) -> Iterator[str]:
    if policy.deadletter:
        yield f"Undeliverable messages go to {policy.deadletter}."
    if policy.expiry:
        yield f"Expired messages go to {policy.expiry}."
