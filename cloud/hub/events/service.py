"""Events of the fleet at one hub: pages of them, waiting for the next ones, and their deletion.

Runs on the event loop. The registry work runs in two threads, one that writes and one that reads. Events come from the
registry alone, so every hub has the same; a notice of another hub only makes the next look come earlier.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import sqlalchemy as sa

from bridge.periodic_task import PeriodicTask
from cloud.hub.events.limits import (
    EVENTS_CLEANUP_S,
    EVENTS_INTERVAL_S,
    EVENTS_KEPT_S,
    EVENTS_MAX,
    EVENTS_PAGE,
    EVENTS_TENANT_MAX,
)
from cloud.hub.events.tail import EventTail
from cloud.hub.registry.event_reader import EventFilter, EventLog, EventPage, EventReader
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry_thread import RegistryThread
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

T = TypeVar("T")


class HubEvents:
    """Reads and deletes events. `open`, later `close`."""

    def __init__(self, registry: sa.URL, now: Callable[[], float], hint: ChangeHint | None = None) -> None:
        """`now`: UTC seconds since 1970; `hint` is given when another hub has appended events."""
        self._now = now
        self._hint = hint or ChangeHint()
        self._writer = RegistryThread("events", lambda: EventLog(registry))
        self._reader = RegistryThread("events-reading", lambda: EventReader(registry))
        self._tail: EventTail | None = None
        """None while nothing follows."""
        self._followers = 0
        self._advanced = asyncio.Event()
        """Set, and replaced, when the tail has got further."""
        self._cleaning = PeriodicTask(
            "deletion of old events", self._clean_up, EVENTS_CLEANUP_S,
            log=log, failed="old events are not deleted", expected=(RegistryError,),
        )  # fmt: skip
        self._following: PeriodicTask | None = None

    async def open(self) -> None:
        """Open the registry. Raises `RegistryError`."""
        await self._writer.open()
        await self._reader.open()
        self._cleaning.start()

    async def close(self) -> None:
        """Close the registry. Idempotent."""
        following, self._following = self._following, None
        if following is not None:
            await following.stop()
        await self._cleaning.stop()
        await self._reader.close()
        await self._writer.close()

    async def read(self, work: Callable[[EventReader], T]) -> T:
        """Run `work` on the reading thread. Raises `RegistryError`."""
        return await self._reader.run(work)

    async def page(self, after: int, wanted: EventFilter, limit: int) -> EventPage:
        """Return events after a number, from memory or from the registry. Raises `RegistryError`."""
        page = self._tail.page(after, wanted, limit) if self._tail is not None else None
        if page is None:
            page = await self.read(lambda reader: reader.page(after, wanted, limit))
        return page

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Look for new events in the body, so that `wait` returns when some come."""
        self._followers += 1
        if self._following is None:
            self._following = PeriodicTask(
                "new events", self._advance, EVENTS_INTERVAL_S,
                log=log, failed="new events are not seen", expected=(RegistryError,), wait=self._hint.wait,
            )  # fmt: skip
            self._following.start()
        try:
            yield
        finally:
            self._followers -= 1
            if not self._followers and self._following is not None:
                self._following.cancel()
                self._following, self._tail = None, None

    @property
    def reached(self) -> int:
        """Return the number up to which new events are known; 0 while nothing follows."""
        return self._tail.reached if self._tail is not None else 0

    async def wait(self, after: int, seconds: float) -> None:
        """Wait until there may be events after a number, for some seconds at most."""
        until = asyncio.get_running_loop().time() + seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while self._tail is None or self._tail.reached <= after:
                    await self._advanced.wait()

    async def _advance(self) -> None:
        """Read the events that are new."""
        if self._tail is None:
            self._tail = EventTail(await self.read(EventReader.newest))
        more = True
        while more:
            after = self._tail.reached
            page = await self.read(partial(EventReader.page, after=after, wanted=EventFilter(), limit=EVENTS_PAGE))
            if page.missed is not None and page.missed >= after:  # deleted before it was read, or another registry
                self._tail = EventTail(page.reached)
            else:
                self._tail.extend(page.events, page.reached)
            more = page.more
        if self._tail.reached != after or page.missed is not None:
            self._advanced.set()
            self._advanced = asyncio.Event()

    async def _clean_up(self) -> None:
        before_us = int((self._now() - EVENTS_KEPT_S) * 1_000_000)
        await self._writer.run(lambda written: written.clean_up(before_us, EVENTS_TENANT_MAX, EVENTS_MAX))
