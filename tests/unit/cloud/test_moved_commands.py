"""Commands that follow their devices leave also when the change before was stored elsewhere, and without a notice."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import count
from pathlib import Path

import pytest

from cloud.hub.commands.dispatch import Dispatch
from cloud.hub.commands.service import HubCommands
from cloud.hub.registry.commands import CommandNews, CommandRecord, Commands, CommandState
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.notices import ChangeHint, NoticedChanges
from cloud.hub.registry.opening import open_registry
from cloud.lake.faults import RegistryError
from tests.support.loop_wait import until
from tests.unit.cloud.command_line import StubLine
from tests.unit.cloud.other_hub import OtherHub, draft


class _CountedHint(ChangeHint):
    """Hint that counts the looks of the hub."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    async def wait(self, interval_s: float) -> NoticedChanges:
        self.looks += 1
        return await super().wait(interval_s)

    async def wait_for_looks(self, count: int) -> None:
        """Wait until the hub has looked at the registry this often, from the begin to the end."""
        wanted = self.looks + count + 1
        await until(lambda: self.looks >= wanted, "the hub has looked at the registry")


async def _tell(_news: CommandNews, _command: CommandRecord) -> None:
    """Publish to no application."""


def test_changes_of_another_hub_let_commands_leave(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "registry.db")

    async def follow(other: OtherHub) -> None:
        hint = _CountedHint()
        hub = HubCommands(url, _tell, lambda _key: True, hint=hint, poll_interval_s=0.01)
        await hub.open()
        try:
            line = StubLine({})
            line.gateway = ("acme", "roof")
            hub.dispatch.ready(line)  # type: ignore[arg-type]
            first = other.send("cart", hub._now_us())
            assert other.commands.take(("acme", "hall"), (), 9, hub._now_us())
            other.tell(first, CommandState.QUEUED)
            other.move("cart")
            second = await hub.send(draft("cart", "roof"))
            await hint.wait_for_looks(2)
            assert line.sent == {}, "hall may deliver the first one"
            other.tell(first, CommandState.DELIVERED)
            await until(lambda: second.id in line.sent.values(), "the second one leaves")
            third = other.send("fan", hub._now_us())
            await hint.wait_for_looks(2)
            other.move("fan")
            await until(lambda: third.id in line.sent.values(), "the moved one leaves")
        finally:
            await hub.close()

    with contextlib.closing(open_registry(url).database) as database, contextlib.closing(Commands(url)) as commands:
        asyncio.run(follow(OtherHub(database, commands)))


@pytest.mark.parametrize("fails", [True, False], ids=["the read failed", "it was committed later"])
def test_command_that_was_not_read_leaves_at_a_later_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    url, read, looks = sqlite_url(tmp_path / "registry.db"), Commands.gateways_of, count()

    def gateways_of(registry: Commands, after: int) -> set[tuple[str, str]]:
        if next(looks):
            return read(registry, after)
        if fails:
            raise RegistryError("away")
        return set()

    async def follow(other: OtherHub) -> None:
        hint = _CountedHint()
        hub = HubCommands(url, _tell, lambda _key: True, hint=hint, poll_interval_s=0.01)
        await hub.open()
        try:
            line = StubLine({})
            line.gateway = ("acme", "hall")
            hub.dispatch.ready(line)  # type: ignore[arg-type]
            await hint.wait_for_looks(2)
            sent = other.send("cart", hub._now_us())
            await until(lambda: sent.id in line.sent.values(), "it leaves")
        finally:
            await hub.close()

    monkeypatch.setattr(Commands, "gateways_of", gateways_of)
    with contextlib.closing(open_registry(url).database) as database, contextlib.closing(Commands(url)) as commands:
        asyncio.run(follow(OtherHub(database, commands)))


class _CountingStore:
    """Store without commands that counts the looks."""

    def __init__(self) -> None:
        self.looks = 0

    def take(self, _key: object, _but: object, _limit: int, then: object) -> None:
        self.looks += 1
        assert callable(then)
        then([])


def test_a_gateway_without_credit_is_looked_at_later() -> None:
    store, line = _CountingStore(), StubLine({}, credit=0)
    dispatch = Dispatch(store, lambda: 0)  # type: ignore[arg-type]
    dispatch.ready(line)  # type: ignore[arg-type]
    dispatch.retry_pending()
    assert store.looks == 0
    line.credit = 1
    dispatch.retry_pending()
    assert store.looks == 1
    dispatch.retry_pending()
    assert store.looks == 1
