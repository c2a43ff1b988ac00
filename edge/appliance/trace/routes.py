"""HTTP route of the packet trace, for `waypost client trace`.

======================  ======  =====================================================================================
``GET /api/v1/trace``   manage  events as JSON, one a line, until the client closes: ``?client=ID``, ``&address=FILTER``
======================  ======  =====================================================================================

The first event is ``started``, with the number of matching connections. A blank line is a keep-alive.
After `TRACE_S_MAX` the last event is ``ended``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from edge.broker.http.access import HttpAccess
from edge.broker.http.application import needing
from edge.broker.http.peer import peer_of, wait_closed
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import HttpRoute
from edge.broker.limits import TOPIC_LEVELS_MAX
from edge.broker.message.mqtt_errors import RemoteError
from edge.broker.mqtt.names import check_topic_filter
from edge.broker.tracing.events import TraceEvent
from edge.broker.tracing.limits import TRACE_IDLE_S, TRACE_S_MAX
from edge.broker.tracing.tracer import PacketTracer, TooManyTraces
from edge.broker.tracing.watch import TraceFilter, TraceWatch

HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def trace_routes(tracer: PacketTracer, access: HttpAccess, *, seconds_max: float = TRACE_S_MAX) -> Sequence[HttpRoute]:
    """Return the route of a gateway's packet tracer, which ends a trace after `seconds_max`."""

    async def trace(request: Request) -> Response:
        about = TraceFilter(request.query_params.get("client", ""), request.query_params.get("address", ""))
        try:
            if about.address:
                check_topic_filter(about.address, TOPIC_LEVELS_MAX)
        except RemoteError as error:
            return JSONResponse({"error": f"address={about.address}: {error}"}, status_code=400)
        arrived = asyncio.Event()
        try:
            watch = tracer.watch(about, arrived.set)
        except TooManyTraces as error:
            return RequestRefused(429, str(error)).response()
        events = _events(request, tracer, watch, arrived, seconds_max)
        return StreamingResponse(events, media_type="application/x-ndjson", headers=HEADERS)

    return [HttpRoute("/api/v1/trace", needing(access.require_manage)(trace), methods=("GET",))]


async def _events(
    request: Request, tracer: PacketTracer, watch: TraceWatch, arrived: asyncio.Event, seconds_max: float
) -> AsyncIterator[bytes]:
    """Yield lines until the client has closed, the time is over or the gateway stops; then end the trace."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + seconds_max
    gone = asyncio.ensure_future(wait_closed(request.receive))
    gone.add_done_callback(lambda _: arrived.set())
    encode = msgspec.json.Encoder().encode
    try:
        with peer_of(request).parking():
            yield encode(TraceEvent(kind="started", name="started", count=tracer.connections(watch))) + b"\n"
            while not (gone.done() or watch.ended):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(TRACE_IDLE_S, until_s - loop.time())):
                        await arrived.wait()
                arrived.clear()
                yield b"".join(encode(event) + b"\n" for event in watch.take()) or b"\n"
                if loop.time() >= until_s:
                    yield encode(TraceEvent(kind="ended", name="ended")) + b"\n"
                    return
    finally:
        gone.cancel()
        tracer.leave(watch)
