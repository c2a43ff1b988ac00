"""Requests for signatures on the way to the registry: those that wait at one moment are one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from cloud.hub.registry.signatures import WaitingRequest


class _UnstoredRequest(NamedTuple):
    """Request that is not stored yet."""

    request: WaitingRequest
    done: asyncio.Future[None]


class RequestQueue:
    """Queue of one hub, and a task that empties it. Methods run on the loop's thread."""

    def __init__(self, store: Callable[[Sequence[WaitingRequest]], Awaitable[None]]) -> None:
        """`store` stores requests in one transaction."""
        self._store = store
        self._unstored: list[_UnstoredRequest] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, request: WaitingRequest) -> None:
        """Store a request, together with others that wait. Raises what `store` raises."""
        loop = asyncio.get_running_loop()
        stored = loop.create_future()
        self._unstored.append(_UnstoredRequest(request, stored))
        if self._task is None:
            self._task = loop.create_task(self._empty(), name="requests for signatures")
        await stored

    async def close(self) -> None:
        """Wait until the queue is empty. Idempotent."""
        if self._task is not None:
            await self._task

    async def _empty(self) -> None:
        try:
            while self._unstored:
                together, self._unstored = self._unstored, []
                error = await self._try_store([each.request for each in together])
                for _, stored in together:
                    if stored.done():  # its client has gone
                        continue
                    if error is None:
                        stored.set_result(None)
                    else:
                        stored.set_exception(error)
        finally:
            self._task = None

    async def _try_store(self, requests: Sequence[WaitingRequest]) -> Exception | None:
        """Store requests; return the reason if that failed."""
        try:
            await self._store(requests)
        except Exception as error:  # each client gets it
            return error
        return None
