"""Which gateways are read on while much waits for the disk: those of which little does.

While more waits than `PENDING_BYTES_MAX`, and until half of it has been landed, a gateway is read, and what it sends
is decoded, as far as less than its share waits of it. Shares are alike; they are of those of which anything waits. Who
was read least lately is read on first: what comes of a few may be all there is room for.
What is read of them all the same is bounded too (`PENDING_BYTES_LAST`). It knows no landing: it is told what waits.
How much credit each has meanwhile is `cloud.hub.credit`'s.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from bridge.intake import Intake
from cloud.hub.credit import Shares
from cloud.hub.limits import RATE_AHEAD_S, RATE_LOOK_S_MIN
from cloud.lake.limits import PENDING_BYTES_LAST, PENDING_BYTES_MAX


class Pressure:
    """The connections that may be held back. On the loop's thread."""

    def __init__(self, decoded: Callable[[], int], unread: Callable[[], int]) -> None:
        """Bytes of all gateways that wait: decoded, for the landing, and as they came."""
        self._decoded = decoded
        self._unread = unread
        self._intakes: OrderedDict[Intake, None] = OrderedDict()
        """Those that were read lately come last."""
        self._share_bytes = 0
        self._credit = Shares()
        self.pressed = False

    def add(self, intake: Intake) -> None:
        """A connection is there."""
        self._intakes[intake] = None
        self._credit.add(intake, self._free_bytes)
        self.look_at(intake)

    def remove(self, intake: Intake) -> None:
        """It is gone."""
        self._intakes.pop(intake, None)
        self._credit.remove(intake)

    def has_room(self, intake: Intake) -> bool:
        """More of it may be decoded: always while nothing is, or nothing would ever be landed."""
        decoded = self._decoded()
        if decoded < PENDING_BYTES_MAX:
            return True
        return intake.unsettled[1] <= self._share_bytes and decoded < PENDING_BYTES_MAX + PENDING_BYTES_LAST

    def look_at(self, intake: Intake) -> None:
        """More of this connection waits, or less."""
        if intake in self._intakes:
            self._intakes.move_to_end(intake)
        waiting = self._waiting()
        if self.pressed is (waiting <= (PENDING_BYTES_MAX // 2 if self.pressed else PENDING_BYTES_MAX)):
            self.look()
        elif self.pressed and intake in self._intakes:
            self._hold_back_or_read(intake, everybody=waiting >= PENDING_BYTES_MAX + PENDING_BYTES_LAST)

    def look(self) -> None:
        """What waits of several connections has changed: look at all, where it matters."""
        waiting, before = self._waiting(), self.pressed
        self.pressed = waiting > (PENDING_BYTES_MAX // 2 if before else PENDING_BYTES_MAX)
        if self.pressed:
            count = sum(1 for intake in self._intakes if intake.waiting_bytes)
            self._share_bytes = PENDING_BYTES_MAX // (2 * max(count, 1))
            for intake in self._intakes:
                self._hold_back_or_read(intake, everybody=waiting >= PENDING_BYTES_MAX + PENDING_BYTES_LAST)
        elif before:
            for intake in self._intakes:
                intake.read_on()

    def go_on(self) -> None:
        """Something has been landed: have those take what they have received that have room."""
        self.look()
        for intake in list(self._intakes):
            intake.go_on()
        self._credit.landed(self._intakes, self._free_bytes)

    def _waiting(self) -> int:
        return self._decoded() + self._unread()

    @property
    def _free_bytes(self) -> int:
        return PENDING_BYTES_MAX - self._waiting()

    def _hold_back_or_read(self, intake: Intake, *, everybody: bool) -> None:
        if everybody or intake.waiting_bytes > self._share_bytes:
            intake.hold_back()
        else:
            intake.read_on()


QUOTA: Final = "what its tenant has sent is landed first"
"""Why a connection is not read."""

LOOKS_A_QUOTA: Final = 16
"""Times a tenant's connections are added up while its quota comes in: one may have thousands."""


class TenantPressure:
    """The gateways of one tenant, which are not read while more of them waits than its quota, until half of it does."""

    def __init__(self, bytes_max: int, total: Callable[[], int]) -> None:
        """`total`: bytes of all tenants that wait; while that is less than the quota nothing is added up."""
        self.pressed = False
        self._bytes_max = bytes_max
        self._total = total
        self._looked_at_bytes = 0
        self._intakes: dict[Intake, None] = {}

    def __bool__(self) -> bool:
        """Some of its gateways are there."""
        return bool(self._intakes)

    def add(self, intake: Intake) -> None:
        """A connection is there."""
        self._intakes[intake] = None
        if self.pressed:
            intake.hold_back(QUOTA)

    def remove(self, intake: Intake) -> None:
        """It is gone."""
        self._intakes.pop(intake, None)

    def has_room(self, intake: Intake) -> bool:
        """More of it may be decoded: always while nothing is."""
        return not (self.pressed and intake.unsettled[0])

    def look_at_some(self) -> None:
        """A little more of it waits, or less."""
        total = self._total()
        if total > self._bytes_max and abs(total - self._looked_at_bytes) >= self._bytes_max // LOOKS_A_QUOTA:
            self._looked_at_bytes = total
            self.look()

    def look(self) -> None:
        """What waits of it has changed."""
        waiting = sum(intake.waiting_bytes for intake in self._intakes)
        if self.pressed and waiting <= self._bytes_max // 2:
            self.pressed = False
            for intake in self._intakes:
                intake.read_on(QUOTA)
        elif not self.pressed and waiting > self._bytes_max:
            self.pressed = True
            for intake in self._intakes:
                intake.hold_back(QUOTA)


RATE: Final = "its tenant has sent more than it may in a second"
"""Why a connection is not read."""


class TenantRate:
    """The gateways of one tenant, which are not read while they have sent more than so many bytes a second."""

    def __init__(
        self,
        bytes_per_second: float,
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
        spent: Callable[[], object],
    ) -> None:
        """`clock`: seconds that do not go back; `later` calls a function after so many of them. `spent` is called when
        the gateways are not read any more."""
        self.held = False
        self._rate = bytes_per_second
        self._clock = clock
        self._later = later
        self._spent = spent
        self._left = bytes_per_second * RATE_AHEAD_S
        """Bytes that may come; less than 0: so many have come too early."""
        self._at = clock()
        self._intakes: dict[Intake, None] = {}

    def add(self, intake: Intake) -> None:
        """A connection is there."""
        self._intakes[intake] = None
        if self.held:
            intake.hold_back(RATE)

    def remove(self, intake: Intake) -> None:
        """It is gone."""
        self._intakes.pop(intake, None)

    def took(self, size: int) -> None:
        """So many bytes have come."""
        self._advance()
        self._left -= size
        if self._left < 0 and not self.held:
            self.held = True
            self._spent()
            for intake in self._intakes:
                intake.hold_back(RATE)
            self._wait()

    def _wait(self) -> None:
        self._later(max(-self._left / self._rate, RATE_LOOK_S_MIN), self._look)

    def _look(self) -> None:
        self._advance()
        if self._left < 0:  # what had been read by then has been taken meanwhile
            self._wait()
            return
        self.held = False
        for intake in self._intakes:
            intake.read_on(RATE)

    def _advance(self) -> None:
        now = self._clock()
        self._left = min(self._left + (now - self._at) * self._rate, self._rate * RATE_AHEAD_S)
        self._at = now
