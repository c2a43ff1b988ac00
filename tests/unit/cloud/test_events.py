"""Events of a hub: what is in memory, and streams of clients that read slowly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from cloud.hub.events import http, tail
from cloud.hub.events.http import pump_events
from cloud.hub.events.tail import EventTail
from cloud.hub.registry.event_reader import EventFilter, EventPage, NumberedEvent
from cloud.hub.registry.events import EventType, make_event
from edge.broker.http.live import UNSENT_BYTES_MAX, EventQueue

ALL = EventFilter()


def numbered(number: int, tenant: str = "acme", **data: str) -> NumberedEvent:
    return NumberedEvent(number, make_event(number, EventType.GATEWAY_CONNECTED, tenant, "hall", **data))


class TestTail:
    def test_serves_what_it_has(self) -> None:
        latest = EventTail(10)
        latest.extend([numbered(11), numbered(13, "other"), numbered(14)], 15)
        assert latest.page(9, ALL, 9) is None, "the registry has those before"
        assert latest.page(16, ALL, 9) is None, "they are not read yet"
        for after, wanted, limit, expected in (
            (10, ALL, 9, EventPage([numbered(11), numbered(13, "other"), numbered(14)], 15, more=False)),
            (10, ALL, 2, EventPage([numbered(11), numbered(13, "other")], 13, more=True)),
            (11, EventFilter("acme"), 9, EventPage([numbered(14)], 15, more=False)),
            (15, ALL, 9, EventPage([], 15, more=False)),
        ):
            assert latest.page(after, wanted, limit) == expected

    def test_drops_the_oldest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tail, "EVENTS_CACHED_MAX", 2)
        latest = EventTail(0)
        latest.extend([numbered(1), numbered(2), numbered(3)], 3)
        assert latest.page(0, ALL, 9) is None
        assert latest.page(1, ALL, 9) == EventPage([numbered(2), numbered(3)], 3, more=False)


class FakeEvents:
    """Events of a hub: pages in order; the last one waits for ever."""

    def __init__(self, *pages: EventPage) -> None:
        self._pages: Iterator[EventPage] = iter(pages)
        self.asked: list[int] = []

    async def page(self, after: int, _wanted: EventFilter, _limit: int) -> EventPage:
        self.asked.append(after)
        return next(self._pages, None) or EventPage([], after, more=False)

    async def wait(self, _after: int, _seconds: float) -> None:
        await asyncio.Event().wait()


def test_stream_waits_for_its_client_and_ends_when_it_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "EVENT_STALL_S", 0.05)
    count = UNSENT_BYTES_MAX // 100
    events = FakeEvents(EventPage([numbered(each, what="x" * 100) for each in range(1, count)], count, more=True))

    async def live() -> tuple[EventQueue, int]:
        queue = EventQueue()
        pump = asyncio.create_task(pump_events(events, queue, 0, ALL))  # type: ignore[arg-type]
        while queue.has_room:
            await asyncio.sleep(0)
        first = len(queue.take())
        await asyncio.wait_for(pump, 20)
        return queue, first

    queue, first = asyncio.run(live())
    assert UNSENT_BYTES_MAX // 2 <= first < UNSENT_BYTES_MAX, "it is bounded"
    assert not queue.ended, "what is in it is sent before the end"
    assert events.asked == [0], "nothing more is read for it"


def test_gap_is_a_message_of_its_own() -> None:
    events = FakeEvents(EventPage([numbered(8)], 9, more=False, missed=5))

    async def live() -> bytes:
        queue = EventQueue()
        pump = asyncio.create_task(pump_events(events, queue, 3, ALL))  # type: ignore[arg-type]
        await queue.arrived.wait()
        pump.cancel()
        return queue.take()

    gap, event = asyncio.run(live()).split(b"\n\n")[:2]
    assert gap.startswith(b'id: 7\nevent: gap\ndata: {"missed_to":5,')
    assert event.startswith(b'id: 8\nevent: gateway.connected\ndata: {"number":8,')
