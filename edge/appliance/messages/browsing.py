"""Pages of the messages that an address keeps, without consuming them.

A queue shows the messages that no consumer has accepted, a topic those that its log still has. A page looks at a
limited number of messages; with a filter it may have fewer than requested, and its `next` continues the search.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec

from bridge.message import Run, Stored
from edge.appliance.messages.conditions import MessageCondition
from edge.appliance.messages.documents import MessageDocument, MessagePage
from edge.appliance.messages.limits import ANSWER_BYTES_MAX, PAGE_READ_BYTES, SEARCH_MESSAGES_MAX
from edge.appliance.messages.reading import message_document, read_runs
from edge.appliance.paging import WorkSlices
from edge.broker.http.refusal import RequestRefused
from edge.broker.model.addresses import AddressType
from edge.broker.model.ranges import Ranges
from edge.broker.model.topics import matches
from edge.broker.router.logs import QUEUE_LOG
from edge.broker.router.router import Router
from edge.broker.store.contract import Store
from edge.broker.store.limits import QUEUE_CURSOR


class MessageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Wanted messages. Times are UTC nanoseconds."""

    address: str
    """Name, or a filter of topics."""
    newest: bool = True
    """The newest first; else the oldest."""
    after: int | None = None
    """Position of the last message of the page before."""
    since_ns: int | None = None
    until_ns: int | None = None
    condition: MessageCondition = MessageCondition()
    limit: int = 50
    bytes_shown: int = 1024

    def wants(self, run: Run) -> bool:
        """Return True for a run of the address and the time."""
        return (
            matches(self.address, run.address)
            and (self.since_ns is None or run.received_at >= self.since_ns)
            and (self.until_ns is None or run.received_at < self.until_ns)
        )


class _Found(NamedTuple):
    stored: Stored
    place: int


class MessageBrowser:
    """Reads the messages of one gateway."""

    def __init__(self, router: Router, store: Store) -> None:
        self._router = router
        self._store = store

    async def page(self, query: MessageQuery) -> MessagePage:
        """Return a page. Raises RequestRefused for an address that keeps nothing."""
        log, name = self._log(query.address)
        if log is None:
            return MessagePage(messages=[], next=None, log=name)
        return await (self._newest(query, log, name) if query.newest else self._oldest(query, log, name))

    # --- inside -----------------------------------------------------------------------------------------------------

    def _log(self, address: str) -> tuple[int | None, str]:
        """Return the log of an address and its name; None if it does not exist."""
        table = self._router.addresses.table
        rule = table.rule_of_filter(address)
        if rule.type.is_queue:
            name = f"{QUEUE_LOG}{address}"
        elif rule.type is AddressType.TOPIC:
            name = f"topic {rule.pattern}"
        else:
            raise RequestRefused(409, f"{address[:100]} is a {rule.type.value}, which keeps no messages")
        return self._store.logs.find(name), name

    def _taken(self, log: int, name: str) -> Ranges:
        """Return the positions that the consumers of a queue have accepted."""
        taken, cursors = Ranges(), self._store.cursors
        if name.startswith(QUEUE_LOG):
            record = cursors.record(cursors.open(QUEUE_CURSOR, log, 0))
            if record.position:
                taken.add(0, record.position - 1)
            for first, last in record.acknowledged:
                taken.add(first, last)
        return taken

    async def _oldest(self, query: MessageQuery, log: int, name: str) -> MessagePage:
        first, end = self._store.logs.bounds(log)
        taken = self._taken(log, name)
        start = taken.free_from(max(first, 0 if query.after is None else query.after + 1))
        if query.since_ns is not None:
            start = max(start, await self._position_at(log, query.since_ns, start, end))
        documents, searched, size, last = list[MessageDocument](), 0, 0, start - 1
        slices = WorkSlices()
        async for found in self._read(log, start, end):
            await slices.pause()
            searched, last = searched + 1, found.stored.position + found.place
            if last not in taken and _matches(query, found):
                documents.append(message_document(found.stored, found.place, query.bytes_shown))
                size += documents[-1].shown
            if len(documents) == query.limit or size >= ANSWER_BYTES_MAX or searched >= SEARCH_MESSAGES_MAX:
                break
        more = searched > 0 and last + 1 < end
        return MessagePage(messages=documents, next=last if more else None, log=name, searched=searched)

    async def _newest(self, query: MessageQuery, log: int, name: str) -> MessagePage:
        first, end = self._store.logs.bounds(log)
        taken = self._taken(log, name)
        first = taken.free_from(first)
        if query.since_ns is not None:
            first = max(first, await self._position_at(log, query.since_ns, first, end))
        end = end if query.after is None else min(end, query.after)
        step = self._messages_in(log, PAGE_READ_BYTES)
        documents, searched, size, slices = list[MessageDocument](), 0, 0, WorkSlices()
        while end > first and searched < SEARCH_MESSAGES_MAX:
            start = max(first, end - step)
            some = [each async for each in self._read(log, start, end)]
            for found in reversed(some):
                await slices.pause()
                position = found.stored.position + found.place
                if position not in taken and _matches(query, found):
                    documents.append(message_document(found.stored, found.place, query.bytes_shown))
                    size += documents[-1].shown
                    if len(documents) == query.limit or size >= ANSWER_BYTES_MAX:
                        after = position if position > first else None
                        return MessagePage(messages=documents, next=after, log=name, searched=searched + 1)
                searched += 1
            end = start
        return MessagePage(messages=documents, next=end if end > first else None, log=name, searched=searched)

    def _messages_in(self, log: int, size: int) -> int:
        """Return how many messages of a log have this many bytes, about."""
        first, end = self._store.logs.bounds(log)
        average = max(1, self._store.retention.log_bytes(log) // max(1, end - first))
        return max(1, min(2_000, size // average))

    async def _read(self, log: int, start: int, end: int) -> AsyncIterator[_Found]:
        """Yield the messages of ``start <= position < end``."""
        while start < end:
            runs = await read_runs(self._store.logs, log, start, PAGE_READ_BYTES)
            for stored in runs:
                for place in range(min(len(stored.run.bodies), end - stored.position)):
                    yield _Found(stored, place)
            if not runs:
                return
            start = runs[-1].position + len(runs[-1].run.bodies)
            await asyncio.sleep(0)

    async def _position_at(self, log: int, at_ns: int, low: int, high: int) -> int:
        """Return the first position that arrived at a time or later, as far as times rise with positions."""
        while low < high:
            middle = (low + high) // 2
            runs = await read_runs(self._store.logs, log, middle, 1)
            if not runs or runs[0].run.received_at >= at_ns:
                high = middle
            else:
                low = max(middle + 1, runs[0].position + len(runs[0].run.bodies))
        return low


def _matches(query: MessageQuery, found: _Found) -> bool:
    return query.wants(found.stored.run) and query.condition.holds(found.stored, found.place)
