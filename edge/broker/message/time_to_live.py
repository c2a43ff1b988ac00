"""Time to live of messages in both protocols, within the limits of their address.

The time to live of a run is in its properties (the header's `ttl` of AMQP 1.0 section 3.2.1, the Message Expiry
Interval of MQTT 5 section 3.3.2.3.3) and counts from `Run.received_at`. It is checked at delivery;
`subscriptions.sweep` removes expired messages that are not delivered.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from bridge.message import AMQP, Run
from edge.broker.message.mqtt_errors import MqttError
from edge.broker.message.mqtt_properties import message_expiry_s
from edge.broker.message.translation import read_header
from edge.broker.model.address_policy import AddressPolicy

_NS_IN_MS: Final = 1_000_000
_NS_IN_S: Final = 1_000_000_000

CACHED_BYTES_MAX: Final = 64
"""Largest properties in the cache. Larger ones have values that differ for each message, such as correlation data."""


def ttl_ns(run: Run, policy: AddressPolicy) -> int | None:
    """Return the time to live of a run in nanoseconds from `received_at`; None: no limit."""
    properties = run.properties
    ttl: int | None = None
    if properties:
        is_amqp = bool(run.flags & AMQP)
        ttl = _cached(properties, is_amqp) if len(properties) <= CACHED_BYTES_MAX else _read_ttl(properties, is_amqp)
    if policy.ttl_max_s is not None:
        highest = int(policy.ttl_max_s * _NS_IN_S)
        ttl = highest if ttl is None else min(ttl, highest)
    if policy.ttl_min_s is not None and ttl is not None:
        ttl = max(ttl, int(policy.ttl_min_s * _NS_IN_S))
    return ttl


def _read_ttl(properties: bytes, is_amqp: bool) -> int | None:
    if is_amqp:
        ttl_ms = read_header(properties).ttl_ms
        return None if ttl_ms is None else ttl_ms * _NS_IN_MS
    try:
        expiry_s = message_expiry_s(properties)
    except MqttError:  # checked on receipt; an error now must not lose the message
        return None
    return None if expiry_s is None else expiry_s * _NS_IN_S


_cached = lru_cache(maxsize=4096)(_read_ttl)
