"""Fields of an address setting of Artemis as the policy of an address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from edge.appliance.importing.artemis_file import XmlElement, size_of
from edge.appliance.importing.report import ImportOutcome

ATTEMPTS: Final = "10"
"""Deliveries of a message in Artemis when `max-delivery-attempts` is not set."""
DELAY_FACTOR: Final = 10
"""Longest delay of a redelivery in Artemis, in delays, when `max-redelivery-delay` is not set."""
DIGITS_MAX: Final = 12
"""Digits of a number of milliseconds: 30 years."""
IMPORTED, CHANGED = ImportOutcome.IMPORTED, ImportOutcome.CHANGED
LEFT_OUT, NOT_NEEDED = ImportOutcome.LEFT_OUT, ImportOutcome.NOT_NEEDED

FIELDS: Final[Mapping[str, tuple[ImportOutcome, str]]] = {
    **dict.fromkeys(
        (
            "dead-letter-address", "expiry-address", "max-delivery-attempts", "redelivery-delay",
            "redelivery-delay-multiplier", "max-redelivery-delay", "min-expiry-delay", "max-expiry-delay",
            "max-size-bytes", "default-address-routing-type",
        ),
        (IMPORTED, ""),
    ),
    **dict.fromkeys(
        (
            "page-size-bytes", "page-max-cache-size", "max-read-page-messages", "max-read-page-bytes",
            "prefetch-page-messages", "prefetch-page-bytes", "message-counter-history-day-limit",
            "retroactive-message-count", "initial-queue-buffer-size", "id-cache-size",
            "default-consumer-window-size", "slow-consumer-check-period", "enable-metrics", "enable-ingress-timestamp",
        ),
        (NOT_NEEDED, "messages are in the store, and consumers give credit"),
    ),
    **dict.fromkeys(
        (
            "auto-create-queues", "auto-create-addresses", "auto-create-jms-queues", "auto-create-jms-topics",
            "auto-create-dead-letter-resources", "auto-create-expiry-resources", "auto-delete-queues",
            "auto-delete-addresses", "auto-delete-jms-queues", "auto-delete-jms-topics", "auto-delete-created-queues",
            "auto-delete-queues-delay", "auto-delete-addresses-delay", "auto-delete-queues-message-count",
            "auto-delete-queues-skip-usage-check", "auto-delete-addresses-skip-usage-check",
            "config-delete-queues", "config-delete-addresses", "config-delete-diverts",
        ),
        (NOT_NEEDED, "an address exists when it is used, and messages stay until they are consumed or expire"),
    ),
    "expiry-delay": (CHANGED, "it is also the longest time to live of messages that have one"),
    "no-expiry": (LEFT_OUT, "an expired message leaves the address"),
    "redelivery-collision-avoidance-factor": (CHANGED, "delays are the same for each message"),
    "max-size-messages": (CHANGED, "a quota is in bytes: quota.bytes"),
    "max-size-bytes-reject-threshold": (CHANGED, "a message is refused when the quota is used up"),
    "page-limit-bytes": (CHANGED, "a quota is in bytes: quota.bytes"),
    "page-limit-messages": (CHANGED, "a quota is in bytes: quota.bytes"),
    "page-full-policy": (CHANGED, "whenFull says what happens"),
    "send-to-dla-on-no-route": (LEFT_OUT, "a message without a subscription is acknowledged and discarded"),
    "slow-consumer-policy": (NOT_NEEDED, "a consumer without credit gets nothing, and slows no other one"),
    "slow-consumer-threshold": (NOT_NEEDED, "a consumer without credit gets nothing, and slows no other one"),
    "default-queue-routing-type": (NOT_NEEDED, "an address has one type"),
    "default-max-consumers": (LEFT_OUT, "give the address `maxConsumers`"),
    "default-last-value-queue": (LEFT_OUT, "use retained messages: each address keeps its last one"),
    "default-last-value-key": (LEFT_OUT, "use retained messages: each address keeps its last one"),
    "default-non-destructive": (LEFT_OUT, "use a topic with durable subscriptions"),
    "default-exclusive-queue": (LEFT_OUT, "give the address maxConsumers 1"),
    "default-purge-on-no-consumers": (LEFT_OUT, "use the type anycast, which stores nothing"),
    "default-ring-size": (LEFT_OUT, "give the address quota.bytes with whenFull dropOldest"),
    "default-consumers-before-dispatch": (LEFT_OUT, "the first consumer gets messages at once"),
    "default-delay-before-dispatch": (LEFT_OUT, "the first consumer gets messages at once"),
    "default-group-rebalance": (LEFT_OUT, "message groups are not kept together"),
    "default-group-buckets": (LEFT_OUT, "message groups are not kept together"),
    "default-group-first-key": (LEFT_OUT, "message groups are not kept together"),
    "redistribution-delay": (NOT_NEEDED, "there is no cluster"),
    "management-browse-page-size": (NOT_NEEDED, "the console reads in pages"),
    "management-message-attribute-size-limit": (NOT_NEEDED, "the console reads in pages"),
}  # fmt: skip
"""Results for the fields of an address setting; every other one is unknown."""
FULL: Final[Mapping[str, tuple[ImportOutcome, str]]] = {
    "PAGE": (NOT_NEEDED, "messages are on disk, without a quota"),
    "BLOCK": (IMPORTED, "without a quota left, a sender gets no credit"),
    "FAIL": (IMPORTED, "without a quota left, a message is refused"),
    "DROP": (CHANGED, "a message is refused, not dropped; for the oldest ones to leave: whenFull dropOldest"),
}
"""Results for the policies of a full address."""


def policy_of(merged: Mapping[str, XmlElement]) -> dict[str, Any]:
    """Return the policy of an address from the settings that count for it."""
    texts = {name: element.text for name, element in merged.items()}
    spec: dict[str, Any] = {}
    for field, name in (("deadletter", "dead-letter-address"), ("expiry", "expiry-address")):
        if texts.get(name):
            spec[field] = texts[name]
    redelivery = _redelivery(texts)
    if redelivery:
        spec["messageRedelivery"] = redelivery
    shortest = _number(texts.get("min-expiry-delay"))
    longest = min(filter(None, map(_number, (texts.get("max-expiry-delay"), texts.get("expiry-delay")))), default=0)
    ttl = {"minimum": shortest, "maximum": longest}
    if any(ttl.values()) and not (longest and shortest > longest):
        spec["messageTtl"] = {name: ms for name, ms in ttl.items() if ms}
    size = size_of(texts.get("max-size-bytes", ""))
    if size and texts.get("address-full-policy", "PAGE").upper() != "PAGE":
        spec["quota"] = {"bytes": size}
    return spec


# --- inside -----------------------------------------------------------------------------------------------------------


def _number(text: str | None) -> int:
    """Return a number of milliseconds; 0 for none, a negative one or another text."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < DIGITS_MAX else 0


def _redelivery(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return `messageRedelivery`. Without a dead-letter address Artemis drops a message after its last delivery."""
    found: dict[str, Any] = {}
    attempts = texts.get("max-delivery-attempts", ATTEMPTS)
    if attempts.isascii() and attempts.isdigit() and int(attempts) and texts.get("dead-letter-address"):
        found["maximumDeliveryAttempts"] = int(attempts)
    delay = _number(texts.get("redelivery-delay"))
    if not delay:
        return found
    found["redeliveryDelay"] = delay
    factor = _factor(texts.get("redelivery-delay-multiplier", "1"))
    if factor > 1:
        found["redeliveryDelayMultiplier"] = factor
        longest = _number(texts.get("max-redelivery-delay")) or delay * DELAY_FACTOR
        found["maximumDeliveryDelay"] = max(longest, delay)
    return found


def _factor(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 1.0
