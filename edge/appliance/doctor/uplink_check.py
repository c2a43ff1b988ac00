"""Check of the way to each peer for the console: clock, name resolution, TCP, TLS, sign-in, each shown as it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import msgspec

from bridge.dialer import PeerEndpoint
from edge.appliance.doctor.check import CheckContext, CheckResult, Level, fail
from edge.appliance.doctor.machine import clock
from edge.appliance.doctor.reach import reach
from edge.appliance.program import as_called
from edge.broker.configuration import Connector
from edge.broker.router.peer_connector import dialed

CLOCK: Final = "clock"
"""Name of the first step, which is about this machine."""
ENDPOINTS_CHECKED_MAX: Final = 16
"""Endpoints of one check, one after another: each takes up to 20 s, and no person waits longer."""


class UplinkStep(msgspec.Struct, kw_only=True):
    """One step of a check."""

    connector: str
    """Empty for a step that is about this machine."""
    endpoint: str
    """``host:port`` of the peer."""
    step: str
    """``clock``, ``name resolution``, ``TCP``, ``TLS`` or ``sign-in``."""
    level: Level
    """``ok``, ``warn`` or ``fail``; the steps behind a failure are not tried."""
    seen: str
    next_step: str
    """Recommended action; empty when none is needed."""


class UplinkCheckReport(msgspec.Struct, kw_only=True):
    """Steps of the latest check. Times are UTC seconds since 1970."""

    running: bool
    started_at: float | None
    """None: there was none since the start of the gateway."""
    ended_at: float | None
    steps: list[UplinkStep]
    """Steps that have ended."""


class UplinkCheck:
    """Checks the peers of a gateway, one check at a time."""

    def __init__(self, context: Callable[[], CheckContext]) -> None:
        """`context` returns the configuration in force."""
        self._context = context
        self._steps: list[UplinkStep] = []
        self._started_at: float | None = None
        self._ended_at: float | None = None
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start a check, unless one is running."""
        if self._running is None:
            self._steps, self._started_at, self._ended_at = [], time.time(), None
            self._running = asyncio.create_task(self._run(self._context()), name="console: uplink check")

    async def stop(self) -> None:
        """End a check that is running."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def report(self) -> UplinkCheckReport:
        """Return the steps that have ended."""
        return UplinkCheckReport(
            running=self._running is not None,
            started_at=self._started_at,
            ended_at=self._ended_at,
            steps=list(self._steps),
        )

    async def _run(self, context: CheckContext) -> None:
        try:
            self._add("", "", CLOCK, next(iter(clock(context))))
            for connector, endpoint in islice(_endpoints(context), ENDPOINTS_CHECKED_MAX):
                await self._reach(context, connector, endpoint)
        finally:
            self._ended_at, self._running = time.time(), None

    async def _reach(self, context: CheckContext, connector: Connector, endpoint: PeerEndpoint) -> None:
        name, place = connector.name, endpoint.authority

        def tell(step: str, result: CheckResult) -> None:
            self._add(name, place, step, result)

        try:
            await reach(context, connector, endpoint, tell)
        except Exception as error:  # the other peers still have to be checked
            what = f"could not be examined: {type(error).__name__}: {error}"
            tell("check", fail(f"uplink {name}", what, "report this"))

    def _add(self, connector: str, endpoint: str, step: str, result: CheckResult) -> None:
        seen, next_step = as_called(result.seen), as_called(result.next_step)
        self._steps.append(
            UplinkStep(
                connector=connector, endpoint=endpoint, step=step, level=result.level, seen=seen, next_step=next_step
            )
        )


def _endpoints(context: CheckContext) -> Iterator[tuple[Connector, PeerEndpoint]]:
    for connector in context.configuration.connectors:
        for endpoint in dialed(connector):
            yield connector, endpoint
