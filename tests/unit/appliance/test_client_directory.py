"""Pages of many clients: order, filters, positions, and the time of a page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edge.appliance.clients.directory import ClientDirectory
from edge.appliance.clients.documents import ClientDocument, ClientPage
from edge.appliance.paging import InvalidPosition

MANY = 10_000
PAGE_S_MAX = 0.020
"""Time of the server for a page of 50 of 10 000 clients."""


class Sources:
    """Clients as `ClientSources` gives them, from (name, user, received, connected)."""

    def __init__(self, count: int) -> None:
        self.rows = {f"mqtt/c{number:05}": number for number in range(count)}
        self.silents: set[str] = set()
        self.asked = 0
        """Ranks that were computed."""

    def ids(self) -> list[str]:
        return list(self.rows)

    def is_connected(self, identity: str) -> bool:
        return self.rows[identity] % 2 == 0

    def is_silent(self, identity: str) -> bool:
        return identity in self.silents

    def texts(self, identity: str) -> tuple[str, ...]:
        return identity.removeprefix("mqtt/"), self.user(identity), "192.0.2.1:1"

    def user(self, identity: str) -> str:
        return f"u{self.rows[identity] % 10}"

    def received(self, identity: str) -> int:
        self.asked += 1
        return self.rows[identity] * 7919 % 10_007

    sent = received

    def queues(self) -> Iterator[tuple[str, int]]:
        yield from ((identity, self.received(identity)) for identity in self.rows)

    def last_at(self, identity: str) -> float:
        return float(self.received(identity))

    def document(self, identity: str) -> ClientDocument | None:
        return ClientDocument(
            id=identity, name=identity.removeprefix("mqtt/"), user=self.user(identity), protocol="MQTT 5", remote="",
            tls="",
            state="connected", why="", connected_at=0.0, received=self.received(identity), sent=0, subscriptions=0,
            queued=0, in_flight=0, last_at=None,
        )  # fmt: skip


def directory_of(sources: Sources, clock: Callable[[], float] = lambda: 0.0) -> ClientDirectory:
    return ClientDirectory(sources, clock)  # type: ignore[arg-type]  # a stub


def every_page(directory: ClientDirectory, limit: int, **query: Any) -> list[ClientPage]:
    async def read() -> list[ClientPage]:
        pages, after = [], None
        while not pages or after is not None:
            pages.append(await directory.page(limit=limit, after=after, **query))
            after = pages[-1].next
        return pages

    return asyncio.run(read())


@pytest.mark.parametrize("sort", ["name", "user", "in", "out", "queued", "last"])
@pytest.mark.parametrize("count", [0, 1, 50, 51, 2_000])
def test_pages_hold_each_client_once_in_order(sort: str, count: int) -> None:
    sources = Sources(count)
    pages = every_page(directory_of(sources), 50, sort=sort)
    shown = [each.id for page in pages for each in page.clients]
    keys: dict[str, Callable[[str], Any]] = {"name": lambda each: each, "user": sources.user}
    key = keys.get(sort, lambda each: -sources.received(each))
    assert shown == sorted(sources.rows, key=lambda each: (key(each), each))
    assert {page.total for page in pages} == {count}
    assert len(pages) == max(1, -(-count // 50))


def test_filters() -> None:
    sources = Sources(100)
    sources.silents = {"mqtt/c00007"}
    directory = directory_of(sources)

    def names(**query: Any) -> list[str]:
        return [each.name for page in every_page(directory, 500, **query) for each in page.clients]

    assert names(state="silent") == ["c00007"]
    assert len(names(state="connected")) == len(names(state="absent")) == 50
    assert names(text="c0009") == [f"c{number:05}" for number in range(90, 100)]
    assert names(text="u3", state="absent") == [f"c{number:05}" for number in range(3, 100, 10)]
    assert names(text="nothing") == []


def test_an_order_is_kept_for_a_multiple_of_its_time_and_then_made_again() -> None:
    sources, now = Sources(1_000), [0.0]
    directory = directory_of(sources, lambda: now[0])
    asyncio.run(directory.page(sort="in", limit=1))
    asked = sources.asked
    asyncio.run(directory.page(sort="in", limit=1))
    assert sources.asked == asked + 1, "the document of the page only"
    now[0] = 1_000.0
    asyncio.run(directory.page(sort="in", limit=1))
    assert sources.asked > asked + 1_000


@pytest.mark.parametrize("position", ["", "x", "e30", "WzEsMl0", "WyJhIiwiYiJd", "é"])
def test_a_position_of_another_kind(position: str) -> None:
    with pytest.raises(InvalidPosition):
        asyncio.run(directory_of(Sources(1)).page(sort="in", after=position, limit=1))


@pytest.mark.parametrize("sort", ["name", "in"])
def test_a_page_of_many_takes_little_time(sort: str) -> None:
    directory = directory_of(Sources(MANY))

    async def measure() -> float:
        times = []
        for _ in range(5):
            begun = time.perf_counter()
            page = await directory.page(sort=sort, limit=50)
            times.append(time.perf_counter() - begun)
            assert page.total == MANY
        return min(times)

    assert asyncio.run(measure()) <= PAGE_S_MAX
