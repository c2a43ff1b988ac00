"""Temporary errors of AMQP peers: a message that is rejected with one of them is sent again.

In AMQP 1.0 (section 3.4.3) `rejected` means that the message is at fault. Azure Service Bus and Event Hubs also use it
for temporary conditions: throttling, a full entity, an expired token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bridge.engine import Condition, Detail

BUSY_S: Final = 10.0
"""Seconds to wait for a busy peer, as in Microsoft's clients."""

_PASSING: Final[Mapping[str, float]] = {
    "com.microsoft:server-busy": BUSY_S,
    "amqp:resource-limit-exceeded": BUSY_S,
    "com.microsoft:timeout": 0.0,
    "com.microsoft:operation-cancelled": 0.0,
    "com.microsoft:entity-disabled": BUSY_S,
    "amqp:internal-error": 0.0,
    "amqp:unauthorized-access": 0.0,
    "amqp:not-found": 0.0,
}
"""Shortest time until the next attempt, in seconds; 0: the usual backoff."""

FORCED: Final = "amqp:link:detach-forced"
"""Condition of a link that was idle for minutes, or that the peer moves to another of its machines."""


def is_temporary(detail: Detail) -> bool:
    """Return True when the peer, not the message, is the cause."""
    return isinstance(detail, Condition) and detail.name in _PASSING


def wait_s(detail: Detail) -> float:
    """Return the shortest time until the next attempt; 0: the usual backoff."""
    return _PASSING.get(detail.name, 0.0) if isinstance(detail, Condition) else 0.0
