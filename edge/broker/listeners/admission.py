"""Which connections there is room for, and which of them end to make room.

A connection is counted with those of its remote address until its peer has said who it is, then with its user's. Where
more is held than there is room for, who holds most gives it back: of the pool the greediest user, of that the greediest
address, of that the greediest connection. Nobody is ended who holds nothing and has said who it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from bridge.transport.driver import ConnectionDriver
from bridge.transport.lingering import lingering_of
from edge.broker.limits import (
    FEW_CONNECTIONS_SHARE,
    LINKS_HELD_BYTES_MAX,
    LOOK_S,
    PACKETS_HELD_MAX,
    RESERVED_CONNECTIONS_SHARE,
    SHED_S,
    STRAINED_LOOK_S,
    STRAINED_S_MAX,
    STRAINED_SHARE,
    TRIM_GROWTH_BYTES,
    Limits,
)
from edge.broker.listeners.resident import ResidentMemory, resident_bytes
from edge.broker.model.budget import Budget, MemoryAccount
from edge.broker.model.remote import remote_of

log = logging.getLogger(__name__)

NO_MEMORY: Final = "others have to complete what they have begun"


class AdmissionFigures(msgspec.Struct):
    """Counted since the start."""

    shed: int = 0
    """Connections closed as they held more than there was room for."""
    shed_bytes: int = 0
    """What they held."""
    displaced: int = 0
    """Connections closed whose peers had not said who they are, to make room for others."""
    refused: int = 0
    """Connections refused: no place for another of this user from this address."""


class Admission:
    """Counts the connections of a broker, and closes those there is no room for. Made inside a running loop."""

    def __init__(self, limits: Limits, budget: Budget, resident: Callable[[], int] = resident_bytes) -> None:
        """`resident` gives the bytes of memory the process takes."""
        self.budget = budget
        self.resident = ResidentMemory(limits.memory_bytes_max, resident)
        self.figures = AdmissionFigures()
        self._loop = asyncio.get_running_loop()
        self._connection_bytes_max = max(PACKETS_HELD_MAX * limits.packet_bytes_max, LINKS_HELD_BYTES_MAX)
        self._connections_max = limits.connections_max
        self._lingering = lingering_of(self._loop)
        self._places = limits.connections_max - limits.connections_max // RESERVED_CONNECTIONS_SHARE
        self._few = max(limits.connections_max // FEW_CONNECTIONS_SHARE, 1)
        self.identified = 0
        """Connections that have authenticated, or need not, since the start."""
        self._relief: asyncio.TimerHandle | None = None
        self._strained_since: float | None = None
        self._paused: set[ConnectionDriver] = set()
        self._shedding: dict[MemoryAccount, Iterator[None]] = {}
        """What is to give back more than it has yet: with each step another connection is closed."""
        self._looking: Iterator[None] | None = None
        """Looks at what connections hold: with each step at another."""
        self._sheds = False
        """One is being closed, and what its end brings about may be counted meanwhile."""
        self._last_shed = ""
        self._told = AdmissionFigures()
        """As of the last tick."""
        self._most_held = 0
        """Bytes held at most in any tick since the allocator was asked to give back what was held."""
        self._left = False
        """Connections have ended since the last tick."""

    # --- room for another connection --------------------------------------------------------------------------

    @property
    def lets_in(self) -> bool:
        """True while a new connection needs no other one to go: not while the process takes more than it may."""
        return not self.resident.exceeded

    def has_place(self, connections: int) -> bool:
        """Return whether another connection fits beyond `connections`. Lingering sockets are closed to make room."""
        free = self._connections_max - connections
        self._lingering.keep_at_most(free - 1)
        return free > 0 and self.lets_in

    def make_room(self) -> bool:
        """End the oldest connection of the address with most that have not said who they are, where it has more than
        one; False when there is none such. Whoever logs in at once is not the oldest for long."""
        most = self.budget.unauthenticated.most_connections()
        if most is None or most.connections <= 1:
            return False
        oldest: ConnectionDriver = next(iter(most.holders))
        self.figures.displaced += 1
        self.forget(oldest)
        oldest.shed(told=False)
        return True

    def begin(self, driver: ConnectionDriver, cost_bytes: int) -> None:
        """A connection whose peer is not known, and what it costs while it does nothing."""
        account = self.budget.unauthenticated_at(remote_of(driver.address))
        driver.charge(account)
        account.join()
        self.hold(driver, cost_bytes)

    def identify(self, driver: ConnectionDriver, user: str) -> bool:
        """The peer is this user. False when it cannot stay: the last places are for users and addresses with few."""
        before: MemoryAccount | None = driver.account
        if before is None:
            return False  # it was ended to make room
        account = self.budget.user_at(user, before.name)
        if self.budget.space.connections >= self._places and account.connections >= self._few:
            self.figures.refused += 1
            account.close_when_empty()
            return False
        before.hold(driver, 0)
        before.leave()
        driver.charge(account)
        account.join()
        self.hold(driver, driver.held_bytes)
        self.identified += 1
        return driver.account is not None  # it may have been the greediest

    def hold(self, driver: ConnectionDriver, held_bytes: int) -> None:
        """It holds so much now."""
        account: MemoryAccount | None = driver.account
        if account is None:
            return
        account.hold(driver, held_bytes)
        if held_bytes > self._connection_bytes_max:
            self._shed(driver)
        exceeded = account.exceeded()
        if exceeded is not None:
            self._shed_soon(exceeded, _strained_at(exceeded))
            self._shed_until(exceeded, exceeded.bytes_max)
        elif self._relief is None and self._strained:
            self._relief = self._loop.call_later(STRAINED_LOOK_S, self._relieve)

    def forget(self, driver: ConnectionDriver) -> None:
        """It counts no more; what may be left of it is its socket."""
        account: MemoryAccount | None = driver.account
        if account is not None:
            self._left = True
            driver.charge(None)
            self._paused.discard(driver)
            account.hold(driver, 0)
            account.leave()

    # --- making room ------------------------------------------------------------------------------------------

    def tick(self, drivers: Callable[[], Iterable[ConnectionDriver]]) -> None:
        """Look at what connections hold unsent, which changes without them, and at what the process takes in all; when
        that is too much, at every connection."""
        if self.budget.space.bytes or self._paused:
            self._relieve()
        held = self.budget.gateway.bytes
        self._most_held = max(self._most_held, held)
        freed = self._most_held - held >= TRIM_GROWTH_BYTES or self.figures != self._told
        left, self._left = self._left, False
        if self.resident.look(self._loop.time(), freed=freed, left=left):
            self._most_held = held
        if self.resident.exceeded:
            self._look(self._look_at_everybody(list(drivers())))
        self._tell()

    def _tell(self) -> None:
        """One line for all that happened since the last."""
        now, before = self.figures, self._told
        if now == before:
            return
        log.warning(
            "no room: closed %d connections that held most (%d bytes%s), %d that had not said who they are; refused %d",
            now.shed - before.shed,
            now.shed_bytes - before.shed_bytes,
            f"; the last: {self._last_shed}" if now.shed > before.shed else "",
            now.displaced - before.displaced,
            now.refused - before.refused,
        )
        self._told = msgspec.structs.replace(now)

    def _shed_soon(self, account: MemoryAccount, bytes_max: int) -> None:
        """End connections, where most is held first, until the account holds no more than this: in the next turns of
        the loop, a slice of time each."""
        if account not in self._shedding:
            if not self._shedding:
                self._loop.call_soon(self._shed_a_slice)
            self._shedding[account] = self._each_shed(account, bytes_max)

    def _shed_until(self, account: MemoryAccount, bytes_max: int) -> None:
        """Do so now until it holds no more than this."""
        if self._sheds:
            return
        for _ in self._shedding[account]:
            if account.bytes <= bytes_max:
                break

    def _shed_a_slice(self) -> None:
        until = time.monotonic() + SHED_S
        try:
            while self._shedding:
                account, steps = next(iter(self._shedding.items()))
                for _ in steps:
                    if time.monotonic() > until:
                        return
                del self._shedding[account]
        finally:
            if self._shedding:
                self._loop.call_soon(self._shed_a_slice)

    def _each_shed(self, account: MemoryAccount, bytes_max: int) -> Iterator[None]:
        while account.bytes > bytes_max:
            greediest = account.greediest()
            enough = greediest.bytes // 2  # then it is looked again who is the greediest
            for driver, held in greediest.by_size():
                if account.bytes <= bytes_max or greediest.bytes < enough:
                    break
                if greediest.holders.get(driver, 0) > held // 2:  # it has not given back meanwhile
                    self._shed(driver)
                    yield

    @property
    def _strained(self) -> bool:
        space = self.budget.space
        return space.bytes > _strained_at(space)

    def _relieve(self) -> None:
        if self._relief is not None:
            self._relief.cancel()
            self._relief = None
        self._look(self._look_at_holders())

    def _look(self, steps: Iterator[None]) -> None:
        """Take these steps, a slice of time in each turn of the loop, unless others are being taken."""
        if self._looking is None:
            self._looking = steps
            self._look_a_slice()

    def _look_a_slice(self) -> None:
        until = time.monotonic() + LOOK_S
        steps, self._looking = self._looking, None
        for _ in steps or ():
            if time.monotonic() > until:
                self._looking = steps
                self._loop.call_soon(self._look_a_slice)
                return

    def _look_at_everybody(self, drivers: list[ConnectionDriver]) -> Iterator[None]:
        """The process takes too much: give back half of what is held most of."""
        for driver in drivers:
            driver.count()
            yield
        pool = max(self.budget.space, self.budget.unauthenticated, key=_bytes_of)
        self._shed_soon(pool, pool.bytes // 2)

    def _look_at_holders(self) -> Iterator[None]:
        for driver in list(self.budget.space.all_holders()):
            driver.count()
            yield
        if self._strained:
            yield from self._wait_for_the_greediest()
            return
        self._strained_since = None
        while self._paused and not self._strained:
            self._paused.pop().resume_reading(NO_MEMORY)
            yield

    def _wait_for_the_greediest(self) -> Iterator[None]:
        """Where most is held read only the connection that holds most, until it has completed what it began; not for
        ever."""
        space, now = self.budget.space, self._loop.time()
        if self._strained_since is None:
            self._strained_since = now
        elif now - self._strained_since > STRAINED_S_MAX:
            self._strained_since = now
            self._shed_soon(space, _strained_at(space))
            return
        goes_on, *others = space.greediest().greediest_first()
        self._paused.discard(goes_on)
        goes_on.resume_reading(NO_MEMORY)
        for driver in others:
            if driver.account is not None and driver not in self._paused:  # it may have gone meanwhile
                driver.pause_reading(NO_MEMORY)
                self._paused.add(driver)
                yield

    def _shed(self, driver: ConnectionDriver) -> None:
        account: MemoryAccount | None = driver.account
        if account is None:
            return  # gone meanwhile
        held = account.holders.get(driver, 0)
        self._last_shed = f"{driver.peername} held {held}"
        self.figures.shed += 1
        self.figures.shed_bytes += held
        unknown = account.parent is self.budget.unauthenticated
        before, self._sheds = self._sheds, True
        try:
            self.forget(driver)
            driver.resume_reading(NO_MEMORY)  # or the end of its half would not be seen
            driver.shed(told=not unknown)  # there is nothing to say to whom has not said in which words
        finally:
            self._sheds = before


class ConnectionMeter:
    """The `bridge.transport.driver.MemoryMeter` of the connections of one listener."""

    __slots__ = ("_admission", "_cost_bytes")

    def __init__(self, admission: Admission, cost_bytes: int) -> None:
        """`cost_bytes`: of a connection that does nothing."""
        self._admission = admission
        self._cost_bytes = cost_bytes

    def begun(self, driver: ConnectionDriver) -> None:
        self._admission.begin(driver, self._cost_bytes)

    def identified(self, driver: ConnectionDriver, user: str) -> bool:
        return self._admission.identify(driver, user)

    def held(self, driver: ConnectionDriver, held_bytes: int) -> None:
        admission = self._admission
        if driver.account is not None and driver.account.parent is admission.budget.unauthenticated:
            held_bytes += self._cost_bytes
        admission.hold(driver, held_bytes)

    def ended(self, driver: ConnectionDriver) -> None:
        self._admission.forget(driver)


def _strained_at(account: MemoryAccount) -> int:
    return account.bytes_max - account.bytes_max // STRAINED_SHARE


def _bytes_of(account: MemoryAccount) -> int:
    return account.bytes
