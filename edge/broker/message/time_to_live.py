"""Time to live: how long a message is worth delivering, in either protocol, narrowed by what its address allows.

A run's time to live is in the properties it came with (the header's `ttl` of AMQP 1.0 section 3.2.1, the Message Expiry
Interval of MQTT 5 section 3.3.2.3.3), the same for every message of the run; it counts from `Run.received_at`. It is
looked at when a message is about to be delivered; what nobody reads is seen to by `subscriptions.sweep`.
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
"""Properties up to this size are alike in message after message, so what they say is remembered; larger ones carry
correlation data and the like, and would only fill the cache."""


def ttl_ns(run: Run, policy: AddressPolicy) -> int | None:
    """Nanoseconds from `received_at` for which a run is worth delivering; None: for ever."""
    properties = run.properties
    ttl: int | None = None
    if properties:
        is_amqp = bool(run.flags & AMQP)
        ttl = _remembered(properties, is_amqp) if len(properties) <= CACHED_BYTES_MAX else _own(properties, is_amqp)
    if policy.ttl_max_s is not None:
        highest = int(policy.ttl_max_s * _NS_IN_S)
        ttl = highest if ttl is None else min(ttl, highest)
    if policy.ttl_min_s is not None and ttl is not None:
        ttl = max(ttl, int(policy.ttl_min_s * _NS_IN_S))
    return ttl


def _own(properties: bytes, is_amqp: bool) -> int | None:
    if is_amqp:
        ttl_ms = read_header(properties).ttl_ms
        return None if ttl_ms is None else ttl_ms * _NS_IN_MS
    try:
        expiry_s = message_expiry_s(properties)
    except MqttError:  # checked when it came in; what cannot be read now is not worth the message
        return None
    return None if expiry_s is None else expiry_s * _NS_IN_S


_remembered = lru_cache(maxsize=4096)(_own)
