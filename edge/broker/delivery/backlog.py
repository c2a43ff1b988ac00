"""The backlog lane of one place in a log: what was there when its consumer's link came up.

The log subscription goes on with what comes, for the live lane, and this reads what was there, for a consumer of its
own; both deliver for the log subscription, so a message is settled, given back or given up where every other one is.
Every position is one's or the other's: what is *left* here was to be had when the lanes parted, and is nobody else's.
The cursor is one: what the live lane settled are ranges above its position, kept in the store as any others, and what
all cursors have passed is deleted from the front as the backlog goes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from bridge.message import Stored
from edge.broker.delivery.buffer import Buffer
from edge.broker.limits import BACKLOG_CHUNK_POSITIONS, LANE_HOLES_MAX, READ_BYTES_MAX
from edge.broker.model.interfaces import Consumer
from edge.broker.model.ranges import Ranges
from edge.broker.store.contract import Cursors, MessageLogs

if TYPE_CHECKING:
    from edge.broker.delivery.log import LogSubscription

log = logging.getLogger(__name__)


class BacklogLane:
    """See the module's docstring. A consumer pulls with `pump`, and settles with the log subscription."""

    def __init__(self, logs: MessageLogs, cursors: Cursors, live: LogSubscription, consumer: Consumer) -> None:
        self.newest = False
        """From the newest to the oldest, `BACKLOG_CHUNK_POSITIONS` at a time, each of them in order."""
        self._logs: Final = logs
        self._cursors: Final = cursors
        self._live: Final = live
        self._consumer: Final = consumer
        self._left = Ranges()
        self._buffer = Buffer()
        self._reading = False
        self._stale = False
        """What is being read may be somebody else's by now."""
        live.lane = self

    @property
    def count(self) -> int:
        """Messages that are left, those of other addresses in the same log included."""
        return self._left.count + sum(len(stored.run.bodies) for stored in self._buffer.runs)

    def take_over(self) -> None:
        """The lanes part: all that is in the log and not delivered is delivered here, what comes by the log
        subscription. To be called again at each link-up.

        A cursor that has `LANE_HOLES_MAX` holes already gets no more of them: then the log subscription delivers what
        there is before what comes, until lanes part again.
        """
        live = self._live
        live.put_back()
        holes = len(self._cursors.record(live.cursor).acknowledged)
        if holes >= LANE_HOLES_MAX:
            log.warning("%s: %d holes in what was sent: what comes waits for what was there", live.name, holes)
            return
        for first, last in live.window.leave_to_others():
            self._left.add(first, last)
        live.behind = False

    def begin_anew(self) -> None:
        """A call raised: the log subscription has found again what is to be had, and the lanes part anew."""
        self._forget()
        self.take_over()

    def end(self) -> None:
        """One lane again: what is left goes back to the log subscription, and what the consumer has."""
        live, waiting = self._live, [*self._left]
        waiting += [(each.position, each.position + len(each.run.bodies) - 1) for each in self._buffer.runs]
        self._forget()
        if live.lane is self:  # else another object serves the cursor, and reads what is left from the store
            live.lane = None
            for first, last in waiting:
                live.window.give_back(first, last)
            live.leave(self._consumer, keep=False)

    def pump(self) -> None:
        """Deliver what the consumer takes, then read on."""
        live, buffer = self._live, self._buffer
        if live.lane is not self:
            return
        while buffer.runs and (credit := self._consumer.credit) > 0:
            live.hand(self._consumer, buffer.take(credit))
        if self._left and not buffer.runs and not self._reading and self._consumer.credit > 0:
            self._read()

    # --- inside -----------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._left = Ranges()
        self._buffer.clear()
        self._stale = self._reading

    def _read(self) -> None:
        left, last = self._left, self._left.last
        start = left.first
        if self.newest:
            highest = list(left)[-1][0]
            start = max(highest, last - BACKLOG_CHUNK_POSITIONS + 1)
        self._reading = True
        self._logs.read(self._live.log, start, READ_BYTES_MAX, partial(self._was_read, start, last))

    def _was_read(self, start: int, last: int, runs: Sequence[Stored]) -> None:
        stale, self._reading, self._stale = self._stale, False, False
        if self._live.lane is not self:
            return
        try:
            if not stale:
                self._take(start, last, runs)
            self.pump()
        except Exception as error:
            self._live.raised(error)

    def _take(self, start: int, last: int, runs: Sequence[Stored]) -> None:
        """Of ``start..last`` this was read; what the store does not have any more concerns nobody."""
        at = start
        for stored in runs:
            self._pass(at, min(stored.position - 1, last))
            if stored.position > last:
                return
            at = min(stored.position + len(stored.run.bodies) - 1, last) + 1
            if not self._live.wants(stored):
                self._pass(stored.position, at - 1)
                continue
            for first, end in self._left.take(stored.position, at - 1):
                self._buffer.add(stored, first, end)
        if not runs:
            self._pass(start, last)

    def _pass(self, first: int, last: int) -> None:
        """These are delivered to nobody."""
        if first <= last:
            for low, high in self._left.take(first, last):
                self._live.window.acknowledge(low, high)
