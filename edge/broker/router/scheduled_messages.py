"""Messages with a requested delivery time. They are on disk until they are due, and are published then.

The sender gets its acknowledgement when the commit with the message has ended. When the message is due, one commit
stores it at its address and deletes it here. So it is neither lost nor stored twice, whenever the power is cut. A
message that its address refuses then, because the store is full or the address has another type by now, stays here and
is tried again (`HeldAddresses`).

A message is late rather than early. A time of day is compared with the gateway's clock while that is known to be right.
Otherwise a message waits for the same duration from its arrival, by a clock that was not set in between
(`model.clock`). Without such a clock, because it stood still while the machine was off, the whole duration counts from
the start.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from bridge.hidden import hides
from bridge.message import Run
from edge.broker.limits import (
    SCHEDULED_AGAIN_S,
    SCHEDULED_AT_ONCE,
    SCHEDULED_AT_ONCE_BYTES,
)
from edge.broker.message.delivery_time import DeliveryTime
from edge.broker.message.translation import read_header, with_ttl
from edge.broker.model.clock import MessageClock
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.model.isolation import report
from edge.broker.router.answers import Answers
from edge.broker.router.batch import Publication
from edge.broker.router.held_addresses import HeldAddresses
from edge.broker.router.schedule_admission import SchedulableAddresses, ScheduleAdmission, ScheduledMessage
from edge.broker.store.contract import Store
from edge.broker.store.errors import StoreError
from edge.broker.store.records import Loss
from edge.broker.store.ticket import Ticket

log = logging.getLogger(__name__)

KIND: Final = "scheduled"
"""Kind of the small state: number in 16 hexadecimal digits -> `ScheduledMessage`."""
CONTENT: Final = "scheduled-content"
"""Kind of the small state with the same keys -> run of one message. It is read when the message is due."""
LEDGER_NAME: Final = "scheduled"
"""Name in the loss ledger, instead of a subscription, for scheduled messages that an operator deleted."""
_NS_IN_MS: Final = 1_000_000
_NS_IN_US: Final = 1_000
_TOKEN: Final = (0,)
_OF_MESSAGE: Final = (Refusal.TOO_LARGE, Refusal.FORMAT_INVALID)
"""Refusals that other messages of the address may not get."""


class WaitingMessage:
    """A scheduled message in memory."""

    __slots__ = ("due_s", "kept", "number", "refused", "ticket", "trial", "was_refused")

    def __init__(self, number: int, kept: ScheduledMessage, due_s: float, ticket: Ticket | None) -> None:
        self.number = number
        """Microseconds of the arrival (UTC), or one more than the number before."""
        self.kept = kept
        self.due_s = due_s
        """Time of its delivery or next try (monotonic seconds)."""
        self.ticket = ticket
        """Commit that makes it durable; None afterwards."""
        self.trial: DueMessage | None = None
        """Its publication, while its address stores it."""
        self.refused: Refusal | None = None
        """Why its address refused it or another message at the last try."""
        self.was_refused = False
        """True after its address refused this one."""


@hides("content")
class DueMessage(Origin):
    """Origin of a due message."""

    def __init__(self, schedule: ScheduledMessages, waiting: WaitingMessage, content: bytes) -> None:
        self.name, self.user = waiting.kept.device, waiting.kept.user
        self.waiting = waiting
        self.content = content
        """The value of `CONTENT`."""
        self._schedule = schedule

    def accepted(self, tokens: Sequence[int]) -> None:
        self._schedule.delivered(self)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self._schedule.refuse(self, why)


class SchedulingRouter(SchedulableAddresses, Protocol):
    """Part of the router that the schedule uses."""

    def publish(self, batch: Publication) -> None:
        """Publish a due message."""
        ...

    def flush_soon(self) -> None:
        """Note that something joined the open group."""
        ...


class ScheduledMessages:
    """Scheduled messages of one router; takes part in the commits (`router.CommitParticipant`)."""

    def __init__(
        self,
        store: Store,
        clock: MessageClock,
        answers: Answers,
        router: SchedulingRouter,
        now_s: Callable[[], float],
        *,
        supported: bool,
    ) -> None:
        """`now_s` is monotonic. Not `supported`: no message is taken; earlier ones are delivered."""
        self._store, self._state = store, store.state
        self._clock, self._now_s = clock, now_s
        self._answers = answers
        self._router = router
        self._admission = ScheduleAdmission(clock, router, supported=supported)
        self._waiting: dict[int, WaitingMessage] = {}
        self._due: list[tuple[float, int]] = []
        """Heap of (due, number). An entry counts only while it has the message's own due time."""
        self._held = HeldAddresses()
        self._refused: set[int] = set()
        """Numbers of messages that an address refused, or that wait for such an address."""
        self._uncommitted: list[WaitingMessage] = []
        self._raised: list[tuple[Ticket, DueMessage]] = []
        """Messages that had joined the open group before their publication raised."""
        self._unstamped: list[WaitingMessage] = []
        """Messages from before the clock was right, to be stamped by it."""
        self._last = 0
        """Last number."""
        self._load()
        self._clock_seen = (clock.steady, clock.good)
        self._note_unstamped()

    # --- from senders -------------------------------------------------------------------------------------------

    def add(self, origin: Origin, run: Run, tokens: Sequence[int], wanted: DeliveryTime) -> None:
        """Keep one message until its delivery time, and answer its origin when it is on disk.

        Raises ScheduleRefused.
        """
        self._clock.read()
        kept = self._admission.admit(run, origin.user, wanted)
        self._last = number = max(self._last + 1, kept.received_at // _NS_IN_US)
        self._state.put(CONTENT, _key(number), msgspec.msgpack.encode(run))
        ticket = self._state.put(KIND, _key(number), msgspec.msgpack.encode(kept))
        waiting = WaitingMessage(number, kept, self._now_s() + kept.wait_ms / 1e3, ticket)
        self._enter(waiting)
        self._uncommitted.append(waiting)
        self._answers.accept_with(ticket, origin, tokens)
        self._router.flush_soon()

    # --- for operators ------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def bytes(self) -> int:
        """Bytes of all scheduled messages, without those that their addresses are storing."""
        return self._admission.bytes

    @property
    def refused(self) -> int:
        """Number of due messages that wait because their address refused one."""
        return len(self._refused)

    def __iter__(self) -> Iterator[WaitingMessage]:
        """Iterate over the messages, by number."""
        return iter([self._waiting[number] for number in sorted(self._waiting)])

    def due_in_s(self, waiting: WaitingMessage) -> float:
        """Return the seconds until a message is due, 0 or more."""
        return max(0.0, waiting.due_s - self._now_s())

    def delete(self, numbers: Sequence[int]) -> tuple[int, Ticket | None]:
        """Delete messages, with entries in the loss ledger; return their number and the ticket of the commit.

        Messages that are not there, not on disk yet, or just being stored at their address are passed over.
        """
        losses: list[Loss] = []
        for number in numbers:
            waiting = self._waiting.get(number)
            if waiting is None or waiting.trial is not None or waiting.ticket is not None:
                continue
            name, size, now_ns = f"${LEDGER_NAME}/{waiting.kept.address}", waiting.kept.size, self._clock.clock_ns()
            losses.append(Loss(LEDGER_NAME, name, number, number, 1, size, "deleted", now_ns))
            self._forget(waiting)
            self._delete_stored(number)
        return len(losses), self._store.ledger.record(losses) if losses else None

    # --- from the router ----------------------------------------------------------------------------------------

    def tick(self, *, failing: bool) -> None:
        """Publish due messages, within `SCHEDULED_AT_ONCE` and its bytes, unless commits fail (`failing`)."""
        if not self._waiting:
            return
        self._follow_clock()
        if failing:
            return
        now_s, left, left_bytes = self._now_s(), SCHEDULED_AT_ONCE, SCHEDULED_AT_ONCE_BYTES
        for number in self._held.trials(now_s):
            self._try(number)
        while left > 0 and left_bytes > 0 and self._due and self._due[0][0] <= now_s:
            due_s, number = heapq.heappop(self._due)
            waiting = self._waiting.get(number)
            if waiting is None or waiting.due_s != due_s or waiting.trial is not None or waiting.ticket is not None:
                continue
            if (why := self._held.why(waiting.kept.address)) is not None:
                waiting.refused = why
                self._refused.add(number)
                self._held.add(waiting.kept.address, number)
                continue
            left, left_bytes = left - 1, left_bytes - waiting.kept.size
            self._try(number)

    def retry(self) -> None:
        """Try all addresses again that refused a message: they may have changed."""
        now_s = self._now_s()
        self._held.release_all()
        for number in self._refused:
            self._wait_until(self._waiting[number], now_s)

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
                self._delete_stored(waiting.number)
            else:
                waiting.ticket = None
                self._wait_until(waiting, waiting.due_s)
        raised, self._raised = self._raised, []
        for ticket, due in raised:
            if not ticket.decided:
                self._raised.append((ticket, due))
            elif ticket.error is None:
                self.delivered(due)
            else:
                self.refuse(due, Refusal.STORE_FAILED)

    # --- from due messages --------------------------------------------------------------------------------------

    def delivered(self, due: DueMessage) -> None:
        """Forget a message that its address has stored."""
        waiting = due.waiting
        if waiting.trial is due:
            self._forget(waiting)
            self._release(waiting.kept.address)

    def refuse(self, due: DueMessage, why: Refusal, *, alone: bool = False) -> None:
        """Keep a message that its address has refused, and try again later; `alone`: the address is not the cause."""
        waiting = due.waiting
        if waiting.trial is due:
            self._state.restore(CONTENT, _key(waiting.number), due.content)
            self._state.restore(KIND, _key(waiting.number), msgspec.msgpack.encode(waiting.kept))
            waiting.trial = None
            self._admission.end_move(waiting.kept)
            self._hold(waiting, why, alone=alone)

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
        self._admission.enter(waiting.kept)

    def _forget(self, waiting: WaitingMessage) -> None:
        if self._waiting.pop(waiting.number, None) is None:
            return
        self._held.remove(waiting.number)
        self._refused.discard(waiting.number)
        self._admission.leave(waiting.kept, moved=waiting.trial is not None)
        waiting.trial = None

    def _delete_stored(self, number: int) -> Ticket:
        self._state.delete(CONTENT, _key(number))
        return self._state.delete(KIND, _key(number))

    def _wait_until(self, waiting: WaitingMessage, due_s: float) -> None:
        waiting.due_s = due_s
        heapq.heappush(self._due, (due_s, waiting.number))

    def _hold(self, waiting: WaitingMessage, why: Refusal, *, alone: bool = False) -> None:
        """Try a refused message again later, with all messages of its address, unless it is the cause (`alone`)."""
        address = waiting.kept.address
        if waiting.refused is not why:
            log.warning("scheduled message %d waits: %s refuses it: %s", waiting.number, address, why.value)
        waiting.refused, waiting.was_refused = why, True
        self._refused.add(waiting.number)
        self._held.hold(address, waiting.number, why, self._now_s(), alone=alone or why in _OF_MESSAGE)

    def _release(self, address: str) -> None:
        """Try all messages of an address now, as it took one; those that it refused come after the others."""
        now_s = self._now_s()
        for number in self._held.release(address):
            waiting = self._waiting[number]
            self._wait_until(waiting, now_s + (SCHEDULED_AGAIN_S[0] if waiting.was_refused else 0.0))

    # --- clocks ---------------------------------------------------------------------------------------------------

    def _follow_clock(self) -> None:
        """Compute the due times again when the clock was set, or became right or wrong."""
        self._clock.read()
        seen = (self._clock.steady, self._clock.good)
        if seen != self._clock_seen:
            self._clock_seen = seen
            for waiting in self._waiting.values():
                waiting.due_s = self._due_s(waiting)
            self._due = [(each.due_s, number) for number, each in self._waiting.items() if number not in self._held]
            heapq.heapify(self._due)
            self._note_unstamped()
        for _ in range(min(SCHEDULED_AT_ONCE, len(self._unstamped))):
            self._stamp(self._unstamped.pop())

    def _note_unstamped(self) -> None:
        self._unstamped = [each for each in self._waiting.values() if self._clock.good and not each.kept.good]

    def _stamp(self, waiting: WaitingMessage) -> None:
        """Stamp a message from before the clock was right, so that its wait goes on after a restart."""
        if waiting.number not in self._waiting or waiting.trial is not None or waiting.ticket is not None:
            return
        waited_ns = int((waiting.kept.wait_ms / 1e3 - (waiting.due_s - self._now_s())) * 1e9)
        received_at = self._clock.now_ns - max(0, waited_ns)
        waiting.kept = msgspec.structs.replace(waiting.kept, received_at=received_at, good=True)
        self._state.put(KIND, _key(waiting.number), msgspec.msgpack.encode(waiting.kept))

    def _due_s(self, waiting: WaitingMessage) -> float:
        """Return when a message is due (monotonic seconds), by its time of day or its age; else as before."""
        clock, now_s, kept = self._clock, self._now_s(), waiting.kept
        if kept.at_ms is not None and clock.good:
            return now_s + kept.at_ms / 1e3 - clock.now_ns / 1e9
        if not clock.is_expired(kept.stamp, 0):
            return waiting.due_s  # its age is unknown, or negative because the clock was set back
        return now_s + kept.wait_ms / 1e3 - (clock.now_ns - kept.received_at) / 1e9

    # --- delivery -------------------------------------------------------------------------------------------------

    def _try(self, number: int) -> None:
        """Publish a due message."""
        waiting = self._waiting[number]
        kept = waiting.kept
        if kept.at_ms is not None and self._clock.good and kept.at_ms * _NS_IN_MS > self._clock.now_ns:
            self._held.remove(number)
            self._release(kept.address)
            self._wait_until(waiting, self._due_s(waiting))  # the clock was set back a little
            return
        kind = self._router.schedulable_type(kept.address)
        if kind is None or (kept.queue and not kind.is_queue):
            self._hold(waiting, Refusal.ADDRESS_INVALID)
            return
        try:
            content = self._state.get(CONTENT, _key(number))
            run = msgspec.msgpack.decode(content or b"", type=Run)
        except (StoreError, msgspec.MsgspecError) as error:
            report(f"scheduled message {number}", "it cannot be read, and is tried again", error)
            self._hold(waiting, Refusal.STORE_FAILED, alone=True)
            return
        waiting.trial = due = DueMessage(self, waiting, content or b"")
        self._admission.begin_move(kept)
        ticket, gathered = self._delete_stored(number), self._store.commits.gathered
        try:
            self._router.publish(Publication(due, self._current(kept, run), _TOKEN))
        except Exception as error:
            report(f"scheduled message {number}", "it is tried again, unless it is stored", error)
            if self._store.commits.gathered > gathered:
                self._raised.append((ticket, due))
            else:
                self.refuse(due, Refusal.STORE_FAILED, alone=True)

    def _current(self, kept: ScheduledMessage, run: Run) -> Run:
        """Return the message to publish, with the time to live that is left."""
        properties, ttl_ms = run.properties, read_header(run.properties).ttl_ms
        if ttl_ms is not None:
            waited_ms = max(kept.wait_ms, self._clock.age_ns(kept.stamp) // _NS_IN_MS)
            properties = with_ttl(properties, max(0, ttl_ms - waited_ms))
        return Run(run.address, run.device, run.flags, properties, run.bodies)


def _key(number: int) -> str:
    return f"{number:016x}"
