"""Every bound of the broker in one place: name, unit, reason. A peer can make nothing grow that is not bounded here."""

from __future__ import annotations

from typing import Final

import msgspec

KIB: Final = 1024
MIB: Final = 1024 * KIB

ROUTES_CACHED_MAX: Final = 100_000
"""Routes (one an address) kept resolved; about 1 KiB each. Beyond it the cache starts anew."""

WRITE_BUFFER_BYTES_MAX: Final = 256 * KIB
"""Bytes a peer may leave unread in our socket buffer before deliveries to it pause."""

PENDING_BYTES_MAX: Final = 32 * MIB
"""Message bytes gathered and not yet on disk. Above it sockets are not read: a slow card slows its senders down
instead of filling the memory of a 512 MiB Pi."""

PENDING_BYTES_LOW: Final = 16 * MIB
"""Reading goes on below this; half the limit, so that it does not flap at every commit."""

SUBSCRIPTION_BUFFER_BYTES_MAX: Final = MIB
"""Message bytes held in memory for one subscription that is being served; what is beyond stays in the store and
is read when it is wanted."""

TRANSIENT_BUFFER_BYTES_MIN: Final = MIB
"""Message bytes any subscriber without a durable subscription may have waiting when it does not read fast enough; newer
messages are dropped for it (and counted) beyond what it may have, as its session promises nothing."""

TRANSIENT_BUFFER_BYTES_MAX: Final = 16 * MIB
"""The same while others leave room in the pool: a burst of 150 000 small messages is taken in before it is dropped."""

TRANSIENT_POOL_BYTES_MAX: Final = 64 * MIB
"""Message bytes waiting for all such subscribers together; above it each is held to the minimum."""

READ_BYTES_MAX: Final = 512 * KIB
"""Message bytes of one read from the store: large enough to be sequential, small enough to keep the loop alive."""

TICK_S: Final = 0.25
"""Period of housekeeping: idle cursors advance, session expiry, delayed wills, status figures."""

RETAINED_MAX: Final = 100_000
"""Retained messages in a space; each is held in memory as well, about 500 bytes with its topic."""

SESSIONS_MAX: Final = 20_000
"""Sessions, connected or not; about 3 KiB each."""

SUBSCRIPTIONS_PER_SESSION_MAX: Final = 1_000
"""Filters one session may hold: a device needs a handful, a hostile one would make every route long."""

SENDER_CREDIT: Final = 1_000
"""AMQP messages a sender may have under way to a stored address: enough to fill a commit, little enough to hold."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds a configuration may change (resource `Gateway`, ``spec.limits``)."""

    connections_max: int = 10_000
    """Open sockets in all; each costs about 3 KiB."""
    packet_bytes_max: int = 16 * MIB
    """One MQTT packet, or one AMQP message."""
    inflight_max: int = 1_000
    """QoS 1 and 2 deliveries un-acknowledged towards one MQTT client."""
    receive_maximum: int = 1_000
    """QoS 1 and 2 messages one MQTT 5 client may have under way to us."""
    handshake_s: float = 10.0
    """From accept to CONNECT or AMQP open."""
    idle_timeout_s: float = 60.0
    """AMQP idle timeout we announce."""
