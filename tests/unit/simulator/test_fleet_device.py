"""A simulated device at a gateway that breaks connections, refuses logins or does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from simulator import device as device_module
from simulator import mqtt_link
from simulator.device import FleetDevice, FleetDevicePlan, SimulationPace
from simulator.kinds import CommandAnswers, DeviceGroup, LinkBreaks, SimulatedSensor
from simulator.links import DeviceLinkFault, LinkLogin, LinkLost, LinkPlace
from simulator.mqtt_link import MqttLink
from simulator.running import SimulationRun
from simulator.summary import failure, group_row, totals
from simulator.tally import DeviceTally
from tests.unit.simulator.fake_gateway import FakeGateway


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "RETRY_S", 0.01)
    monkeypatch.setattr(device_module, "RETRY_S_MAX", 0.02)


def plan_of(place: LinkPlace, **more: Any) -> FleetDevicePlan:
    sensors = (SimulatedSensor(name="celsius", base=21.0),)
    group = DeviceGroup(name="a", count=1, **{"interval": 0.002, "sensors": sensors, **more})
    login = LinkLogin("a-00001")
    return FleetDevicePlan(group, login, "plant/a-00001/t", place, 7, link_breaks=group.link is not None)


async def until(condition: Any) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


async def lived(plan: FleetDevicePlan, condition: Any) -> DeviceTally:
    """Let a device live until a condition of its counts holds, then end it in order."""
    tally = DeviceTally()
    device = FleetDevice(plan, tally, SimulationPace())
    running = asyncio.create_task(device.run())
    try:
        await until(lambda: condition(tally) or running.done())
        device.stop()
        async with asyncio.timeout(20):
            await running
    finally:
        running.cancel()
    return tally


def test_order_is_kept_over_broken_connections() -> None:
    async def main() -> None:
        gateway = FakeGateway(break_after=[3, 0, 5])
        async with gateway.serving() as place:
            tally = await lived(plan_of(place), lambda tally: tally.acknowledged >= 20)
        numbers = list(gateway.numbers())
        assert list(dict.fromkeys(numbers)) == sorted(set(numbers)) == list(range(tally.published))
        assert (tally.acknowledged, tally.waiting, tally.dropped) == (tally.published, 0, 0)
        assert tally.repeated == 2  # one of them twice
        assert tally.errors == {DeviceLinkFault.CLOSED.value: 3}
        assert (tally.connected, tally.known) == (0, 1)
        assert tally.latency.bucket_counts().total() == tally.acknowledged

    asyncio.run(main())


def test_link_breaks_of_the_simulation_are_no_errors() -> None:
    async def main() -> None:
        async with FakeGateway().serving() as place:
            plan = plan_of(place, link=LinkBreaks(share=1.0, up=0.02, down=0.01))
            tally = await lived(plan, lambda tally: tally.breaks >= 3)
        assert not tally.errors
        assert tally.waiting == 0

    asyncio.run(main())


def test_full_buffer_drops_the_oldest() -> None:
    async def main() -> None:
        gateway = FakeGateway(code=3)
        async with gateway.serving() as place:
            tally = DeviceTally()
            device = FleetDevice(plan_of(place, buffer=5), tally, SimulationPace())
            running = asyncio.create_task(device.run())
            await until(lambda: tally.dropped >= 3)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert tally.waiting == 5
        assert set(tally.errors) == {DeviceLinkFault.BUSY.value}

    asyncio.run(main())


def test_commands_are_answered() -> None:
    async def main() -> None:
        gateway = FakeGateway()
        gateway.command = b'{"id": "7"}'
        async with gateway.serving() as place:
            answers = CommandAnswers(delay=0.0)
            tally = await lived(plan_of(place, commands=answers), lambda tally: tally.commands)
        found = [document for topic, document in gateway.published if topic == "command-response/a-00001"]
        assert found == [{"status": 200, "id": "7"}]
        assert tally.commands == 1

    asyncio.run(main())


@pytest.mark.parametrize(("code", "fault"), [
    (5, DeviceLinkFault.LOGIN_REFUSED), (4, DeviceLinkFault.LOGIN_REFUSED), (3, DeviceLinkFault.BUSY),
])  # fmt: skip
def test_refused_login_has_its_reason(code: int, fault: DeviceLinkFault) -> None:
    async def main() -> None:
        async with FakeGateway(code=code).serving() as place:
            with pytest.raises(LinkLost) as lost:
                await MqttLink.open(place, LinkLogin("a", "u", "p"), lambda *_: None)
        assert lost.value.fault is fault

    asyncio.run(main())


def test_missing_answer_and_missing_gateway_have_their_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt_link, "ANSWER_S", 0.05)

    async def main() -> None:
        async with FakeGateway(silent=True).serving() as place:
            link = await MqttLink.open(place, LinkLogin("a"), lambda *_: None)
            with pytest.raises(LinkLost) as lost:
                await link.publish("t", b"{}")
            assert lost.value.fault is DeviceLinkFault.NO_ANSWER
            await link.ended
        with pytest.raises(LinkLost) as lost:
            await MqttLink.open(place, LinkLogin("a"), lambda *_: None)
        assert lost.value.fault is DeviceLinkFault.UNREACHABLE

    asyncio.run(main())


def test_run_ends_in_order_with_a_summary() -> None:
    async def main() -> SimulationRun:
        async with FakeGateway().serving() as place:
            plan = plan_of(place)
            plans = [plan._replace(login=LinkLogin(f"a-{number}"), seed=number) for number in range(5)]
            run = SimulationRun(plans, SimulationPace(), 0.0)
            await run.run(0.3, 20.0, lambda: None)
            return run

    run = asyncio.run(main())
    assert failure(run) is None
    row, total = group_row(run, run.groups[0]), totals(run, 1)
    assert row["connected"] == total["connected"] == 5
    assert row["readings"] == row["acknowledged"] == total["acknowledged"] > 5
    assert total["p99_ms"] >= total["p50_ms"] > 0


def test_run_without_a_gateway_fails_with_the_reason() -> None:
    async def main() -> SimulationRun:
        run = SimulationRun([plan_of(LinkPlace("127.0.0.1", 1))], SimulationPace(), 0.0)
        await run.run(0.1, 0.1, lambda: None)
        return run

    error = failure(asyncio.run(main()))
    assert error is not None
    assert (error.error, error.exit_code) == ("unreachable", 3)
