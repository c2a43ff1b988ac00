"""Memory of a whole hub for each connected gateway, with TLS and without: ``-m slow -s`` shows the figures."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.support.certificates import Authority, FleetCertificates
from tests.support.loop_wait import until
from tests.support.processes import Waypost, resident_mib
from tests.support.uplink_fleet import FleetGateway

STEPS: Final = (200, 1_000, 2_000)
"""Connected gateways at each measurement; before the first one the hub has loaded what it needs for any."""
START_S: Final = 300.0
MESSAGES: Final = 3
"""Messages that each gateway sends one after the other, each in a landing."""
KIB_MAX: Final = {True: 180.0, False: 110.0}
"""Highest memory of a gateway in KiB, with TLS and without: twice what was measured."""


async def connect(hub: Waypost, tls: Callable[[str], ssl.SSLContext] | None) -> list[float]:
    """Connect gateways in steps; return the memory of the hub in MiB after each."""
    fleet: list[FleetGateway] = []
    found = list[float]()
    try:
        for count in STEPS:
            more = [FleetGateway(number, [hub.port("amqp")], tls) for number in range(len(fleet), count)]
            fleet += more
            for gateway in more:
                gateway.live.keep(1)
                gateway.dialer.start()
            for sent in range(1, MESSAGES + 1):
                await settled(more, sent)
                for gateway in more:
                    gateway.live.keep(1 if sent < MESSAGES else 0)
            found.append(resident_mib(hub.pid))
    finally:
        await asyncio.gather(*(gateway.dialer.close() for gateway in fleet))
    return found


async def settled(gateways: Sequence[FleetGateway], count: int) -> None:
    """Wait until each gateway has an acknowledgement of so many messages."""
    what = f"{count} messages of each gateway are acknowledged"
    await until(lambda: all(gateway.live.settled == count for gateway in gateways), what, timeout_s=START_S)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("encrypted", [True, False], ids=["tls", "plain"])
def test_memory_of_a_hub_for_each_connected_gateway(tmp_path: Path, *, encrypted: bool) -> None:
    config, authority, tls = tmp_path / "hub.yaml", Authority(tmp_path / "authority") if encrypted else None, ""
    if authority is not None:
        own = authority.issue("hub")
        tls = f"tls: {{certificate: {own.certificate}, key: {own.key}, clientCa: {authority.certificate}}}"
    config.write_text(f"apiVersion: waypost/v1\nkind: Hub\nspec: {{{tls}}}\n")
    options = ("--dev", "--amqp=127.0.0.1:0", "--http=127.0.0.1:0", f"--config={config}")
    with Waypost(tmp_path / "hub.log", "hub", "run", "--data", str(tmp_path / "hub"), *options) as hub:
        idle = resident_mib(hub.pid)
        found = asyncio.run(connect(hub, FleetCertificates(authority).context if authority else None))
    kib_each = (found[-1] - found[0]) * 1024 / (STEPS[-1] - STEPS[0])
    steps = ", ".join(f"{count}: {mib:.0f} MiB" for count, mib in zip(STEPS, found, strict=True))
    print(f"a hub without gateways: {idle:.0f} MiB; with {steps}; {kib_each:.1f} KiB each")
    assert kib_each <= KIB_MAX[encrypted]
