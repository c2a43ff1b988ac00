"""Kafka topic in memory: transactions, positions, and fencing of earlier producers as brokers do it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from cloud.hub.tap.landed_log import TapPosition
from cloud.hub.tap.message import TappedMessage
from cloud.hub.tap.topic import TopicFault, TopicTaken

STEPS = ("opened", "began", "sent", "committing", "committed")
"""Steps at which a connection may break; ``committing``: before the brokers commit, ``committed``: after that."""


class MemoryBrokers:
    """Brokers of one topic."""

    def __init__(self) -> None:
        self.records: list[TappedMessage] = []
        """Records of committed transactions."""
        self.position: TapPosition | None = None
        self.producers = 0
        """Number of the newest producer."""
        self.failing: list[str] = []
        """Steps that fail next, once each."""
        self.away = False
        self.steps: dict[str, Callable[[], Awaitable[None]]] = {}
        """Called once at a step, before it fails or goes on."""
        self.changed = asyncio.Event()

    async def step(self, name: str) -> None:
        if (hook := self.steps.pop(name, None)) is not None:
            await hook()
        if self.away:
            raise TopicFault("no broker answers")
        if self.failing and self.failing[0] == name:
            self.failing.pop(0)
            raise TopicFault(f"the connection broke: {name}")


class MemoryTopic:
    """Connection to `MemoryBrokers`, implements `cloud.hub.tap.topic.TapTopic`."""

    def __init__(self, brokers: MemoryBrokers) -> None:
        self._brokers = brokers
        self._producer = 0
        self._sent: list[TappedMessage] = []

    async def open(self) -> TapPosition | None:
        await self._brokers.step("opened")
        self._brokers.producers += 1
        self._producer = self._brokers.producers
        return self._brokers.position

    async def begin(self) -> None:
        await self._brokers.step("began")
        self._sent = []

    async def send(self, messages: Sequence[TappedMessage]) -> None:
        await self._brokers.step("sent")
        self._require_newest()
        self._sent += messages

    async def commit(self, position: TapPosition) -> None:
        await self._brokers.step("committing")
        self._require_newest()
        self._brokers.records += self._sent
        self._brokers.position = position
        self._brokers.changed.set()
        await self._brokers.step("committed")

    async def close(self) -> None:
        self._producer = 0

    def _require_newest(self) -> None:
        if self._producer != self._brokers.producers:
            raise TopicTaken
