"""Bounds of one MQTT connection that no configuration changes; those it may change are `edge.broker.limits.Limits`."""

from __future__ import annotations

from typing import Final

from edge.broker.limits import KIB, MIB

CONNECT_BYTES_MAX: Final = 128 * KIB
"""Bytes of a CONNECT: memory spent on somebody not known yet. Room for a will of 64 KiB and a long token."""

EARLY_BYTES_MAX: Final = MIB
"""Bytes a client may send behind CONNECT before its CONNACK (section 3.1.4 allows it); four reads of the driver."""

TERMS_SHARED_MAX: Final = 256
"""Of what clients say in CONNECT beside who they are, different ones remembered for those who say the same: some 150
bytes each, and numbers alone."""

EVENTS_AT_ONCE: Final = 32
"""Events one call of the machine returns, or packets it takes apart: 0.3 ms of work as a rule, 3 ms where each is for
an address nobody has sent to before. Then the driver looks whether the connection has had its time."""

FILTERS_AT_ONCE: Final = 4
"""Topic filters of one SUBSCRIBE or UNSUBSCRIBE that one call of the machine returns: up to 0.4 ms each."""

FILTERS_MAX: Final = 1_000
"""Topic filters of one packet, as many as a session may have: they are decoded and checked in one go, 4 us each."""

CHUNK_BYTES: Final = 64
"""What a read costs beside its bytes while its packet is not complete: a client may send one byte at a time."""

PACKET_ID_BYTES: Final = 100
"""A QoS 2 packet identifier that has not been released, in the sets it is in."""

HEAD_BYTES: Final = 160
"""What a topic name or property block costs that a connection remembers, beside twice its bytes."""

KEEP_ALIVE_GRACE: Final = 1.5
"""Keep Alive periods without a packet before the client counts as gone [MQTT-3.1.2-22]."""

UNANSWERED_MAX: Final = 2 * 65_535
"""QoS 1 and 2 messages a client older than MQTT 5, which is told no Receive Maximum, may have under way to us: as many
as there are packet identifiers, and once more as MQTT 3.1 lets a client repeat what is not answered soon."""

TOPIC_ALIAS_MAXIMUM: Final = 16
"""Topic aliases an MQTT 5 client may set; each keeps a topic name of up to 64 KiB in memory."""

HEADS_CACHED_MAX: Final = 512
"""Topic names, and property blocks, a connection remembers having checked."""

HEAD_BYTES_MAX: Final = 256
"""Longest topic name or property block remembered: 512 of each are at most 256 KiB a connection."""

INFLIGHT_BYTES_MAX: Final = 4 * MIB
"""Message bytes un-acknowledged towards one client, where they are large; one message of any size may be. Up to 4 KiB
each there may be as many as `Limits.inflight_max`."""

ALIASES_SENT_MAX: Final = 64
"""Topic aliases we set towards one client, however many it offers to take; each keeps a topic name."""

ALIAS_TOPIC_BYTES_MIN: Final = 5
"""Shortest topic name sent as an alias: the alias costs 3 bytes a message and up to one more in a length."""

REASON_STRING_CHARACTERS_MAX: Final = 256
"""Characters of a Reason String we send: a line for a person to read; a filter in it may have 65 535."""

OVERLAP_CHECKED_MAX: Final = 100
"""Subscriptions of a session that are compared with each other for overlaps; with more, all count as overlapping."""

OVERLAP_RANGES_MAX: Final = 1_000
"""Ranges of a log remembered as sent under another subscription, 100 bytes each; messages of those forgotten may come
once a subscription."""

PREFIXES_KNOWN_MAX: Final = 16_384
"""Beginnings of topic names that connections are told where their messages go by, 400 bytes each: two for each of
8 000 devices. Beyond it they are made anew for those that ask."""

USUAL_TOPIC_CHARACTERS_MAX: Final = 64
"""Longer topic names are counted as they are written out (`edge.broker.limits.TOPIC_BYTES_A_TURN`)."""
