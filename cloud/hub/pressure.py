"""Back-pressure: stop reading the gateways with the most pending data while the disk is behind.

From more than `PENDING_BYTES_MAX` pending bytes until half of that has landed, a gateway is read and its data decoded
only while less than its share of it is pending. Shares are equal among gateways with pending data. Gateways resume in
the order of their last reading, because a few of them may fill the room. Data read in spite of this is bounded too
(`PENDING_BYTES_LAST`). The module does not know the landing; it is called when pending data changes. `cloud.hub.credit`
sets the credit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from bridge.intake import Intake
from cloud.hub.credit import Shares
from cloud.hub.limits import RATE_AHEAD_S, RATE_CHECK_S_MAX, RATE_CHECK_S_MIN
from cloud.lake.limits import PENDING_BYTES_LAST, PENDING_BYTES_MAX


class LandingPressure:
    """Pauses and resumes the connections of a hub. On the loop's thread."""

    def __init__(self, decoded: Callable[[], int], unread: Callable[[], int]) -> None:
        """`decoded` returns the decoded bytes of all gateways that wait for the landing; `unread` those not decoded
        yet."""
        self._decoded = decoded
        self._unread = unread
        self._intakes: OrderedDict[Intake, None] = OrderedDict()
        """Connections in the order of their last reading, the latest last."""
        self._share_bytes = 0
        self._credit = Shares()
        self.pressed = False

    def add(self, intake: Intake) -> None:
        """Add a connection."""
        self._intakes[intake] = None
        self._credit.add(intake, self._free_bytes)
        self.update_for(intake)

    def remove(self, intake: Intake) -> None:
        """Remove a connection."""
        self._intakes.pop(intake, None)
        self._credit.remove(intake)

    def has_room(self, intake: Intake) -> bool:
        """Return whether more of a connection may be decoded; always true while nothing is decoded, so that landing
        continues."""
        decoded = self._decoded()
        if decoded < PENDING_BYTES_MAX:
            return True
        return intake.unsettled[1] <= self._share_bytes and decoded < PENDING_BYTES_MAX + PENDING_BYTES_LAST

    def update_for(self, intake: Intake) -> None:
        """Update after the pending data of one connection changed."""
        if intake in self._intakes:
            self._intakes.move_to_end(intake)
        waiting = self._waiting()
        if self.pressed is (waiting <= (PENDING_BYTES_MAX // 2 if self.pressed else PENDING_BYTES_MAX)):
            self.update()
        elif self.pressed and intake in self._intakes:
            self._pause_or_resume(intake, everyone=waiting >= PENDING_BYTES_MAX + PENDING_BYTES_LAST)

    def update(self) -> None:
        """Update after the pending data of several connections changed."""
        waiting, before = self._waiting(), self.pressed
        self.pressed = waiting > (PENDING_BYTES_MAX // 2 if before else PENDING_BYTES_MAX)
        if self.pressed:
            count = sum(1 for intake in self._intakes if intake.waiting_bytes)
            self._share_bytes = PENDING_BYTES_MAX // (2 * max(count, 1))
            for intake in self._intakes:
                self._pause_or_resume(intake, everyone=waiting >= PENDING_BYTES_MAX + PENDING_BYTES_LAST)
        elif before:
            for intake in self._intakes:
                intake.resume_reading()

    def resume_decoding(self) -> None:
        """Let connections decode their received bytes, after a landing."""
        self.update()
        for intake in list(self._intakes):
            intake.resume_decoding()
        self._credit.landed(self._intakes, self._free_bytes)

    def _waiting(self) -> int:
        return self._decoded() + self._unread()

    @property
    def _free_bytes(self) -> int:
        return PENDING_BYTES_MAX - self._waiting()

    def _pause_or_resume(self, intake: Intake, *, everyone: bool) -> None:
        if everyone or intake.waiting_bytes > self._share_bytes:
            intake.pause_reading()
        else:
            intake.resume_reading()


QUOTA: Final = "earlier messages of its tenant are written to the lake first"
"""Reason shown for a paused connection."""

CHECKS_PER_QUOTA: Final = 16
"""Number of times the connections of a tenant are summed up while its quota fills: it may have thousands."""


class TenantPressure:
    """Pauses the gateways of one tenant while their pending data exceeds the quota, until half of it has landed."""

    def __init__(self, bytes_max: int, total: Callable[[], int]) -> None:
        """`total` returns the pending bytes of all tenants; nothing is summed up while it is below the quota."""
        self.pressed = False
        self._bytes_max = bytes_max
        self._total = total
        self._checked_at_bytes = 0
        self._intakes: dict[Intake, None] = {}

    def __bool__(self) -> bool:
        """True if the tenant has connections."""
        return bool(self._intakes)

    def add(self, intake: Intake) -> None:
        """Add a connection."""
        self._intakes[intake] = None
        if self.pressed:
            intake.pause_reading(QUOTA)

    def remove(self, intake: Intake) -> None:
        """Remove a connection."""
        self._intakes.pop(intake, None)

    def has_room(self, intake: Intake) -> bool:
        """Return whether more of a connection may be decoded; always true while nothing is."""
        return not (self.pressed and intake.unsettled[0])

    def update_some(self) -> None:
        """Update after a change of some pending bytes."""
        total = self._total()
        if total > self._bytes_max and abs(total - self._checked_at_bytes) >= self._bytes_max // CHECKS_PER_QUOTA:
            self._checked_at_bytes = total
            self.update()

    @property
    def waiting_bytes(self) -> int:
        """Pending bytes of the tenant."""
        return sum(intake.waiting_bytes for intake in self._intakes)

    def update(self) -> None:
        """Compare the pending data with the quota, and pause or resume."""
        waiting = self.waiting_bytes
        if self.pressed and waiting <= self._bytes_max // 2:
            self.pressed = False
            for intake in self._intakes:
                intake.resume_reading(QUOTA)
        elif not self.pressed and waiting > self._bytes_max:
            self.pressed = True
            for intake in self._intakes:
                intake.pause_reading(QUOTA)


RATE: Final = "its tenant has sent more than it may in a second"
"""Reason shown for a connection paused by the quota."""


class TenantRate:
    """Pauses the gateways of one tenant while they exceed this hub's share of a rate in bytes a second."""

    def __init__(
        self,
        bytes_per_second: float,
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
        spent: Callable[[], object],
        share: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """`clock`: monotonic seconds; `later` calls a function after some seconds; `spent` is called when the
        gateways are paused; `share` returns this hub's share of the rate now, above 0."""
        self.held = False
        self._whole = bytes_per_second
        self._share = share
        self._clock = clock
        self._later = later
        self._spent = spent
        self._left = self._rate * RATE_AHEAD_S
        """Bytes left; negative when too many arrived."""
        self._at = clock()
        self._intakes: dict[Intake, None] = {}

    @property
    def _rate(self) -> float:
        return self._whole * self._share()

    def add(self, intake: Intake) -> None:
        """Add a connection."""
        self._intakes[intake] = None
        if self.held:
            intake.pause_reading(RATE)

    def remove(self, intake: Intake) -> None:
        """Remove a connection."""
        self._intakes.pop(intake, None)

    def count_received(self, size: int) -> None:
        """Count received bytes."""
        self._advance()
        self._left -= size
        if self._left < 0 and not self.held:
            self.held = True
            self._spent()
            for intake in self._intakes:
                intake.pause_reading(RATE)
            self._wait()

    def _wait(self) -> None:
        wait_s = min(max(-self._left / self._rate, RATE_CHECK_S_MIN), RATE_CHECK_S_MAX)
        self._later(wait_s, self._check_rate)

    def _check_rate(self) -> None:
        self._advance()
        if self._left < 0:  # data that was read before the pause counts too
            self._wait()
            return
        self.held = False
        for intake in self._intakes:
            intake.resume_reading(RATE)

    def _advance(self) -> None:
        now, rate = self._clock(), self._rate
        self._left = min(self._left + (now - self._at) * rate, rate * RATE_AHEAD_S)
        self._at = now
