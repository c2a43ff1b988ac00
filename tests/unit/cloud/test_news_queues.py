"""News of commands waits for no other tenant, and an answer of a gateway is stored before outcomes are published."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from cloud.hub.commands.limits import AT_ONCE_MAX
from cloud.hub.commands.news_queues import NewsQueues
from cloud.hub.commands.service import HubCommands
from cloud.hub.registry.commands import CommandNews, CommandRecord, Commands, CommandState
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from tests.support.loop_wait import until
from tests.unit.cloud.command_line import StubLine
from tests.unit.cloud.other_hub import OtherHub, draft


def news_of(tenant: str, name: str) -> CommandNews:
    return CommandNews(name, tenant, "hall", "cart", 5, CommandState.QUEUED)


class SlowStore:
    """Store of news that waits for the applications of one tenant."""

    def __init__(self, slow: str = "") -> None:
        self.slow = slow
        self.free = asyncio.Event()
        self.stored: list[list[str]] = []

    async def store(self, tenant: str, news: Sequence[CommandNews]) -> bool:
        if tenant == self.slow:
            await self.free.wait()
        self.stored.append([each.id for each in news])
        return tenant != "broken"


def answers_of(queues: NewsQueues, *names: str) -> Callable[[str], list[bool]]:
    """Put news with these names, as ``TENANT/NAME``; return a function that gives the answers of one of them."""
    answers: dict[str, list[bool]] = {name: [] for name in names}
    for name in names:
        tenant, _, identifier = name.partition("/")
        queues.put([news_of(tenant, identifier)], answers[name].append)
    return lambda name: answers[name]


def test_a_tenant_waits_for_no_other_one() -> None:
    async def work() -> None:
        store = SlowStore("slow")
        queues = NewsQueues(store.store)
        of = answers_of(queues, "slow/a", "fast/b", "broken/c")
        await until(lambda: of("fast/b") == [True] and of("broken/c") == [False])
        then = answers_of(queues, "slow/d", "fast/e")
        await until(lambda: then("fast/e") == [True])
        assert of("slow/a") == then("slow/d") == []
        store.free.set()
        await until(lambda: of("slow/a") == then("slow/d") == [True])
        assert store.stored[-2:] == [["a"], ["d"]]
        await queues.close()

    asyncio.run(work())


def test_news_of_a_tenant_is_stored_together_and_in_order() -> None:
    async def work() -> None:
        store = SlowStore()
        queues = NewsQueues(store.store)
        names = [str(number) for number in range(AT_ONCE_MAX + 1)]
        of = answers_of(queues, *(f"acme/{name}" for name in names))
        await until(lambda: of(f"acme/{AT_ONCE_MAX}") == [True])
        assert store.stored == [names[:-1], names[-1:]]
        later: list[bool] = []
        queues.put([news_of("acme", "x")], lambda _kept: queues.put([news_of("acme", "y")], later.append))
        await until(lambda: later == [True])
        assert store.stored[-2:] == [["x"], ["y"]]
        await queues.close()

    asyncio.run(work())


def test_a_closed_queue_stores_nothing() -> None:
    async def work() -> None:
        store = SlowStore("slow")
        queues = NewsQueues(store.store)
        before = answers_of(queues, "slow/a")
        await queues.close()
        after = answers_of(queues, "fast/b")
        await until(lambda: after("fast/b") == [False])
        assert (before("slow/a"), store.stored) == ([], [])
        await queues.close()

    asyncio.run(work())


def test_the_next_command_of_a_device_waits_for_no_application(tmp_path: Path) -> None:
    """Neither for those of another tenant, nor for outcomes of its own that arrive together with the answer."""
    url = sqlite_url(tmp_path / "registry.db")

    async def send(other: OtherHub) -> None:
        free = asyncio.Event()

        async def tell(_news: CommandNews, _command: CommandRecord) -> None:
            await free.wait()

        hub = HubCommands(url, tell, lambda _key: True, poll_interval_s=60.0)
        await hub.open()
        try:
            line = StubLine({})
            line.gateway = ("acme", "hall")
            hub.dispatch.ready(line)  # type: ignore[arg-type]
            strange = await hub.send(draft("fan", "hall")._replace(tenant="south"))
            local = await hub.send(draft("local", "hall"))
            other.send("cart", hub._now_us())
            second = await hub.send(draft("cart", "hall"))
            await until(lambda: len(line.sent) == 2, "the local one and the first one")
            outcomes: list[bool] = []
            for each in (strange, local):
                over = CommandNews(each.id, *each.key, each.device, 5, CommandState.DELIVERED)
                hub.queue_news([over], outcomes.append)
            while line.sent:
                line.answer(hub.dispatch)
            await until(lambda: second.id in line.sent.values(), "the next one leaves")
            assert outcomes == []
            free.set()
            await until(lambda: outcomes == [True, True])
        finally:
            free.set()
            await hub.close()

    with contextlib.closing(open_registry(url).database) as database, contextlib.closing(Commands(url)) as commands:
        asyncio.run(send(OtherHub(database, commands)))


def test_commands_of_a_tenant_expire_without_the_applications_of_another_one(tmp_path: Path) -> None:
    async def work() -> None:
        free, told = asyncio.Event(), list[str]()

        async def tell(_news: CommandNews, command: CommandRecord) -> None:
            if command.tenant == "slow":
                await free.wait()
            told.append(command.tenant)

        hub = HubCommands(sqlite_url(tmp_path / "registry.db"), tell, lambda _key: True, poll_interval_s=0.01)
        await hub.open()
        try:
            for tenant in ("slow", "fast"):
                await hub.send(draft("local", "hall")._replace(tenant=tenant, ttl_s=0.001))
            await until(lambda: told == ["fast"])
        finally:
            free.set()
            await hub.close()

    asyncio.run(work())
