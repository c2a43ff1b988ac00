"""A hub that comes back after an outage, and the whole fleet with it: everybody is served, and nobody starves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import pytest

from bridge.backoff import Backoff
from bridge.dialer import Dialer, Endpoint
from bridge.engine import Engine
from bridge.gateway_link import GatewayLink, bind_shell
from bridge.message import Run, Stored
from bridge.plain import Hop
from bridge.reports import Reports
from bridge.socket_attempt import SocketAttempt
from bridge.uplink import Outcomes, Uplink
from edge.broker.router.uplinks import BACKOFF, UPLINK_LIMITS
from tests.support.processes import free_port, hub

SERVED_S: Final = 60.0
"""Within which all of a fleet is served once its hub is back."""
LEFT: Final = 200
"""Messages that each gateway has kept meanwhile."""


class Gateway:
    """One gateway's uplink with its dialer, and a forwarder's place in a log behind it."""

    def __init__(self, number: int, port: int) -> None:
        self.name = f"gw{number:04d}"
        self.settled = 0
        self.served_at: float | None = None
        """When the first of what it kept was accepted."""
        self._end = self._next = 0
        self._body = b'{"temperature": 21.5, "gateway": %d}' % number
        self.uplink = Uplink(
            self.name,
            Hop(self.name, f"{number:032x}"),
            space="default",
            outcomes=Outcomes("accepted", "rejected"),
            clock=asyncio.get_running_loop().time,
            limits=UPLINK_LIMITS,
        )
        self.uplink.backlog.add(self)
        reports = Reports()
        self.dialer = Dialer(
            [Endpoint("127.0.0.1", port)],
            lambda dialer, endpoint: SocketAttempt(
                dialer,
                endpoint,
                GatewayLink(Engine(container_id=self.name, server=False), self.uplink, reports),
                lambda shell: bind_shell(self.uplink, reports, shell),
            ),
            backoff=Backoff(BACKOFF, Random(number).random),
        )

    def keep(self, messages: int) -> None:
        """So many more are in its store."""
        self._end += messages
        self.served_at = None
        self.pump()

    def pump(self) -> None:
        while (credit := self.uplink.backlog.credit) and self._next < self._end:
            count = min(credit, self._end - self._next)
            run = Run("plant/1", self.name, 1, b"", [self._body] * count, 1_763_845_200_000_000_000)
            first, self._next = self._next, self._next + count
            self.uplink.backlog.deliver(self, Stored(first, first, run))

    def settle(self, _consumer: object, first: int, last: int, outcome: object) -> None:
        assert outcome == "accepted"
        assert first == self.settled, "out of order"
        self.settled = last + 1
        self.served_at = self.served_at or time.monotonic()


async def _eventually(condition: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


async def _return(folder: Path, gateways: int) -> list[float]:
    """Seconds from the hub's return until each gateway was served, in their order."""
    serving = hub(folder, f"--amqp=127.0.0.1:{free_port()}")
    with serving:
        fleet = [Gateway(number, serving.port("amqp")) for number in range(gateways)]
        try:
            for gateway in fleet:
                gateway.keep(1)
                gateway.dialer.start()
            await _eventually(lambda: all(gateway.settled == 1 for gateway in fleet), 2 * SERVED_S)
            serving.kill()
            await _eventually(lambda: not any(gateway.uplink.connected for gateway in fleet), SERVED_S)
            for gateway in fleet:
                gateway.keep(LEFT)
            await asyncio.to_thread(serving.start)
            begin = time.monotonic()
            await _eventually(lambda: all(gateway.settled == 1 + LEFT for gateway in fleet), 2 * SERVED_S)
            return [(gateway.served_at or 0.0) - begin for gateway in fleet]
        finally:
            await asyncio.gather(*(gateway.dialer.close() for gateway in fleet))


@pytest.mark.parametrize("gateways", [60, pytest.param(1_000, marks=pytest.mark.slow)])
def test_a_fleet_that_comes_back_at_once_is_served_and_nobody_starves(tmp_path: Path, gateways: int) -> None:
    served = sorted(asyncio.run(_return(tmp_path, gateways)))
    middle, last = served[len(served) // 2], served[-1]
    print(f"{gateways} gateways: served after {middle:.1f} s (median), {last:.1f} s (the last)")
    assert last <= SERVED_S
