"""Messages that one subscription drops, on their way to the ledger or to a dead letter address.

`DeadLetters` does that for all subscriptions of a router. This module has the state of one subscription: messages that
are still to be read from the store, messages to retry, and the number in progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from bridge.message import Stored
from edge.broker.delivery.consumer_group import part_of
from edge.broker.delivery.dead_letters import DeadLetters, LossReason
from edge.broker.limits import GIVEN_UP_READ_BYTES, GIVING_UP_MAX, READ_BYTES_MAX
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.ranges import Ranges
from edge.broker.store.contract import Cursors, MessageLogs
from edge.broker.store.records import CursorRecord

_EMPTY: Final[list[tuple[int, int, LossReason]]] = []
"""Shared by all that drop nothing, which are nearly all; never changed."""


class DeadLetteringSubscription(Protocol):
    """Subscription that drops messages."""

    def forget_attempts(self, first: int, last: int) -> None:
        """Forget the failures of dropped messages."""
        ...

    def pump(self) -> None:
        """Continue, as there is room again for messages to drop."""
        ...

    def tick(self, now_s: float) -> bool:
        """Do what is due. Return False when nothing more is to be done."""
        ...

    def handle_error(self, error: Exception) -> None:
        """Handle an exception of this class."""
        ...


class DeadLettering:
    """Dropped messages of one subscription; their `DeadLetterOwner` while `DeadLetters` processes them."""

    __slots__ = (
        "_closed",
        "_count",
        "_cursors",
        "_deadletters",
        "_failed",
        "_leaving",
        "_log",
        "_logs",
        "_reading",
        "_subscription",
        "_unread",
        "cursor",
        "name",
        "policy",
    )  # fmt: skip

    def __init__(
        self,
        logs: MessageLogs,
        cursors: Cursors,
        record: CursorRecord,
        deadletters: DeadLetters,
        subscription: DeadLetteringSubscription,
    ) -> None:
        self.name = record.name
        self.cursor = record.cursor
        self.policy = AddressPolicy()
        """Policy of the address for redelivery, time to live and dead letters."""
        self._log = record.log
        self._logs = logs
        self._cursors = cursors
        self._deadletters = deadletters
        self._subscription = subscription
        self._unread = self._failed = _EMPTY
        """Messages to read now, and those that failed (`_failed`), which are read again at the next tick."""
        self._leaving = Ranges()
        """Positions that are being dropped."""
        self._count = 0
        """Number of messages in progress."""
        self._reading = False
        self._closed = False

    def follow_policy(self, policy: AddressPolicy) -> None:
        """Apply this policy of the address from now on."""
        self.policy = policy

    @property
    def has_room(self) -> bool:
        """True while the number of messages under way is below its limit."""
        return self._count <= GIVING_UP_MAX

    @property
    def is_free(self) -> bool:
        """True while the dead letter address has room as well, as far as is known."""
        return not (self._unread or self._failed) and self._count <= GIVING_UP_MAX

    @property
    def waits(self) -> bool:
        """True while messages are still to be read and dropped."""
        return bool(self._unread or self._failed)

    @property
    def is_idle(self) -> bool:
        """True when nothing is under way or to be read."""
        return not (self._unread or self._failed or self._count or self._leaving or self._reading)

    @property
    def leaving(self) -> list[tuple[int, int]]:
        """Ranges of positions that are being dropped."""
        return list(self._leaving)

    def discard(self, stored: Stored, reason: LossReason) -> None:
        """Drop messages that are in memory."""
        count = len(stored.run.bodies)
        self._leaving.add(stored.position, stored.position + count - 1)
        self._count += count
        self._deadletters.discard(self, stored, reason)

    def discard_later(self, first: int, last: int, reason: LossReason) -> None:
        """Drop messages that are to be read from the store; the caller calls `continue_reading`."""
        self._leaving.add(first, last)
        if self._unread is _EMPTY:
            self._unread = []
        self._unread.append((first, last, reason))

    def lend(self, first: int, last: int) -> None:
        """Count messages that an operator moves elsewhere. Call `given_up` when they are there, or else `keep`."""
        self._leaving.add(first, last)
        self._count += last - first + 1

    def keep(self, first: int, last: int) -> bool:
        """Stop counting lent messages that stay. Return False if the cursor was deleted in the meantime."""
        self._leaving.remove(first, last)
        self._count -= last - first + 1
        return not self._closed

    def try_again(self) -> None:
        """Try failed messages again."""
        self._unread, self._failed = self._unread + self._failed, _EMPTY
        self.continue_reading()

    def continue_reading(self) -> None:
        """Read messages to be dropped, one piece at a time."""
        if self._unread and not self._reading and not self._closed and self.has_room:
            self._reading = True
            first, last, _ = self._unread[0]
            bytes_max = min(READ_BYTES_MAX, (last - first + 1) * GIVEN_UP_READ_BYTES)
            self._logs.read(self._log, first, bytes_max, self._on_read)

    def close(self) -> None:
        """Stop, as the cursor is deleted."""
        self._closed = True

    # --- from the dead letters --------------------------------------------------------------------------------

    def given_up(self, first: int, last: int) -> None:
        """Acknowledge messages that are in the ledger, or on disk at their dead letter address."""
        was_full = not self.has_room
        self._count -= last - first + 1
        self._leaving.remove(first, last)
        if self._closed:
            return
        self._cursors.acknowledge(self.cursor, first, last)
        self._subscription.forget_attempts(first, last)
        if was_full and self.has_room:
            self.continue_reading()
            self._subscription.pump()

    def retry_discard(self, first: int, last: int, reason: LossReason) -> None:
        """Note a dead letter that was not stored; `try_again` follows at the next tick."""
        self._count -= last - first + 1
        if self._failed and self._failed[-1][1:] == (first - 1, reason):
            first = self._failed.pop()[0]
        if self._failed is _EMPTY:
            self._failed = []
        self._failed.append((first, last, reason))
        self._deadletters.wake_later(self._subscription)

    # --- inside -----------------------------------------------------------------------------------------------

    def _on_read(self, runs: Sequence[Stored]) -> None:
        self._reading = False
        if self._closed:
            return
        try:
            self._discard_read(runs)
        except Exception as error:
            self._subscription.handle_error(error)

    def _discard_read(self, runs: Sequence[Stored]) -> None:
        first, last, reason = self._unread.pop(0)
        self._leaving.remove(first, last)
        end = first
        for stored in runs:
            start, end = max(stored.position, first), min(stored.position + len(stored.run.bodies), last + 1)
            if start < end:
                self.discard(part_of(stored, start - stored.position, end - stored.position), reason)
            if end > last:
                break
        if runs and end <= last:
            self._unread.insert(0, (max(end, first), last, reason))
            self._leaving.add(max(end, first), last)
        if not self._failed:
            self.continue_reading()
