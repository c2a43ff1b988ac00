"""Run of a comparison: sessions at both brokers, the retained messages now and then, and a guard against loops.

Each part runs until the comparison ends, and opens its session again after a break. It publishes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from bridge.client_attempt import ConnectorError
from bridge.connectors.mqtt.packets import PublishReceived
from edge.appliance.shadow.address_comparison import ComparedBroker
from edge.appliance.shadow.broker_session import BRIDGE_STATES, FAILURES, BrokerAccess, session_at
from edge.appliance.shadow.limits import (
    KEEP_ALIVE_S,
    RECONNECT_S,
    REPORT_EVERY_S,
    RETAINED_AGAIN_S,
    RETAINED_EVERY_S,
)
from edge.appliance.shadow.report import ProblemInReport, ShadowReport, addresses_in_report, gaps_in_report
from edge.appliance.shadow.retained_comparison import RetainedReading, RetainedState, compare_retained
from edge.appliance.shadow.retained_reading import read_retained
from edge.appliance.shadow.traffic_comparison import TrafficComparison

DROPPED: Final = "$SYS/broker/publish/messages/dropped"
"""Messages that Mosquitto dropped for slow subscribers."""
EXPIRE_EVERY_S: Final = 0.5


class MirrorControl(Protocol):
    """Mirror of the running gateway. Its methods block."""

    def is_connected(self) -> bool | None:
        """Return True while the mirror is connected; None if that is not known."""
        ...

    def pause(self) -> None:
        """Pause the mirror; messages wait in its session at the old broker. Raises CommandError."""
        ...


class ComparedBrokers(NamedTuple):
    """Both brokers and what is compared."""

    old: BrokerAccess
    here: BrokerAccess
    filters: Sequence[str]
    qos: int
    allowed_bridges: Sequence[str] = ()
    """Names of bridges that may connect to the gateway."""

    def access(self, broker: ComparedBroker) -> BrokerAccess:
        """Return the way to a broker."""
        return self.old if broker is ComparedBroker.OLD else self.here


class ComparisonRun:
    """Comparison of two brokers."""

    def __init__(
        self, brokers: ComparedBrokers, mirror: MirrorControl, patience_s: float, write: Callable[[ShadowReport], None]
    ) -> None:
        """`write` stores the report."""
        self._brokers = brokers
        self._mirror = mirror
        self._write = write
        self._traffic = TrafficComparison(patience_s)
        self._retained: dict[str, RetainedState] = {}
        self._retained_at: float | None = None
        self._retained_further = 0
        self._problems: dict[str, ProblemInReport] = {}
        self._dropped: int | None = None
        self._started = time.time()
        self._paused = False

    async def run(self, seconds: float | None) -> ShadowReport:
        """Compare for this time; None: until the task is cancelled. Return the last report."""
        tasks = [
            asyncio.ensure_future(each)
            for each in (
                *(self._follow(broker) for broker in ComparedBroker),
                self._watch_signs(ComparedBroker.OLD, DROPPED),
                self._watch_signs(ComparedBroker.HERE, BRIDGE_STATES),
                self._compare_retained(),
                self._watch_mirror(),
                self._judge(),
            )
        ]
        try:
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            pass  # the operator ends it
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for each in ended:
            if isinstance(each, Exception):
                raise each
        self._traffic.expire(time.time())
        self._traffic.end()
        report = self.report(running=False)
        self._write(report)
        return report

    def report(self, *, running: bool) -> ShadowReport:
        """Return the result until now."""
        return ShadowReport(
            started=self._started,
            at=time.time(),
            running=running,
            filters=list(self._brokers.filters),
            addresses=addresses_in_report(self._traffic, self._retained),
            further=self._traffic.further,
            gaps=gaps_in_report(self._traffic.gaps),
            gaps_further=self._traffic.gaps_further,
            retained_at=self._retained_at,
            retained_further=self._retained_further,
            problems=list(self._problems.values()),
        )

    # --- parts ------------------------------------------------------------------------------------------------

    async def _follow(self, broker: ComparedBroker) -> None:
        """Give the messages of a broker to the comparison."""
        access, name = self._brokers.access(broker), f"shadow-{broker.name.lower()}-not-seen"
        while True:
            try:
                async with session_at(access) as session:
                    refused = await session.subscribe(self._brokers.filters, qos=self._brokers.qos, retained=False)
                    if refused:
                        raise ConnectorError(f"it refuses a subscription to {refused[0]}: check our rights there")
                    self._traffic.up(broker, time.time())
                    self._problems.pop(name, None)
                    while True:
                        async with asyncio.timeout(KEEP_ALIVE_S):
                            taken = await session.read()
                        now = time.time()
                        for each in taken:
                            if session.is_wanted(each):
                                payload = each.payload if isinstance(each, PublishReceived) else b""
                                self._traffic.arrived(broker, each.topic, payload, now)
                        session.acknowledge(taken)
                        await asyncio.sleep(0)
            except FAILURES as error:
                why = str(error) or "no answer in time"
                self._traffic.down(broker, time.time(), why)
                self._note(name, "error", f"the {broker.name.lower()} broker is not seen: {why}",
                           "nothing is compared until it is back")  # fmt: skip
            await asyncio.sleep(RECONNECT_S)

    async def _watch_signs(self, broker: ComparedBroker, topic: str) -> None:
        """Read a topic of the broker about itself. One that has none, or does not permit it, has no such sign."""
        access = self._brokers.access(broker).named("-signs")
        while True:
            try:
                async with session_at(access) as session:
                    await session.subscribe([topic], qos=0, retained=True)
                    while True:
                        async with asyncio.timeout(KEEP_ALIVE_S):
                            taken = await session.read()
                        for each in taken:
                            if isinstance(each, PublishReceived):
                                await self._sign(broker, each.topic, each.payload)
            except FAILURES:
                await asyncio.sleep(RECONNECT_S)

    async def _sign(self, broker: ComparedBroker, topic: str, payload: bytes) -> None:
        if broker is ComparedBroker.HERE:
            bridge = topic.split("/")[3]
            if payload == b"1" and bridge not in self._brokers.allowed_bridges:
                await self._stop_mirror(f"bridge {bridge} of another broker is connected to this gateway")
        elif payload.isdigit():
            before, self._dropped = self._dropped, int(payload[:18])
            if before is not None and self._dropped > before:
                self._note("shadow-old-broker-drops", "warning",
                           f"the old broker dropped {self._dropped - before:,} messages for a slow subscriber",
                           "if it was the mirror, they are missing: set max_queued_messages 0 there")  # fmt: skip

    async def _compare_retained(self) -> None:
        old, here = (self._brokers.access(each).named("-retained") for each in ComparedBroker)
        filters = self._brokers.filters
        while True:
            try:
                first = await asyncio.gather(*(read_retained(each, filters) for each in (old, here)))
                await asyncio.sleep(RETAINED_AGAIN_S)
                second = await asyncio.gather(*(read_retained(each, filters) for each in (old, here)))
                readings = [RetainedReading(*(each.digests for each in found)) for found in (first, second)]
                self._retained = compare_retained(*readings)
                self._retained_at, self._retained_further = time.time(), sum(each.further for each in second)
            except FAILURES:
                pass  # the problem is noted by `_follow`
            await asyncio.sleep(RETAINED_EVERY_S)

    async def _watch_mirror(self) -> None:
        while True:
            connected = await asyncio.to_thread(self._mirror.is_connected)
            if connected is False:
                self._traffic.hold(time.time())
                if not self._paused:
                    self._note("shadow-mirror-down", "warning", "the mirror is not connected to the old broker",
                               "its messages wait there: waypost bridge status shows the reason")  # fmt: skip
            elif connected:
                self._problems.pop("shadow-mirror-down", None)
            await asyncio.sleep(1)

    async def _judge(self) -> None:
        written = 0.0
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            now = time.time()
            self._traffic.expire(now)
            looping = next(self._traffic.looping(now), None)
            if looping is not None:
                await self._stop_mirror(f"the same message comes to {looping} again and again")
            if time.monotonic() - written > REPORT_EVERY_S:
                await asyncio.to_thread(self._write, self.report(running=True))
                written = time.monotonic()

    # --- inside -----------------------------------------------------------------------------------------------

    async def _stop_mirror(self, why: str) -> None:
        """Pause the mirror once: messages may go in circles."""
        if self._paused:
            return
        self._paused = True
        self._note("shadow-loop", "error", f"{why}; the mirror is paused, as messages could go in circles",
                   "remove the bridge, then: waypost bridge resume shadow; or allow it: --allow-bridge")  # fmt: skip
        await asyncio.to_thread(self._mirror.pause)

    def _note(self, name: str, severity: str, what: str, following: str) -> None:
        self._problems[name] = ProblemInReport(name, severity, what, following)
