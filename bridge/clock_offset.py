"""Report of a gateway's wrong clock: which messages it stamped, and the offset.

A gateway without a battery-backed clock starts with the time it last knew, or with 1970, and is set some time later.
Timestamps stay as they were. A *span* is a period in which an unverified clock was not set, so all its timestamps have
the same offset. The offset is reported once it is known. Messages are named by (epoch, address, sequence). Batches
contain nothing of this, so a report may arrive before or after them, and twice.

Documents use the link for manifests, to a hub that offers the capability. Sans-I/O.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

CAPABILITY: Final = "waypost:clock-offsets/1"
"""Capability of the link for manifests: the gateway desires it; a hub that understands these documents offers it."""

Nanoseconds = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class OffsetState(enum.Enum):
    """Knowledge of a span's offset."""

    NOT_YET = "not yet"
    """The span continues, or waits for the clock to be right."""
    MEASURED = "measured"
    """The clock was set right before the machine restarted: the offset is between `low` and `high`."""
    NEVER = "never"
    """The offset stays unknown: `reason` says why. It is between `low` and `high` where those are set."""


BOOT_ENDED: Final = "the machine restarted before its clock was right"
SET_TOO_OFTEN: Final = "the clock was set more often than the gateway remembers"


class StampedRange(msgspec.Struct, frozen=True, array_like=True):
    """Messages of one address in a span: those of these sequences without the mark of a good clock.

    `after` and `until` bound their timestamps (``after < received_at <= until``) where messages of these sequences were
    received before and after the clock was set; None: no bound.
    """

    epoch: str
    address: str
    first_sequence: int
    last_sequence: int
    after: Nanoseconds | None = None
    until: Nanoseconds | None = None


class ClockSpan(msgspec.Struct, frozen=True):
    """One span with what is known of it. Times are UTC nanoseconds as the wrong clock showed them;
    ``true time = timestamp + offset``.

    It is reported without messages first, then with its messages, and `whole` at last.
    """

    boot: str
    """The kernel's boot id."""
    number: int
    """Ascending number of the span, for one store and connector."""
    began: Nanoseconds
    known: OffsetState
    low: Nanoseconds | None = None
    high: Nanoseconds | None = None
    reason: str = ""
    whole: bool = False
    """All its messages have been reported."""
    messages: Sequence[StampedRange] = ()


class ClockDocument(msgspec.Struct, frozen=True):
    """Document with the spans of one gateway."""

    told_at: Nanoseconds
    """Time of the report by the gateway's clock; compared with the hub's, it shows the offset at that time."""
    stretches: Sequence[ClockSpan]
