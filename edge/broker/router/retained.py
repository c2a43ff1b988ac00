"""Retained messages: the last message of each address, for later subscribers (MQTT 5 section 3.3.1.3)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from bridge.message import AMQP, RETAIN, Run
from edge.broker.limits import RETAINED_JUDGED_AGAIN_S, RETAINED_PURGED_MAX, RETAINED_STALE_MAX
from edge.broker.message.translation import is_empty
from edge.broker.retention.names import NameKind, NameQuotas
from edge.broker.router.retained_tree import RetainedMessage, RetainedTree
from edge.broker.store.contract import SmallState
from edge.broker.store.ticket import Ticket

KIND = "retained"
"""Kind of the store's small state with them, by address."""


_NS_IN_S: Final = 1_000_000_000


class RetainedRecord(Run, gc=False):
    """Retained message as stored on disk, with the user who made it."""

    user: str = ""


class RetainedMessages:
    """Retained messages in memory and in the store; changes are on disk with the open group."""

    def __init__(
        self, state: SmallState, names: NameQuotas, ttl_ns: Callable[[Run], int | None] = lambda _run: None
    ) -> None:
        """`ttl_ns` returns the time to live of a run in nanoseconds, or None."""
        self.expired = 0
        """Number of messages removed because they expired."""
        self._ttl_ns = ttl_ns
        self._due: list[tuple[int, str]] = []
        """Heap of (time to check for expiry, address); entries of replaced messages are skipped then."""
        self._state = state
        self._names = names
        self._tree = RetainedTree()
        self._deleted: dict[str, Ticket] = {}
        """Tickets of deletions by address, including all that are not on disk."""
        self._count = 0
        known: dict[str, str] = {}
        """Names of devices and users, each once."""
        for address, value in state.items(KIND):
            kept = msgspec.msgpack.decode(value, type=RetainedRecord)
            kept.device, kept.user = known.setdefault(kept.device, kept.device), known.setdefault(kept.user, kept.user)
            self._set(address, kept)
            self._remember_expiry(kept)

    def __len__(self) -> int:
        return self._count

    def admits(self, run: Run, user: str) -> bool:
        """Return True when `user` may retain the run's last message."""
        body = run.bodies[-1]
        if _clears(run, body):
            return True
        existing = self._tree.get(run.address)
        own = existing if existing is not None and existing.user == user else None
        replaced = None if own is None else _size_of(run.address, own.body_bytes)
        size = _size_of(run.address, len(body))
        return self._names.has_room(NameKind.RETAINED, user, size, replaced=replaced)

    def put(self, run: Run, user: str) -> Ticket | None:
        """Replace the retained message of the run's address by its last one; an empty body deletes it. The caller
        checks `admits`.

        Return the ticket of the commit to wait for; None when nothing changes.
        """
        address, body = run.address, run.bodies[-1]
        if _clears(run, body):
            return self.discard(address)
        kept = RetainedRecord(address, run.device, run.flags | RETAIN, run.properties, [body], run.received_at, user)
        self._deleted.pop(address, None)
        self._set(address, kept)
        self._remember_expiry(kept)
        return self._state.put(KIND, address, msgspec.msgpack.encode(kept))

    def purge(self, now_ns: int, is_over: Callable[[Run, int], bool]) -> None:
        """Delete expired messages, also from the store: some in each call, those due first.

        `is_over` returns True when a time to live (nanoseconds) has passed for a run; `now_ns` is UTC.
        """
        due = self._due
        if len(due) > 2 * self._count + RETAINED_STALE_MAX:
            due = self._due = self._current()
        for _ in range(RETAINED_PURGED_MAX):
            if not due or due[0][0] > now_ns:
                return
            _, address = heapq.heappop(due)
            message = self._tree.get(address)
            run = message.run(address) if message is not None else None
            ttl = self._ttl_ns(run) if run is not None else None
            if run is None or ttl is None or run.received_at + ttl > now_ns:
                continue  # deleted, or replaced by a message with its own entry
            if is_over(run, ttl):
                self.discard(address)
                self.expired += 1
            else:
                heapq.heappush(due, (now_ns + RETAINED_JUDGED_AGAIN_S * _NS_IN_S, address))

    def get(self, address: str) -> Run | None:
        """Return the message of an address."""
        message = self._tree.get(address)
        return message.run(address) if message is not None else None

    def matching(self, pattern: str) -> list[Run]:
        """Return the messages of every address that the filter matches."""
        return [run for run in self.walk(pattern) if run is not None]

    def walk(self, pattern: str) -> Iterator[Run | None]:
        """See `RetainedTree.walk`."""
        return self._tree.walk(pattern)

    def discard(self, address: str) -> Ticket | None:
        """Delete the message of an address. Return the ticket of the deletion; None if neither memory nor disk has
        one."""
        removed = self._tree.pop(address)
        if removed is None:
            return self._delete_again(address)
        self._names.remove(NameKind.RETAINED, removed.user, _size_of(address, removed.body_bytes))
        self._count -= 1
        return self._delete(address)

    def _delete(self, address: str) -> Ticket:
        if len(self._deleted) >= RETAINED_PURGED_MAX:
            self._deleted = {each: ticket for each, ticket in self._deleted.items() if not _is_on_disk(ticket)}
        ticket = self._deleted[address] = self._state.delete(KIND, address)
        return ticket

    def _delete_again(self, address: str) -> Ticket | None:
        """Return the ticket of an earlier deletion that is not on disk; repeat the deletion if its commit failed."""
        ticket = self._deleted.get(address)
        if ticket is None or _is_on_disk(ticket):
            return None
        return self._delete(address) if ticket.decided else ticket

    def _set(self, address: str, kept: RetainedRecord) -> None:
        message = RetainedMessage.of(kept, kept.user)
        replaced = self._tree.put(address, message)
        if replaced is None:
            self._count += 1
        else:
            self._names.remove(NameKind.RETAINED, replaced.user, _size_of(address, replaced.body_bytes))
        self._names.add(NameKind.RETAINED, kept.user, _size_of(address, message.body_bytes))

    def _remember_expiry(self, run: Run) -> None:
        ttl = self._ttl_ns(run)
        if ttl is not None:
            heapq.heappush(self._due, (run.received_at + ttl, run.address))

    def _current(self) -> list[tuple[int, str]]:
        """Return the heap without entries of replaced messages."""
        runs = (message.run(address) for address, message in self._tree)
        due = [(run.received_at + ttl, run.address) for run in runs if (ttl := self._ttl_ns(run)) is not None]
        heapq.heapify(due)
        return due


def _is_on_disk(ticket: Ticket) -> bool:
    return ticket.decided and ticket.error is None


def _clears(run: Run, body: bytes) -> bool:
    """Return True when the message deletes the retained one of its address."""
    return not body or bool(run.flags & AMQP and is_empty(body))


def _size_of(address: str, body_bytes: int) -> int:
    """Return the size of a message for `NameQuotas`: one with a small address and body counts as one name."""
    return len(address) + body_bytes
