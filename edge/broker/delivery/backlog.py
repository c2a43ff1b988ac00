"""Backlog lane of a forwarder's position in a log: the messages that were stored when its link came up.

The log subscription continues with new messages, for the live lane. This lane reads the stored ones, for a consumer of
its own. Both deliver for the log subscription, which settles, returns and drops the messages of both.

Every position belongs to one lane: `_left` are the positions that were undelivered when the lanes split. There is one
cursor. Messages that the live lane settled are ranges above its position, stored like any others. Messages below all
cursors are deleted from the front while the backlog is sent.
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
    """Backlog of one log subscription. A consumer pulls with `pump`, and settles with the log subscription."""

    def __init__(self, logs: MessageLogs, cursors: Cursors, live: LogSubscription, consumer: Consumer) -> None:
        self.newest = False
        """True: from the newest to the oldest, `BACKLOG_CHUNK_POSITIONS` at a time, each chunk in order."""
        self._logs: Final = logs
        self._cursors: Final = cursors
        self._live: Final = live
        self._consumer: Final = consumer
        self._left = Ranges()
        self._buffer = Buffer()
        self._reading = False
        self._stale = False
        """True when the result of the current read has to be discarded."""
        live.lane = self

    @property
    def count(self) -> int:
        """Number of messages left, including those of other addresses in the same log."""
        return self._left.count + sum(len(stored.run.bodies) for stored in self._buffer.runs)

    def split(self) -> None:
        """Split the lanes: deliver all undelivered messages of the log here, and new ones by the log subscription. It
        is called again each time the link comes up.

        A cursor that already has `LANE_HOLES_MAX` gaps gets no further ones. Then the log subscription delivers stored
        messages before new ones, until the next split.
        """
        live = self._live
        live.unbuffer()
        holes = len(self._cursors.record(live.cursor).acknowledged)
        if holes >= LANE_HOLES_MAX:
            log.warning("%s: %d gaps in the sent messages: new messages wait for stored ones", live.name, holes)
            return
        for first, last in live.window.release_all():
            self._left.add(first, last)
        live.behind = False

    def restart(self) -> None:
        """Start again after an exception: the log subscription has found the undelivered messages, and the lanes
        split."""
        self._forget()
        self.split()

    def end(self) -> None:
        """Merge the lanes: undelivered messages go back to the log subscription, and those of the consumer too."""
        live, waiting = self._live, [*self._left]
        waiting += [(each.position, each.position + len(each.run.bodies) - 1) for each in self._buffer.runs]
        self._forget()
        if live.lane is self:  # else another object serves the cursor, and reads the rest from the store
            live.lane = None
            for first, last in waiting:
                live.window.requeue(first, last)
            live.leave(self._consumer, keep=False)

    def pump(self) -> None:
        """Deliver as many messages as the consumer takes, then read on."""
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
        """Take what was read of ``start..last``. Positions that the store does not have are acknowledged."""
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
        """Acknowledge positions that are not delivered."""
        if first <= last:
            for low, high in self._left.take(first, last):
                self._live.window.acknowledge(low, high)
