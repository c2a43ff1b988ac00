"""Backlog lane of a forwarder: delivers the messages that were stored when its link came up.

The log subscription delivers new messages over the live lane. This lane reads the stored ones for a second consumer.
The log subscription settles, requeues and drops the messages of both lanes.

Every position belongs to one lane: this lane has `_undelivered`, the undelivered positions at the time of the split.
Both share one cursor, so messages that the live lane settled are ranges above its position. While the backlog is sent,
the store deletes messages that all cursors have passed.
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
    """Backlog of one log subscription. Its consumer calls `pump` here, and settles with the log subscription."""

    def __init__(self, logs: MessageLogs, cursors: Cursors, live: LogSubscription, consumer: Consumer) -> None:
        self.newest = False
        """True to deliver the newest chunk of `BACKLOG_CHUNK_POSITIONS` first; the order within a chunk is kept."""
        self._logs: Final = logs
        self._cursors: Final = cursors
        self._live: Final = live
        self._consumer: Final = consumer
        self._undelivered = Ranges()
        self._buffer = Buffer()
        self._reading = False
        self._stale = False
        """True when the result of the pending read must be discarded."""
        live.lane = self

    @property
    def count(self) -> int:
        """Number of undelivered messages, including those of other addresses in the log."""
        return self._undelivered.count + sum(len(stored.run.bodies) for stored in self._buffer.runs)

    def split(self) -> None:
        """Split the lanes: this lane takes over all undelivered messages of the log, and the log subscription delivers
        new ones. Called each time the link comes up.

        If the cursor has `LANE_HOLES_MAX` gaps, the lanes stay merged until the next call: the log subscription then
        delivers stored messages before new ones.
        """
        live = self._live
        live.unbuffer()
        holes = len(self._cursors.record(live.cursor).acknowledged)
        if holes >= LANE_HOLES_MAX:
            log.warning(
                "%s: %d gaps in the sent messages: new messages are sent after the stored ones", live.name, holes
            )
            return
        for first, last in live.window.release_all():
            self._undelivered.add(first, last)
        live.behind = False

    def restart(self) -> None:
        """Split the lanes again after an exception, when the log subscription has found the undelivered messages."""
        self._reset()
        self.split()

    def end(self) -> None:
        """Merge the lanes: return undelivered messages, and those that the consumer has, to the log subscription."""
        live, waiting = self._live, [*self._undelivered]
        waiting += [(each.position, each.position + len(each.run.bodies) - 1) for each in self._buffer.runs]
        self._reset()
        if live.lane is self:  # otherwise another object owns the cursor and reads the messages from the store
            live.lane = None
            for first, last in waiting:
                live.window.requeue(first, last)
            live.leave(self._consumer, keep=False)

    def pump(self) -> None:
        """Deliver messages while the consumer has credit, then read more."""
        live, buffer = self._live, self._buffer
        if live.lane is not self:
            return
        while buffer.runs and (credit := self._consumer.credit) > 0:
            live.hand_over(self._consumer, buffer.take(credit))
        if self._undelivered and not buffer.runs and not self._reading and self._consumer.credit > 0:
            self._read()

    # --- inside -----------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._undelivered = Ranges()
        self._buffer.clear()
        self._stale = self._reading

    def _read(self) -> None:
        undelivered, last = self._undelivered, self._undelivered.last
        start = undelivered.first
        if self.newest:
            highest = list(undelivered)[-1][0]
            start = max(highest, last - BACKLOG_CHUNK_POSITIONS + 1)
        self._reading = True
        self._logs.read(self._live.log, start, READ_BYTES_MAX, partial(self._on_read, start, last))

    def _on_read(self, start: int, last: int, runs: Sequence[Stored]) -> None:
        stale, self._reading, self._stale = self._stale, False, False
        if self._live.lane is not self:
            return
        try:
            if not stale:
                self._add(start, last, runs)
            self.pump()
        except Exception as error:
            self._live.handle_error(error)

    def _add(self, start: int, last: int, runs: Sequence[Stored]) -> None:
        """Add the runs read from ``start..last``. Acknowledge positions that are no longer in the store."""
        at = start
        for stored in runs:
            self._skip(at, min(stored.position - 1, last))
            if stored.position > last:
                return
            at = min(stored.position + len(stored.run.bodies) - 1, last) + 1
            if not self._live.wants(stored):
                self._skip(stored.position, at - 1)
                continue
            for first, end in self._undelivered.take(stored.position, at - 1):
                self._buffer.add(stored, first, end)
        if not runs:
            self._skip(start, last)

    def _skip(self, first: int, last: int) -> None:
        """Acknowledge positions without delivering them."""
        if first <= last:
            for low, high in self._undelivered.take(first, last):
                self._live.window.acknowledge(low, high)
