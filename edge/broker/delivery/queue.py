"""A queue: competing consumers, with selectors, priorities and groups.

While its messages are alike to all its consumers a queue is a `LogSubscription` and nothing more. Once a consumer is
choosy, a message has a group, or one of other than normal priority cannot be delivered at once, every consumer gets a
`View`, and what is out of turn is noted as taken; when the reason is gone the cursor goes on by itself.

What is promised of priorities: among the messages that came since the gateway was started, of any number, a consumer
that has credit gets the highest there is, in order of arrival within one. After a restart priorities are seen again
in what is read together (`VIEW_READ_BYTES_MAX`), and only while there are views.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from bridge.message import GROUPED, Stored
from edge.broker.delivery.dead_letters import Reason
from edge.broker.delivery.group import part_of
from edge.broker.delivery.groups import GroupTable
from edge.broker.delivery.log import LogSubscription
from edge.broker.delivery.priorities import NORMAL, Priorities, priority_of
from edge.broker.delivery.view import View, is_grouped
from edge.broker.limits import GIVING_UP_MAX, SELECTIONS_REMEMBERED_MAX, TAKEN_RANGES_MAX
from edge.broker.message.time_to_live import ttl_ns
from edge.broker.model.interfaces import Consumer
from edge.broker.model.isolation import delivered
from edge.broker.model.ranges import Ranges

log = logging.getLogger(__name__)


class QueueSubscription(LogSubscription):
    """See the module's docstring. It is the `edge.broker.delivery.view.Shelf` of its views."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """As `LogSubscription`."""
        super().__init__(*arguments, **named)
        self._views: deque[View] = deque()
        self._priorities = Priorities()
        self._groups = GroupTable()
        self._usual = b""  # properties seen last that say nothing of a priority
        self._looked: dict[str, int] = {}
        """Selections of consumers that left, and up to where nothing is for them."""
        self._grouped = False  # messages of groups have been met
        self._told_scattered = False

    # --- from the router --------------------------------------------------------------------------------------

    def arrived(self, stored: Stored) -> None:
        run = stored.run
        if self._views or run.flags & GROUPED or run.properties != self._usual:
            self._arrived_specially(stored)
        else:
            super().arrived(stored)

    def pump(self) -> None:
        if not self._views:
            super().pump()
            return
        if self._pumping:
            return
        self._pumping = True
        try:
            self._serve()
        finally:
            self._pumping = False
        if not self._needs_views:
            self._close_views()
            super().pump()

    def join(self, consumer: Consumer) -> None:
        new = consumer not in self.group
        super().join(consumer)
        if self._views:
            if new:
                self._views.append(self._view(consumer))
        elif self._needs_views:
            self._open_views()

    def leave(self, consumer: Consumer, *, keep: bool) -> None:
        self._close_view(consumer)
        if self._groups.leave(consumer):
            self._looked.clear()
            for view in self._views:
                view.rewind()
        super().leave(consumer, keep=keep)
        if not self.group:
            self._grouped = False

    @property
    def idle_now(self) -> bool:
        if not self._views:
            return super().idle_now
        return all(view.idle for view in self._views if view.consumer.credit > 0)

    def begin_anew(self) -> None:
        super().begin_anew()
        self._priorities = Priorities()
        self._looked.clear()
        for view in self._views:
            view.rewind()

    @property
    def in_views(self) -> bool:
        """Its consumers each go their own way through it."""
        return bool(self._views)

    # --- from the views ---------------------------------------------------------------------------------------

    @property
    def lanes(self) -> dict[int, Ranges]:
        return self._priorities.copy()

    @property
    def reading_allowed(self) -> bool:
        return self._given_up <= GIVING_UP_MAX

    def single(self, first: int, last: int) -> bool:
        failed = self._failed
        if last - first < len(failed):
            return any(position in failed for position in range(first, last + 1))
        return any(first <= position <= last for position in failed)

    def defer(self, priority: int, first: int, last: int) -> bool:
        return self._priorities.note(priority, first, last)

    def hand_over(self, consumer: Consumer, stored: Stored, bucket: int | None, credit: int) -> int:
        first, total = stored.position, len(stored.run.bodies)
        if self._is_over(stored):
            self._take(first, first + total - 1)
            self._bury(stored, Reason.EXPIRED)
            return 0
        excluded = self._attempts.excluded(first) if self._failed else None
        if excluded is not None and consumer in excluded:
            return 0
        count = self.group.share(total, credit)
        if self._scatters(first, first + count - 1):
            return -1
        if bucket is not None and not self._groups.claim(bucket, consumer):
            return 0
        self._take(first, first + count - 1)
        self._outstanding.setdefault(consumer, Ranges()).add(first, first + count - 1)
        self.attempts = self._failed.get(first, 0)
        part = part_of(stored, 0, count)
        if not delivered(consumer, self, self._attempts.annotated(part) if self._failed else part):
            self._take_out(consumer, part)
        self.attempts = 0
        return count

    def told_idle(self, consumer: Consumer) -> None:
        consumer.exhausted()

    # --- inside -----------------------------------------------------------------------------------------------

    @property
    def _needs_views(self) -> bool:
        if self._grouped or self._priorities:
            return True
        return any(consumer.selection is not None for consumer in self.group.consumers)

    def _arrived_specially(self, stored: Stored) -> None:
        run, priority = stored.run, priority_of(stored.run)
        if not self._views and not run.flags & GROUPED:
            if priority == NORMAL:
                self._usual = run.properties
            if priority == NORMAL or self._goes_at_once(len(run.bodies)):
                super().arrived(stored)
                return
        last = stored.position + len(run.bodies) - 1
        if priority != NORMAL and not self._priorities.note(priority, stored.position, last):
            priority = NORMAL
        if run.flags & GROUPED and self.group:
            self._grouped = True
        if self._views:
            self._note_due(run)
            for view in self._views:
                view.arrived(stored, priority)
        elif self.group:
            self._open_views()
        else:
            super().arrived(stored)

    def _goes_at_once(self, count: int) -> bool:
        """Nothing waits, so no order is to be made."""
        return not (self._behind or self._buffer or self._returned) and self.group.credit >= count

    def _open_views(self) -> None:
        self._put_back()
        self._behind = True
        self._views.extend(self._view(consumer) for consumer in self.group.consumers)

    def _view(self, consumer: Consumer) -> View:
        selection = consumer.selection
        position = self.lowest if selection is None else self._looked.get(selection.text, self.lowest)
        return View(self, self._store, consumer, max(position, self.lowest))

    def _close_view(self, consumer: Consumer) -> None:
        for view in [view for view in self._views if view.consumer is consumer]:
            self._views.remove(view)
            self._remember(view)
            view.close()

    def _take_out(self, consumer: Consumer, stored: Stored) -> None:
        self._close_view(consumer)
        super()._take_out(consumer, stored)

    def _close_views(self) -> None:
        for view in self._views:
            view.close()
        self._views.clear()
        self._behind = self._next < self._store.bounds(self.log)[1]

    def _remember(self, view: View) -> None:
        """Where the next consumer that wants the same may begin, unless this one leaves something behind."""
        if view.selection is None or self._priorities or self._failed or not view.exhausted:
            return
        if len(self._looked) >= SELECTIONS_REMEMBERED_MAX:
            self._looked.clear()
        self._looked[view.selection.text] = view.position

    def _serve(self) -> None:
        """Each view in turn, one piece at a time, until nobody can take more of what is in memory."""
        views = self._views
        idle = 0
        while views and idle < len(views):
            view = views[0]
            views.rotate(-1)
            credit = view.consumer.credit
            idle = 0 if credit > 0 and view.serve(credit) else idle + 1

    def _take(self, first: int, last: int) -> None:
        self._priorities.remove(first, last)
        super()._take(first, last)

    def _scatters(self, first: int, last: int) -> bool:
        """True when taking these would leave more places open between taken ones than may be."""
        done = self._done
        if len(done) < TAKEN_RANGES_MAX or first <= self._next or first - 1 in done or last + 1 in done:
            return False
        if not self._told_scattered:
            self._told_scattered = True
            log.warning("%s: too many messages wait between those selected: selectors wait for others", self.pattern)
        return True

    def _give_back(self, first: int, last: int) -> None:
        super()._give_back(first, last)
        for text, position in self._looked.items():
            self._looked[text] = min(position, first)
        for view in self._views:
            view.returned(first, last)

    def _is_over(self, stored: Stored) -> bool:
        ttl = ttl_ns(stored.run, self.policy) if self.expires else None
        return ttl is not None and self._deadletters.expired(stored.run, ttl)

    def _read_next(self, runs: Sequence[Stored]) -> None:
        if self._left_to_views(runs):
            self.pump()
        else:
            super()._read_next(runs)

    def _read_returned(self, runs: Sequence[Stored]) -> None:
        if self._left_to_views(runs):
            self.pump()
        else:
            super()._read_returned(runs)

    def _left_to_views(self, runs: Sequence[Stored]) -> bool:
        """True when what the cursor has read is for views to read again."""
        if not self._views and self.group and is_grouped(runs):
            self._grouped = True
            self._open_views()
        if self._views:
            self._reading = self._stale = False
        return bool(self._views)
