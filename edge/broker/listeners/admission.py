"""Limit connections and their memory, and close connections to make room.

A connection counts against its remote address until the peer has authenticated, then against its user. When the memory
limit is exceeded, the largest holder is closed: the user that holds most, of that the address, of that the connection.
An authenticated connection that holds no memory is never closed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator

import msgspec

from bridge.transport.driver import ConnectionDriver
from bridge.transport.lingering import lingering_of
from edge.broker.limits import (
    FEW_CONNECTIONS_SHARE,
    LINKS_HELD_BYTES_MAX,
    PACKETS_HELD_MAX,
    RESERVED_CONNECTIONS_SHARE,
    SHED_S,
    TRIM_GROWTH_BYTES,
    Limits,
)
from edge.broker.listeners.relief import NO_MEMORY, PoolRelief, TimeSlices, nearly_full_at
from edge.broker.listeners.resident_memory import ResidentMemory, resident_bytes
from edge.broker.model.budget import Budget, MemoryAccount, SpacePool
from edge.broker.model.remote import remote_of

log = logging.getLogger(__name__)


class AdmissionFigures(msgspec.Struct):
    """Counters since the start."""

    shed: int = 0
    """Connections closed because of the memory limit."""
    shed_bytes: int = 0
    """Memory that they held."""
    displaced: int = 0
    """Unauthenticated connections closed to make room for others."""
    refused: int = 0
    """Connections refused at the connection limit of their user or address."""


class Admission:
    """Counts the connections of a broker and closes connections at its limits. Create it inside a running loop."""

    def __init__(self, limits: Limits, budget: Budget, resident: Callable[[], int] = resident_bytes) -> None:
        """`resident` returns the resident memory of the process in bytes."""
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
        self._reliefs = {budget.space: PoolRelief(budget.space, self._shed_soon)}
        self._chosen: dict[ConnectionDriver, SpacePool] = {}
        """Pools of connections that have chosen their address space and are not authenticated yet."""
        self._shedding: dict[MemoryAccount, Iterator[None]] = {}
        """Accounts above their limit; each step of the iterator closes a connection."""
        self._slices = TimeSlices(self._loop)
        self._sheds = False
        """A connection is being closed, which may count memory of others."""
        self._last_shed = ""
        self._logged = AdmissionFigures()
        """Counters at the last log line."""
        self._most_held = 0
        """Largest bytes held in a tick since the last trim of the heap."""
        self._left = False
        """Connections have ended since the last tick."""

    # --- room for another connection ----------------------------------------------------------------------------

    @property
    def lets_in(self) -> bool:
        """True while the process does not exceed its memory limit."""
        return not self.resident.exceeded

    def has_slot(self, connections: int) -> bool:
        """Return True if another connection fits in addition to `connections`. Close lingering sockets to make room."""
        free = self._connections_max - connections
        self._lingering.keep_at_most(free - 1)
        return free > 0 and self.lets_in

    def make_room(self) -> bool:
        """Close the oldest unauthenticated connection of the address with the most, if it has more than one.

        Return False without one. A client that authenticates at once is rarely the oldest.
        """
        most = self.budget.unauthenticated.most_connections()
        if most is None or most.connections <= 1:
            return False
        oldest: ConnectionDriver = next(iter(most.holders))
        self.figures.displaced += 1
        self.forget(oldest)
        oldest.shed(explain=False)
        return True

    def begin(self, driver: ConnectionDriver, cost_bytes: int) -> None:
        """Count a new unauthenticated connection. `cost_bytes`: its memory while idle."""
        account = self.budget.unauthenticated_at(remote_of(driver.address))
        driver.charge(account)
        account.join()
        self.hold(driver, cost_bytes)

    def add_space(self, name: str) -> SpacePool:
        """Add an address space; return the pool that counts its connections."""
        pool = self.budget.add_space(name)
        self._reliefs[pool] = PoolRelief(pool, self._shed_soon)
        return pool

    def remove_space(self, pool: SpacePool) -> None:
        """Remove an address space, after the end of its connections."""
        self._reliefs.pop(pool).stop()
        self._shedding.pop(pool, None)
        self.budget.remove_space(pool)

    def choose(self, driver: ConnectionDriver, pool: SpacePool) -> None:
        """Count the connection in this pool once its client is authenticated; by default it is that of the gateway's
        own space."""
        if driver.account is not None:
            self._chosen[driver] = pool

    def identify(self, driver: ConnectionDriver, user: str) -> bool:
        """Count the connection for its user. Return False at a connection limit.

        The last free places are for users and addresses with few connections.
        """
        before: MemoryAccount | None = driver.account
        if before is None:
            return False  # it was closed to make room
        pool = self._chosen.pop(driver, self.budget.space)
        if pool not in self._reliefs:
            return False  # its space was removed
        account = pool.user_at(user, before.name)
        places, few = self._places // len(self._reliefs), max(self._few // len(self._reliefs), 1)
        if pool.connections >= places and account.connections >= few:
            self.figures.refused += 1
            account.close_when_empty()
            return False
        before.hold(driver, 0)
        before.leave()
        driver.charge(account)
        account.join()
        self.hold(driver, driver.held_bytes)
        self.identified += 1
        return driver.account is not None  # it may have been closed as the largest

    def hold(self, driver: ConnectionDriver, held_bytes: int) -> None:
        """Update the memory that a connection holds."""
        account: MemoryAccount | None = driver.account
        if account is None:
            return
        account.hold(driver, held_bytes)
        if held_bytes > self._connection_bytes_max:
            self._shed(driver)
        exceeded = account.exceeded()
        if exceeded is not None:
            self._shed_soon(exceeded, nearly_full_at(exceeded))
            self._shed_until(exceeded, exceeded.bytes_max)
        elif (relief := self._relief_of(account)) is not None:
            relief.check_soon()

    def forget(self, driver: ConnectionDriver) -> None:
        """Stop counting a connection; at most its socket is left."""
        account: MemoryAccount | None = driver.account
        if account is not None:
            self._left = True
            driver.charge(None)
            self._chosen.pop(driver, None)
            if (relief := self._relief_of(account)) is not None:
                relief.forget(driver)
            account.hold(driver, 0)
            account.leave()

    # --- making room --------------------------------------------------------------------------------------------

    def tick(self, drivers: Callable[[], Iterable[ConnectionDriver]]) -> None:
        """Update the unsent bytes of connections and the memory of the process.

        If the process exceeds its limit, update all connections and close some.
        """
        for relief in list(self._reliefs.values()):
            if relief.needed:
                relief.run()
        held = self.budget.gateway.bytes
        self._most_held = max(self._most_held, held)
        freed = self._most_held - held >= TRIM_GROWTH_BYTES or self.figures != self._logged
        left, self._left = self._left, False
        if self.resident.update(self._loop.time(), freed=freed, left=left):
            self._most_held = held
        if self.resident.exceeded:
            self._slices.start(self._count_all(list(drivers())))
        self._log_figures()

    def _log_figures(self) -> None:
        """Log closed and refused connections since the last line."""
        now, before = self.figures, self._logged
        if now == before:
            return
        log.warning(
            "limits reached: closed %d connections with most memory (%d bytes%s), %d unauthenticated; refused %d",
            now.shed - before.shed,
            now.shed_bytes - before.shed_bytes,
            f"; the last: {self._last_shed}" if now.shed > before.shed else "",
            now.displaced - before.displaced,
            now.refused - before.refused,
        )
        self._logged = msgspec.structs.replace(now)

    def _shed_soon(self, account: MemoryAccount, bytes_max: int) -> None:
        """Close connections with the most memory until the account holds at most `bytes_max`.

        It runs in the next turns of the loop, in time slices.
        """
        if account not in self._shedding:
            if not self._shedding:
                self._loop.call_soon(self._shed_slice)
            self._shedding[account] = self._each_shed(account, bytes_max)

    def _shed_until(self, account: MemoryAccount, bytes_max: int) -> None:
        """Close connections at once until the account holds at most `bytes_max`."""
        if self._sheds:
            return
        for _ in self._shedding[account]:
            if account.bytes <= bytes_max:
                break

    def _shed_slice(self) -> None:
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
                self._loop.call_soon(self._shed_slice)

    def _each_shed(self, account: MemoryAccount, bytes_max: int) -> Iterator[None]:
        while account.bytes > bytes_max:
            greediest = account.largest_holder()
            enough = greediest.bytes // 2  # then the largest holder is determined again
            for driver, held in greediest.by_size():
                if account.bytes <= bytes_max or greediest.bytes < enough:
                    break
                if greediest.holders.get(driver, 0) > held // 2:  # it has not released memory in the meantime
                    self._shed(driver)
                    yield

    def _relief_of(self, account: MemoryAccount) -> PoolRelief | None:
        """Return the relief of the pool that an account belongs to; None before the client is authenticated."""
        above: MemoryAccount | None = account
        while above is not None:
            if isinstance(above, SpacePool):
                return self._reliefs.get(above)
            above = above.parent
        return None

    def _count_all(self, drivers: list[ConnectionDriver]) -> Iterator[None]:
        """Update all connections, then release half the memory of the largest pool."""
        for driver in drivers:
            driver.count()
            yield
        pool = max(*self.budget.spaces, self.budget.unauthenticated, key=_bytes_of)
        self._shed_soon(pool, pool.bytes // 2)

    def _shed(self, driver: ConnectionDriver) -> None:
        account: MemoryAccount | None = driver.account
        if account is None:
            return  # it has ended
        held = account.holders.get(driver, 0)
        self._last_shed = f"{driver.peername} held {held}"
        self.figures.shed += 1
        self.figures.shed_bytes += held
        unknown = account.parent is self.budget.unauthenticated
        before, self._sheds = self._sheds, True
        try:
            self.forget(driver)
            driver.resume_reading(NO_MEMORY)  # else the end of the peer's stream would not be seen
            driver.shed(explain=not unknown)  # an unauthenticated peer gets no error
        finally:
            self._sheds = before


class ConnectionMeter:
    """Meter of the connections of one listener (`bridge.transport.driver.MemoryMeter`)."""

    __slots__ = ("_admission", "_cost_bytes")

    def __init__(self, admission: Admission, cost_bytes: int) -> None:
        """`cost_bytes`: memory of an idle connection."""
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


def _bytes_of(account: MemoryAccount) -> int:
    return account.bytes
