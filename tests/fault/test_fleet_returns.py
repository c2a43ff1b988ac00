"""A hub that returns after an outage serves the whole fleet, and no gateway starves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.processes import free_port, hub
from tests.support.uplink_fleet import FleetGateway, UplinkPlace

SERVED_S: Final = 60.0
"""Time until the whole fleet is served after the hub's return."""
DRAINED_S: Final = 300.0


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
        fleet = [FleetGateway(number, [serving.port("amqp")]) for number in range(gateways)]
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


def _places(fleet: Sequence[FleetGateway]) -> tuple[list[UplinkPlace], list[UplinkPlace]]:
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
