"""Limits of the messages API."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

STEP_MESSAGES_MAX: Final = 1_000
"""Messages that one request retries, moves or deletes: some 20 ms of the loop. The `next` of its answer continues."""
STEP_BYTES_MAX: Final = 4 * MIB
"""Bytes of bodies in one such request, and one message at least: they are in memory until their commit."""
STEP_S_MAX: Final = 30.0
"""Seconds that one such request waits for its commit. A slow card takes some seconds."""
INDEX_READ_BYTES: Final = 64 * KIB
"""Bytes read at a time for the index of dead letters: some 200 messages, 2 ms."""
UPDATE_S: Final = 1.0
"""Seconds that one request reads for the index, with other work in between: some 50 000 messages."""
INDEX_RANGES_MAX: Final = 100_000
"""Ranges of positions in the index of one queue, some 8 MB. Further messages are not counted before others are gone."""
INDEXES_MAX: Final = 16
"""Dead letter addresses with an index at a time."""
INDEX_UNUSED_S: Final = 600.0
"""Seconds after which an unused index is dropped."""
GROUPS_SHOWN_MAX: Final = 500
"""Groups of dead letters in an answer."""
BODY_BYTES_SHOWN: Final = 1 * KIB
"""Bytes of each body in a list, unless the request says otherwise."""
BODY_BYTES_SHOWN_MAX: Final = 64 * KIB
"""Most bytes of a body in an answer."""
ANSWER_BYTES_MAX: Final = 1 * MIB
"""Bytes of bodies in an answer; the page ends there."""
PAGE_READ_BYTES: Final = 256 * KIB
"""Bytes read at a time for a page of messages."""
SEARCH_MESSAGES_MAX: Final = 20_000
"""Messages that one request looks at for a page: some 100 ms in all, with other work in between."""
SHOWN_PER_S: Final = 50
"""Live messages that a page gets in a second: more than a person reads."""
LIVE_BYTES_SHOWN: Final = 1 * KIB
"""Bytes of the body of a live message."""
LIVE_S_MAX: Final = 600.0
"""Seconds of a live subscription: a page that is left open does not receive for ever."""
LIVE_STREAMS_MAX: Final = 4
"""Pages with live messages at a time."""
PROPERTIES_MAX: Final = 20
"""User properties of a message that a person publishes."""
PROPERTY_BYTES_MAX: Final = 1_024
"""Bytes of the name or the value of such a property."""
