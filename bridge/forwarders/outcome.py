"""What became of a message on the other bank, whichever bank that is."""

from __future__ import annotations

import enum


class ForwardOutcome(enum.Enum):
    """What the receiving side says of a message: `settle` is called with one of these, once a message."""

    ACCEPTED = "accepted"
    """It is the receiver's now, as durable as it makes things."""
    REJECTED = "rejected"
    """The receiver will never take it: the fault is the message's."""
    RELEASED = "released"
    """The receiver does not take it now; it will be sent again, and nothing after it before it."""
