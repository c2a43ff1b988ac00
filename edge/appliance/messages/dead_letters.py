"""Dead letters of a running gateway: counted by reason and origin, retried, moved and deleted.

They are counted by reading each message once: an index has the positions of each group in ranges. A step retries, moves
or deletes up to `STEP_MESSAGES_MAX` messages in one commit (`edge.broker.delivery.transfers`), so a client may stop
after any step, and the power may be cut at any time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import NamedTuple

from bridge.message import Run, Stored
from bridge.publisher import device_of
from edge.appliance.messages.browsing import MessageQuery
from edge.appliance.messages.documents import (
    DeadLetterGroup,
    DeadLetterList,
    DeadLetterOutcome,
    DeadLetterStep,
    MessageDocument,
    MessagePage,
)
from edge.appliance.messages.limits import (
    ANSWER_BYTES_MAX,
    GROUPS_SHOWN_MAX,
    INDEX_RANGES_MAX,
    INDEX_READ_BYTES,
    INDEX_UNUSED_S,
    INDEXES_MAX,
    PAGE_READ_BYTES,
    SEARCH_MESSAGES_MAX,
    STEP_BYTES_MAX,
    STEP_MESSAGES_MAX,
    STEP_S_MAX,
    UPDATE_S,
)
from edge.appliance.messages.reading import message_document, read_runs
from edge.appliance.paging import WorkSlices
from edge.broker.delivery.dead_letters import dead_letter_marks, without_marks
from edge.broker.delivery.transfers import QueueTransfer
from edge.broker.http.messages import BadRequest, check_address
from edge.broker.http.refusal import RequestRefused
from edge.broker.model.addresses import AddressType
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.model.ranges import Ranges
from edge.broker.model.topics import is_filter
from edge.broker.router.batch import Publication
from edge.broker.router.logs import QUEUE_LOG
from edge.broker.router.router import Router
from edge.broker.store.contract import Store
from edge.broker.store.limits import POSITION_MAX, QUEUE_CURSOR
from edge.broker.store.records import CursorRecord
from edge.broker.store.ticket import Ticket

Act = Callable[[QueueTransfer, Stored], None]
"""Retries, moves or deletes taken messages."""


class GroupKey(NamedTuple):
    """Common marks of the messages of a group."""

    reason: str
    origin: str


class _IndexGroup:
    """Positions of the messages of one group."""

    def __init__(self) -> None:
        self.positions = Ranges()
        self.last_ns = 0


class DeadLetterIndex:
    """Groups of the messages of one queue. Each message is read once."""

    def __init__(self, store: Store, log: int) -> None:
        self.log = log
        self.groups: dict[GroupKey, _IndexGroup] = {}
        self.used_at_s = 0.0
        self._store = store
        self._next = 0
        self._reading = asyncio.Lock()

    async def update(self, until_s: float) -> bool:
        """Read messages that are new, until the time `until_s` (monotonic). Return False when some are left."""
        async with self._reading:
            self._forget()
            while self._next < self._store.logs.bounds(self.log)[1]:
                if time.monotonic() > until_s or self._ranges() > INDEX_RANGES_MAX:
                    return False
                runs = await read_runs(self._store.logs, self.log, self._next, INDEX_READ_BYTES)
                for stored in runs:
                    self._note(stored)
                if not runs:
                    return True
                await asyncio.sleep(0)
            return True

    def waiting(self, keys: Sequence[GroupKey]) -> Ranges:
        """Return the positions of some groups that no consumer has acknowledged."""
        done, found = self._done(), Ranges()
        for key in keys:
            group = self.groups.get(key)
            for low, high in group.positions if group is not None else ():
                for first, last in done.outside(low, high):
                    found.add(first, last)
        return found

    def count(self, key: GroupKey) -> int:
        """Return the number of messages of a group that no consumer has acknowledged."""
        return self.waiting([key]).count

    def _ranges(self) -> int:
        return sum(len(each.positions) for each in self.groups.values())

    def _note(self, stored: Stored) -> None:
        for place, body in enumerate(stored.run.bodies):
            position = stored.position + place
            marks = dead_letter_marks(stored.run, body)
            group = self.groups.setdefault(GroupKey(marks.reason, marks.origin), _IndexGroup())
            group.positions.add(position, position)
            group.last_ns = max(group.last_ns, stored.run.received_at)
            self._next = position + 1

    def _forget(self) -> None:
        """Forget messages that are gone."""
        lowest = min(self._record().position, self._store.logs.bounds(self.log)[1])
        self._next = max(self._next, lowest)
        for key, group in list(self.groups.items()):
            if lowest:
                group.positions.remove(0, lowest - 1)
            if not group.positions:
                del self.groups[key]

    def _done(self) -> Ranges:
        record, done = self._record(), Ranges()
        lowest = max(record.position, self._store.logs.bounds(self.log)[0])
        if lowest:
            done.add(0, lowest - 1)
        for first, last in record.acknowledged:
            done.add(first, last)
        return done

    def _record(self) -> CursorRecord:
        cursors = self._store.cursors
        return cursors.record(cursors.open(QUEUE_CURSOR, self.log, 0))


class DeadLetterService:
    """Dead letters of one gateway."""

    def __init__(
        self,
        router: Router,
        store: Store,
        may_send: Callable[[str, str], bool] = lambda _publisher, _address: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`may_send` returns True if a publisher (`bridge.publisher`) may send to an address."""
        self._router = router
        self._may_send = may_send
        self._store = store
        self._clock = clock
        self._indexes: dict[int, DeadLetterIndex] = {}
        """Indexes by log, least recently used first."""
        self._acting = asyncio.Lock()

    async def groups(self) -> DeadLetterList:
        """Return the groups of all dead letter addresses."""
        found, complete = list[DeadLetterGroup](), True
        until_s = time.monotonic() + UPDATE_S
        for queue in self.queues():
            index = self._index(queue)
            if index is None:
                continue
            complete = await index.update(until_s) and complete
            for key, group in index.groups.items():
                if count := index.count(key):
                    last_at = group.last_ns / 1e9
                    found.append(
                        DeadLetterGroup(
                            queue=queue, reason=key.reason, origin=key.origin, messages=count, last_at=last_at
                        )
                    )
        found.sort(key=lambda each: (-each.messages, each.queue, each.origin, each.reason))
        return DeadLetterList(
            groups=found[:GROUPS_SHOWN_MAX],
            total=len(found),
            messages=sum(each.messages for each in found),
            queues=self.queues(),
            complete=complete,
        )

    async def page(self, selection: DeadLetterStep, query: MessageQuery) -> MessagePage:
        """Return messages of a selection that `query` wants, oldest first. Raises RequestRefused."""
        index, waiting = await self._selected(selection)
        found, size, searched, last, slices = list[MessageDocument](), 0, 0, -1, WorkSlices()
        async for stored, place in self._read(index, waiting, _start(selection)):
            await slices.pause()
            searched, last = searched + 1, stored.position + place
            if query.wants(stored.run) and query.condition.holds(stored, place):
                found.append(message_document(stored, place, query.bytes_shown, dead=True))
                size += found[-1].shown
            if len(found) == query.limit or size >= ANSWER_BYTES_MAX or searched >= SEARCH_MESSAGES_MAX:
                break
        more = searched > 0 and waiting.following(last + 1) is not None
        return MessagePage(messages=found, next=last if more else None, searched=searched)

    async def retry(self, selection: DeadLetterStep, user: str) -> DeadLetterOutcome:
        """Send messages to the addresses where they were dropped. Raises RequestRefused.

        The address is a mark in the message, and a client that may send to the dead letter address can forge it. So a
        message goes only to an address that drops its messages here, and to which its publisher may send.
        """
        return await self._send(selection, "", user)

    async def move(self, selection: DeadLetterStep, target: str, user: str) -> DeadLetterOutcome:
        """Send messages to an address. Raises RequestRefused."""
        try:
            check_address(target)
        except BadRequest as error:
            raise RequestRefused(400, str(error)) from None
        if target == selection.queue:
            raise RequestRefused(400, f"the messages are in {target[:100]} already")
        return await self._send(selection, target, user)

    async def delete(self, selection: DeadLetterStep, user: str) -> DeadLetterOutcome:
        """Drop messages, with an entry in the loss ledger. Raises RequestRefused."""
        now_ns = self._router.now_ns()

        def drop(transfer: QueueTransfer, part: Stored) -> None:
            transfer.drop(part, now_ns, partial(self._call_when_decided, transfer))

        return await self._step(selection, user, drop, lambda _run, _body: "")

    def queues(self) -> list[str]:
        """Return the dead letter addresses of the configuration."""
        addresses = self._router.addresses
        named = {rule.pattern for rule in addresses.table.rules if rule.type is AddressType.DEADLETTER}
        for policy in addresses.policies():
            named |= {name for name in (policy.deadletter, policy.expiry) if name is not None}
        return sorted(name for name in named if not is_filter(name) and addresses.type_of(name).is_queue)

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _send(self, selection: DeadLetterStep, target: str, user: str) -> DeadLetterOutcome:
        def address_of(run: Run, body: bytes) -> str:
            return target or dead_letter_marks(run, body).origin

        def send(transfer: QueueTransfer, part: Stored) -> None:
            transfer.send(part, lambda run, body: without_marks(run, body, address_of(run, body)), self._publish)

        def why_not(run: Run, body: bytes) -> str:
            address = address_of(run, body)
            if target or not address:
                return self._why_not_kept(address)
            return self._why_not_origin(selection.queue, run.device, address) or self._why_not_kept(address)

        if target and (why := self._why_not_kept(target)):
            raise RequestRefused(409, why)
        return await self._step(selection, user, send, why_not)

    async def _step(
        self, selection: DeadLetterStep, user: str, act: Act, why_not: Callable[[Run, bytes], str]
    ) -> DeadLetterOutcome:
        """Do a step. `why_not` returns why a message has to stay; empty: it may go."""
        async with self._acting:
            index, waiting = await self._selected(selection)
            queue, count = self._router.queues[selection.queue], waiting.count
            transfer = QueueTransfer(queue, self._store.cursors, self._store.commits, user)
            looked, size, last, reasons = 0, 0, -1, dict[str, None]()
            async for stored, place in self._read(index, waiting, _start(selection)):
                body, last = stored.run.bodies[place], stored.position + place
                looked, size = looked + 1, size + len(body)
                if why := why_not(stored.run, body):
                    reasons[why] = None
                elif not selection.dry_run:
                    taken = transfer.take(stored, [(last, last)])
                    for part in taken:
                        act(transfer, part)
                    if not taken:
                        reasons["a consumer has them, or took them in the meantime"] = None
                if looked == STEP_MESSAGES_MAX or size >= STEP_BYTES_MAX:
                    break
            if not selection.dry_run:
                await self._wait_ended(transfer)
                reasons |= {each.value: None for each in transfer.refusals}
            more = looked and not selection.dry_run and waiting.following(last + 1) is not None
            return DeadLetterOutcome(
                messages=count,
                done=transfer.done,
                kept=0 if selection.dry_run else looked - transfer.done,
                why="; ".join(reasons),
                next=last if more else None,
            )

    async def _wait_ended(self, transfer: QueueTransfer) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        transfer.call_when_ended(lambda: None if ended.done() else ended.set_result(None))
        self._router.flush_soon()
        try:
            async with asyncio.timeout(STEP_S_MAX):
                await ended
        except TimeoutError:
            raise RequestRefused(504, f"no commit within {STEP_S_MAX:g} s: look at the messages again") from None
        finally:
            self._router.forget_origin(transfer)

    async def _read(self, index: DeadLetterIndex, wanted: Ranges, start: int) -> AsyncIterator[tuple[Stored, int]]:
        """Yield messages of a queue from `start` on: the run, and the place in it."""
        position = wanted.following(start)
        while position is not None:
            runs = await read_runs(self._store.logs, index.log, position, PAGE_READ_BYTES)
            for stored in runs:
                for low, high in wanted.within(stored.position, stored.position + len(stored.run.bodies) - 1):
                    for each in range(low, high + 1):
                        yield stored, each - stored.position
            end = runs[-1].position + len(runs[-1].run.bodies) if runs else POSITION_MAX
            position = wanted.following(max(position + 1, end))

    async def _selected(self, selection: DeadLetterStep) -> tuple[DeadLetterIndex, Ranges]:
        """Return the index of a queue and the positions of a selection. Raises RequestRefused."""
        index = self._index(selection.queue) if selection.queue in self.queues() else None
        if index is None:
            known = ", ".join(self.queues()[:10]) or "no address has any"
            raise RequestRefused(404, f"{selection.queue[:100]} is not a dead letter address with messages: {known}")
        await index.update(time.monotonic() + UPDATE_S)
        keys = [
            key
            for key in index.groups
            if selection.reason in (None, key.reason) and selection.origin in (None, key.origin)
        ]
        waiting = index.waiting(keys)
        if selection.positions is not None:
            chosen = Ranges()
            for position in selection.positions:
                if position in waiting:
                    chosen.add(position, position)
            return index, chosen
        return index, waiting

    def _index(self, queue: str) -> DeadLetterIndex | None:
        """Return the index of a queue; None if the queue does not exist."""
        now_s = self._clock()
        for number, each in list(self._indexes.items()):
            if now_s - each.used_at_s > INDEX_UNUSED_S:
                del self._indexes[number]
        log = self._store.logs.find(f"{QUEUE_LOG}{queue}")
        if log is None or queue not in self._router.queues:
            return None
        index = self._indexes.pop(log, None) or DeadLetterIndex(self._store, log)
        index.used_at_s = now_s
        self._indexes[log] = index
        while len(self._indexes) > INDEXES_MAX:
            del self._indexes[next(iter(self._indexes))]
        return index

    def _why_not_origin(self, queue: str, publisher: str, address: str) -> str:
        """Return why the mark with the origin of a message is not believed; empty: it is."""
        if not self._router.addresses.drops_into(address, queue):
            return f"dead letters of {address[:100]} do not come here: move them"
        if self._may_send(publisher, address):
            return ""
        return f"{device_of(publisher)[:100]} may not send to {address[:100]}: move them"

    def _why_not_kept(self, address: str) -> str:
        """Return why messages to an address would not be stored; empty: they would be."""
        router = self._router
        if not address:
            return "these messages were sent to the dead letter address itself: move them"
        kind = router.addresses.type_of(address)
        if kind.is_queue or (
            kind is AddressType.TOPIC and router.subscriptions.durable.lowest_qos(address) is not None
        ):
            return ""
        missing = "no durable subscription and no forwarder" if kind is AddressType.TOPIC else "no storage"
        return f"{address[:100]} would not keep them: it is a {kind.value} with {missing}"

    def _publish(self, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        self._router.publish(Publication(origin, run, tokens))

    def _call_when_decided(self, party: Origin, ticket: Ticket, notify: Callable[[Refusal | None], None]) -> None:
        self._router.waits.add(ticket, party, notify)


def _start(selection: DeadLetterStep) -> int:
    return 0 if selection.after is None else max(0, selection.after + 1)
