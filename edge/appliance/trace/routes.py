"""HTTP route of the packet trace, for the console and `waypost client trace`.

======================  ======  =====================================================================================
``GET /api/v1/trace``   manage  events until the client closes, or a limit is reached:
                                ``?client=ID&address=FILTER&seconds=&events=&payload=1``
======================  ======  =====================================================================================

A client that accepts ``text/event-stream`` gets Server-Sent Events: ``trace`` with a list of `documents.TraceLine`, and
``end`` with the reason as `why`. Others get one `TraceEvent` a line as JSON; a blank line is a keep-alive. The first
one has the kind ``started`` and the number of matching connections, the last one the kind ``ended``.

`payload=1` adds the begin of each message, if the user may receive from its address.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edge.appliance.trace.documents import EventFraming, JsonLines, ServerSentEvents
from edge.broker.http.access import AdmittedClient, HttpAccess
from edge.broker.http.application import needing
from edge.broker.http.peer import peer_of, wait_closed
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import HttpRoute
from edge.broker.limits import TOPIC_LEVELS_MAX
from edge.broker.message.mqtt_errors import RemoteError
from edge.broker.mqtt.names import check_topic_filter
from edge.broker.tracing.events import TraceEvent
from edge.broker.tracing.limits import TRACE_IDLE_S, TRACE_PAGE_EVENTS, TRACE_PAGE_S, TRACE_S_MAX
from edge.broker.tracing.tracer import PacketTracer, TooManyTraces
from edge.broker.tracing.watch import TraceFilter, TraceWatch
from edge.output.amounts import span

EVENT_STREAM: Final = "text/event-stream"
EVENTS_MAX: Final = 1_000_000_000
"""Largest number of events that a request may ask for."""


def trace_routes(tracer: PacketTracer, access: HttpAccess, *, seconds_max: float = TRACE_S_MAX) -> Sequence[HttpRoute]:
    """Return the route of a gateway's packet tracer, which ends a trace after `seconds_max`."""

    async def trace(request: Request) -> Response:
        query = request.query_params
        about = TraceFilter(query.get("client", ""), query.get("address", ""))
        try:
            if about.address:
                check_topic_filter(about.address, TOPIC_LEVELS_MAX)
        except RemoteError as error:
            raise RequestRefused(400, f"address={about.address}: {error}") from None
        return TraceStream(request, tracer, access, about, seconds_max)

    return [HttpRoute("/api/v1/trace", needing(access.require_manage)(trace), methods=("GET",))]


class TraceStream(Response):
    """Answer with the events of one trace. It ends with the client's connection or rights, or at a limit."""

    def __init__(
        self, request: Request, tracer: PacketTracer, access: HttpAccess, about: TraceFilter, seconds_max: float
    ) -> None:
        """Raises RequestRefused for a limit that is not a number."""
        query, in_page = request.query_params, EVENT_STREAM in request.headers.get("accept", "")
        self._framing: EventFraming = ServerSentEvents() if in_page else JsonLines()
        super().__init__(headers=self._framing.headers)
        del self.headers["content-length"]
        self._seconds = min(seconds_max, _limit_of(query, "seconds", TRACE_PAGE_S if in_page else TRACE_S_MAX))
        self._events_left = int(_limit_of(query, "events", TRACE_PAGE_EVENTS if in_page else EVENTS_MAX))
        self._payload = query.get("payload", "") == "1"
        self._request = request
        self._tracer = tracer
        self._access = access
        self._about = about

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.AsyncExitStack() as stack:
            arrived = asyncio.Event()
            try:
                client = await stack.enter_async_context(self._access.admitted(self._request))
                watch = self._watch(client, arrived)
            except RequestRefused as refused:
                await refused.response()(scope, receive, send)
                return
            stack.callback(self._tracer.leave, watch)
            gone = asyncio.ensure_future(wait_closed(receive))
            stack.callback(gone.cancel)
            for end in (gone, client.ended):
                end.add_done_callback(lambda _: arrived.set())
            with peer_of(self._request).parking():
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                async for part in self._parts(watch, arrived, gone, client):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _watch(self, client: AdmittedClient, arrived: asyncio.Event) -> TraceWatch:
        grant = client.grant
        shows = (lambda address: grant is None or grant.may_receive(address)) if self._payload else None
        try:
            return self._tracer.watch(self._about, arrived.set, shows)
        except TooManyTraces as error:
            raise RequestRefused(429, str(error)) from None

    async def _parts(
        self, watch: TraceWatch, arrived: asyncio.Event, gone: asyncio.Future[None], client: AdmittedClient
    ) -> AsyncIterator[bytes]:
        """Yield encoded events until the client has closed, a limit is reached or the gateway stops."""
        loop, framing = asyncio.get_running_loop(), self._framing
        until_s = loop.time() + self._seconds
        connections = self._tracer.connections(watch)
        yield framing.encode([TraceEvent(kind="started", name="started", count=connections)])
        while not (gone.done() or watch.ended):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(TRACE_IDLE_S, until_s - loop.time()))):
                    await arrived.wait()
            arrived.clear()
            taken = watch.take()[: self._events_left]
            self._events_left -= len(taken)
            yield framing.encode(taken)
            why = self._why_over(client, late=loop.time() >= until_s)
            if why:
                yield framing.end(why)
                return

    def _why_over(self, client: AdmittedClient, *, late: bool) -> str:
        """Return why the trace ends; empty: it goes on."""
        if client.ended.done():
            return client.ended.result().value
        if self._events_left <= 0:
            return "it has as many events as it may"
        return f"{span(self._seconds)} are over" if late else ""


def _limit_of(query: Mapping[str, str], name: str, default: float) -> float:
    """Return a limit of a trace. Raises RequestRefused."""
    text = query.get(name)
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and 0 < int(text[:10]) <= EVENTS_MAX):
        raise RequestRefused(400, f"{name} is a whole number from 1, not {text[:40]!r}")
    return float(int(text[:10]))
