"""Admission of messages that request a delivery time: what a sender is refused for, and the room that they use."""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec

from bridge.message import CLOCK_GOOD, Run
from edge.broker.limits import (
    SCHEDULED_AHEAD_MS_MAX,
    SCHEDULED_BYTES_MAX,
    SCHEDULED_MESSAGES_MAX,
    SCHEDULED_USER_SHARE,
)
from edge.broker.message.delivery_time import DeliveryTime
from edge.broker.message.translation import read_header
from edge.broker.model.addresses import AddressType
from edge.broker.model.clock import MessageClock


class ScheduleFault(enum.Enum):
    """Reason why a message cannot be scheduled."""

    UNSUPPORTED = "scheduled delivery is not available here: send it when it is due"
    ADDRESS = "the address keeps no messages of clients: send it when it is due"
    CLOCK = "the clock is not known to be right: send x-opt-delivery-delay, or the creation-time as well"
    EXPIRED = "the message would expire before its delivery: raise its time to live, or leave it out"
    TOO_FAR = "the delivery time is too far away: compare the clocks of sender and gateway, or send it later"
    NO_ROOM = "too many scheduled messages wait, or the store is full: send it when it is due"


class ScheduleRefused(Exception):
    """A message cannot be scheduled."""

    def __init__(self, fault: ScheduleFault) -> None:
        super().__init__(fault.value)
        self.fault = fault


class ScheduledMessage(msgspec.Struct, frozen=True):
    """A scheduled message on disk, without its content."""

    address: str
    device: str
    """Publisher, in the form of `Run.device`."""
    user: str
    """User who is charged for the names that the message creates."""
    size: int
    """Bytes of body, properties and address."""
    queue: bool
    """True when its sender was promised a queue: a topic may keep nothing."""
    received_at: int
    """Arrival in UTC nanoseconds."""
    good: bool
    """True when the clock was known to be right then."""
    wait_ms: int
    """Milliseconds from the arrival to the delivery, by the clock at the arrival."""
    at_ms: int | None = None
    """Time of day of the delivery, as in `DeliveryTime`."""

    @property
    def stamp(self) -> Run:
        """Return a run without messages that has the age of this one."""
        return Run(self.address, self.device, CLOCK_GOOD if self.good else 0, b"", [], self.received_at)

    @property
    def owner(self) -> str:
        """Return who is charged for the room: the user, or without authentication the device."""
        return self.user or self.device


class SchedulableAddresses(Protocol):
    """Part of the router that admission uses."""

    def schedulable_type(self, address: str) -> AddressType | None:
        """Return the type of a queue or topic that clients may send to; None: no message can be scheduled for it."""
        ...

    def schedulable_bytes(self) -> int:
        """Return the bytes that scheduled messages may have; 0 while the store takes no messages."""
        ...


class ScheduleAdmission:
    """Admits messages to one schedule, and counts those that it has."""

    def __init__(self, clock: MessageClock, addresses: SchedulableAddresses, *, supported: bool) -> None:
        """Not `supported`: no message is admitted."""
        self.bytes = 0
        """Bytes of all scheduled messages, without those that their addresses are storing."""
        self._clock = clock
        self._addresses = addresses
        self._supported = supported
        self._messages = 0
        self._used: dict[str, tuple[int, int]] = {}
        """Messages and bytes by owner."""

    def admit(self, run: Run, user: str, wanted: DeliveryTime) -> ScheduledMessage:
        """Return the message to keep. Raises ScheduleRefused."""
        if not self._supported:
            raise ScheduleRefused(ScheduleFault.UNSUPPORTED)
        kind = self._addresses.schedulable_type(run.address)
        if kind is None:
            raise ScheduleRefused(ScheduleFault.ADDRESS)
        if wanted.wait_ms is None:
            raise ScheduleRefused(ScheduleFault.CLOCK)
        ttl_ms = read_header(run.properties).ttl_ms
        if ttl_ms is not None and ttl_ms <= wanted.wait_ms:
            raise ScheduleRefused(ScheduleFault.EXPIRED)
        if wanted.wait_ms > SCHEDULED_AHEAD_MS_MAX:
            raise ScheduleRefused(ScheduleFault.TOO_FAR)
        kept = ScheduledMessage(
            run.address, run.device, user, run.size, kind.is_queue, self._clock.now_ns, self._clock.good,
            wanted.wait_ms, wanted.at_ms,
        )  # fmt: skip
        bytes_max, share = min(SCHEDULED_BYTES_MAX, self._addresses.schedulable_bytes()), SCHEDULED_USER_SHARE
        count, size = self._used.get(kept.owner, (0, 0))
        if (
            self._messages >= SCHEDULED_MESSAGES_MAX
            or count >= SCHEDULED_MESSAGES_MAX // share
            or self.bytes + kept.size > bytes_max
            or size + kept.size > bytes_max // share
        ):
            raise ScheduleRefused(ScheduleFault.NO_ROOM)
        return kept

    def enter(self, kept: ScheduledMessage) -> None:
        """Count an admitted message."""
        self._messages += 1
        self.bytes += kept.size
        count, size = self._used.get(kept.owner, (0, 0))
        self._used[kept.owner] = count + 1, size + kept.size

    def begin_move(self, kept: ScheduledMessage) -> None:
        """Note that its address is about to count the bytes of a message."""
        self.bytes -= kept.size

    def end_move(self, kept: ScheduledMessage) -> None:
        """Count the bytes of a message again: its address has not taken it."""
        self.bytes += kept.size

    def leave(self, kept: ScheduledMessage, *, moved: bool) -> None:
        """Count a message no longer. `moved`: it is at its address, which counts its bytes."""
        self._messages -= 1
        if not moved:
            self.bytes -= kept.size
        count, size = self._used.pop(kept.owner)
        if count > 1:
            self._used[kept.owner] = count - 1, size - kept.size
