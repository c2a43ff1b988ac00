"""Errors of AMQP peers that speak of the peer and not of the message: what is refused with one goes again.

AMQP 1.0 (section 3.4.3) says `rejected` where a message is at fault; Azure Service Bus and Event Hubs say it as well of
what they do not take now: throttling, a full entity, a token that has expired.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bridge.engine import Condition, Detail

BUSY_S: Final = 10.0
"""How long a peer that is too busy is left alone, as Microsoft's clients do."""

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
"""Seconds until the next attempt, beyond the usual backoff."""

FORCED: Final = "amqp:link:detach-forced"
"""The peer ends a link that nothing was sent over for minutes, or moves it to another of its machines."""


def passes(detail: Detail) -> bool:
    """The message is not at fault."""
    return isinstance(detail, Condition) and detail.name in _PASSING


def wait_s(detail: Detail) -> float:
    """How long the peer wants to be left alone; 0: as long as always."""
    return _PASSING.get(detail.name, 0.0) if isinstance(detail, Condition) else 0.0
