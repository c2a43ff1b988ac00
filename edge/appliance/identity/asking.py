"""What a running gateway asks its hub for of its own accord: one endpoint after the other, again and again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from bridge.proxy import PeerRoute


class HubRequestFailure(NamedTuple):
    """The hub was asked, and did not give it."""

    words: str
    away: bool
    """Nobody answered, or the connection broke."""


class HubRequest:
    """One thing to ask for. `trouble`: why the hub does not give it; None: it does, or is away."""

    def __init__(
        self, ask: Callable[[PeerRoute], HubRequestFailure | None], log: logging.Logger, *, away: str, refused: str
    ) -> None:
        """`ask`: called in a thread; None: it has been given. `away`, `refused`: what is logged of a failure, of its
        words; of those that stay the same once."""
        self.trouble: str | None = None
        self._ask = ask
        self._log = log
        self._away = away
        self._refused = refused

    async def put(self, ways: Sequence[PeerRoute]) -> bool:
        """Ask until one gives it; False when none does."""
        for way in ways:
            failure = await asyncio.to_thread(self._ask, way)
            if failure is None:
                self.trouble = None
                return True
            if failure.away:
                self._log.info(self._away, failure.words)
                continue
            if failure.words != self.trouble:
                self._log.warning(self._refused, failure.words)
            self.trouble = failure.words
        return False


class PeriodicTask:
    """Calls `look` until it is stopped, each time after the seconds that it returned."""

    def __init__(self, look: Callable[[], Awaitable[float]], name: str) -> None:
        self._look = look
        self._name = name
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, inside a running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        """End; idempotent. What is being asked goes on in its thread: what it brings is written whole."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(await self._look())
