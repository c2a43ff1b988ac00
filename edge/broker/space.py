"""One address space on an event loop: a router with its store, and their timing.

It decides what the sans-I/O router leaves to a shell: when a commit starts (once in each turn of the loop), when
messages that may wait are committed, and when reading from sockets is paused because the store has too many pending
writes. It knows no listener and no protocol.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from bridge.transport.driver import ConnectionDriver
from bridge.transport.turn import turn_of
from edge.broker.limits import PENDING_BYTES_LOW, PENDING_BYTES_MAX, Limits
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.addresses import AddressTable
from edge.broker.model.tracing import UNTRACED, Tracer
from edge.broker.router.live_subscriptions import MergeLive, unmerged
from edge.broker.router.router import Router
from edge.broker.store.contract import Store
from edge.broker.store.records import Committed

STORE_BUSY = "the store has too many pending writes"

TIMER_SLACK_S = 0.001
"""Resolution of the loop's timers: a millisecond."""


class Space:
    """Made inside a running loop. The caller makes the store (``post=loop.call_soon_threadsafe``) and closes it after
    `stop`."""

    def __init__(
        self,
        store: Store,
        table: AddressTable,
        drivers: Callable[[], Iterable[ConnectionDriver]],
        *,
        policies: Mapping[str, AddressPolicy] | None = None,
        quota_bytes: int | None = None,
        limits: Limits | None = None,
        clock_good: Callable[[], bool] = lambda: False,
        merge_live: MergeLive = unmerged,
        schedules: bool = True,
        links_routers: bool = True,
        tracer: Tracer = UNTRACED,
    ) -> None:
        """`drivers` returns the connections that fill the store. `quota_bytes` limits the bodies it may keep (None: as
        many as fit on the medium above the floor of `limits`). The other parameters are the router's."""
        limits = limits or Limits()
        self._loop = asyncio.get_running_loop()
        self._turn = turn_of(self._loop)
        self._commits = store.commits
        self._drivers = drivers
        self._flush_scheduled = False
        self._paused = False
        self._batch_timer: asyncio.TimerHandle | None = None
        self.router = Router(
            store,
            table,
            clock_ns=time.time_ns,
            clock_good=clock_good,
            flush_soon=self._flush_soon,
            policies=policies,
            monotonic_s=self._loop.time,
            merge_live=merge_live,
            limits=limits,
            soon=self._loop.call_soon,
            schedules=schedules,
            links_routers=links_routers,
            tracer=tracer,
        )
        self.router.quotas.keep_free(limits.free_floor_bytes)
        self.router.quotas.bound_space(quota_bytes)
        self.router.quotas.tick()
        self._commits.listeners.append(self._committed)  # after the router

    def stop(self) -> None:
        """Stop starting commits on its own."""
        if self._batch_timer is not None:
            self._batch_timer.cancel()

    # --- inside -----------------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        try:
            self.router.publish_collected()  # before the flag is cleared, so that no second flush is scheduled
        finally:
            self._flush_scheduled = False
        self.router.start_commit()
        self._arm_batch_timer()
        if not self._paused and self._commits.pending_bytes > PENDING_BYTES_MAX:
            self._paused = True
            for driver in self._drivers():
                driver.pause_reading(STORE_BUSY)

    def _arm_batch_timer(self) -> None:
        """Set a timer for messages that may wait (``durability: batch``)."""
        due_in = self._commits.due_in()
        if due_in is None:
            return
        due_at = self._loop.time() + due_in
        if self._batch_timer is not None:
            if self._batch_timer.when() <= due_at + TIMER_SLACK_S:
                return
            self._batch_timer.cancel()
        self._batch_timer = self._loop.call_at(due_at, self._batch_due)

    def _batch_due(self) -> None:
        self._batch_timer = None
        self._flush()

    def _committed(self, commit: Committed) -> None:
        self._turn.write()  # the answers, before the loop reads new messages
        self._arm_batch_timer()
        if self._paused and self._commits.pending_bytes < PENDING_BYTES_LOW:
            self._paused = False
            for driver in self._drivers():
                driver.resume_reading(STORE_BUSY)
