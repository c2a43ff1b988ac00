"""Events over HTTP, at the path of the live figures of a console, which ask for topics.

``GET /api/v1/events``  with ``Accept: text/event-stream`` a stream (WHATWG HTML section 9.2), which goes on after
                        ``Last-Event-ID``, or after ``?after=``; otherwise a page in JSON:
                        ``?after=NUMBER&type=TYPE,…&gateway=NAME,…&tenant=&limit=``

Needs the right to view: the events of one's own tenant, or with ``$fleet`` all of them. A stream ends when its user
loses its rights, and when its client reads too slowly; the client goes on from its last event, at any hub.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from cloud.hub.events.documents import EventsPage, event_document, gap_document
from cloud.hub.events.limits import (
    EVENT_FILTER_MAX,
    EVENT_STALL_S,
    EVENT_STREAMS_MAX,
    EVENT_STREAMS_USER_MAX,
    EVENTS_KEPT_S,
    EVENTS_PAGE,
)
from cloud.hub.events.service import HubEvents
from cloud.hub.json_http import answering, json_response
from cloud.hub.registry.event_reader import EventFilter, EventPage, EventReader
from cloud.hub.registry.events import EventType
from cloud.hub.scope import Scope, scope_of
from cloud.lake.faults import RegistryError
from edge.broker.http.access import AdmittedClient, HttpAccess, remote_host
from edge.broker.http.live import KEEP_ALIVE_S, RETRY_MS, EventQueue, EventStream, event_bytes
from edge.broker.http.queries import limit_of, number_of
from edge.broker.http.refusal import RequestRefused

log = logging.getLogger(__name__)

STREAM: Final = "text/event-stream"
LAST_EVENT: Final = "last-event-id"
GAP: Final = "gap"
"""Type of the message of a stream that says that events are missing."""
answered: Final = answering({})
KNOWN_TYPES: Final = frozenset((*EventType, *(each.value.partition(".")[0] for each in EventType)))
"""Types of events, and their nouns."""


class EventsApi:
    """Endpoint of events."""

    def __init__(self, events: HubEvents, access: HttpAccess) -> None:
        self._events = events
        self._access = access
        self._streams: Counter[str] = Counter()
        """Open streams by user."""
        self.respond = answered(self._respond)

    async def _respond(self, request: Request) -> Response:
        scope, query = await scope_of(self._access, request), request.query_params
        wanted = filter_of(query, scope)
        if STREAM not in request.headers.get("accept", ""):
            return await self._page(query, wanted)
        after = number_of(request.headers, LAST_EVENT)
        after = number_of(query, "after") if after is None else after
        if self._streams.total() >= EVENT_STREAMS_MAX:
            raise RequestRefused(
                503, f"{EVENT_STREAMS_MAX} streams of events are open: try again later, or at another hub"
            )
        newest = await self._events.read(EventReader.newest)
        queue = EventQueue()
        return EventStream(request, queue, self._following(request, queue, newest if after is None else after, wanted))

    async def _page(self, query: Mapping[str, str], wanted: EventFilter) -> Response:
        after, limit = number_of(query, "after"), limit_of(query)
        if after is None:
            after = await self._events.read(lambda reader: reader.latest(wanted, limit))
        page = await self._events.page(after, wanted, limit)
        rows = [event_document(each) for each in page.events]
        return json_response(
            EventsPage(events=rows, next=page.reached, more=page.more, missed_to=page.missed, kept_s=int(EVENTS_KEPT_S))
        )

    @contextlib.asynccontextmanager
    async def _following(
        self, request: Request, queue: EventQueue, after: int, wanted: EventFilter
    ) -> AsyncIterator[AdmittedClient]:
        """Admit the client, and put events into its queue until it is left. Raises RequestRefused."""
        async with self._access.admitted(request) as client:
            user = client.user or remote_host(request)
            if self._streams[user] >= EVENT_STREAMS_USER_MAX:
                raise RequestRefused(429, f"you have {EVENT_STREAMS_USER_MAX} streams of events open: close some")
            self._streams[user] += 1
            queue.put(b"retry: %d\n\n" % RETRY_MS)
            try:
                with self._events.following():
                    pump = asyncio.create_task(pump_events(self._events, queue, after, wanted), name="stream of events")
                    pump.add_done_callback(functools.partial(_end, queue))
                    try:
                        yield client
                    finally:
                        pump.cancel()
                        await asyncio.wait([pump])
            finally:
                self._streams[user] -= 1
                if not self._streams[user]:
                    del self._streams[user]


def _end(queue: EventQueue, pump: asyncio.Task[None]) -> None:
    """End a stream with its pump: the client connects again."""
    if not pump.cancelled() and (error := pump.exception()) is not None:
        log.error("a stream of events ended with an internal error", exc_info=error)
    queue.end()


async def pump_events(events: HubEvents, queue: EventQueue, after: int, wanted: EventFilter) -> None:
    """Put events after a number into a queue, as fast as it is emptied. Return when its client is too slow, or when
    the registry cannot be read: the client goes on later."""
    clock = asyncio.get_running_loop().time
    told, told_s = after, clock()
    while not queue.ended:
        try:
            page = await events.page(after, wanted, EVENTS_PAGE)
        except RegistryError:
            return
        try:
            async with asyncio.timeout(EVENT_STALL_S):
                await _put(queue, page)
        except TimeoutError:
            return
        after = page.reached
        if page.events:
            told, told_s = page.events[-1].number, clock()
        if told < after and clock() - told_s >= KEEP_ALIVE_S and queue.has_room:
            queue.put(b"id: %d\n\n" % after)  # other events have passed: the client goes on from there
            told, told_s = after, clock()
        if not page.more:
            await events.wait(after, KEEP_ALIVE_S)


async def _put(queue: EventQueue, page: EventPage) -> None:
    if page.missed is not None:
        start = page.events[0].number - 1 if page.events else page.reached
        await queue.wait_for_room()
        queue.put(b"id: %d\n" % start + event_bytes(GAP, gap_document(page.missed)))
    for each in page.events:
        await queue.wait_for_room()
        queue.put(b"id: %d\n" % each.number + event_bytes(each.event.type, event_document(each)))


def filter_of(query: Mapping[str, str], scope: Scope) -> EventFilter:
    """Return the filter of a query within a scope. Raises RequestRefused."""
    types, gateways = _words_of(query, "type"), _words_of(query, "gateway")
    if unknown := sorted(types - KNOWN_TYPES):
        raise RequestRefused(400, f"no type of events {unknown[0][:64]!r}: they are {', '.join(EventType)}")
    tenant = scope.tenant if scope.tenant is not None else query.get("tenant") or None
    return EventFilter(tenant, types, gateways)


def _words_of(query: Mapping[str, str], name: str) -> frozenset[str]:
    words = frozenset(each for each in query.get(name, "").split(",") if each)
    if len(words) > EVENT_FILTER_MAX:
        raise RequestRefused(400, f"{name} has {len(words)} values, and may have {EVENT_FILTER_MAX}")
    return words
