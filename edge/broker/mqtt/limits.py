"""Fixed limits of one MQTT connection. Those that can be configured are in `edge.broker.limits.Limits`."""

from __future__ import annotations

from typing import Final

from edge.broker.limits import KIB, MIB

CONNECT_BYTES_MAX: Final = 128 * KIB
"""Bytes of a CONNECT, held for an unauthenticated client: enough for a will of 64 KiB and a long token."""

EARLY_BYTES_MAX: Final = MIB
"""Bytes that a client may send between CONNECT and CONNACK (section 3.1.4 allows it); four reads of the driver."""

TERMS_SHARED_MAX: Final = 256
"""Cached combinations of the parameters of CONNECT without the client's identity, shared by clients with equal ones;
some 150 bytes each."""

EVENTS_AT_ONCE: Final = 32
"""Events that one call of the state machine returns, or packets that it parses: usually 0.3 ms of work, 3 ms if each is
for a new address. Then the driver checks the time slice of the connection."""

FILTERS_AT_ONCE: Final = 4
"""Topic filters of one SUBSCRIBE or UNSUBSCRIBE in one event: up to 0.4 ms each."""

FILTERS_MAX: Final = 1_000
"""Topic filters of one packet; equals the maximum of a session. They are decoded and checked at once, 4 us each."""

CHUNK_BYTES: Final = 64
"""Overhead of a chunk of an incomplete packet, in bytes: a client may send one byte at a time."""

PACKET_ID_BYTES: Final = 100
"""Memory of an unreleased QoS 2 packet identifier in its sets."""

HEAD_BYTES: Final = 160
"""Overhead of a cached topic name or property block, in addition to twice its bytes."""

KEEP_ALIVE_GRACE: Final = 1.5
"""Keep Alive periods without a packet until the connection is closed [MQTT-3.1.2-22]."""

UNANSWERED_MAX: Final = 2 * 65_535
"""Unanswered QoS 1 and 2 messages of a client before MQTT 5, which has no Receive Maximum: the number of packet
identifiers, twice, as MQTT 3.1 lets a client repeat unanswered messages."""

TOPIC_ALIAS_MAXIMUM: Final = 16
"""Topic aliases that an MQTT 5 client may set; each keeps a topic name of up to 64 KiB in memory."""

HEADS_CACHED_MAX: Final = 512
"""Cached topic names, and property blocks, of a connection that need no further check."""

HEAD_BYTES_MAX: Final = 256
"""Longest cached topic name or property block: 512 of each take at most 256 KiB for a connection."""

INFLIGHT_BYTES_MAX: Final = 4 * MIB
"""Unacknowledged message bytes to one client, for large messages; one message of any size is always allowed. Messages
up to 4 KiB are limited by `Limits.inflight_max` only."""

ALIASES_SENT_MAX: Final = 64
"""Topic aliases sent to one client, also if it accepts more; each keeps a topic name in memory."""

ALIAS_TOPIC_BYTES_MIN: Final = 5
"""Shortest topic name that is sent as an alias; an alias takes 3 to 4 bytes of a message."""

REASON_STRING_CHARACTERS_MAX: Final = 256
"""Characters of a Reason String: a line for a person. A filter in it may have 65 535."""

OVERLAP_CHECKED_MAX: Final = 100
"""Subscriptions of a session that are compared for overlaps; with more, all count as overlapping."""

OVERLAP_RANGES_MAX: Final = 1_000
"""Remembered ranges of a log that were sent for an overlapping subscription, 100 bytes each. Messages of forgotten
ranges may be sent once for each subscription."""

PREFIXES_KNOWN_MAX: Final = 16_384
"""Cached topic prefixes with the route of their messages, 400 bytes each: two for each of 8 000 devices. Beyond that
the cache is cleared."""

USUAL_TOPIC_CHARACTERS_MAX: Final = 64
"""Longer topic names count against `edge.broker.limits.TOPIC_BYTES_A_TURN`."""
