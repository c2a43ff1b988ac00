"""A connection to a Kafka cluster ends all its consumers, even when some of them fail."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from bridge.client_attempt import ConnectorError, ConnectorTraffic
from bridge.connectors.kafka import client as kafka
from bridge.connectors.kafka.cluster import Cluster
from bridge.connectors.messages import Translate
from bridge.connectors.settings import ClientIdentity, KafkaSettings
from bridge.dialer import PeerEndpoint
from bridge.forwarders.inbox import ForwarderInbox

BROKER = PeerEndpoint("127.0.0.1", 9092)
WAIT_S = 10.0


class Consumers:
    """Stub for the library's consumers: each ends once all of them are ending."""

    def __init__(self, *, fails: int | None = None) -> None:
        """Start with the number of the consumer that cannot start in `fails`."""
        self.made = 0
        self.ended = 0
        self._fails = fails
        self._ending = 0
        self._all_ending = asyncio.Event()

    def __call__(self, *_: object) -> Consumers:
        self.made += 1
        return self

    async def start(self) -> None:
        if self.made == self._fails:
            raise ConnectorError("no such broker")

    async def run(self) -> None:
        raise ConnectorError("the brokers are gone")

    async def end(self) -> None:
        self._ending += 1
        if self._ending == self.made:
            self._all_ending.set()
        await self._all_ending.wait()
        self.ended += 1
        if self.ended == 1:
            raise OSError("one that ends badly")


class Carried(ConnectorTraffic):
    """Three incoming forwarders and no outgoing messages."""

    def __init__(self) -> None:
        self.inboxes = [cast("ForwarderInbox", object())] * 3

    def up(self, peer: str) -> None: ...

    async def outgoing(self, messages_max: int, bytes_max: int) -> Any:
        await asyncio.get_running_loop().create_future()


def run(monkeypatch: pytest.MonkeyPatch, fails: int | None) -> tuple[int, int]:
    """Return how many consumers were made and how many ended."""

    async def connect(_cluster: object, _endpoint: PeerEndpoint) -> dict[str, Any]:
        return {}

    async def connection() -> tuple[int, int]:
        consumers = Consumers(fails=fails)
        monkeypatch.setattr(kafka, "KafkaConsumer", consumers)
        monkeypatch.setattr(Cluster, "connect", connect)
        translate = cast("Translate", None)
        client = kafka.KafkaClient(ClientIdentity("gw1"), KafkaSettings(), [BROKER], translate=translate)
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(OSError, match="ends badly"):
                await client.run(BROKER, Carried())
        return consumers.made, consumers.ended

    return asyncio.run(connection())


def test_consumers_end_together_although_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, None) == (3, 3)


def test_started_consumers_end_when_one_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, 2) == (2, 2)
