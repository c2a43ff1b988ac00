"""Hubs of one registry are replaced one after the other by the next version and back, under load of a fleet.

Hubs of both versions serve together. ``./waypost test tests/fault/test_upgraded_hubs.py -m slow -s``
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from cloud.hub.registry.schema import SCHEMA_VERSION
from tests.demo.ports import free_ports
from tests.support.command import PROGRAM
from tests.support.lake import read_columns
from tests.support.newer_hub import COLUMN, NEWER_HUB
from tests.support.postgres import Postgres
from tests.support.processes import Waypost
from tests.support.uplink_fleet import FleetGateway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HUBS: Final = 3
GATEWAYS: Final = 200
PAUSE_S: Final = 0.5
"""Time between an acknowledgement and the next message of a gateway."""
LOOK_S: Final = 0.02
"""Time between two looks at all gateways."""
STEADY_S: Final = 5.0
"""Load before and after each change of the version."""
DRAIN_S: Final = 5
ACKNOWLEDGED_WITHIN_S: Final = 10.0
"""99th percentile of the time until a message is acknowledged, also across a change of the hub."""
END_S: Final = 60.0


class FleetLoad:
    """Lets each gateway send one message after the other."""

    def __init__(self, ports: Sequence[int]) -> None:
        """`ports`: of the hubs, which gateways prefer in turn."""
        self.took_s: list[float] = []
        turns = [[*ports[turn:], *ports[:turn]] for turn in range(len(ports))]
        self.gateways = [FleetGateway(number, turns[number % len(turns)]) for number in range(GATEWAYS)]
        self.made = [0] * GATEWAYS
        self._since_s = [0.0] * GATEWAYS
        self._next_s = [time.monotonic()] * GATEWAYS
        self._stopping = False

    async def run(self) -> None:
        """Send until `stop`; return when everything is acknowledged."""
        for gateway in self.gateways:
            gateway.dialer.start()
        async with asyncio.timeout(None) as limit:
            while not self._look():
                if self._stopping and limit.when() is None:
                    limit.reschedule(asyncio.get_running_loop().time() + END_S)
                await asyncio.sleep(LOOK_S)
        await asyncio.gather(*(gateway.dialer.close() for gateway in self.gateways))

    def stop(self) -> None:
        """Send no further message."""
        self._stopping = True

    def _look(self) -> bool:
        """Record acknowledgements, and send what is due; return True if nothing is to come."""
        now, waiting = time.monotonic(), False
        for number, gateway in enumerate(self.gateways):
            if gateway.live.settled < self.made[number]:
                waiting = True
                continue
            if self._since_s[number]:
                self.took_s.append((gateway.live.served_at or now) - self._since_s[number])
                self._since_s[number], self._next_s[number] = 0.0, now + PAUSE_S
            if not self._stopping and now >= self._next_s[number]:
                self.made[number] += 1
                self._since_s[number] = now
                gateway.live.keep(1)
        return self._stopping and not waiting


async def replace(hubs: Sequence[Waypost], program: Sequence[str]) -> None:
    """Stop each hub in order, and start it with another version."""
    for hub in hubs:
        assert await asyncio.to_thread(hub.stop) == 0
        hub.arguments[: len(PROGRAM)] = program
        await asyncio.to_thread(hub.start)


async def under_load(hubs: Sequence[Waypost], changes: Sequence[Callable[[], Awaitable[None]]]) -> FleetLoad:
    load = FleetLoad([hub.port("amqp") for hub in hubs])
    running = asyncio.create_task(load.run())
    for change in changes:
        await asyncio.sleep(STEADY_S)
        await change()
        assert not running.done()
    await asyncio.sleep(STEADY_S)
    load.stop()
    await running
    return load


@pytest.fixture
def schema(postgres: Postgres) -> str:
    return postgres.schema()


@pytest.fixture
def hubs(tmp_path: Path, postgres: Postgres, schema: str) -> Iterator[list[Waypost]]:
    config = tmp_path / "hub.yaml"
    spec = f"{{registry: '{postgres.url(schema)}', gatherMilliseconds: 200, drainSeconds: {DRAIN_S}}}"
    config.write_text(f"apiVersion: waypost/v1\nkind: Hub\nspec: {spec}\n")
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                Waypost(
                    tmp_path / f"hub{number}.log", "hub", "run", "--data", str(tmp_path / f"hub{number}"), "--dev",
                    f"--amqp=127.0.0.1:{port}", "--http=127.0.0.1:0", f"--lake={tmp_path / 'lake'}",
                    f"--config={config}",
                )
            )
            for number, port in enumerate(free_ports(HUBS))
        ]  # fmt: skip


def test_next_version_and_the_way_back_lose_nothing_and_land_nothing_twice(
    hubs: list[Waypost], tmp_path: Path, postgres: Postgres, schema: str
) -> None:
    def versions() -> list[int]:
        return [row[0] for row in postgres.execute("SELECT version FROM schema_version", schema=schema)]

    async def update() -> None:
        await replace(hubs, NEWER_HUB)
        assert versions() == [SCHEMA_VERSION + 1]
        postgres.execute(f"SELECT {COLUMN} FROM gateways LIMIT 1", schema=schema)

    async def go_back() -> None:
        """Serve a registry of the next version with this one."""
        await replace(hubs, PROGRAM)
        assert versions() == [SCHEMA_VERSION + 1]

    load = asyncio.run(under_load(hubs, [update, go_back]))
    landed = Counter(read_columns(tmp_path / "lake", "telemetry", "gateway", "sequence"))
    made = {
        (gateway.name, sequence)
        for gateway, count in zip(load.gateways, load.made, strict=True)
        for sequence in range(count)
    }
    took_s = sorted(load.took_s)
    p99_s = took_s[int(len(took_s) * 0.99)]
    print(
        f"{GATEWAYS} gateways, {len(made)} messages: acknowledged after {took_s[len(took_s) // 2]:.2f} s (median), "
        f"{p99_s:.2f} s (99 %), {took_s[-1]:.2f} s (all)"
    )
    assert {name: times for name, times in landed.items() if times > 1} == {}
    assert set(landed) == made
    assert p99_s < ACKNOWLEDGED_WITHIN_S
