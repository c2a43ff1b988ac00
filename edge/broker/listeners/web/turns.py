"""Requests begin one a turn of the loop, so that clients of other protocols are served between any two of them.

A request takes about a millisecond until it is answered or waits for something. As many as there are places for would
take a quarter of a second in one piece, on a Raspberry Pi a second. Questions of how the process is go first: a monitor
that waits behind a thousand slow requests on a busy machine takes the process for dead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

FIRST: Final = frozenset(("/healthz", "/livez", "/readyz"))
"""Paths of requests that begin before all others that wait."""


class FairRequests:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.broken_off = 0
        """Requests that ended without their own answer because the server stopped."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Requests that have not begun; while there are any, `_next` comes in the next turn."""

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
        except asyncio.CancelledError:  # the server stops, and has given the request its time
            self.broken_off += 1
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
        if not turn.done():  # else the server stops
            turn.set_result(None)
        if self._waiting:
            loop.call_soon(self._next, loop)
