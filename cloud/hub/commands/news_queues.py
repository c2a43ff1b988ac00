"""News of commands on the way to the registry, by tenant: no tenant waits for the applications of another one.

The news of one tenant is stored in the order of its arrival, as much as is there at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from cloud.hub.commands.limits import AT_ONCE_MAX
from cloud.hub.registry.commands import CommandNews


class _PendingNews(NamedTuple):
    """News that is not stored yet."""

    news: Sequence[CommandNews]
    kept: Callable[[bool], None]


class NewsQueues:
    """One queue for each tenant with news, and a task that empties it. Methods run on the loop's thread."""

    def __init__(self, store: Callable[[str, Sequence[CommandNews]], Awaitable[bool]]) -> None:
        """`store` stores news of one tenant; it returns False if that fails now, and does not raise."""
        self._store = store
        self._queues: dict[str, deque[_PendingNews]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def put(self, news: Sequence[CommandNews], kept: Callable[[bool], None]) -> None:
        """Queue news of one tenant. `kept` is called with True when it is on disk, with False when it cannot be stored
        now."""
        if self._closed:
            asyncio.get_running_loop().call_soon(kept, False)
            return
        tenant = news[0].tenant if news else ""
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = deque()
            task = asyncio.get_running_loop().create_task(
                self._empty(tenant, queue), name=f"news of commands: {tenant}"
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        queue.append(_PendingNews(news, kept))

    async def close(self) -> None:
        """End the tasks. News that is not stored yet is dropped, without an answer. Idempotent."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _empty(self, tenant: str, queue: deque[_PendingNews]) -> None:
        """Store the news of one tenant until its queue is empty."""
        try:
            while queue:
                together = [queue.popleft() for _ in range(min(len(queue), AT_ONCE_MAX))]
                kept = await self._store(tenant, [each for pending in together for each in pending.news])
                for pending in together:
                    pending.kept(kept)
        finally:
            del self._queues[tenant]
