"""A space on an event loop: each turn with input gets one flush, and none is missed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from bridge.message import DURABLE, Run
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import Refusal
from edge.broker.router.batch import Publication
from edge.broker.space import Space
from edge.broker.store.sqlite import open_store
from tests.support.router_site import SilentOrigin

QUEUES = AddressTable([AddressRule("queue/#", AddressType.QUEUE)])
DEADLINE_S = 30


class Sender(SilentOrigin):
    """Sender that publishes at the end of a turn, as the lanes of MQTT do, and remembers accepted messages."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self.waiting: list[int] = []
        self.calls = 0
        self.taken: list[int] = []
        self.answered = asyncio.Event()

    def arrived(self, token: int) -> None:
        self.waiting.append(token)
        self._space.router.flush_soon()

    def publish(self) -> None:
        self.calls += 1
        tokens, self.waiting = self.waiting, []
        for token in tokens:
            self._space.router.publish(
                Publication(self, Run("queue/jobs", "device", DURABLE | 1, b"", [b"body"]), [token])
            )

    def count_flows(self) -> None:
        """Do nothing: no message is counted here."""

    def forget_routes(self) -> None:
        """Do nothing: the sender uses no route."""

    def accepted(self, tokens: Sequence[int]) -> None:
        self.taken += tokens
        self.answered.set()

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        raise AssertionError(f"refused: {why}")


class FailingSender(Sender):
    """Sender that raises in its first call."""

    def publish(self) -> None:
        if not self.calls:
            self.calls += 1
            raise ValueError("unexpected")
        super().publish()


class CountingSpace(Space):
    """Space that counts the flushes of the loop."""

    flushes = 0

    def _flush(self) -> None:
        self.flushes += 1
        super()._flush()


def test_message_published_during_a_flush_is_in_it(tmp_path: Path) -> None:
    asyncio.run(published_in_a_flush(tmp_path))


async def published_in_a_flush(tmp_path: Path) -> None:
    store = open_store(tmp_path, post=asyncio.get_running_loop().call_soon_threadsafe)
    space = CountingSpace(store, QUEUES, list)
    try:
        sender = Sender(space)
        space.router.add_source(sender)
        for token in range(3):
            sender.answered.clear()
            calls = sender.calls
            sender.arrived(token)
            await asyncio.sleep(0)
            assert sender.calls == calls + 1, "a flush asks once for what was collected"
            assert (space.flushes, store.commits.committing) == (token + 1, True)
            await asyncio.wait_for(sender.answered.wait(), DEADLINE_S)
            for _ in range(3):
                await asyncio.sleep(0)
            assert space.flushes == token + 1
        assert sender.taken == [0, 1, 2]
    finally:
        space.stop()
        store.close()


def test_flush_follows_a_failed_one(tmp_path: Path) -> None:
    asyncio.run(failed_flush(tmp_path))


async def failed_flush(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _loop, context: failures.append(context["exception"]))
    store = open_store(tmp_path, post=loop.call_soon_threadsafe)
    space = Space(store, QUEUES, list)
    try:
        sender = FailingSender(space)
        space.router.add_source(sender)
        sender.arrived(1)
        await asyncio.sleep(0)
        assert [type(failure) for failure in failures] == [ValueError]
        sender.arrived(2)
        await asyncio.wait_for(sender.answered.wait(), DEADLINE_S)
        assert sender.taken == [1, 2]
    finally:
        space.stop()
        store.close()
