"""Subscription of one log of the store: a queue with competing consumers, or a durable subscription to a topic.

A log subscription *keeps up* while it gets every matching message directly at its commit. Once a message is left in the
store it is *behind*: it reads from the store when its consumers have credit, until it reaches the end of the log. So
memory does not depend on the backlog.

It is composed of independent parts: the window of its cursor, a buffer, outstanding deliveries, failed attempts,
dropped messages, expiry, and for a queue the delivery order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from bridge.message import Run, Stored
from edge.broker.delivery.attempts import Attempts, StoredAttempts
from edge.broker.delivery.buffer import Buffer
from edge.broker.delivery.consumer_group import ConsumerGroup
from edge.broker.delivery.cursor_window import CursorWindow
from edge.broker.delivery.dead_lettering import DeadLettering
from edge.broker.delivery.dead_letters import DeadLetters, LossReason
from edge.broker.delivery.expiry import Expiry
from edge.broker.delivery.feeds import LogFeeds
from edge.broker.delivery.log_reader import LogReader
from edge.broker.delivery.order import Order
from edge.broker.delivery.outstanding import Outstanding
from edge.broker.delivery.returns import Returns
from edge.broker.delivery.sweep import ExpiryClock
from edge.broker.limits import ADDRESS_REMEMBERED_CHARACTERS_MAX, SUBSCRIPTION_BUFFER_BYTES_MAX
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.interfaces import Consumer, DeliveryOutcome
from edge.broker.model.isolation import deliver_to
from edge.broker.model.ranges import Ranges
from edge.broker.model.topics import matches
from edge.broker.store.contract import Store
from edge.broker.store.records import CursorRecord
from edge.broker.store.ticket import Ticket

ADDRESSES_CACHED_MAX = 10_000
"""Addresses in the cache of matches of a subscription; then the cache is cleared."""

_NO_MATCHES: Final[dict[str, bool]] = {}
"""Cache of all subscriptions without a message so far; never changed."""


class LogLane(Protocol):
    """Delivers the stored messages of a log (`edge.broker.delivery.backlog.BacklogLane`)."""

    @property
    def count(self) -> int:
        """Number of messages left to it."""
        ...

    def restart(self) -> None:
        """Start again after an exception: its state in memory may be wrong."""
        ...


class QueueWatcher(Protocol):
    """Observer of the messages of one queue, except for dropped ones (`DeadLetters.listeners`)."""

    def before_delivery(self, stored: Stored) -> None:
        """Called before messages are delivered."""
        ...

    def settled(self, parts: Sequence[tuple[int, int]], *, accepted: bool) -> None:
        """Called when a consumer settles these positions. Rows stored now join the commit of an acceptance."""
        ...


class LogSubscription:
    """Cursor over one log, with a filter, for one consumer or several that compete."""

    attempts = 0
    former: Sequence[tuple[str, int]] = ()
    """Former filters; matching messages are delivered below the position of each."""

    def __init__(
        self, store: Store, record: CursorRecord, pattern: str, *, deadletters: DeadLetters, feeds: LogFeeds
    ) -> None:
        """`record` is its cursor as stored; `feeds` give it new messages."""
        self.log, self.cursor, self.name = record.log, record.cursor, record.name
        self.pattern = pattern
        self.group, self.buffer = ConsumerGroup(), Buffer()
        self.exclusive = False
        """True when it has one consumer, and never another: a message that this one cannot take is undeliverable."""
        self.accepts: Callable[[Run], bool] | None = None
        """Condition on messages that match `pattern`; None: all are delivered."""
        self.order: Order | None = None
        self.watcher: QueueWatcher | None = None
        self.lane: LogLane | None = None
        """Delivers stored messages to another consumer; None: all messages are delivered here."""
        self.window = CursorWindow(store.logs, store.cursors, record)
        self.reader = LogReader(store.logs, self.window, self)
        self.failures, self.deliveries = Attempts(), Outstanding()
        self.dead_lettering = DeadLettering(store.logs, store.cursors, record, deadletters, self)
        self.returns = Returns(self, deadletters)
        self.expiry = Expiry(self, self.window, self.dead_lettering, deadletters)
        self.behind = self.window.next < self.window.end
        self._counts = self.failures.counts  # nearly always empty: then messages are not checked one by one
        self._stored_attempts = StoredAttempts(store.state, self.log, self.name, self.failures)
        self._cursors, self._deadletters, self._feeds = store.cursors, deadletters, feeds
        self._closed = self._pumping = False
        self._address_matches = _NO_MATCHES
        feeds.attach(self)

    @property
    def policy(self) -> AddressPolicy:
        """Policy of the address for redelivery, time to live and dead letters."""
        return self.dead_lettering.policy

    def follow_policy(self, policy: AddressPolicy) -> None:
        """Apply this policy of the address from now on."""
        self.dead_lettering.follow_policy(policy)

    def match(self, pattern: str) -> None:
        """Set another filter. The caller first detaches it from its feed, because feeds are keyed by filter."""
        self.pattern = pattern

    def select(
        self, accepts: Callable[[Run], bool], *, former: Sequence[tuple[str, int]] = (), expires: bool = True
    ) -> None:
        """Deliver only runs that `accepts` takes. `former` is described at the attribute; `expires`: messages expire
        here."""
        self.accepts = accepts
        if former or self.former:
            self.former = former
        self.expiry.count(counts=expires)

    def watch(self, watcher: QueueWatcher | None) -> None:
        """Notify this watcher of deliveries and settlements from now on; None: no watcher."""
        self.watcher = watcher

    # --- from the feed of the log -----------------------------------------------------------------------------

    def wants(self, stored: Stored) -> bool:
        """Return True when the subscription delivers this run."""
        run = stored.run
        found = self._address_matches.get(run.address)
        if found is None:
            found = matches(self.pattern, run.address)
            if len(run.address) <= ADDRESS_REMEMBERED_CHARACTERS_MAX:
                if self._address_matches is _NO_MATCHES or len(self._address_matches) >= ADDRESSES_CACHED_MAX:
                    self._address_matches = {}
                self._address_matches[run.address] = found
        if not found:
            at = stored.position
            found = any(at < end and matches(pattern, run.address) for pattern, end in self.former)
        return found and (self.accepts is None or self.accepts(run))

    def may_want(self, run: Run) -> bool:
        """Return True when the subscription wants this run at some position. Any thread may call it."""
        found = matches(self.pattern, run.address) or any(matches(pattern, run.address) for pattern, _ in self.former)
        return found and (self.accepts is None or self.accepts(run))

    @property
    def sleeps(self) -> bool:
        """See `edge.broker.delivery.feeds.Follower`."""
        return self.behind and self.order is None and self.expiry.sleeps

    def arrived(self, stored: Stored) -> None:
        """Take a committed run that it wants."""
        if self.order is not None and self.order.arrived(stored):
            return
        if not self.behind:
            if self.group and not self.window.returned and self.buffer.bytes < SUBSCRIPTION_BUFFER_BYTES_MAX:
                self._buffer_run(stored)
                return
            self.behind = True
        self.expiry.note_stored(stored.run)  # it is read later

    def fall_behind(self) -> None:
        """Note that there are messages in the store that were not passed to this subscription."""
        self.behind = True
        self.expiry.recheck()

    def advance_to(self, watermark: int) -> None:
        """While keeping up, move the cursor past unwanted messages below the watermark."""
        if not self.behind:
            self.window.skip_to(watermark)

    def restart(self) -> None:
        """Read the store again after an exception, except for messages that consumers have, or that are being
        dropped."""
        self.buffer.clear()
        self._address_matches = _NO_MATCHES
        self.window.restart([*self.deliveries, *self.dead_lettering.leaving])
        self.failures.forget_waiting()
        self.expiry.recheck()
        self.reader.discard()
        self.behind = True
        for part in (self.order, self.lane):
            if part is not None:
                part.restart()

    def handle_error(self, error: Exception) -> None:
        """Restart after an exception outside of the calls of its feed or a consumer."""
        self._feeds.handle_error(self, error)

    # --- delivering -------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Deliver waiting messages to consumers with credit, and read more from the store."""
        if self._pumping or self._closed:
            return  # called from within a delivery: the loop below continues
        self._pumping = True
        try:
            if self.order is not None and self.order.serves and self.order.serve():
                return
            if self._counts:
                self._deliver_failed()
            else:
                self._deliver()
        finally:
            self._pumping = False
        # messages skipped in the buffer must not delay the others, as far as there is room
        if not self.buffer.runs or (self._counts and self.buffer.bytes < SUBSCRIPTION_BUFFER_BYTES_MAX):
            self._read_on()

    def hand_over(self, consumer: Consumer, stored: Stored) -> None:
        """Deliver to a consumer; the messages are outstanding until they are settled."""
        first = stored.position
        self.deliveries.add(consumer, first, first + len(stored.run.bodies) - 1)
        if self.watcher is not None:
            self.watcher.before_delivery(stored)
        if self._counts:
            self.attempts = self._counts.get(first, 0)
            stored = self.failures.annotated(stored)
        if not deliver_to(consumer, self, (stored,)):
            self._remove_raising(consumer, stored)
        self.attempts = 0

    def take(self, first: int, last: int) -> None:
        """Stop the delivery of these messages."""
        if self.order is not None:
            self.order.taken(first, last)
        if self.failures.parked:
            self.failures.parked.remove(first, last)
        self.window.take(first, last)

    def _deliver(self) -> None:
        buffer, group, expiry = self.buffer, self.group, self.expiry
        expires = self.policy.ttl_max_s is not None
        while runs := buffer.runs:
            waiting = runs[0].run
            if (expires or waiting.properties != expiry.no_ttl_properties) and self._dropped_expired():
                continue
            turn = group.next()
            if turn is None:
                return
            consumer, credit = turn
            self.hand_over(consumer, buffer.take(group.share(len(waiting.bodies), credit)))

    def _deliver_failed(self) -> None:
        """Deliver while some messages have failed before: one by one, and not to excluded consumers."""
        buffer, skipped = self.buffer, list[Stored]()
        while buffer.runs and self.group.credit > 0:
            if self._dropped_expired():
                continue
            head = buffer.runs[0]
            first, total = head.position, len(head.run.bodies)
            if first in self._counts:
                count, excluded = 1, self.failures.excluded_consumers(first)
            else:
                end = first + total
                count = next((p for p in range(first, end) if p in self._counts), end) - first
                excluded = None
            consumer, credit = self.group.next_but(excluded)
            if consumer is not None:
                self.hand_over(consumer, buffer.take(min(count, self.group.share(total, credit))))
            elif credit < 0 and self.failures.allow_again(first):
                continue  # every consumer returned it
            elif credit < 0:
                buffer.take(count)
                self.failures.parked.add(first, first)
                self.expiry.recheck()
            else:
                skipped.append(buffer.take(count))  # its consumers have no credit: serve others
        buffer.restore(skipped)

    def _remove_raising(self, consumer: Consumer, stored: Stored) -> None:
        """Remove a consumer that raised. The messages of this delivery go to others, or wait for its return. Its other
        messages stay until its connection has ended."""
        if self.order is not None:
            self.order.ended(consumer)
        self.group.leave(consumer)
        for first, last in self.deliveries.remove(
            consumer, stored.position, stored.position + len(stored.run.bodies) - 1
        ):
            self.requeue(first, last)
        if not self.group:
            self.unbuffer()

    # --- consumers --------------------------------------------------------------------------------------------

    def join(self, consumer: Consumer) -> None:
        """Deliver to `consumer` as well. Idempotent."""
        new = consumer not in self.group
        self.group.join(consumer)
        self.deliveries.reattach(consumer)
        self._unpark()
        if self.order is not None and new:
            self.order.joined(consumer)

    def leave(self, consumer: Consumer, *, keep: bool) -> None:
        """Remove a consumer. With `keep`, its outstanding messages wait for its return (an MQTT session's in-flight
        messages); otherwise they are delivered again to any consumer."""
        if self.order is not None:
            self.order.left(consumer)
        self.group.leave(consumer)
        if keep:
            self.deliveries.leave(consumer)
        else:
            for first, last in self.deliveries.drop(consumer):
                self.requeue(first, last)
        if self._counts:
            self.failures.left(consumer)
            self._unpark()
            self.returns.allow_again(math.inf)  # the others may be those that returned a message
        if self.group:
            self.pump()
        elif not self._closed:
            self.unbuffer()

    def close(self) -> None:
        """Delete the subscription and its cursor."""
        self._closed = True
        self._retire()
        self.dead_lettering.close()
        self.reader.close()
        self._stored_attempts.drop()
        self._cursors.drop(self.cursor)

    def release(self) -> None:
        """Free the object and its reference cycles; another one may serve the cursor later. The caller checks
        `can_close`. A consumer that raised and was removed may still give it credit, drain it and leave it."""
        self._retire()
        self._closed, self.order = True, None
        del self.reader, self.dead_lettering, self.expiry, self.returns

    @property
    def idle_now(self) -> bool:
        """See `edge.broker.model.interfaces.Subscription`."""
        if self.order is not None and self.order.serves:
            return self.order.idle_now
        return self._closed or not (self.reader.reading or self.behind or self.window.returned)

    @property
    def can_close(self) -> bool:
        """True when it has no consumer, and all of its state is stored: another object may serve the cursor later."""
        if self.group or self._pumping or self.reader.reading or self.deliveries.count:
            return False
        idle = self.failures.is_idle and self.expiry.is_idle and self.dead_lettering.is_idle
        return idle and not (self.order and self.order.has_state)

    @property
    def backlog(self) -> int:
        """Upper bound of undelivered messages: while it is behind, it includes those of other addresses in the log."""
        window = self.window
        waiting = sum(len(stored.run.bodies) for stored in self.buffer.runs) + window.returned.count
        waiting += self.failures.delayed + self.failures.parked.count + (self.lane.count if self.lane else 0)
        return waiting + (window.end - window.next - window.done.count if self.behind else 0)

    @property
    def outstanding(self) -> int:
        """Number of messages delivered and not settled."""
        return self.deliveries.count

    # --- from consumers ---------------------------------------------------------------------------------------

    def settle(self, consumer: Consumer, first: int, last: int, outcome: DeliveryOutcome) -> None:
        """Take the consumer's answer; ignore positions that are not outstanding to it (a late or repeated answer)."""
        if self._closed:
            return
        parts = self.deliveries.remove(consumer, first, last)
        if self.watcher is not None:
            self.watcher.settled(parts, accepted=outcome is DeliveryOutcome.ACCEPTED)
        if outcome is DeliveryOutcome.ACCEPTED:
            for low, high in parts:
                self._cursors.acknowledge(self.cursor, low, high)
                if self._counts:
                    self.forget_attempts(low, high)
            return
        for low, high in parts:
            self.returns.take(consumer, low, high, outcome)
        if parts:
            self.dead_lettering.continue_reading()
            self.pump()

    def confirm(self) -> Ticket | None:
        """Return the ticket of the commit of all acceptances so far; None: they are on disk."""
        return self._cursors.confirm(self.cursor)

    def annotate(self, consumer: Consumer, position: int, annotations: bytes) -> None:
        """Note, before `settle`, the annotations that a consumer adds to a returned message (an encoded map)."""
        if self.deliveries.holds(consumer, position):
            self.failures.annotate(position, annotations)

    def keeps_after_loss(self, consumer: Consumer, position: int) -> bool:
        """Count a failed delivery of a message that stays with its lost consumer. Return False when it was the last
        attempt, and the message is dead-lettered."""
        if not self.deliveries.holds(consumer, position) or self.returns.keeps_after_loss(position):
            return True
        self.deliveries.remove(consumer, position, position)
        self.dead_lettering.continue_reading()
        return False

    def _retire(self) -> None:
        """Stop deliveries."""
        self._feeds.detach(self)
        self.group, self.lane = ConsumerGroup(), None
        self.buffer.clear()

    def _unpark(self) -> None:
        """Make parked messages available, as another consumer is present."""
        parked, self.failures.parked = self.failures.parked, Ranges()
        for first, last in parked:
            self.requeue(first, last)

    def requeue(self, first: int, last: int) -> None:
        """Make these messages available again."""
        self.window.requeue(first, last)
        self.expiry.recheck()
        if self.order is not None:
            self.order.returned(first, last)

    # --- from the dead letters and the sweeper ----------------------------------------------------------------

    def tick(self, now_s: float) -> bool:
        """Deliver delayed messages again, and retry dead letters. Return False when nothing is left to wait for."""
        if self._closed:
            return False
        due = self.failures.due(now_s)
        for position in due:
            self.requeue(position, position)
        self.dead_lettering.try_again()
        if self.returns.allow_again(now_s) or due:
            self.pump()
        self._stored_attempts.write(now_s, decide=self.policy.redelivery.attempts_max is not None)
        waits = self.failures.delayed or self.dead_lettering.waits or self.failures.passes_over
        return bool(waits or self.failures.changed)

    def forget_attempts(self, first: int, last: int) -> None:
        """Forget failures of messages that are settled or dropped."""
        if self._counts:
            self.failures.forget(first, last)
            if self.failures.changed:
                self._deadletters.wake_later(self)

    def load_attempts(self, packed: bytes) -> None:
        """Continue the counts of a former process, for messages that are still available."""
        for position, count in self._stored_attempts.load(packed).items():
            if position < self.window.end and self.window.available(position, position):
                self._counts[position] = count

    @property
    def lowest(self) -> int:
        """Position below which no message is available."""
        parked = self.failures.parked
        return min(parked.first, self.window.lowest) if parked else self.window.lowest

    def waiting(self, first: int, last: int) -> list[tuple[int, int]]:
        """See `expiry.ExpiringSubscription`."""
        found, parked = self.window.available(first, last), self.failures.parked
        return sorted(found + parked.within(first, last)) if parked else found

    def due(self, now_ns: int) -> bool:
        """See `edge.broker.delivery.sweep.SweepTarget`."""
        if self._closed or not (self.expiry.counts and self.dead_lettering.is_free):
            return False
        if self.buffer.runs and self.expiry.may_have_expired(self.buffer.runs[0].run):
            self.pump()  # it drops expired messages first, even without credit
        return self.expiry.due(now_ns)

    def discard_expired(self, start: int, runs: Sequence[Stored], judge: ExpiryClock) -> bool:
        """See `edge.broker.delivery.sweep.SweepTarget`."""
        return not self._closed and self.expiry.discard_expired(start, runs, judge)

    def _dropped_expired(self) -> bool:
        """Drop the first run of the buffer if it has expired. Return True if so."""
        run = self.buffer.runs[0].run
        if not self.expiry.has_expired(run):
            return False
        self.dead_lettering.discard(self.buffer.take(len(run.bodies)), LossReason.EXPIRED)
        return True

    # --- reading ----------------------------------------------------------------------------------------------

    def unbuffer(self) -> None:
        """Return buffered messages, which are read again later."""
        for stored in self.buffer.runs:
            self.window.returned.add(stored.position, stored.position + len(stored.run.bodies) - 1)
            self.expiry.recheck()
        self.buffer.clear()
        self.reader.discard()

    def _buffer_run(self, stored: Stored) -> None:
        """Buffer a wanted run, without positions that were read or acknowledged before."""
        end = stored.position + len(stored.run.bodies)
        if end <= self.window.next:
            return
        for first, last in self.window.advance(stored.position, end - 1):
            self.buffer.add(stored, first, last)

    def _read_on(self) -> None:
        if (self.behind or self.window.returned) and self.group.credit > 0 and self.dead_lettering.has_room:
            self.reader.read()  # `pump` is called when there is room again

    def handle_next(self, runs: Sequence[Stored]) -> None:
        """See `log_reader.ReadingSubscription`."""
        if self._is_left_to_order(runs):
            return
        for stored in runs:
            if self.wants(stored):
                self._buffer_run(stored)
            else:
                self.window.skip_to(stored.position + len(stored.run.bodies))
        if not runs or self.window.next >= self.window.end:
            self.behind = False
        self.pump()
        if not self.behind:
            self._notify_idle()

    def handle_returned(self, runs: Sequence[Stored], start: int) -> None:
        """See `log_reader.ReadingSubscription`."""
        if self._is_left_to_order(runs):
            return
        end, returned = start, self.window.returned
        for stored in runs:
            end = stored.position + len(stored.run.bodies)
            for first, last in returned.within(stored.position, end - 1):
                self.buffer.add(stored, first, last)
        # messages that left the store (purged, expired) are not delivered again; messages returned during the read,
        # below its start, are read next
        returned.remove(start, end - 1 if runs else self.window.end)
        self.pump()
        self._notify_idle()

    def _is_left_to_order(self, runs: Sequence[Stored]) -> bool:
        claimed = self.order is not None and self.order.claims(runs)
        if claimed:
            self.pump()
        return claimed

    def _notify_idle(self) -> None:
        """Notify consumers that wait for the end of the log."""
        if self.idle_now:
            for consumer in list(self.group.consumers):
                consumer.exhausted()
