"""Simultaneous requests start one after the other, with a turn of the loop for others in between."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive, Scope, Send

from edge.broker.listeners.web.fair_requests import FairRequests

REQUESTS = 20


async def nothing() -> Message:
    return {"type": "http.disconnect"}


async def nobody(message: Message) -> None:
    """Ignore the answer."""


def test_one_request_starts_each_turn() -> None:
    began: list[int] = []
    turns = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        began.append(turns)

    async def main() -> None:
        nonlocal turns
        paced = FairRequests(app)
        requests = [asyncio.create_task(paced({"type": "http"}, nothing, nobody)) for _ in range(REQUESTS)]
        while not all(each.done() for each in requests):
            turns += 1
            await asyncio.sleep(0)
        await paced({"type": "lifespan"}, nothing, nobody)

    asyncio.run(main())
    assert len(began) == REQUESTS + 1
    assert len(set(began[:REQUESTS])) == REQUESTS


def test_cancelled_request_does_not_block_others() -> None:
    began: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        began.append(scope["path"])

    async def main() -> None:
        paced = FairRequests(app)
        tasks = [
            asyncio.create_task(paced({"type": "http", "path": path}, nothing, nobody)) for path in ("a", "b", "c")
        ]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.wait(tasks, timeout=10)

    asyncio.run(main())
    assert began == ["b", "c"]


def test_health_does_not_wait_behind_other_requests() -> None:
    began: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        began.append(scope["path"])

    async def main() -> None:
        paced = FairRequests(app)
        paths = [*(f"/t/{number}" for number in range(100)), "/healthz"]
        await asyncio.gather(*(paced({"type": "http", "path": path}, nothing, nobody) for path in paths))

    asyncio.run(main())
    assert began.index("/healthz") <= 1
    assert [path for path in began if path != "/healthz"] == [f"/t/{number}" for number in range(100)]
