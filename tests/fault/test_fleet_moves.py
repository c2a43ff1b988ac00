"""A fleet that loses its hub moves to another one of the registry at once."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.support.certificates import Authority, FleetCertificates
from tests.support.postgres import Postgres
from tests.support.processes import Waypost, cpu_s
from tests.support.uplink_fleet import FleetGateway

MOVED_S: Final = 30.0
"""Longest time from the end of a hub until each of its gateways has an acknowledgement of another one (two cores)."""
START_S: Final = 180.0
LONG: Final = (pytest.mark.slow, pytest.mark.timeout(600))


async def eventually(condition: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


async def move(hubs: list[Waypost], gateways: int, tls: Callable[[str], ssl.SSLContext] | None) -> list[float]:
    """Kill the first hub; return the seconds until each gateway had the next acknowledgement, sorted."""
    first, second = hubs
    ports = [hub.port("amqp") for hub in hubs]
    fleet = [FleetGateway(number, ports, tls) for number in range(gateways)]
    try:
        for gateway in fleet:
            gateway.live.keep(1)
            gateway.dialer.start()
        await eventually(lambda: all(gateway.live.settled == 1 for gateway in fleet), START_S)
        before_s = cpu_s(second.pid)
        await asyncio.to_thread(first.kill)
        began = time.monotonic()
        for gateway in fleet:
            gateway.live.keep(1)
        await eventually(lambda: all(gateway.live.settled == 2 for gateway in fleet), START_S)
        used_s = cpu_s(second.pid) - before_s
        took_s = sorted((gateway.live.served_at or 0.0) - began for gateway in fleet)
    finally:
        await asyncio.gather(*(gateway.dialer.close() for gateway in fleet))
    middle, last = took_s[len(took_s) // 2], took_s[-1]
    print(
        f"{gateways} gateways moved: {middle:.1f} s (median), {last:.1f} s (the last); hub: {used_s:.1f} s of processor"
    )
    return took_s


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("gateways", "encrypted"),
    [(30, True), pytest.param(2_000, False, marks=LONG), pytest.param(2_000, True, marks=LONG)],
)
def test_gateways_move_at_once(tmp_path: Path, postgres: Postgres, gateways: int, encrypted: bool) -> None:
    config, url = tmp_path / "hub.yaml", postgres.url(postgres.schema())
    authority = Authority(tmp_path / "authority") if encrypted else None
    tls = ""
    if authority is not None:
        own = authority.issue("hub")
        tls = f", tls: {{certificate: {own.certificate}, key: {own.key}, clientCa: {authority.certificate}}}"
    config.write_text(f"apiVersion: waypost/v1\nkind: Hub\nspec: {{registry: '{url}'{tls}}}\n")
    with ExitStack() as stack:
        hubs = [
            stack.enter_context(
                Waypost(
                    tmp_path / f"{name}.log", "hub", "run", "--data", str(tmp_path / name), "--dev",
                    "--amqp=127.0.0.1:0", "--http=127.0.0.1:0", f"--lake={tmp_path / 'lake'}", f"--config={config}",
                )
            )
            for name in ("first", "second")
        ]  # fmt: skip
        took_s = asyncio.run(move(hubs, gateways, FleetCertificates(authority).context if authority else None))
    assert gateways < 2_000 or took_s[-1] <= MOVED_S
