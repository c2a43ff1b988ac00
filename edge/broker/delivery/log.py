"""A cursor over one log of the store: a queue's competing consumers, or a durable subscription to a topic.

A log subscription is *level* while every matching message is handed to it as it is committed, and *behind* once one
had to be left in the store; behind, it reads from the store when its consumers want more, and is level again when it
has reached the end. So memory does not depend on the backlog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from bridge.message import Run, Stored
from edge.broker.delivery.attempts import delay_s
from edge.broker.delivery.burying import Burying
from edge.broker.delivery.dead_letters import DeadLetters, Reason
from edge.broker.delivery.feeds import LogFeeds
from edge.broker.delivery.group import ConsumerGroup, part_of
from edge.broker.limits import GIVING_UP_MAX, READ_BYTES_MAX, SUBSCRIPTION_BUFFER_BYTES_MAX
from edge.broker.message.time_to_live import ttl_ns
from edge.broker.model.interfaces import Consumer, Outcome
from edge.broker.model.isolation import delivered
from edge.broker.model.ranges import Ranges
from edge.broker.model.topics import matches
from edge.broker.store.contract import Store

ADDRESSES_CACHED_MAX = 10_000
"""Addresses a subscription remembers to match or not to match; then it starts anew."""


class LogSubscription(Burying):
    """A cursor over one log, filtered, with one consumer or several that compete."""

    attempts = 0

    def __init__(
        self,
        store: Store,
        pattern: str,
        log: int,
        cursor: int,
        *,
        position: int,
        name: str,
        deadletters: DeadLetters,
        feeds: LogFeeds,
        acknowledged: Iterable[tuple[int, int]] = (),
    ) -> None:
        """`position` and `acknowledged` as the store kept them; `name` is the cursor's; `feeds` tell it what comes."""
        super().__init__(
            store, log, cursor, position=position, name=name, deadletters=deadletters, acknowledged=acknowledged
        )
        self.pattern = pattern
        self.group = ConsumerGroup()
        self.exclusive = False
        """One consumer, and never another: what it cannot take nobody will."""
        self.accepts: Callable[[Run], bool] | None = None
        """Narrows what matches `pattern`."""
        self._behind = position < store.bounds(log)[1]
        self._buffer_bytes = 0
        self._outstanding: dict[Consumer, Ranges] = {}
        self._finishing = False
        """A consumer left with something outstanding, which it may still settle."""
        self._pumping = False
        self._reading = False
        self._stale = False
        """What is being read was for consumers that are all gone: older messages have come back since."""
        self._read_from = 0
        self._address_matches: dict[str, bool] = {}
        self._feeds = feeds
        feeds.attach(self)

    # --- from the feed of its log -----------------------------------------------------------------------------

    def wants(self, run: Run) -> bool:
        """True when the run is one this subscription delivers."""
        found = self._address_matches.get(run.address)
        if found is None:
            if len(self._address_matches) >= ADDRESSES_CACHED_MAX:
                self._address_matches.clear()
            found = self._address_matches[run.address] = matches(self.pattern, run.address)
        return found and (self.accepts is None or self.accepts(run))

    def owed(self, run: Run) -> bool:
        """As `wants`, on any thread."""
        return matches(self.pattern, run.address) and (self.accepts is None or self.accepts(run))

    def arrived(self, stored: Stored) -> None:
        """A run this subscription wants was committed."""
        if not self._behind:
            if self.group and not self._returned and self._buffer_bytes < SUBSCRIPTION_BUFFER_BYTES_MAX:
                self._look_at(stored)
                return
            self._behind = True
        run = stored.run  # it will be read in its turn
        if run.properties != self._timeless or (self._due_ns is None and self.policy.ttl_max_s is not None):
            self._note_due(run)

    def fall_behind(self) -> None:
        """Something was committed that it was not told of: it is in the store."""
        self._behind = True
        self._due_ns = 0

    def pass_to(self, watermark: int) -> None:
        """While level, the cursor moves past what did not concern this subscription, which is below the watermark."""
        if not self._behind:
            self._skip_to(watermark)

    def begin_anew(self) -> None:
        """A call raised: what is in memory may be wrong. What the store has is read again, but for what is with
        consumers, or is being given up."""
        record = self._store.cursor(self.cursor)
        self._buffer.clear()
        self._buffer_bytes = 0
        held = (part for ranges in self._outstanding.values() for part in ranges)
        self._begin_at(record.position, (*record.acknowledged, *held, *self._leaving))
        self._attempts.nothing_waits()
        self._behind, self._stale, self._due_ns = True, self._reading, 0

    def raised(self, error: Exception) -> None:
        """A call of this subscription raised, outside of what its feed or a consumer called: it begins anew."""
        self._feeds.raised(self, error)

    # --- delivering -------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Deliver what is waiting to whoever has credit, then read on when there is more in the store."""
        if self._pumping:
            return  # from within a delivery: the loop below goes on
        self._pumping = True
        try:
            if self._failed:
                self._deliver_failed()
            else:
                self._deliver()
        finally:
            self._pumping = False
        if not self._buffer or self._failed:  # what is skipped in the buffer must not hold up the rest
            self._read_on()

    def _deliver(self) -> None:
        buffer, group = self._buffer, self.group
        expires = self.policy.ttl_max_s is not None
        while buffer:
            if (expires or buffer[0].run.properties != self._timeless) and self._gave_up_expired():
                continue
            turn = group.next()
            if turn is None:
                return
            consumer, credit = turn
            stored = buffer.popleft()
            waiting = len(stored.run.bodies)
            count = group.share(waiting, credit)
            if count < waiting:
                buffer.appendleft(part_of(stored, count, waiting))
                stored = part_of(stored, 0, count)
            self._buffer_bytes -= stored.run.size
            held = self._outstanding.get(consumer)
            if held is None:
                held = self._outstanding[consumer] = Ranges()
            held.add(stored.position, stored.position + count - 1)
            if not delivered(consumer, self, stored):
                self._take_out(consumer, stored)

    def _deliver_failed(self) -> None:
        """As `_deliver`, while some messages have failed before: those go one by one, and not to everybody."""
        buffer, skipped = self._buffer, list[Stored]()
        while buffer and self.group.credit > 0:
            if self._gave_up_expired():
                continue
            stored = buffer.popleft()
            first, total = stored.position, len(stored.run.bodies)
            if first in self._failed:
                count, excluded = 1, self._attempts.excluded(first)
            else:
                end = first + total
                count = next((p for p in range(first, end) if p in self._failed), end) - first
                excluded = None
            consumer, credit = self._choose(excluded)
            if consumer is not None:
                count = min(count, self.group.share(total, credit))
            if count < total:
                buffer.appendleft(part_of(stored, count, total))
                stored = part_of(stored, 0, count)
            if consumer is None and credit < 0:
                self._buffer_bytes -= stored.run.size
                self._attempts.parked.add(first, first)
            elif consumer is None:
                skipped.append(stored)  # its consumers have no credit: others are served meanwhile
            else:
                self._buffer_bytes -= stored.run.size
                self._outstanding.setdefault(consumer, Ranges()).add(first, first + count - 1)
                self.attempts = self._failed.get(first, 0)
                if not delivered(consumer, self, self._attempts.annotated(stored)):
                    self._take_out(consumer, stored)
                self.attempts = 0
        buffer.extendleft(reversed(skipped))

    def _choose(self, excluded: set[Consumer] | None) -> tuple[Consumer | None, int]:
        """The next consumer that has credit and is not excluded; without one (None, -1 when all are excluded)."""
        allowed = False
        for i, consumer in enumerate(self.group.consumers):
            if excluded is not None and consumer in excluded:
                continue
            allowed = True
            credit = consumer.credit
            if credit > 0:
                self.group.rotate(i + 1)
                return consumer, credit
        return None, 0 if allowed else -1

    def _take_out(self, consumer: Consumer, stored: Stored) -> None:
        """A consumer raised: what it was given is for others, or for when it is back. What else is with it stays there
        until its connection has ended."""
        self.group.leave(consumer)
        held = self._outstanding.get(consumer)
        if held is not None:
            first, last = stored.position, stored.position + len(stored.run.bodies) - 1
            parts = held.within(first, last)
            held.remove(first, last)
            for low, high in parts:
                self._give_back(low, high)
        if not self.group:
            self._put_back()

    def join(self, consumer: Consumer) -> None:
        self.group.join(consumer)
        self._unpark()

    def leave(self, consumer: Consumer, *, keep: bool) -> None:
        """The consumer is away. `keep`: what is outstanding to it waits for its return (an MQTT session's in-flight
        messages); otherwise it goes back, to be delivered again to whoever is there."""
        self.group.leave(consumer)
        if not keep:
            for first, last in self._outstanding.pop(consumer, ()):
                self._give_back(first, last)
            if self._failed:
                self._attempts.left(consumer)
                self._unpark()
        elif self._outstanding.get(consumer):
            self._finishing = True
        else:
            self._outstanding.pop(consumer, None)
        if self.group:
            self.pump()
            return
        self._put_back()

    def close(self) -> None:
        """The subscription is deleted: its cursor goes, and the log keeps nothing for it."""
        self._closed = True
        self.retire()
        self._drop_attempts()
        self._store.drop_cursor(self.cursor)

    def retire(self) -> None:
        """Another object serves the cursor, or nobody: this one delivers nothing more, and hears what consumers say of
        what they have."""
        self._feeds.detach(self)
        self.group = ConsumerGroup()
        self._buffer.clear()
        self._buffer_bytes = 0

    @property
    def idle_now(self) -> bool:
        return not (self._reading or self._behind or self._returned)

    @property
    def backlog(self) -> int:
        """Messages of the log not delivered yet; those of other addresses in the same log count, so it is an upper
        bound for a filtered subscription that is behind."""
        waiting = sum(len(stored.run.bodies) for stored in self._buffer) + self._returned.count
        waiting += self._attempts.delayed + self._attempts.parked.count
        return waiting + (self._store.bounds(self.log)[1] - self._next - self._done.count if self._behind else 0)

    @property
    def outstanding(self) -> int:
        """Messages delivered and not settled."""
        return sum(held.count for held in self._outstanding.values())

    # --- from consumers ---------------------------------------------------------------------------------------

    def settle(self, consumer: Consumer, first: int, last: int, outcome: Outcome) -> None:
        """The consumer's answer; positions that are not outstanding to it are ignored (a late or repeated answer)."""
        held = self._outstanding.get(consumer)
        if held is None or self._closed:
            return
        parts = held.within(first, last)
        held.remove(first, last)
        if self._finishing and not held and consumer not in self.group:
            del self._outstanding[consumer]
        if outcome is Outcome.ACCEPTED:
            for low, high in parts:
                self._store.acknowledge(self.cursor, low, high)
                if self._failed:
                    self._forget_attempts(low, high)
            return
        for low, high in parts:
            if outcome is Outcome.RELEASED:
                self._give_back(low, high)
            elif outcome is Outcome.REJECTED:
                self._bury_later(low, high, Reason.REJECTED)
            elif outcome is Outcome.TOO_LARGE:
                self._leave_to_others(consumer, low, high)
            else:
                self._has_failed(consumer, low, high, undeliverable=outcome is Outcome.MODIFIED_UNDELIVERABLE)
        self._bury_next()
        self.pump()

    def annotate(self, consumer: Consumer, position: int, annotations: bytes) -> None:
        """Said before `settle`: what the consumer adds to the message it gives back (an encoded map)."""
        held = self._outstanding.get(consumer)
        if held is not None and position in held:
            self._attempts.annotate(position, annotations)

    # --- from the dead letters --------------------------------------------------------------------------------

    def tick(self, now_s: float) -> bool:
        """Deliver again what waited for its time, bury what could not be; False when nothing is left to wait for."""
        due = self._attempts.due(now_s)
        for position in due:
            self._give_back(position, position)
        self._bury_again()
        if due:
            self.pump()
        self._keep_attempts(now_s)
        waits = self._attempts.delayed or self._giving_up or self._refused or self._attempts.changed
        return bool(waits) and not self._closed

    # --- inside -----------------------------------------------------------------------------------------------

    def _has_failed(self, consumer: Consumer, first: int, last: int, *, undeliverable: bool) -> None:
        redelivery = self.policy.redelivery
        self._deadletters.wake_later(self)
        for position in range(first, last + 1):
            attempts = self._attempts.failed(position)
            if undeliverable:
                self._attempts.exclude(position, consumer)
            if redelivery.attempts_max is not None and attempts >= redelivery.attempts_max:
                self._bury_later(position, position, Reason.ATTEMPTS)
            elif undeliverable and self.exclusive:
                self._bury_later(position, position, Reason.UNDELIVERABLE)
            elif redelivery.delay_s > 0 and not undeliverable:
                self._attempts.delay(position, self._deadletters.now_s() + delay_s(redelivery, attempts))
            else:
                self._give_back(position, position)

    def _leave_to_others(self, consumer: Consumer, first: int, last: int) -> None:
        """Larger than this consumer takes; where there will be no other one, they are given up."""
        if self.exclusive:
            self._deadletters.wake_later(self)
            self._bury_later(first, last, Reason.UNDELIVERABLE)
            return
        for position in range(first, last + 1):
            self._attempts.exclude(position, consumer)
        self._give_back(first, last)

    def _unpark(self) -> None:
        """Somebody else is there now: what was parked may have a taker."""
        parked, self._attempts.parked = self._attempts.parked, Ranges()
        for first, last in parked:
            self._give_back(first, last)

    def _give_back(self, first: int, last: int) -> None:
        """These may be delivered again."""
        self._returns(first, last)
        self._due_ns = 0

    def _put_back(self) -> None:
        """What waits in memory is to be read again."""
        for stored in self._buffer:
            self._returned.add(stored.position, stored.position + len(stored.run.bodies) - 1)
            self._due_ns = 0
        self._buffer.clear()
        self._buffer_bytes = 0
        self._stale = self._reading

    def _gave_up_expired(self) -> bool:
        """Give the head of the buffer up when its time to live has passed."""
        stored = self._buffer[0]
        if not self.expires:
            return False
        ttl = ttl_ns(stored.run, self.policy)
        if ttl is None:
            self._timeless = stored.run.properties
            return False
        if not self._deadletters.expired(stored.run, ttl):
            return False
        self._buffer.popleft()
        self._buffer_bytes -= stored.run.size
        self._bury(stored, Reason.EXPIRED)
        return True

    def _look_at(self, stored: Stored) -> None:
        """Take a wanted run into the buffer, less what was seen or acknowledged before; `_next` moves behind it."""
        end = stored.position + len(stored.run.bodies)
        if end <= self._next:
            return
        self._skip_to(stored.position)
        first = max(stored.position, self._next)
        self._next = end
        for low, high in self._open_parts(first, end - 1):
            part = part_of(stored, low - stored.position, high - stored.position + 1)
            self._buffer.append(part)
            self._buffer_bytes += part.run.size

    def _read_on(self) -> None:
        if self._reading or self._closed or not (self._behind or self._returned) or self.group.credit <= 0:
            return
        if self._given_up > GIVING_UP_MAX:
            return  # `given_up` comes back here
        self._reading = True
        if self._returned:
            self._read_from = self._returned.first
            self._store.read(self.log, self._read_from, READ_BYTES_MAX, partial(self._was_read, returned=True))
        else:
            self._store.read(self.log, self._next, READ_BYTES_MAX, partial(self._was_read, returned=False))

    def _was_read(self, runs: Sequence[Stored], *, returned: bool) -> None:
        stale, self._reading, self._stale = self._stale, False, False
        if self._closed:
            return
        try:
            if stale:  # who comes next begins with the oldest there is
                self.pump()
            elif returned:
                self._read_returned(runs)
            else:
                self._read_next(runs)
        except Exception as error:
            self.raised(error)

    def _read_next(self, runs: Sequence[Stored]) -> None:
        for stored in runs:
            end = stored.position + len(stored.run.bodies)
            if self.wants(stored.run):
                self._look_at(stored)
            else:
                self._skip_to(end)
        if not runs or self._next >= self._store.bounds(self.log)[1]:
            self._behind = False
        self.pump()
        if not self._behind:
            self._tell_idle()

    def _read_returned(self, runs: Sequence[Stored]) -> None:
        end = self._read_from
        for stored in runs:
            end = stored.position + len(stored.run.bodies)
            for low, high in self._returned.within(stored.position, end - 1):
                part = part_of(stored, low - stored.position, high - stored.position + 1)
                self._buffer.append(part)
                self._buffer_bytes += part.run.size
        # what the store does not hold any more (purged, expired) is not delivered again; what came back meanwhile, and
        # is older than where the reading began, has its turn next
        self._returned.remove(self._read_from, end - 1 if runs else self._store.bounds(self.log)[1])
        self.pump()
        self._tell_idle()

    def _tell_idle(self) -> None:
        """Those who wait for the end of what there is hear that it has come."""
        if self.idle_now:
            for consumer in list(self.group.consumers):
                consumer.exhausted()
