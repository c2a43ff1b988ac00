"""Limits of messaging, with unit and reason."""

from __future__ import annotations

from typing import Final

COMMANDS_CREDIT: Final = 32
"""Commands of one tenant that a broker may have under way to a hub: the registry stores one in some milliseconds."""

RETRY_S: Final = 2.0
"""Pause before an address that the broker refused, or a command that cannot be stored now, is tried again."""

PUBLISH_S_MAX: Final = 10.0
"""Longest wait for the broker's confirmation of an outcome; then the gateway repeats its news later."""

OUTCOMES_MAX: Final = 256
"""Outcomes that wait for a confirmation; further ones are refused for now."""

SENDERS_MAX: Final = 64
"""Links to addresses of the broker: idle ones beyond this are detached, the oldest first."""

COPIES_WAITING_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of live copies that wait for the broker. Beyond this they are dropped and counted; the lake has them."""

COPY_OVERHEAD_BYTES: Final = 256
"""Bytes of a waiting copy in addition to its message."""

COPIES_UNCONFIRMED_MAX: Final = 1_000
"""Live copies without a confirmation of the broker."""

LATE_S: Final = 30.0
"""Time without a connection above which it is a problem: a broker that restarts takes less."""

IDLE_TIMEOUT_S: Final = 30.0
"""Silence of the broker after which the connection is over."""
