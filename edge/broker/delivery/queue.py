"""Queue: competing consumers, with selectors, priorities and message groups.

While any message may go to any consumer in order of arrival, a queue is just a `LogSubscription`. `QueueOrder` opens a
`View` for every consumer when a consumer has a selector, when a message has a group, or when a message of other than
normal priority cannot be delivered at once. It records messages taken out of order. When the reason is gone, the cursor
continues alone.

Priorities: among all messages that arrived since the start, a consumer with credit gets the highest priority first, and
messages of equal priority in order of arrival. Priorities of older messages are known only within a single read
(`VIEW_READ_BYTES_MAX`), and only while there are views.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from bridge.message import GROUPED, Stored
from edge.broker.delivery.consumer_group import part_of
from edge.broker.delivery.dead_letters import DeadLetters, LossReason
from edge.broker.delivery.feeds import LogFeeds
from edge.broker.delivery.log import LogSubscription
from edge.broker.delivery.message_groups import MessageGroups
from edge.broker.delivery.priorities import NORMAL, Priorities, priority_of
from edge.broker.delivery.view import View, is_grouped
from edge.broker.limits import SELECTIONS_REMEMBERED_MAX, TAKEN_RANGES_MAX
from edge.broker.model.interfaces import Consumer
from edge.broker.model.ranges import Ranges
from edge.broker.store.contract import MessageLogs, Store
from edge.broker.store.records import CursorRecord

log = logging.getLogger(__name__)


def queue_subscription(
    store: Store, record: CursorRecord, pattern: str, *, deadletters: DeadLetters, feeds: LogFeeds
) -> LogSubscription:
    """Return the subscription of a queue's log; parameters as of `LogSubscription`."""
    queue = LogSubscription(store, record, pattern, deadletters=deadletters, feeds=feeds)
    queue.order = QueueOrder(queue, store.logs)
    return queue


_NO_VIEWS: Final[deque[View]] = deque()
"""Shared by queues without views, never changed: a deque takes 760 bytes."""


class QueueOrder:
    """Order of one queue. It is the `edge.broker.delivery.view.QueueState` of its views."""

    def __init__(self, queue: LogSubscription, logs: MessageLogs) -> None:
        self.log = queue.log
        self.views = _NO_VIEWS
        """A view for each consumer while they are served separately, in rotation; otherwise empty."""
        self._queue = queue
        self._logs = logs
        self._window = queue.window
        self._priorities = Priorities()
        self._groups = MessageGroups()
        self._usual = b""  # last seen properties without a priority
        self._checked_to: dict[str, int] = {}
        """Selections of former consumers, each with the position below which nothing matches."""
        self._grouped = False  # True once a message with a group was seen
        self._scatter_logged = False

    # --- from the subscription of the log: see `order.Order` --------------------------------------------------

    @property
    def serves(self) -> bool:
        return bool(self.views)

    @property
    def has_state(self) -> bool:
        return bool(self.views or self._priorities)

    def arrived(self, stored: Stored) -> bool:
        run = stored.run
        if not (self.views or run.flags & GROUPED or run.properties != self._usual):
            return False
        priority, grouped = priority_of(run), bool(run.flags & GROUPED)
        if not self.views and not grouped:
            if priority == NORMAL:
                self._usual = run.properties
            if priority == NORMAL or self._can_deliver_at_once(len(run.bodies)):
                return False
        if priority != NORMAL and not self._note(priority, stored):
            priority = NORMAL
        if not self._queue.group:
            return False
        self._grouped = self._grouped or grouped
        if self.views:
            self._queue.expiry.note_stored(run)
            for view in self.views:
                view.arrived(stored, priority)
        else:
            self._open_views()
        return True

    def serve(self) -> bool:
        """Serve the views in rotation, one piece at a time, until no consumer can take more of the buffered
        messages."""
        views = self.views
        idle = 0
        while views and idle < len(views):
            view = views[0]
            views.rotate(-1)
            try:
                credit = view.consumer.credit
            except Exception as error:
                self.ended(view.consumer)
                self._queue.group.end(view.consumer, error)
                continue
            idle = 0 if credit > 0 and view.serve(credit) else idle + 1
        if self._needs_views:
            return True
        self._close_views()
        return False

    @property
    def idle_now(self) -> bool:
        return all(view.idle for view in self.views if view.consumer.credit > 0)

    def joined(self, consumer: Consumer) -> None:
        if self.views:
            self.views.append(self._view(consumer))
        elif self._needs_views:
            self._open_views()

    def left(self, consumer: Consumer) -> None:
        self.ended(consumer)
        if self._groups.leave(consumer):
            self._checked_to.clear()
            for view in self.views:
                view.rewind()
        if all(one is consumer for one in self._queue.group.consumers):
            self._grouped = False

    def ended(self, consumer: Consumer) -> None:
        for view in [view for view in self.views if view.consumer is consumer]:
            self.views.remove(view)
            self._remember(view)
            view.close()

    def taken(self, first: int, last: int) -> None:
        self._priorities.remove(first, last)

    def returned(self, first: int, last: int) -> None:
        for text, position in self._checked_to.items():
            self._checked_to[text] = min(position, first)
        for view in self.views:
            view.returned(first, last)

    def claims(self, runs: Sequence[Stored]) -> bool:
        if not self.views and self._queue.group and is_grouped(runs):
            self._grouped = True
            self._open_views()
        return bool(self.views)

    def restart(self) -> None:
        self._priorities = Priorities()
        self._checked_to.clear()
        for view in self.views:
            view.rewind()

    # --- from the views: see `view.QueueState` ----------------------------------------------------------------

    @property
    def lowest(self) -> int:
        return self._window.lowest

    def free_from(self, position: int) -> int:
        return self._window.free_from(position)

    def available(self, first: int, last: int) -> list[tuple[int, int]]:
        return self._window.available(first, last)

    @property
    def bands(self) -> dict[int, Ranges]:
        return self._priorities.copy()

    @property
    def reading_allowed(self) -> bool:
        return self._queue.dead_lettering.has_room

    def single(self, first: int, last: int) -> bool:
        failed = self._queue.failures.counts
        if last - first < len(failed):
            return any(position in failed for position in range(first, last + 1))
        return any(first <= position <= last for position in failed)

    def defer(self, priority: int, first: int, last: int) -> bool:
        return self._priorities.note(priority, first, last)

    def missing(self, first: int, last: int) -> None:
        for low, high in self._window.available(first, last):
            self._queue.take(low, high)
            self._window.acknowledge(low, high)

    def hand_over(self, consumer: Consumer, stored: Stored, bucket: int | None, credit: int) -> int:
        queue, first, total = self._queue, stored.position, len(stored.run.bodies)
        if queue.expiry.has_expired(stored.run):
            queue.take(first, first + total - 1)
            queue.dead_lettering.discard(stored, LossReason.EXPIRED)
            return 0
        failures = queue.failures
        if failures.counts and failures.is_excluded(first, consumer):
            return 0
        if failures.counts and failures.is_passed_over(first, consumer):
            if self._may_go_to_another(consumer, stored, bucket):
                return 0
            failures.allow_again(first)
        count = queue.group.share(total, credit)
        if self._leaves_too_many_gaps(first, first + count - 1):
            return -1
        if bucket is not None and self._owner_of(bucket, consumer, stored) is not consumer:
            return 0
        queue.take(first, first + count - 1)
        queue.hand_over(consumer, part_of(stored, 0, count))
        return count

    def _owner_of(self, bucket: int, consumer: Consumer, stored: Stored) -> Consumer:
        """Return the consumer that has the group of a message. A new group goes to the consumer with the fewest groups
        that can take this message now."""
        owner = self._groups.owner(bucket)
        if owner is not None:
            return owner
        barred = {
            *self._queue.group.without_credit(),
            *(self._queue.failures.excluded_consumers(stored.position) or ()),
        }
        others = [each for each in self._queue.group.consumers if each is not consumer and each not in barred]
        wanting = [each for each in others if each.selection is None or each.selection.wanted(stored.run)[0]]
        return self._groups.assign(bucket, [consumer, *wanting])

    def _may_go_to_another(self, consumer: Consumer, stored: Stored, bucket: int | None) -> bool:
        """Return True when another consumer may take a message that this one returned."""
        if bucket is not None and self._groups.owner(bucket) is consumer:
            return False
        barred = self._queue.failures.excluded_consumers(stored.position) or ()
        others = (each.selection for each in self._queue.group.consumers if each not in barred)
        return any(selection is None or selection.wanted(stored.run)[0] for selection in others)

    def pump(self) -> None:
        self._queue.pump()

    def handle_error(self, error: Exception) -> None:
        self._queue.handle_error(error)

    # --- inside -----------------------------------------------------------------------------------------------

    @property
    def _needs_views(self) -> bool:
        if self._grouped or self._priorities:
            return True
        return any(consumer.selection is not None for consumer in self._queue.group.consumers)

    def _note(self, priority: int, stored: Stored) -> bool:
        """Remember the priority of the available messages of a run. Return False when the table is full."""
        last = stored.position + len(stored.run.bodies) - 1
        return all(self._priorities.note(priority, *part) for part in self._window.available(stored.position, last))

    def _can_deliver_at_once(self, count: int) -> bool:
        """Return True when no message waits, so the order does not matter."""
        queue = self._queue
        return not (queue.behind or queue.buffer.runs or self._window.returned) and queue.group.credit >= count

    def _open_views(self) -> None:
        self._queue.unbuffer()
        self._queue.behind = True
        self.views = deque(self._view(consumer) for consumer in self._queue.group.consumers)

    def _view(self, consumer: Consumer) -> View:
        lowest, selection = self._window.lowest, consumer.selection
        position = lowest if selection is None else self._checked_to.get(selection.text, lowest)
        return View(self, self._logs, consumer, max(position, lowest))

    def _close_views(self) -> None:
        for view in self.views:
            view.close()
        if self.views:
            self.views.clear()  # for a loop over them
            self.views = _NO_VIEWS
        self._queue.behind = self._window.next < self._window.end

    def _remember(self, view: View) -> None:
        """Remember where the next consumer with the same selection may start, unless this one leaves messages
        behind."""
        if view.selection is None or self._priorities or self._queue.failures.counts or not view.exhausted:
            return
        if len(self._checked_to) >= SELECTIONS_REMEMBERED_MAX:
            self._checked_to.clear()
        self._checked_to[view.selection.text] = view.position

    def _leaves_too_many_gaps(self, first: int, last: int) -> bool:
        """Return True when taking these positions would leave too many gaps between taken ranges."""
        done = self._window.done
        if len(done) < TAKEN_RANGES_MAX or first <= self._window.next or first - 1 in done or last + 1 in done:
            return False
        if not self._scatter_logged:
            self._scatter_logged = True
            log.warning("%s: selectors wait: too many messages lie between selected ones", self._queue.pattern)
        return True
