"""Events of the fleet at one hub: pages of them, waiting for the next ones, and their deletion.

Runs on the event loop. The registry work runs in two threads, one that writes and one that reads. Events come from the
registry alone, so every hub has the same; a notice of another hub only makes the next look come earlier.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import sqlalchemy as sa

from cloud.hub.ended_task import end_task
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
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

T = TypeVar("T")


class EventsNotReady(Exception):
    """The hub is starting or stopping; the request may be repeated in some seconds."""


class HubEvents:
    """Reads and deletes events. `open`, later `close`."""

    def __init__(self, registry: sa.URL, now: Callable[[], float], hint: ChangeHint | None = None) -> None:
        """`now`: UTC seconds since 1970; `hint` is given when another hub has appended events."""
        self._url = registry
        self._now = now
        self._hint = hint or ChangeHint()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="events")
        self._log: EventLog | None = None
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="events-reading")
        self._reader: EventReader | None = None
        self._tail: EventTail | None = None
        """None while nothing follows."""
        self._followers = 0
        self._advanced = asyncio.Event()
        """Set, and replaced, when the tail has got further."""
        self._tasks: list[asyncio.Task[None]] = []
        self._following: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the registry. Raises `RegistryError`."""
        loop = asyncio.get_running_loop()
        self._log = await loop.run_in_executor(self._executor, EventLog, self._url)
        self._reader = await loop.run_in_executor(self._reading, EventReader, self._url)
        self._tasks = [loop.create_task(self._clean_up(), name="deletion of old events")]

    async def close(self) -> None:
        """Close the registry. Idempotent."""
        tasks, self._tasks = [*self._tasks, *([self._following] if self._following is not None else ())], []
        self._following = None
        for task in tasks:
            await end_task(task)
        written, self._log = self._log, None
        reader, self._reader = self._reader, None
        loop = asyncio.get_running_loop()
        if reader is not None:
            await loop.run_in_executor(self._reading, reader.close)
        if written is not None:
            await loop.run_in_executor(self._executor, written.close)
        self._reading.shutdown()
        self._executor.shutdown()

    async def read(self, work: Callable[[EventReader], T]) -> T:
        """Run `work` on the reading thread. Raises `EventsNotReady`, `RegistryError`."""
        reader = self._reader
        if reader is None:
            raise EventsNotReady("the hub is starting or stopping; try again in some seconds")
        return await asyncio.get_running_loop().run_in_executor(self._reading, work, reader)

    async def page(self, after: int, wanted: EventFilter, limit: int) -> EventPage:
        """Return events after a number, from memory or from the registry. Raises `EventsNotReady`, `RegistryError`."""
        page = self._tail.page(after, wanted, limit) if self._tail is not None else None
        if page is None:
            page = await self.read(lambda reader: reader.page(after, wanted, limit))
        return page

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Look for new events in the body, so that `wait` returns when some come."""
        self._followers += 1
        if self._following is None:
            self._following = asyncio.get_running_loop().create_task(self._follow(), name="new events")
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

    async def _follow(self) -> None:
        failed = False
        while True:
            try:
                await self._advance()
                failed = False
            except (RegistryError, EventsNotReady) as error:
                if not failed:
                    log.warning("new events are not seen: %s", error)
                failed = True
            except Exception:  # an internal error must not end the task silently
                log.exception("events failed with an internal error")
            await self._hint.wait(EVENTS_INTERVAL_S)

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
        """Delete old events at intervals."""
        while True:
            written, before_us = self._log, int((self._now() - EVENTS_KEPT_S) * 1_000_000)
            if written is not None:
                try:
                    await asyncio.get_running_loop().run_in_executor(
                        self._executor, written.clean_up, before_us, EVENTS_TENANT_MAX, EVENTS_MAX
                    )
                except RegistryError as error:
                    log.warning("old events are not deleted: %s", error)
                except Exception:  # an internal error must not end the task silently
                    log.exception("events failed with an internal error")
            await asyncio.sleep(EVENTS_CLEANUP_S)
