"""What a gateway tells of a clock that was wrong: which messages were stamped by it, and how far it was off.

A gateway without a battery starts with the time it last knew, or with 1970, and is set some time after. Stamps stay as
they were. A *stretch* is a time in which the clock was not known to be right and nobody set it, so that all its stamps
are off by the same; how far is told once it is known. Messages are named by (epoch, address, sequence): nothing of this
is in batches, it may arrive before or after them, and twice.

Documents go over the link for manifests, to a hub that offers the capability. Sans-I/O.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

CAPABILITY: Final = "waypost:clock-offsets/1"
"""Of the link for manifests: the gateway desires it, a hub that understands these documents offers it."""

Nanoseconds = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class OffsetState(enum.Enum):
    """What is known of a stretch's offset."""

    NOT_YET = "not yet"
    """It goes on, or waits for the clock to be right."""
    MEASURED = "measured"
    """The clock was set right before the machine started anew: `low` and `high` are the offset."""
    NEVER = "never"
    """`reason` says why; it is between `low` and `high`, where there are any."""


BOOT_ENDED: Final = "the machine was started anew before its clock was right"
SET_TOO_OFTEN: Final = "the clock was set more often than the gateway remembers"


class StampedRange(msgspec.Struct, frozen=True, array_like=True):
    """Messages of one address that were received in a stretch: those of these sequences whose clock was not good.

    `after` and `until` bound their stamps (``after < received_at <= until``) where messages of these sequences were
    stamped before and after the clock was set; None: no bound.
    """

    epoch: str
    address: str
    first_sequence: int
    last_sequence: int
    after: Nanoseconds | None = None
    until: Nanoseconds | None = None


class ClockSpan(msgspec.Struct, frozen=True):
    """One stretch, as far as it is known. Times are UTC nanoseconds as the wrong clock showed them;
    ``true time = stamp + offset``.

    It is told without messages first, then with its messages, and `whole` at last.
    """

    boot: str
    """The machine's start, as its kernel names it."""
    number: int
    """Ascends, for one store and connector."""
    began: Nanoseconds
    known: OffsetState
    low: Nanoseconds | None = None
    high: Nanoseconds | None = None
    reason: str = ""
    whole: bool = False
    """All its messages have been told."""
    messages: Sequence[StampedRange] = ()


class ClockDocument(msgspec.Struct, frozen=True):
    """A document."""

    told_at: Nanoseconds
    """When it was made, by the gateway's clock: beside the hub's it shows how far that one is off just now."""
    stretches: Sequence[ClockSpan]
