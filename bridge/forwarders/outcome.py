"""Outcome of a forwarded message at its receiver."""

from __future__ import annotations

import enum


class ForwardOutcome(enum.Enum):
    """The receiver's answer to a message: `settle` is called once per message with one of these."""

    ACCEPTED = "accepted"
    """The receiver has stored it, as durably as it stores messages."""
    REJECTED = "rejected"
    """The receiver will never take it: the message is at fault."""
    RELEASED = "released"
    """The receiver does not take it now; it is sent again before any later message."""
    EXPIRED = "expired"
    """Its time to live has passed, by the gateway's judgement or the receiver's; the address drops it."""
