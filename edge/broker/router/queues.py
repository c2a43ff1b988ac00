"""The queues of a space by address: a name each, and an open subscription of its log for those in use.

A queue is made when somebody sends to it or consumes from it. Nobody consumes from it: it is but a name, and what the
store has of it. It is *opened* for its consumers, for messages in it that may have expired, and for one that is to be
delivered before others, which its order has to remember; it is closed when nothing of it is in memory only. So what a
client can make by naming queues takes little, here and at a start.

A queue that clients made, that is empty and that nobody has used for `Limits.queue_unused_s` is forgotten; its log is
for another one then. Its sequence numbers stay in the store, and go on when a message makes it anew.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping

from bridge.message import Stored
from edge.broker.delivery import LogSubscription
from edge.broker.delivery.expiry import SWEEP_AGAIN_NS
from edge.broker.delivery.log import Watcher
from edge.broker.delivery.priorities import NORMAL, priority_of
from edge.broker.limits import QUEUE_REST_S, QUEUES_LOOKED_AT_MAX, QUEUES_OPENED_MAX
from edge.broker.message.time_to_live import ttl_ns
from edge.broker.model.interfaces import AddressError, Consumer, Refusal
from edge.broker.model.topics import FilterTree
from edge.broker.retention.names import NameKind, NameQuotas
from edge.broker.router.configured import ConfiguredAddresses
from edge.broker.router.logs import Logs
from edge.broker.store.contract import Store

KIND = "queue"
"""Kind of the small state with every queue's address, and the user who made it (empty: nobody is known)."""


class Queues(Mapping[str, LogSubscription]):
    """See the module's docstring. To ask for one opens it; its `policy` is that of its address."""

    def __init__(
        self,
        store: Store,
        addresses: ConfiguredAddresses,
        logs: Logs,
        names: NameQuotas,
        *,
        unused_s: float,
        forgotten: Callable[[str, int], None],
    ) -> None:
        """`unused_s`: how long an empty one that nobody uses is kept; `forgotten` hears the address and the log of one
        that is about to be no more."""
        self._store = store
        self._addresses = addresses
        self._logs = logs
        self._names = names
        self._unused_s = unused_s
        self._forgotten = forgotten
        self.consumers: FilterTree[Consumer] = FilterTree()
        """Who consumes from all a filter matches: joined to each that is opened."""
        self._watcher: Callable[[str, LogSubscription], Watcher | None] = _nobody
        self._users: dict[str, str | None] = {}
        """Who made each; None: its name is the configuration's."""
        self.opened: dict[str, LogSubscription] = {}
        """Those that are open, by address (outside only to be looked at)."""
        self._idle: dict[str, float] = {}
        """Open ones nobody consumes from, and since when (monotonic seconds)."""
        self._unused: dict[str, float] = {}
        """Closed ones that were empty then, and since when they are; the oldest first."""
        self._due: dict[str, int] = {}
        """Closed ones in which something may expire, and when (UTC nanoseconds)."""
        self._due_order: list[tuple[int, str]] = []
        """Heap of `_due`, with entries that count no more."""
        self._looking: Iterator[str] = iter(())
        for address, user in store.items(KIND):
            self._enter(address, user.decode())
        self._now_s = 0.0
        self._unknown = list(self._users)
        """Nobody has looked whether there is something in them, since the start."""

    def __getitem__(self, address: str) -> LogSubscription:
        queue = self.opened.get(address)
        if queue is None:
            if address not in self._users:
                raise KeyError(address)
            queue = self._open(address)
        return queue

    def __contains__(self, address: object) -> bool:
        return address in self._users

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._users))

    def __len__(self) -> int:
        return len(self._users)

    def watched_by(self, watcher: Callable[[str, LogSubscription], Watcher | None]) -> None:
        """From now on `watcher` says who hears what becomes of the messages of a queue."""
        self._watcher = watcher
        for address, queue in self.opened.items():
            queue.watcher = watcher(address, queue)

    def make(self, address: str, user: str) -> int:
        """The log of a queue, made for this user when it is new. Raises AddressError when there are too many."""
        if address not in self._users:
            if not self._is_configured(address) and not self._names.has_room(NameKind.QUEUE, user, len(address)):
                raise AddressError(Refusal.NAMES, self._names.why(NameKind.QUEUE, user))
            self._enter(address, user)
            self._store.put(KIND, address, user.encode())
            self._unused[address] = self._now_s  # as what is about to be stored in it may not be
        return self._logs.of_queue(address)

    def backlog(self, address: str) -> int:
        """Messages in it that are not settled. Raises KeyError when there is no such queue."""
        queue = self.opened.get(address)
        if queue is not None:
            return queue.backlog + queue.outstanding
        if address not in self._users:
            raise KeyError(address)
        return self._logs.backlog(address)

    def follow_configuration(self) -> None:
        """Rules or policies have changed."""
        for address, queue in self.opened.items():
            queue.policy = self._addresses.policy(address)
        self._unknown = list(self._users)  # what expires now may not have before

    # --- opened and closed ------------------------------------------------------------------------------------

    def tick(self, now_s: float, now_ns: int) -> None:
        """Every `limits.TICK_S`: open what may have expired, close what is not in use, forget what is unused."""
        self._now_s = now_s
        self._open_due(now_ns)
        self._look_at_unknown()
        self._close_unused(now_ns)
        self._forget_unused()

    def unattended(self, stored: Stored) -> bool:
        """A run was committed to a log that has no open subscription. True: those behind it with the same address and
        properties are none that anything is done about."""
        run = stored.run
        if self.consumers and run.address in self._users and self.consumers.match(run.address):
            self[run.address].pump()
            return False
        if not (run.properties or self._addresses.expires) or run.address not in self._users:
            return True
        if priority_of(run) != NORMAL:
            self[run.address].arrived(stored)
            return False
        ttl = ttl_ns(run, self._addresses.policy(run.address))
        if ttl is None:
            return True
        self._expires_at(run.address, run.received_at + min(ttl, SWEEP_AGAIN_NS))
        return False

    def _open(self, address: str) -> LogSubscription:
        queue = self.opened[address] = self._logs.open_queue(address)
        queue.policy = self._addresses.policy(address)
        queue.watcher = self._watcher(address, queue)
        self._unused.pop(address, None)
        self._due.pop(address, None)
        if self.consumers:
            for consumer in self.consumers.match(address):
                queue.join(consumer)
        return queue

    def _expires_at(self, address: str, due_ns: int) -> None:
        before = self._due.get(address)
        if before is None or due_ns < before:
            self._due[address] = due_ns
            heapq.heappush(self._due_order, (due_ns, address))

    def _open_due(self, now_ns: int) -> None:
        order = self._due_order
        for _ in range(QUEUES_OPENED_MAX):
            if not order or now_ns < order[0][0] < now_ns + 2 * SWEEP_AGAIN_NS:
                return  # what is further off was noted before the clock was set back
            due_ns, address = heapq.heappop(order)
            if self._due.get(address) == due_ns:
                self._open(address)

    def _look_at_unknown(self) -> None:
        """What was there at the start: open what has messages, as some may have expired; the others are unused."""
        opened = 0
        for _ in range(min(QUEUES_LOOKED_AT_MAX, len(self._unknown))):
            address = self._unknown.pop()
            if address in self.opened or address not in self._users:
                continue
            if self._logs.backlog(address):
                self._open(address)
                opened += 1
                if opened >= QUEUES_OPENED_MAX:
                    return
            else:
                self._unused.setdefault(address, self._now_s)

    def _close_unused(self, now_ns: int) -> None:
        began = False
        for _ in range(QUEUES_LOOKED_AT_MAX):
            address = next(self._looking, None)
            if address is None:
                if began or not self.opened:
                    return
                self._looking, began = iter(list(self.opened)), True
                continue
            queue = self.opened.get(address)
            if queue is None or not queue.at_rest or not self._logs.is_alone(queue):
                self._idle.pop(address, None)
            elif self._now_s - self._idle.setdefault(address, self._now_s) >= QUEUE_REST_S:
                self._close(address, queue, now_ns)

    def _close(self, address: str, queue: LogSubscription, now_ns: int) -> None:
        del self.opened[address]
        self._idle.pop(address, None)
        queue.retire()
        if not self._logs.backlog(address):
            self._unused[address] = self._now_s
        elif queue.expiry.due_ns is not None:
            self._expires_at(address, min(queue.expiry.due_ns, now_ns + SWEEP_AGAIN_NS))

    # --- made and forgotten -----------------------------------------------------------------------------------

    def _enter(self, address: str, user: str) -> None:
        counted = not self._is_configured(address)
        self._users[address] = user if counted else None
        if counted:
            self._names.made(NameKind.QUEUE, user, len(address))

    def _is_configured(self, address: str) -> bool:
        return address in self._addresses.table.patterns

    def _forget_unused(self) -> None:
        for _ in range(QUEUES_LOOKED_AT_MAX):
            address = next(iter(self._unused), None)
            if address is None or self._now_s - self._unused[address] < self._unused_s:
                return
            del self._unused[address]
            user = self._users.get(address)
            if user is not None and address not in self.opened and not self._is_configured(address):
                self._forget(address, user)

    def _forget(self, address: str, user: str) -> None:
        if self._logs.backlog(address):
            return  # it comes again when that has been consumed
        self._forgotten(address, self._logs.of_queue(address))
        if self._logs.forget_queue(address):
            del self._users[address]
            self._names.gone(NameKind.QUEUE, user, len(address))
            self._store.delete(KIND, address)
        else:
            self._unused[address] = self._now_s  # something is on its way to it, or it is browsed


def _nobody(_address: str, _queue: LogSubscription) -> None:
    """Nobody hears of any queue."""
