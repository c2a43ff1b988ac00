"""Queues of a space by address: rows of the store, and an open subscription of the log for queues in use.

A queue is made when a client sends to it or consumes from it. While no client uses it, it is rows. It is *opened* for
its consumers, for messages that may have expired, and for messages of other than normal priority, which its order has
to remember. It is closed when none of its state is in memory only. So the names of queues cost little, at run time and
at a start.

An empty queue that clients made is forgotten when it was unused for `Limits.queue_unused_s`, and its log is reused. Its
sequence numbers stay in the store, and continue when a message makes the queue again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from bridge.message import Stored
from edge.broker.delivery import LogSubscription
from edge.broker.delivery.expiry import SWEEP_AGAIN_NS
from edge.broker.delivery.log import QueueWatcher
from edge.broker.delivery.priorities import NORMAL, priority_of
from edge.broker.limits import (
    QUEUE_LINGER_S,
    QUEUES_CHECKED_MAX,
    QUEUES_COUNTED_MAX,
    QUEUES_IDLE_MAX,
    QUEUES_OPENED_MAX,
)
from edge.broker.message.time_to_live import ttl_ns
from edge.broker.model.interfaces import AddressError, Consumer, Refusal
from edge.broker.model.topics import FilterTree
from edge.broker.retention.names import NameKind, NameQuotas
from edge.broker.router.configured import ConfiguredAddresses
from edge.broker.router.logs import Logs
from edge.broker.store.contract import MessageLogs, SmallState
from edge.broker.store.errors import StoreError

KIND = "queue"
"""Kind of the small state with every queue's address, and the user who made it (empty: unknown)."""


class Queues(Mapping[str, LogSubscription]):
    """All queues. Access by address opens one; its `policy` is that of its address."""

    def __init__(
        self,
        state: SmallState,
        message_logs: MessageLogs,
        addresses: ConfiguredAddresses,
        logs: Logs,
        names: NameQuotas,
        *,
        unused_s: float,
        forgotten: Callable[[str, int], None],
    ) -> None:
        """`unused_s`: seconds that an empty, unused queue is kept. `forgotten` is called with the address and the log
        of a queue before it is forgotten."""
        self._state = state
        self._message_logs = message_logs
        self._addresses = addresses
        self._logs = logs
        self._names = names
        self._unused_s = unused_s
        self._forgotten = forgotten
        self.consumers: FilterTree[Consumer] = FilterTree()
        """Consumers of all queues that a filter matches; they join each one that is opened."""
        self._watcher: Callable[[str, LogSubscription], QueueWatcher | None] = _no_watcher
        self._count = 0
        self._configured: set[str] = set()
        """Queues with names from the configuration, which do not count for a user."""
        self._unused: dict[int, float] = {}
        """Logs of empty, unused queues, and since when (monotonic seconds), in order of time."""
        self.opened: dict[str, LogSubscription] = {}
        """Open queues by address (other modules only read it)."""
        self._delivered: dict[str, int] = {}
        """Messages that closed queues gave to consumers, the latest closed last."""
        self._idle: dict[str, float] = {}
        """Open queues without consumers, and since when (monotonic seconds)."""
        self._due: dict[str, int] = {}
        """Closed queues in which messages may expire, and when (UTC nanoseconds)."""
        self._due_order: list[tuple[int, str]] = []
        """Heap of `_due`, with obsolete entries."""
        self._looking: Iterator[str] = iter(())
        self._restore()
        self._now_s = 0.0
        self._unknown = self.walk()
        """Queues that were not checked since the start."""
        self._checked: set[str] = set()
        """Open queues among them without consumers so far."""

    def __getitem__(self, address: str) -> LogSubscription:
        queue = self.opened.get(address)
        if queue is None:
            queue = self._open(address, self._log(address))
        return queue

    def __contains__(self, address: object) -> bool:
        return isinstance(address, str) and (address in self.opened or self._state.get(KIND, address) is not None)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the addresses one by one, as there may be very many."""
        return (address for address, _ in self._state.items(KIND))

    def __len__(self) -> int:
        return self._count

    def walk(self) -> Iterator[str]:
        """Return the addresses one by one, without queues that are gone by then."""
        return (address for address in self if address in self)

    def _log(self, address: str) -> int:
        """Return the log of a queue. Raises KeyError for an unknown queue."""
        log = self._logs.find_queue(address) if address in self else None
        if log is None:
            raise KeyError(address)
        return log

    def set_watchers(self, watcher: Callable[[str, LogSubscription], QueueWatcher | None]) -> None:
        """Ask this function for the watcher of a queue, from now on."""
        self._watcher = watcher
        for address, queue in self.opened.items():
            queue.watch(watcher(address, queue))

    def make(self, address: str, user: str) -> int:
        """Return the log of a queue, made for this user if it is new. Raises AddressError when there are too many."""
        if address not in self:
            if not self._is_configured(address) and not self._names.has_room(NameKind.QUEUE, user, len(address)):
                raise AddressError(Refusal.NAMES, self._names.refusal_text(NameKind.QUEUE, user))
            log = self._logs.of_queue(address)
            self._enter(address, user)
            self._state.put(KIND, address, user.encode())
            self._note_unused(log)  # its first message may be refused
            return log
        return self._logs.of_queue(address)

    def backlog(self, address: str) -> int:
        """Return the number of unsettled messages. Raises KeyError for an unknown queue."""
        queue = self.opened.get(address)
        if queue is not None:
            return queue.backlog + queue.outstanding
        self._log(address)
        return self._logs.backlog(address)

    def received(self, address: str) -> int:
        """Return the number of messages ever committed to a queue. Raises KeyError for an unknown queue."""
        return self._message_logs.bounds(self._log(address))[1]

    def delivered(self, address: str) -> int:
        """Return the number of messages given to consumers since the start, as far as it is remembered."""
        queue = self.opened.get(address)
        return self._delivered.get(address, 0) + (queue.deliveries.delivered if queue is not None else 0)

    def first_waiting(self, address: str) -> tuple[int, int]:
        """Return the log and the position of the oldest message that is not settled. Raises KeyError for an unknown
        queue."""
        queue = self.opened.get(address)
        if queue is not None:
            return queue.log, queue.lowest
        return self._log(address), self._logs.first_waiting(address)

    def follow_configuration(self) -> None:
        """Apply changed rules or policies."""
        for address, queue in self.opened.items():
            queue.follow_policy(self._addresses.policy(address))
        self._unknown = self.walk()  # other messages may expire now

    # --- opening and closing ----------------------------------------------------------------------------------

    def tick(self, now_s: float, now_ns: int) -> None:
        """Open queues with messages that may have expired, close and forget unused ones. Called every
        `limits.TICK_S`."""
        self._now_s = now_s
        self._open_due(now_ns)
        try:
            self._check_unknown()
        except StoreError:
            self._unknown = self.walk()  # start again when the store can be read
            raise
        self._close_unused(now_ns)
        self._forget_unused()

    def handle_unfollowed(self, log: int, stored: Stored) -> bool:
        """Handle a run that was committed to a log without an open subscription. Return True when the following runs
        with the same address and properties need no handling."""
        run, expires = stored.run, bool(stored.run.properties) or self._addresses.expires
        address = self._logs.queue_of(log) if self.consumers or expires else None
        if address is None:
            return True
        if self.consumers and self.consumers.match(address) and address in self:
            self[address].pump()
            return False
        if not expires:
            return True
        if priority_of(run) != NORMAL and address in self:
            self[address].arrived(stored)
            return False
        ttl = ttl_ns(run, self._addresses.policy(address))
        if ttl is not None:
            self._expires_at(address, run.received_at + min(ttl, SWEEP_AGAIN_NS))
        return ttl is None

    def _open(self, address: str, log: int) -> LogSubscription:
        queue = self.opened[address] = self._logs.open_queue(address)
        queue.follow_policy(self._addresses.policy(address))
        queue.watch(self._watcher(address, queue))
        self._unused.pop(log, None)
        self._due.pop(address, None)
        if self.consumers:
            for consumer in self.consumers.match(address):
                queue.join(consumer)
        return queue

    def _remember_delivered(self, address: str, count: int) -> None:
        """Keep the count of a queue that is closed, as its next object starts at zero."""
        self._delivered[address] = self._delivered.pop(address, 0) + count
        if len(self._delivered) > QUEUES_COUNTED_MAX:
            del self._delivered[next(iter(self._delivered))]

    def _expires_at(self, address: str, due_ns: int) -> None:
        before = self._due.get(address)
        if before is None or due_ns < before:
            self._due[address] = due_ns
            heapq.heappush(self._due_order, (due_ns, address))

    def _open_due(self, now_ns: int) -> None:
        order = self._due_order
        for _ in range(QUEUES_OPENED_MAX):
            if not order or now_ns < order[0][0] < now_ns + 2 * SWEEP_AGAIN_NS:
                return  # later times were noted before the clock was set back
            due_ns, address = heapq.heappop(order)
            if self._due.get(address) == due_ns:
                del self._due[address]
                if address in self and address not in self.opened:
                    self._open(address, self._log(address))

    def _check_unknown(self) -> None:
        """Check queues from before the start: open those with messages, as some may have expired; the others are
        unused."""
        opened = 0
        self._checked = {each for each in self._checked if each in self.opened and not self.opened[each].group}
        if len(self._checked) >= QUEUES_IDLE_MAX:
            return  # the medium is slow
        for address in islice(self._unknown, QUEUES_CHECKED_MAX):
            if address in self.opened:
                continue
            if self._logs.backlog(address):
                self._open(address, self._log(address))
                self._checked.add(address)
                opened += 1
                if opened >= QUEUES_OPENED_MAX:
                    return
            elif (log := self._log(address)) not in self._unused:
                self._note_unused(log)

    def _close_unused(self, now_ns: int) -> None:
        began = False
        linger_s = QUEUE_LINGER_S if len(self._idle) <= QUEUES_IDLE_MAX else 0.0
        for _ in range(QUEUES_CHECKED_MAX):
            address = next(self._looking, None)
            if address is None:
                if began or not self.opened:
                    return
                self._looking, began = iter(list(self.opened)), True
                continue
            queue = self.opened.get(address)
            if queue is None or not queue.can_close or not self._logs.is_only_follower(queue):
                self._idle.pop(address, None)
            elif self._now_s - self._idle.setdefault(address, self._now_s) >= linger_s:
                self._close(address, queue, now_ns)

    def _close(self, address: str, queue: LogSubscription, now_ns: int) -> None:
        del self.opened[address]
        self._idle.pop(address, None)
        due_ns = queue.expiry.due_ns
        if queue.deliveries.delivered:
            self._remember_delivered(address, queue.deliveries.delivered)
        queue.release()
        self._logs.make_idle(queue)
        if not self._logs.backlog(address):
            self._note_unused(queue.log)
        elif due_ns is not None:
            self._expires_at(address, min(due_ns, now_ns + SWEEP_AGAIN_NS))

    # --- making and forgetting --------------------------------------------------------------------------------

    def _restore(self) -> None:
        """Restore the queues from the store."""
        for address, user in self._state.items(KIND):
            if self._logs.find_queue(address) is None:
                self._state.delete(KIND, address)  # there was no room for its log
            else:
                self._enter(address, user.decode())

    def _enter(self, address: str, user: str) -> None:
        self._count += 1
        if self._is_configured(address):
            self._configured.add(address)
        else:
            self._names.add(NameKind.QUEUE, user, len(address))

    def _is_configured(self, address: str) -> bool:
        return address in self._addresses.table.patterns

    def _forget_unused(self) -> None:
        for log, since_s in list(islice(self._unused.items(), QUEUES_CHECKED_MAX)):
            if since_s > self._now_s - self._unused_s:
                return
            del self._unused[log]
            address = self._logs.queue_of(log)
            if address is None or address in self.opened or address in self._configured:
                continue
            user = self._state.get(KIND, address)
            if user is not None and not self._is_configured(address):
                self._forget(address, log, user.decode())

    def _note_unused(self, log: int) -> None:
        """Note that a queue is empty and unused from now on."""
        self._unused.pop(log, None)
        self._unused[log] = self._now_s

    def _forget(self, address: str, log: int, user: str) -> None:
        if self._logs.backlog(address):
            return  # checked again when its messages are consumed
        self._forgotten(address, log)
        if self._logs.forget_queue(address):
            self._count -= 1
            self._delivered.pop(address, None)
            self._names.remove(NameKind.QUEUE, user, len(address))
            self._state.delete(KIND, address)
        else:
            self._note_unused(log)  # a message is on its way to it, or it is browsed


def _no_watcher(_address: str, _queue: LogSubscription) -> None:
    """Return no watcher."""
