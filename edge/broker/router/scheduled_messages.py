"""Messages with a requested delivery time. They are on disk until they are due, and are published then.

The sender gets its acknowledgement when the commit with the message has ended. When the message is due, one commit
stores it at its address and deletes it here. So it is neither lost nor delivered twice, whenever the power is cut. A
message that its address refuses then, because the store is full or the address has another type by now, stays here and
is tried again.

A message is late rather than early. A time of day is compared with the gateway's clock while that is known to be right.
Otherwise a message waits for the same duration from its arrival, by a clock that was not set in between
(`model.clock`). If there is none, because the clock stood still while the machine was off, the whole duration counts
from that start.
"""

from __future__ import annotations

import enum
import heapq
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from bridge.hidden import hides
from bridge.message import CLOCK_GOOD, Run
from edge.broker.limits import (
    SCHEDULED_AGAIN_S,
    SCHEDULED_AHEAD_MS_MAX,
    SCHEDULED_AT_ONCE,
    SCHEDULED_BYTES_MAX,
    SCHEDULED_MESSAGES_MAX,
    SCHEDULED_USER_SHARE,
)
from edge.broker.message.delivery_time import DeliveryTime
from edge.broker.message.translation import read_header, with_ttl
from edge.broker.model.addresses import AddressType
from edge.broker.model.clock import MessageClock
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.model.isolation import report
from edge.broker.router.answers import Answers
from edge.broker.router.batch import Publication
from edge.broker.store.contract import LossLedger, SmallState
from edge.broker.store.records import Loss
from edge.broker.store.ticket import Ticket

log = logging.getLogger(__name__)

KIND: Final = "scheduled"
"""Kind of the small state: number in 16 hexadecimal digits -> `ScheduledMessage`."""
LEDGER_NAME: Final = "scheduled"
"""Name in the loss ledger, instead of a subscription, for scheduled messages that an operator deleted."""
STORING: Final = (AddressType.QUEUE, AddressType.TOPIC, AddressType.DEADLETTER)
"""Types of addresses that take scheduled messages: they answer for themselves, not for a consumer."""
_NS_IN_MS: Final = 1_000_000
_NS_IN_US: Final = 1_000
_TOKEN: Final = (0,)


class ScheduleFault(enum.Enum):
    """Reason why a message cannot be scheduled."""

    DIRECT = "the address passes messages to consumers that are connected, and keeps none: send it when it is due"
    EXPIRED = "the message would expire before its delivery: raise its time to live, or leave it out"
    TOO_FAR = "the delivery time is too far away: compare the clocks of sender and gateway, or send it later"
    NO_ROOM = "too many scheduled messages wait, or the store is full: send it when it is due"


class ScheduleRefused(Exception):
    """A message cannot be scheduled."""

    def __init__(self, fault: ScheduleFault) -> None:
        super().__init__(fault.value)
        self.fault = fault


@hides("run")
class ScheduledMessage(msgspec.Struct, frozen=True):
    """A scheduled message on disk."""

    run: Run
    """One message, stamped with its arrival."""
    user: str
    """User who is charged for the names that the message creates."""
    wait_ms: int
    """Milliseconds from the arrival to the delivery, by the clock at the arrival."""
    at_ms: int | None = None
    """Time of day of the delivery, as in `DeliveryTime`."""


class WaitingMessage:
    """A scheduled message in memory, without its body."""

    __slots__ = ("at_ms", "due_s", "number", "refused", "size", "stamp", "ticket", "under_way", "user", "wait_ms")

    def __init__(self, number: int, kept: ScheduledMessage, due_s: float, ticket: Ticket | None) -> None:
        self.number = number
        """Microseconds of the arrival (UTC), or one more than the number before: no other message has had it."""
        run = kept.run
        self.stamp = Run(run.address, run.device, run.flags, b"", [], run.received_at)
        """The message without its content, for its age."""
        self.size = run.size
        """Bytes of body, properties and address."""
        self.user = kept.user
        self.wait_ms, self.at_ms = kept.wait_ms, kept.at_ms
        self.due_s = due_s
        """When it is due or tried again (monotonic seconds)."""
        self.ticket = ticket
        """Commit that makes it durable; None afterwards."""
        self.under_way = False
        """True while its address stores it."""
        self.refused: Refusal | None = None
        """Why it could not be delivered at the last try."""


class _DueMessage(Origin):
    """Origin of a due message."""

    def __init__(self, schedule: ScheduledMessages, waiting: WaitingMessage, kept: ScheduledMessage) -> None:
        self.name, self.user = kept.run.device, kept.user
        self._schedule = schedule
        self._waiting = waiting
        self._kept = kept

    def accepted(self, tokens: Sequence[int]) -> None:
        self._schedule.delivered(self._waiting)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self._schedule.put_back(self._waiting, self._kept, why)


class ScheduledMessages:
    """Scheduled messages of one router; takes part in the commits (`router.CommitParticipant`)."""

    def __init__(
        self,
        state: SmallState,
        ledger: LossLedger,
        clock: MessageClock,
        answers: Answers,
        publish: Callable[[Publication], None],
        flush_soon: Callable[[], None],
        *,
        type_of: Callable[[str], AddressType],
        has_room: Callable[[], bool],
        now_s: Callable[[], float],
    ) -> None:
        """`flush_soon` is that of the router. `type_of` returns the type of an address; `has_room` is False while the
        store takes no messages; `now_s` is monotonic."""
        self._state, self._ledger = state, ledger
        self._clock, self._now_s = clock, now_s
        self._answers = answers
        self._publish = publish
        self._flush_soon = flush_soon
        self._type_of = type_of
        self._has_room = has_room
        self._waiting: dict[int, WaitingMessage] = {}
        self._due: list[tuple[float, int]] = []
        """Heap of (due, number). An entry counts only while it has the message's own due time."""
        self._uncommitted: list[WaitingMessage] = []
        self._bytes = 0
        self._used: dict[str, tuple[int, int]] = {}
        """Messages and bytes by user."""
        self._refused: set[int] = set()
        """Numbers of due messages that their address refuses."""
        self._last = 0
        """Last number."""
        self._load()
        self._clock_seen = (clock.steady, clock.good)

    # --- from senders -------------------------------------------------------------------------------------------

    def add(self, origin: Origin, run: Run, tokens: Sequence[int], wanted: DeliveryTime) -> None:
        """Keep one message until its delivery time, and answer its origin when it is on disk.

        Raises ScheduleRefused.
        """
        self._check(run, origin.user, wanted)
        self._clock.read()
        run.received_at = self._clock.now_ns
        if self._clock.good:
            run.flags |= CLOCK_GOOD
        kept = ScheduledMessage(run, origin.user, wanted.wait_ms, wanted.at_ms)
        self._last = number = max(self._last + 1, run.received_at // _NS_IN_US)
        ticket = self._state.put(KIND, _key(number), msgspec.msgpack.encode(kept))
        waiting = WaitingMessage(number, kept, self._now_s() + wanted.wait_ms / 1e3, ticket)
        self._enter(waiting)
        self._uncommitted.append(waiting)
        self._answers.accept_with(ticket, origin, tokens)
        self._flush_soon()

    def _check(self, run: Run, user: str, wanted: DeliveryTime) -> None:
        if self._type_of(run.address) not in STORING:
            raise ScheduleRefused(ScheduleFault.DIRECT)
        ttl_ms = read_header(run.properties).ttl_ms
        if ttl_ms is not None and ttl_ms <= wanted.wait_ms:
            raise ScheduleRefused(ScheduleFault.EXPIRED)
        if wanted.wait_ms > SCHEDULED_AHEAD_MS_MAX:
            raise ScheduleRefused(ScheduleFault.TOO_FAR)
        count, size = self._used.get(user, (0, 0))
        full = len(self._waiting) >= SCHEDULED_MESSAGES_MAX or self._bytes + run.size > SCHEDULED_BYTES_MAX
        share = SCHEDULED_USER_SHARE
        if user and (count >= SCHEDULED_MESSAGES_MAX // share or size + run.size > SCHEDULED_BYTES_MAX // share):
            full = True
        if full or not self._has_room():
            raise ScheduleRefused(ScheduleFault.NO_ROOM)

    # --- for operators ------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def bytes(self) -> int:
        """Bytes of all scheduled messages."""
        return self._bytes

    @property
    def refused(self) -> int:
        """Number of due messages that their address refuses."""
        return len(self._refused)

    def __iter__(self) -> Iterator[WaitingMessage]:
        """Iterate over the messages, by number."""
        return iter(list(self._waiting.values()))

    def due_in_s(self, waiting: WaitingMessage) -> float:
        """Return the seconds until a message is due or tried again, 0 or more."""
        return max(0.0, waiting.due_s - self._now_s())

    def delete(self, number: int) -> Ticket | None:
        """Delete a message, with an entry in the loss ledger; return the ticket of the commit.

        None: there is no such message, or its address stores it just now.
        """
        waiting = self._waiting.get(number)
        if waiting is None or waiting.under_way or waiting.ticket is not None:
            return None
        loss = Loss(
            LEDGER_NAME, waiting.stamp.address, number, number, 1, waiting.size, "deleted", self._clock.clock_ns()
        )
        self._forget(waiting)
        self._state.delete(KIND, _key(number))
        return self._ledger.record([loss])

    # --- from the router ----------------------------------------------------------------------------------------

    def tick(self, *, failing: bool) -> None:
        """Publish due messages, at most `SCHEDULED_AT_ONCE`, unless commits fail (`failing`)."""
        if not self._waiting:
            return
        self._follow_clock()
        now_s, count = self._now_s(), 0
        while not failing and count < SCHEDULED_AT_ONCE and self._due and self._due[0][0] <= now_s:
            due_s, number = heapq.heappop(self._due)
            waiting = self._waiting.get(number)
            if waiting is not None and waiting.due_s == due_s and not waiting.under_way:
                count += 1
                self._publish_due(waiting)

    def prepare(self) -> None:
        """Do nothing: messages join the open group when they arrive."""

    def committed(self, *, kept: bool) -> None:
        """Let messages become due that are on disk. Delete those of a failed commit: their senders know it."""
        uncommitted, self._uncommitted = self._uncommitted, []
        for waiting in uncommitted:
            if waiting.ticket is None or not waiting.ticket.decided:
                self._uncommitted.append(waiting)
            elif waiting.ticket.error is not None:
                self._forget(waiting)
                self._state.delete(KIND, _key(waiting.number))
            else:
                waiting.ticket = None
                self._wait_until(waiting, waiting.due_s)

    # --- from due messages --------------------------------------------------------------------------------------

    def delivered(self, waiting: WaitingMessage) -> None:
        """Forget a message that its address has stored."""
        self._forget(waiting)

    def put_back(self, waiting: WaitingMessage, kept: ScheduledMessage, why: Refusal) -> None:
        """Keep a message that its address has refused, and try again later."""
        self._state.put(KIND, _key(waiting.number), msgspec.msgpack.encode(kept))
        self._put_off(waiting, why)

    # --- inside -------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        self._clock.read()
        now_s = self._now_s()
        for key, value in self._state.items(KIND):
            try:
                number, kept = int(key, 16), msgspec.msgpack.decode(value, type=ScheduledMessage)
            except ValueError as error:  # msgspec.MsgspecError is one
                log.warning("scheduled message %s cannot be read, and stays in the store: %s", key, error)
                continue
            waiting = WaitingMessage(number, kept, now_s + kept.wait_ms / 1e3, None)
            self._last = max(self._last, number)
            self._enter(waiting)
            self._wait_until(waiting, self._due_s(waiting))

    def _enter(self, waiting: WaitingMessage) -> None:
        self._waiting[waiting.number] = waiting
        self._bytes += waiting.size
        count, size = self._used.get(waiting.user, (0, 0))
        self._used[waiting.user] = count + 1, size + waiting.size

    def _forget(self, waiting: WaitingMessage) -> None:
        if self._waiting.pop(waiting.number, None) is None:
            return
        self._refused.discard(waiting.number)
        self._bytes -= waiting.size
        count, size = self._used.pop(waiting.user)
        if count > 1:
            self._used[waiting.user] = count - 1, size - waiting.size

    def _follow_clock(self) -> None:
        """Compute the due times again when the clock was set, or became right or wrong."""
        self._clock.read()
        seen = (self._clock.steady, self._clock.good)
        if seen == self._clock_seen:
            return
        self._clock_seen = seen
        for waiting in self._waiting.values():
            if waiting.ticket is None and not waiting.under_way and waiting.refused is None:
                self._wait_until(waiting, self._due_s(waiting))

    def _due_s(self, waiting: WaitingMessage) -> float:
        """Return when a message is due (monotonic seconds), as its time of day or its age tells; else as before."""
        clock, now_s = self._clock, self._now_s()
        if waiting.at_ms is not None and clock.good:
            return now_s + waiting.at_ms / 1e3 - clock.now_ns / 1e9
        if not clock.is_expired(waiting.stamp, 0):
            return waiting.due_s  # its age is unknown, or negative because the clock was set back
        return now_s + waiting.wait_ms / 1e3 - (clock.now_ns - waiting.stamp.received_at) / 1e9

    def _wait_until(self, waiting: WaitingMessage, due_s: float) -> None:
        waiting.due_s = due_s
        heapq.heappush(self._due, (due_s, waiting.number))

    def _put_off(self, waiting: WaitingMessage, why: Refusal) -> None:
        if waiting.refused is not why:
            log.warning(
                "scheduled message %d waits: %s refuses it: %s", waiting.number, waiting.stamp.address, why.value
            )
        waiting.refused, waiting.under_way = why, False
        self._refused.add(waiting.number)
        self._wait_until(waiting, self._now_s() + SCHEDULED_AGAIN_S)

    def _publish_due(self, waiting: WaitingMessage) -> None:
        if self._type_of(waiting.stamp.address) not in STORING:
            self._put_off(waiting, Refusal.ADDRESS_INVALID)
            return
        value = self._state.get(KIND, _key(waiting.number))
        if value is None:
            raise RuntimeError(f"scheduled message {waiting.number} is not in the store")
        kept = msgspec.msgpack.decode(value, type=ScheduledMessage)
        waiting.under_way = True
        self._state.delete(KIND, _key(waiting.number))  # first: a commit that has the message has this, too
        try:
            self._publish(Publication(_DueMessage(self, waiting, kept), self._run_of(kept), _TOKEN))
        except Exception as error:
            report(f"scheduled message {waiting.number}", "it is tried again", error)
            self.put_back(waiting, kept, Refusal.STORE_FAILED)

    def _run_of(self, kept: ScheduledMessage) -> Run:
        """Return the message to publish, with the time to live that is left."""
        run, properties = kept.run, kept.run.properties
        ttl_ms = read_header(properties).ttl_ms
        if ttl_ms is not None:
            waited_ms = max(kept.wait_ms, self._clock.age_ns(run) // _NS_IN_MS)
            properties = with_ttl(properties, max(0, ttl_ms - waited_ms))
        return Run(run.address, run.device, run.flags & ~CLOCK_GOOD, properties, run.bodies)


def _key(number: int) -> str:
    return f"{number:016x}"
