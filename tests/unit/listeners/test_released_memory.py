"""Memory of a closed connection is released at once, not when the loop reports its end."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from bridge.transport.driver import ConnectionDriver
from bridge.transport.slow_lane import TURN_S, slow_lane_of
from edge.broker.limits import MIB, Limits
from edge.broker.listeners.admission import Admission, ConnectionMeter
from edge.broker.model.budget import Budget
from edge.broker.mqtt import packets
from edge.broker.mqtt.connection import MqttConnection
from tests.support.talkative import IdleOwner

CONNECT = packets.Connect("c", 5, username="u" * 60_000, password=bytes(60_000)).encode(5)


class Socket(asyncio.Transport):
    """Transport; the test reports its end later."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 1)})
        self.aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize("put_off", [False, True])
def test_partial_connects_of_one_turn_are_released(put_off: bool) -> None:
    """Connections may wait for their turn behind many large reads (`put_off`)."""

    async def scenario() -> None:
        admission = Admission(Limits(), Budget(16 * MIB, "default"), lambda: 0)
        loop = asyncio.get_running_loop()
        drivers: list[ConnectionDriver] = []
        for _ in range(200):
            if put_off:
                slow_lane_of(loop).spend(TURN_S)
            connection = MqttConnection(Limits(), loop.time())
            driver = ConnectionDriver(
                connection, lambda _: IdleOwner(), write_bytes_max=1, meter=ConnectionMeter(admission, 0)
            )
            driver.connection_made(Socket())
            driver.data_received(CONNECT[:-1])
            drivers.append(driver)
            held = sum(each.connection.held_bytes + len(each._put_off) for each in drivers)
            assert held <= admission.budget.unauthenticated.bytes_max, "also of those that are closed"
        assert admission.figures.shed
        assert sum(cast(Socket, each.transport).aborted for each in drivers) == admission.figures.shed
        for each in drivers:
            each.connection_lost(None)
        while slow_lane_of(loop).waiting:  # ends of many connections are reported in turns
            await asyncio.sleep(0)
        assert not admission.budget.gateway.bytes

    asyncio.run(scenario())
