"""Gateway of a test at a hub: sends given batches and documents, and records their outcomes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from bridge.batch import CAPABILITY, encode
from bridge.engine import Attached, Closed, Condition, DeliveryState, Dispositions, Engine, Link, PeerOpened
from bridge.message import CLOCK_GOOD, Run, Stored
from bridge.plain import data_section
from bridge.sasl import SaslClient
from bridge.transport.driver import ConnectionDriver

EPOCH = "e" * 32
DEADLINE_S = 20.0


class GatewayPeer:
    """Gateway that consists of the AMQP engine alone."""

    def __init__(self, name: str, *, batching: bool = True) -> None:
        self.engine = Engine(container_id=name, server=False, sasl=SaslClient())
        self.engine.open()
        self.batching = batching
        self.links: dict[str, Link] = {}
        self.outcomes: dict[int, DeliveryState] = {}
        self.closed: Condition | None = None
        self.over = False
        self.driver: ConnectionDriver | None = None

    def handle(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, PeerOpened):
                for target in ("telemetry", "status", "ledger"):
                    wanted = (CAPABILITY,) if target == "telemetry" and self.batching else ()
                    self.engine.attach_sender(target, target, desired_capabilities=wanted)
            elif isinstance(event, Attached):
                self.links[event.link.name] = event.link
            elif isinstance(event, Dispositions):
                self.outcomes.update({tag: state for tag, state, _, _ in event.items})
            elif isinstance(event, Closed):
                self.closed, self.over = event.condition, True

    def writable(self) -> None:
        return

    async def connect(self, endpoint: tuple[str, int]) -> GatewayPeer:
        loop = asyncio.get_running_loop()

        def owner(driver: ConnectionDriver) -> GatewayPeer:
            self.driver = driver
            return self

        await loop.create_connection(lambda: ConnectionDriver(self.engine, owner, write_bytes_max=1 << 20), *endpoint)
        await self.until(lambda: len(self.links) == 3 and all(link.credit > 0 for link in self.links.values()))
        return self

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.005)

    def send(self, link: str, tag: int, message: bytes) -> None:
        assert self.driver is not None
        self.engine.send(self.links[link], tag, message)
        self.driver.flush_soon()

    def batch(self, tag: int, address: str, first: int, count: int) -> None:
        run = Run(
            address, "device-1", 1 | CLOCK_GOOD, b"", [b"%d" % s for s in range(first, first + count)], time.time_ns()
        )
        self.send("telemetry", tag, data_section(encode([Stored(-1, first, run)], space="default", epoch=EPOCH)))

    def close(self) -> None:
        assert self.driver is not None
        self.driver.abort()
