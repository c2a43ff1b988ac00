"""Limits of the comparison with another broker, each with its unit and reason."""

from __future__ import annotations

from typing import Final

ADDRESSES_MAX: Final = 20_000
"""Addresses that are compared one by one, at about 1 KiB each. Messages of further ones are counted together, as not
compared."""

ADDRESS_WAITING_MAX: Final = 1_024
"""Messages of one address that wait for their counterpart at the other broker. Beyond it the oldest counts as not
compared."""

WAITING_MAX: Final = 200_000
"""Messages of all addresses that wait for their counterpart, at about 250 bytes each."""

RECENT_MAX: Final = 64
"""Digests of compared messages of one address, by which a further copy is recognised."""

DIGEST_BYTES: Final = 8
"""Bytes of a payload's digest. Two payloads of one address have the same with a probability of 2^-64."""

HEAD_BYTES: Final = 24
"""Beginning of a payload that an example shows."""

EXAMPLES_MAX: Final = 3
"""Examples of one address in the report."""

PATIENCE_S: Final = 30.0
"""Default time in seconds in which the counterpart of a message has to arrive."""

PATIENCE_S_MAX: Final = 3_600.0
"""Longest such time in seconds."""

RETAINED_MAX: Final = 200_000
"""Retained messages of one broker that are compared, at about 200 bytes each; further ones are not."""

RETAINED_MOVED_BYTES_MAX: Final = 64 << 20
"""Bytes of retained messages that are read at once to be moved; a further reading has the rest."""

RETAINED_EVERY_S: Final = 60.0
"""Seconds between two comparisons of the retained messages."""

RETAINED_AGAIN_S: Final = 2.0
"""Seconds after which retained messages that differ are read again: those that changed in between are equal."""

QUIET_S: Final = 1.0
"""Seconds without a message after which a broker has sent all retained messages, or all that waited in a session."""

RECONNECT_S: Final = 1.0
"""Pause in seconds before a lost connection is opened again."""

REPORT_EVERY_S: Final = 5.0
"""Seconds between two reports on disk: a kill loses the counts of that time."""

KEEP_ALIVE_S: Final = 30
"""Keep Alive in seconds towards both brokers; without a packet for as long the connection counts as lost."""

PUBACK_TIMEOUT_S: Final = 30.0
"""Longest time in seconds for the acknowledgement of a moved message: a card may need seconds for a commit."""

LOOP_REPEATS: Final = 500
"""Equal messages of one address, one after the other within `LOOP_WINDOW_S`, that count as a loop: a message that goes
in circles returns every few milliseconds, and no sensor repeats its value 50 times a second."""

LOOP_WINDOW_S: Final = 10.0
"""Seconds of that count."""

STATE_BYTES_MAX: Final = 16 << 20
"""Largest file of a report that is read."""
