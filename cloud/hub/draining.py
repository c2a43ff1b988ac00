"""Drain of a hub that stops while others serve: it closes its connections in slices, not all at once.

The hub first stops reading from each slice, so that what it has sent lands and is answered. Then it closes the slice,
with a hint when to connect again. So a fleet spreads over the drain, and over the handshakes of the other hubs.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

from bridge.intake import Intake
from bridge.transport.driver import ConnectionDriver
from cloud.hub.limits import DRAIN_RECONNECTS_PER_S, DRAIN_SETTLE_S, DRAIN_SLICE_MIN, DRAIN_SLICE_S
from edge.broker.amqp.session import AmqpSession


class DrainedConnection(Protocol):
    """Connection to close."""

    @property
    def idle(self) -> bool:
        """True when everything that arrived over it is answered, and when it has ended."""
        ...

    def pause(self) -> None:
        """Stop reading from it."""
        ...

    def close(self, reconnect_after_s: float) -> None:
        """Close it, with the hint to connect again after this time."""
        ...


DRAINING: Final = "the hub stops, and others serve"
"""Reason for paused reads and closed connections."""


class DrainedGateway:
    """Connection of a gateway."""

    def __init__(self, driver: ConnectionDriver, intake: Intake) -> None:
        self._driver = driver
        self._intake = intake

    @property
    def idle(self) -> bool:
        return not self._intake.waiting_bytes

    def pause(self) -> None:
        self._driver.pause_reading(DRAINING)

    def close(self, reconnect_after_s: float) -> None:
        self._intake.close("amqp:connection:forced", DRAINING, reconnect_after_s)
        self._driver.resume_reading(DRAINING)  # the answer to the close; everything else is ignored


class DrainedApplication:
    """Connection of an application: what it has sent is answered by the store at once."""

    idle: Final = True

    def __init__(self, session: AmqpSession) -> None:
        self._session = session

    def pause(self) -> None:
        """Do nothing: it is closed next."""

    def close(self, reconnect_after_s: float) -> None:
        self._session.shut_down()


def drained(drivers: Iterable[ConnectionDriver]) -> list[DrainedConnection]:
    """Return the connections of gateways and applications among these."""
    found: list[DrainedConnection] = []
    for driver in drivers:
        if isinstance(driver.owner, Intake):
            found.append(DrainedGateway(driver, driver.owner))
        elif isinstance(driver.owner, AmqpSession):
            found.append(DrainedApplication(driver.owner))
    return found


class HubDrain:
    """Closes connections within a time."""

    def __init__(
        self,
        seconds: float,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`seconds`: maximum time; `clock`: monotonic seconds; `chance` returns a number from 0 to 1."""
        self._seconds: Final = seconds
        self._clock = clock
        self._sleep = sleep
        self._chance = chance

    async def run(self, connections: Sequence[DrainedConnection]) -> None:
        """Close these connections."""
        began, count = self._clock(), len(connections)
        turns = max(1, int((self._seconds - DRAIN_SETTLE_S) / DRAIN_SLICE_S))
        size = max(DRAIN_SLICE_MIN, math.ceil(count / turns))
        waiting = deque(connections)
        paused: deque[tuple[DrainedConnection, float]] = deque()
        while (waiting or paused) and self._clock() - began < self._seconds:
            now = self._clock()
            for connection in [waiting.popleft() for _ in range(min(size, len(waiting)))]:
                connection.pause()
                paused.append((connection, now))
            await self._sleep(DRAIN_SLICE_S)
            paused = self._close_idle(paused, size)
        self._close_idle(
            deque((connection, -math.inf) for connection in (*waiting, *(each for each, _ in paused))), size
        )

    def _close_idle(
        self, paused: deque[tuple[DrainedConnection, float]], size: int
    ) -> deque[tuple[DrainedConnection, float]]:
        """Close those that are idle or have been paused for long; return the others."""
        spread_s = max(len(paused), size) / DRAIN_RECONNECTS_PER_S
        late, left = self._clock() - DRAIN_SETTLE_S, deque[tuple[DrainedConnection, float]]()
        for connection, since in paused:
            if connection.idle or since <= late:
                connection.close(self._chance() * spread_s)
            else:
                left.append((connection, since))
        return left
