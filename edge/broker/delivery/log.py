"""A subscription of one log of the store: a queue's competing consumers, or a durable subscription to a topic.

A log subscription is *level* while every matching message is handed to it as it is committed, and *behind* once one
had to be left in the store; behind, it reads from the store when its consumers want more, and is level again when it
has reached the end. So memory does not depend on the backlog.

It is made of parts that know nothing of each other's: the window of its cursor, a buffer, what is outstanding, failed
attempts, what it gives up, what expires; and, for a queue, the order in which consumers get what is not alike to all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from bridge.message import Run, Stored
from edge.broker.delivery.attempts import Attempts, KeptAttempts
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
from edge.broker.delivery.sweep import Judge
from edge.broker.limits import ADDRESS_REMEMBERED_CHARACTERS_MAX, SUBSCRIPTION_BUFFER_BYTES_MAX
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.interfaces import Consumer, DeliveryOutcome
from edge.broker.model.isolation import delivered
from edge.broker.model.ranges import Ranges
from edge.broker.model.topics import matches
from edge.broker.store.contract import Store
from edge.broker.store.records import CursorRecord
from edge.broker.store.ticket import Ticket

ADDRESSES_CACHED_MAX = 10_000
"""Addresses a subscription remembers to match or not to match; then it starts anew."""

_NOT_ASKED: Final[dict[str, bool]] = {}
"""Of all that nothing has come to yet; never changed."""


class LogLane(Protocol):
    """Delivers what was in the log (`edge.broker.delivery.backlog.BacklogLane`)."""

    @property
    def count(self) -> int:
        """Messages that are left to it."""
        ...

    def begin_anew(self) -> None:
        """A call raised: what it has in memory may be wrong. What is to be had the log subscription has."""
        ...


class Watcher(Protocol):
    """Hears what becomes of the messages of one queue, but for what is given up (`DeadLetters.listeners`)."""

    def handed(self, stored: Stored) -> None:
        """These are about to be delivered."""
        ...

    def settled(self, parts: Sequence[tuple[int, int]], *, accepted: bool) -> None:
        """The consumer of these positions has answered. Where it accepted them, what is stored now joins the commit
        that says so."""
        ...


class LogSubscription:
    """A cursor over one log, filtered, with one consumer or several that compete."""

    attempts = 0
    former: Sequence[tuple[str, int]] = ()
    """Filters it had before: what matches one is delivered below the position beside it."""

    def __init__(
        self, store: Store, record: CursorRecord, pattern: str, *, deadletters: DeadLetters, feeds: LogFeeds
    ) -> None:
        """`record` is its cursor as the store has it; `feeds` tell it what comes."""
        self.log, self.cursor, self.name = record.log, record.cursor, record.name
        self.pattern = pattern
        self.group, self.buffer = ConsumerGroup(), Buffer()
        self.exclusive = False
        """One consumer, and never another: what it cannot take nobody will."""
        self.accepts: Callable[[Run], bool] | None = None
        """What it delivers of what matches `pattern`; None: everything."""
        self.order: Order | None = None
        self.watcher: Watcher | None = None
        self.lane: LogLane | None = None
        """What was there is delivered by this one, to another consumer; None: all is delivered here."""
        self.window = CursorWindow(store.logs, store.cursors, record)
        self.reader = LogReader(store.logs, self.window, self)
        self.failures, self._outstanding = Attempts(), Outstanding()
        self.dead_lettering = DeadLettering(store.logs, store.cursors, record, deadletters, self)
        self.returns = Returns(self, deadletters)
        self.expiry = Expiry(self, self.window, self.dead_lettering, deadletters)
        self.behind = self.window.next < self.window.end
        self._counts = self.failures.counts  # empty nearly always: then nothing is looked at message by message
        self._kept_attempts = KeptAttempts(store.state, self.log, self.name, self.failures)
        self._cursors, self._deadletters, self._feeds = store.cursors, deadletters, feeds
        self._closed = self._pumping = False
        self._address_matches = _NOT_ASKED
        feeds.attach(self)

    @property
    def policy(self) -> AddressPolicy:
        """What the address promises of redelivery, time to live and dead letters."""
        return self.dead_lettering.policy

    def follow_policy(self, policy: AddressPolicy) -> None:
        """Follow this policy of the address from now on."""
        self.dead_lettering.follow_policy(policy)

    def match(self, pattern: str) -> None:
        """Deliver what matches this filter. The feeds know it by its filter: detach it from them before."""
        self.pattern = pattern

    def select(
        self, accepts: Callable[[Run], bool], *, former: Sequence[tuple[str, int]] = (), expires: bool = True
    ) -> None:
        """Deliver only runs that `accepts` takes; `former` as the attribute. `expires`: a time to live counts here."""
        self.accepts = accepts
        if former or self.former:
            self.former = former
        self.expiry.count(counts=expires)

    def watch(self, watcher: Watcher | None) -> None:
        """Tell this watcher from now on what becomes of messages; None: tell nobody."""
        self.watcher = watcher

    # --- from the feed of its log -----------------------------------------------------------------------------

    def wants(self, stored: Stored) -> bool:
        """True when the run is one this subscription delivers."""
        run = stored.run
        found = self._address_matches.get(run.address)
        if found is None:
            found = matches(self.pattern, run.address)
            if len(run.address) <= ADDRESS_REMEMBERED_CHARACTERS_MAX:
                if self._address_matches is _NOT_ASKED or len(self._address_matches) >= ADDRESSES_CACHED_MAX:
                    self._address_matches = {}
                self._address_matches[run.address] = found
        if not found:
            at = stored.position
            found = any(at < end and matches(pattern, run.address) for pattern, end in self.former)
        return found and (self.accepts is None or self.accepts(run))

    def owed(self, run: Run) -> bool:
        """As `wants`, on any thread, wherever the run is stored."""
        found = matches(self.pattern, run.address) or any(matches(pattern, run.address) for pattern, _ in self.former)
        return found and (self.accepts is None or self.accepts(run))

    @property
    def sleeps(self) -> bool:
        """See `edge.broker.delivery.feeds.Follower`."""
        return self.behind and self.order is None and self.expiry.sleeps

    def arrived(self, stored: Stored) -> None:
        """A run this subscription wants was committed."""
        if self.order is not None and self.order.arrived(stored):
            return
        if not self.behind:
            if self.group and not self.window.returned and self.buffer.bytes < SUBSCRIPTION_BUFFER_BYTES_MAX:
                self._look_at(stored)
                return
            self.behind = True
        self.expiry.stays(stored.run)  # it will be read in its turn

    def fall_behind(self) -> None:
        """Something was committed that was not handed on to it: it is in the store."""
        self.behind = True
        self.expiry.look()

    def pass_to(self, watermark: int) -> None:
        """While level, the cursor moves past what did not concern this subscription, which is below the watermark."""
        if not self.behind:
            self.window.skip_to(watermark)

    def begin_anew(self) -> None:
        """A call raised: what is in memory may be wrong. What the store has is read again, but for what is with
        consumers, or is being given up."""
        self.buffer.clear()
        self._address_matches = _NOT_ASKED
        self.window.begin_anew([*self._outstanding, *self.dead_lettering.leaving])
        self.failures.nothing_waits()
        self.expiry.look()
        self.reader.discard()
        self.behind = True
        for part in (self.order, self.lane):
            if part is not None:
                part.begin_anew()

    def raised(self, error: Exception) -> None:
        """A call of this subscription raised, outside of what its feed or a consumer called: it begins anew."""
        self._feeds.raised(self, error)

    # --- delivering -------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Deliver what is waiting to whoever has credit, then read on when there is more in the store."""
        if self._pumping or self._closed:
            return  # from within a delivery: the loop below goes on
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
        # what is skipped in the buffer must not hold up the rest, as far as there is room
        if not self.buffer.runs or (self._counts and self.buffer.bytes < SUBSCRIPTION_BUFFER_BYTES_MAX):
            self._read_on()

    def hand(self, consumer: Consumer, stored: Stored) -> None:
        """Deliver to a consumer; it is outstanding to it until it is settled."""
        first = stored.position
        self._outstanding.add(consumer, first, first + len(stored.run.bodies) - 1)
        if self.watcher is not None:
            self.watcher.handed(stored)
        if self._counts:
            self.attempts = self._counts.get(first, 0)
            stored = self.failures.annotated(stored)
        if not delivered(consumer, self, (stored,)):
            self._take_out(consumer, stored)
        self.attempts = 0

    def take(self, first: int, last: int) -> None:
        """These are not to be delivered any more."""
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
            if (expires or waiting.properties != expiry.timeless) and self._gave_up_expired():
                continue
            turn = group.next()
            if turn is None:
                return
            consumer, credit = turn
            self.hand(consumer, buffer.take(group.share(len(waiting.bodies), credit)))

    def _deliver_failed(self) -> None:
        """As `_deliver`, while some messages have failed before: those go one by one, and not to everybody."""
        buffer, skipped = self.buffer, list[Stored]()
        while buffer.runs and self.group.credit > 0:
            if self._gave_up_expired():
                continue
            head = buffer.runs[0]
            first, total = head.position, len(head.run.bodies)
            if first in self._counts:
                count, excluded = 1, self.failures.barred(first)
            else:
                end = first + total
                count = next((p for p in range(first, end) if p in self._counts), end) - first
                excluded = None
            consumer, credit = self.group.next_but(excluded)
            if consumer is not None:
                self.hand(consumer, buffer.take(min(count, self.group.share(total, credit))))
            elif credit < 0 and self.failures.forgive(first):
                continue  # every consumer gave it back
            elif credit < 0:
                buffer.take(count)
                self.failures.parked.add(first, first)
                self.expiry.look()
            else:
                skipped.append(buffer.take(count))  # its consumers have no credit: others are served meanwhile
        buffer.put_back(skipped)

    def _take_out(self, consumer: Consumer, stored: Stored) -> None:
        """A consumer raised: what it was given is for others, or for when it is back. What else is with it stays there
        until its connection has ended."""
        if self.order is not None:
            self.order.ended(consumer)
        self.group.leave(consumer)
        for first, last in self._outstanding.remove(
            consumer, stored.position, stored.position + len(stored.run.bodies) - 1
        ):
            self.give_back(first, last)
        if not self.group:
            self.put_back()

    # --- consumers --------------------------------------------------------------------------------------------

    def join(self, consumer: Consumer) -> None:
        """Deliver to `consumer` as well. Idempotent."""
        new = consumer not in self.group
        self.group.join(consumer)
        self._outstanding.returns(consumer)
        self._unpark()
        if self.order is not None and new:
            self.order.joined(consumer)

    def leave(self, consumer: Consumer, *, keep: bool) -> None:
        """The consumer is away. `keep`: what is outstanding to it waits for its return (an MQTT session's in-flight
        messages); otherwise it goes back, to be delivered again to whoever is there."""
        if self.order is not None:
            self.order.left(consumer)
        self.group.leave(consumer)
        if keep:
            self._outstanding.leave(consumer)
        else:
            for first, last in self._outstanding.drop(consumer):
                self.give_back(first, last)
        if self._counts:
            self.failures.left(consumer)
            self._unpark()
            self.returns.forgive(math.inf)  # those that are left may be the ones that gave it back
        if self.group:
            self.pump()
        elif not self._closed:
            self.put_back()

    def close(self) -> None:
        """The subscription is deleted: its cursor goes, and the log keeps nothing for it."""
        self._closed = True
        self._retire()
        self.dead_lettering.close()
        self.reader.close()
        self._kept_attempts.drop()
        self._cursors.drop(self.cursor)

    def let_go(self) -> None:
        """Nobody has anything of it (`at_rest`), and another object may serve the cursor later. It is freed at once: as
        its parts know it, thousands would take memory until the collector looks at everything. A consumer that raised,
        and was taken out for that, may still give it credit, drain it and leave it."""
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
    def at_rest(self) -> bool:
        """Nobody consumes from it, and all that is known of it the store says as well: another object may serve the
        cursor later."""
        if self.group or self._pumping or self.reader.reading or self._outstanding.count:
            return False
        at_rest = self.failures.is_at_rest and self.expiry.is_at_rest and self.dead_lettering.is_at_rest
        return at_rest and not (self.order and self.order.remembers)

    @property
    def backlog(self) -> int:
        """Messages of the log not delivered yet, at most: those of other addresses in it count while it is behind."""
        window = self.window
        waiting = sum(len(stored.run.bodies) for stored in self.buffer.runs) + window.returned.count
        waiting += self.failures.delayed + self.failures.parked.count + (self.lane.count if self.lane else 0)
        return waiting + (window.end - window.next - window.done.count if self.behind else 0)

    @property
    def outstanding(self) -> int:
        """Messages delivered and not settled."""
        return self._outstanding.count

    # --- from consumers ---------------------------------------------------------------------------------------

    def settle(self, consumer: Consumer, first: int, last: int, outcome: DeliveryOutcome) -> None:
        """The consumer's answer; positions that are not outstanding to it are ignored (a late or repeated answer)."""
        if self._closed:
            return
        parts = self._outstanding.remove(consumer, first, last)
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
            self.dead_lettering.read_on()
            self.pump()

    def confirm(self) -> Ticket | None:
        """Return the ticket of the commit that writes what was accepted until now; None: it is on disk."""
        return self._cursors.confirm(self.cursor)

    def annotate(self, consumer: Consumer, position: int, annotations: bytes) -> None:
        """Said before `settle`: what the consumer adds to the message it gives back (an encoded map)."""
        if self._outstanding.holds(consumer, position):
            self.failures.annotate(position, annotations)

    def keeps_after_loss(self, consumer: Consumer, position: int) -> bool:
        """Count that the consumer was lost with this message, which stays with it. Return False when that was the last
        attempt, and the message is dead-lettered."""
        if not self._outstanding.holds(consumer, position) or self.returns.keeps_after_loss(position):
            return True
        self._outstanding.remove(consumer, position, position)
        self.dead_lettering.read_on()
        return False

    def _retire(self) -> None:
        """It delivers nothing more."""
        self._feeds.detach(self)
        self.group, self.lane = ConsumerGroup(), None
        self.buffer.clear()

    def _unpark(self) -> None:
        """Somebody else is there now: what was parked may have a taker."""
        parked, self.failures.parked = self.failures.parked, Ranges()
        for first, last in parked:
            self.give_back(first, last)

    def give_back(self, first: int, last: int) -> None:
        """These may be delivered again."""
        self.window.give_back(first, last)
        self.expiry.look()
        if self.order is not None:
            self.order.returned(first, last)

    # --- from the dead letters and the sweeper ----------------------------------------------------------------

    def tick(self, now_s: float) -> bool:
        """Deliver again what waited for its time, give up what could not be; False when nothing is left to wait for."""
        if self._closed:
            return False
        due = self.failures.due(now_s)
        for position in due:
            self.give_back(position, position)
        self.dead_lettering.try_again()
        if self.returns.forgive(now_s) or due:
            self.pump()
        self._kept_attempts.write(now_s, decide=self.policy.redelivery.attempts_max is not None)
        waits = self.failures.delayed or self.dead_lettering.waits or self.failures.passes_over
        return bool(waits or self.failures.changed)

    def forget_attempts(self, first: int, last: int) -> None:
        """These are settled, or given up."""
        if self._counts:
            self.failures.forget(first, last)
            if self.failures.changed:
                self._deadletters.wake_later(self)

    def recall_attempts(self, packed: bytes) -> None:
        """Count on from what a former process kept, for messages that are still to be had."""
        for position, count in self._kept_attempts.recall(packed).items():
            if position < self.window.end and self.window.available(position, position):
                self._counts[position] = count

    @property
    def lowest(self) -> int:
        """No message below is to be had."""
        parked = self.failures.parked
        return min(parked.first, self.window.lowest) if parked else self.window.lowest

    def waiting(self, first: int, last: int) -> list[tuple[int, int]]:
        """See `expiry.Waiting`."""
        found, parked = self.window.available(first, last), self.failures.parked
        return sorted(found + parked.within(first, last)) if parked else found

    def due(self, now_ns: int) -> bool:
        """See `edge.broker.delivery.sweep.Swept`."""
        if self._closed or not (self.expiry.counts and self.dead_lettering.is_free):
            return False
        if self.buffer.runs and self.expiry.may_be_over(self.buffer.runs[0].run):
            self.pump()  # which begins with what has expired, whether or not somebody has credit
        return self.expiry.due(now_ns)

    def give_up_expired(self, start: int, runs: Sequence[Stored], judge: Judge) -> bool:
        """See `edge.broker.delivery.sweep.Swept`."""
        return not self._closed and self.expiry.give_up_expired(start, runs, judge)

    def _gave_up_expired(self) -> bool:
        """Give the head of the buffer up when its time to live has passed."""
        run = self.buffer.runs[0].run
        if not self.expiry.is_over(run):
            return False
        self.dead_lettering.give_up(self.buffer.take(len(run.bodies)), LossReason.EXPIRED)
        return True

    # --- reading ----------------------------------------------------------------------------------------------

    def put_back(self) -> None:
        """What waits in memory is to be read again."""
        for stored in self.buffer.runs:
            self.window.returned.add(stored.position, stored.position + len(stored.run.bodies) - 1)
            self.expiry.look()
        self.buffer.clear()
        self.reader.discard()

    def _look_at(self, stored: Stored) -> None:
        """Take a wanted run into the buffer, less what was seen or acknowledged before."""
        end = stored.position + len(stored.run.bodies)
        if end <= self.window.next:
            return
        for first, last in self.window.look_at(stored.position, end - 1):
            self.buffer.add(stored, first, last)

    def _read_on(self) -> None:
        if (self.behind or self.window.returned) and self.group.credit > 0 and self.dead_lettering.has_room:
            self.reader.read()  # without room `pump` comes when there is

    def follow(self, runs: Sequence[Stored]) -> None:
        """See `log_reader.Subscription`."""
        if self._leaves_to_order(runs):
            return
        for stored in runs:
            if self.wants(stored):
                self._look_at(stored)
            else:
                self.window.skip_to(stored.position + len(stored.run.bodies))
        if not runs or self.window.next >= self.window.end:
            self.behind = False
        self.pump()
        if not self.behind:
            self._tell_idle()

    def were_returned(self, runs: Sequence[Stored], start: int) -> None:
        """See `log_reader.Subscription`."""
        if self._leaves_to_order(runs):
            return
        end, returned = start, self.window.returned
        for stored in runs:
            end = stored.position + len(stored.run.bodies)
            for first, last in returned.within(stored.position, end - 1):
                self.buffer.add(stored, first, last)
        # what the store does not hold any more (purged, expired) is not delivered again; what came back meanwhile, and
        # is older than where the reading began, has its turn next
        returned.remove(start, end - 1 if runs else self.window.end)
        self.pump()
        self._tell_idle()

    def _leaves_to_order(self, runs: Sequence[Stored]) -> bool:
        claimed = self.order is not None and self.order.claims(runs)
        if claimed:
            self.pump()
        return claimed

    def _tell_idle(self) -> None:
        """Those who wait for the end of what there is hear that it has come."""
        if self.idle_now:
            for consumer in list(self.group.consumers):
                consumer.exhausted()
