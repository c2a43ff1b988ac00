"""A hub that returns after an outage serves the whole fleet, and no gateway starves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest

from bridge.amqp_connection import AmqpConnection
from bridge.backoff import Backoff
from bridge.dialer import Dialer, PeerEndpoint
from bridge.engine import Engine
from bridge.flow import Outcomes, SendFlow
from bridge.hub_links import HubLinks
from bridge.message import Run, Stored
from bridge.plain import Hop
from bridge.reports import Reports
from bridge.socket_attempt import SocketAttempt
from bridge.uplink import Uplink
from edge.broker.router.connector_uplink import BACKOFF, UPLINK_LIMITS
from tests.support.processes import free_port, hub

SERVED_S: Final = 60.0
"""Time until the whole fleet is served after the hub's return."""
DRAINED_S: Final = 300.0


class Place:
    """Position of a forwarder in a log, behind one lane of an uplink."""

    def __init__(self, flow: SendFlow, gateway: str, address: str) -> None:
        self.settled = 0
        self.served_at: float | None = None
        """Time at which the first of the last kept messages was accepted."""
        self._flow = flow
        self._gateway = gateway
        self._address = address
        self._end = self._next = 0
        flow.add(self)

    def keep(self, messages: int) -> None:
        """Add this many messages to its log."""
        self._end += messages
        self.served_at = None
        self.pump()

    def pump(self) -> None:
        while (credit := self._flow.credit) and self._next < self._end:
            count = min(credit, self._end - self._next)
            bodies = [b'{"temperature": 21.5, "gateway": "%s"}' % self._gateway.encode()] * count
            run = Run(self._address, self._gateway, 1, b"", bodies, 1_763_845_200_000_000_000)
            first, self._next = self._next, self._next + count
            self._flow.deliver(self, [Stored(first, first, run)])

    def settle(self, _consumer: object, first: int, last: int, outcome: object) -> None:
        assert outcome == "accepted"
        assert first == self.settled, "out of order"
        self.settled = last + 1
        self.served_at = self.served_at or time.monotonic()


class Gateway:
    """Uplink of one gateway with its dialer, its backlog and its measurements."""

    def __init__(self, number: int, port: int) -> None:
        self.name = f"gw{number:04d}"
        self.uplink = Uplink(
            self.name,
            Hop(self.name, f"{number:032x}"),
            space="default",
            outcomes=Outcomes("accepted", "rejected"),
            clock=asyncio.get_running_loop().time,
            limits=UPLINK_LIMITS,
        )
        self.kept = Place(self.uplink.backlog, self.name, "plant/1")
        self.live = Place(self.uplink.live, self.name, "plant/2")
        reports = Reports()
        self.dialer = Dialer(
            [PeerEndpoint("127.0.0.1", port)],
            lambda dialer, endpoint: SocketAttempt(
                dialer,
                endpoint,
                AmqpConnection(Engine(container_id=self.name, server=False), HubLinks(self.uplink, reports)),
            ),
            backoff=Backoff(BACKOFF, Random(number).random),
        )


async def _eventually(condition: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


class Served(NamedTuple):
    """Seconds from the hub's return to the first acceptance of each gateway, sorted."""

    kept: list[float]
    live: list[float]
    drained: float
    """Seconds until the whole backlog was accepted."""


async def _return(folder: Path, gateways: int, left: int) -> Served:
    """Kill a hub with this many gateways and this many messages each, restart it, and measure."""
    serving = hub(folder, f"--amqp=127.0.0.1:{free_port()}")
    with serving:
        fleet = [Gateway(number, serving.port("amqp")) for number in range(gateways)]
        try:
            for gateway in fleet:
                gateway.kept.keep(1)
                gateway.dialer.start()
            await _eventually(lambda: all(gateway.kept.settled == 1 for gateway in fleet), 2 * SERVED_S)
            serving.kill()
            await _eventually(lambda: not any(gateway.uplink.connected for gateway in fleet), SERVED_S)
            for gateway in fleet:
                gateway.kept.keep(left)
                gateway.live.keep(1)
            await asyncio.to_thread(serving.start)
            begin = time.monotonic()
            await _eventually(lambda: all(gateway.live.settled == 1 for gateway in fleet), 2 * SERVED_S)
            await _eventually(lambda: all(gateway.kept.settled == 1 + left for gateway in fleet), DRAINED_S)
            drained = time.monotonic() - begin
            kept, live = ([(place.served_at or 0.0) - begin for place in places] for places in _places(fleet))
            return Served(sorted(kept), sorted(live), drained)
        finally:
            await asyncio.gather(*(gateway.dialer.close() for gateway in fleet))


def _places(fleet: Sequence[Gateway]) -> tuple[list[Place], list[Place]]:
    return [gateway.kept for gateway in fleet], [gateway.live for gateway in fleet]


@pytest.mark.parametrize(
    ("gateways", "left"),
    [(60, 200), pytest.param(1_000, 2_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_returning_fleet_is_served_without_starvation(tmp_path: Path, gateways: int, left: int) -> None:
    served = asyncio.run(_return(tmp_path, gateways, left))
    for name, each in (("live", served.live), ("kept", served.kept)):
        print(f"{gateways} gateways, {name}: after {each[len(each) // 2]:.1f} s (median), {each[-1]:.1f} s (the last)")
    print(f"all of {gateways * left:,} after {served.drained:.1f} s")
    assert served.live[-1] <= SERVED_S
    assert served.kept[-1] <= SERVED_S
