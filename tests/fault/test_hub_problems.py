"""A hub reports its problems: a full disk, deliveries that it rejects or quarantines, a log that is not read."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.engine import DeliveryState
from bridge.plain import data_section
from tests.support.gateway_peer import GatewayPeer
from tests.support.http_client import status
from tests.support.medium import Files, Medium
from tests.support.problems import await_problem, await_recovery, health
from tests.support.processes import Waypost, hub
from tests.support.unread_log import unread_log


@pytest.fixture
def medium(tmp_path: Path) -> Iterator[Medium]:
    (tmp_path / "hub").mkdir(mode=0o700)
    with Medium(tmp_path / "hub", folder=tmp_path) as medium:
        yield medium


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_failing_lake_is_reported_and_nothing_is_acknowledged(tmp_path: Path, medium: Medium, fault: str) -> None:
    running = hub(tmp_path)
    running.environment = medium.environment

    async def scenario() -> None:
        client = await GatewayPeer("gw1").connect(running.endpoints["amqp"])
        client.batch(0, "a", 0, 50)
        await client.until(lambda: client.outcomes == {0: DeliveryState.ACCEPTED})
        code = errno.ENOSPC if fault == "full" else errno.EROFS
        medium.fail(Files.ALL, write=code, opening=code)
        client.batch(1, "a", 50, 50)
        await asyncio.to_thread(await_problem, running.port("http"), "landing", "it fails")
        assert client.outcomes == {0: DeliveryState.ACCEPTED}, "nothing is acknowledged"
        medium.heal()
        await client.until(lambda: client.outcomes == {0: DeliveryState.ACCEPTED, 1: DeliveryState.ACCEPTED})
        await asyncio.to_thread(await_recovery, running.port("http"), "landing")
        client.close()

    with running:
        asyncio.run(scenario())


def test_quarantined_delivery_is_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        client = await GatewayPeer("gw1").connect(running.endpoints["amqp"])
        client.send("telemetry", 0, data_section(b"this is no batch"))
        await client.until(lambda: client.outcomes == {0: DeliveryState.ACCEPTED})
        client.close()

    with hub(tmp_path) as running:
        assert health(running.port("http")) == (200, [])
        asyncio.run(scenario())
        await_problem(running.port("http"), "quarantine", severity="warning")


def test_unread_log_stops_no_gateway_and_is_reported(tmp_path: Path) -> None:
    arguments = ("hub", "run", "--data", str(tmp_path / "hub"), "--dev", "--amqp=127.0.0.1:0", "--http=127.0.0.1:0")
    with unread_log(tmp_path / "hub.log") as log, Waypost(log, *arguments) as running:

        async def is_served(number: int) -> None:
            client = await GatewayPeer(f"gateway-{number:03}-{'x' * 150}").connect(running.endpoints["amqp"])
            client.batch(0, "a", 0, 1)
            await client.until(lambda: client.outcomes == {0: DeliveryState.ACCEPTED})
            client.close()

        async def scenario() -> None:
            await asyncio.gather(*map(is_served, range(100)))

        asyncio.run(scenario())
        await_problem(running.port("http"), "log", severity="warning")
        assert status(running)["log"]["stuck_s"] > 0
        assert running.stop() == 0, "the end does not wait for a reader either"
