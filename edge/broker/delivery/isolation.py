"""What a consumer or a subscription raises ends with it: it is logged once, and nobody else notices.

Nothing an exception says is logged, as it may quote a message: its type and where it was raised have to do.
"""

from __future__ import annotations

import logging
import traceback

from bridge.message import Stored
from edge.broker.model.interfaces import Consumer, Subscription

log = logging.getLogger(__name__)


def report(name: str, outcome: str, error: Exception) -> None:
    """Log what was raised on behalf of `name`, and what becomes of it."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s raised %s: %s\n%s", name, type(error).__name__, outcome, frames)


def delivered(consumer: Consumer, subscription: Subscription, stored: Stored) -> bool:
    """Deliver to a consumer. False when it raised: its connection ends, and the caller delivers nothing more to it."""
    try:
        consumer.deliver(subscription, stored)
    except Exception as error:
        report(f"consumer {consumer.name!r}", "its connection ends", error)
        _abort(consumer)
        return False
    return True


def _abort(consumer: Consumer) -> None:
    try:
        consumer.abort()
    except Exception as error:
        report(f"consumer {consumer.name!r}", "its connection could not be ended", error)
