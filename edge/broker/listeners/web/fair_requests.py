"""Start one HTTP request in each turn of the loop, so that other protocols are served in between.

A request takes about a millisecond until it is answered or waits. All connections together would block the loop for a
quarter of a second, on a Raspberry Pi for a second. Health checks go first: a monitor that waits behind a thousand slow
requests would take the process for dead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

FIRST: Final = frozenset(("/healthz", "/livez", "/readyz"))
"""Paths of requests that start before all waiting ones."""


class FairRequests:
    """ASGI middleware that starts requests one by one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.cancelled = 0
        """Requests that were cancelled by the stop of the server."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Requests that have not started; while there are any, `_next` is scheduled."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answered = False

        async def note_answer(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self._turn(first=scope.get("path") in FIRST)
            await self._app(scope, receive, note_answer)
        except asyncio.CancelledError:  # the server stops, after a grace period
            self.cancelled += 1
            if not answered:
                await send({"type": "http.response.start", "status": 503, "headers": [(b"connection", b"close")]})
                await send({"type": "http.response.body", "body": b""})

    async def _turn(self, *, first: bool) -> None:
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if first:
            self._waiting.appendleft(turn)
        else:
            self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._next, loop)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        turn = self._waiting.popleft()
        if not turn.done():  # else the server is stopping
            turn.set_result(None)
        if self._waiting:
            loop.call_soon(self._next, loop)
