"""The packet trace over HTTP: its first event and its end."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from edge.appliance.trace.routes import trace_routes
from edge.broker.http.access import HttpAccess
from edge.broker.tracing.limits import TRACES_MAX
from edge.broker.tracing.tracer import PacketTracer
from edge.broker.tracing.watch import TraceFilter


async def get(tracer: PacketTracer, query: str) -> httpx.Response:
    app = Starlette(routes=[*trace_routes(tracer, HttpAccess(), seconds_max=0.05)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        return await client.get(f"/api/v1/trace?{query}")


def answer(query: str, traces: int = 0) -> tuple[httpx.Response, PacketTracer]:
    """Return the answer of a tracer with this many other traces, and the tracer."""

    async def asked() -> tuple[httpx.Response, PacketTracer]:
        tracer = PacketTracer(tuple, loop=asyncio.get_running_loop())
        for _ in range(traces):
            tracer.watch(TraceFilter("other"), lambda: None)
        return await get(tracer, query), tracer

    return asyncio.run(asked())


def test_trace_ends_by_itself() -> None:
    got, tracer = answer("client=meter7")
    events: list[Any] = [msgspec.json.decode(line) for line in got.content.splitlines() if line]
    assert [event["kind"] for event in events] == ["started", "ended"]
    assert events[-1]["text"] == "0 s are over"
    assert not tracer.active


@pytest.mark.parametrize(
    ("query", "traces", "status"),
    [("client=x", TRACES_MAX, 429), ("address=a/%23/b", 0, 400), ("client=x&seconds=x", 0, 400)],
)
def test_untraceable_requests_are_refused(query: str, traces: int, status: int) -> None:
    assert answer(query, traces)[0].status_code == status
