"""A local transaction (AMQP 1.0 part 4): posted messages and retired deliveries of one commit of the store.

Nothing reaches a consumer or a cursor before the discharge. Then every message is appended and every accepted delivery
is acknowledged in one block of `StoreCommits.together`, and the answer waits for its ticket.

| state | entered by | left by |
|---|---|---|
| OPEN | declare | `fail`, `commit`, `roll_back` |
| FAILED | a refused posting, a limit, the idle time | `commit`, which reports the fault, and `roll_back` |
| READING | `commit`, while rejected messages are read for their dead letters | the last read, `roll_back` |
| COMMITTING | the block of the store | the end of its commit |
| ENDED | the end of the commit, `roll_back` | - |
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from bridge.message import Stored
from edge.broker.delivery import LogSubscription
from edge.broker.delivery.consumer_group import part_of
from edge.broker.limits import POSTED_MESSAGE_BYTES, RETIRED_DELIVERY_BYTES
from edge.broker.model.interfaces import Consumer, DeliveryOutcome, Origin, Refusal, Subscription
from edge.broker.model.isolation import call_isolated, end_party
from edge.broker.router.transactions.changes import (
    DeliveryHolder,
    Posting,
    Retirement,
    TransactionFault,
    TransactionRefused,
    pass_on,
)
from edge.broker.router.transactions.commit import JoinedChanges, TransactionCommits
from edge.broker.store.errors import StoreError

Discharged = Callable[[TransactionFault | None], None]
"""Gets the outcome of a discharge: None once everything is on disk, or the reason of the rollback."""


class TransactionState(enum.Enum):
    """State of a transaction; see the module's docstring."""

    OPEN = "open"
    FAILED = "failed"
    READING = "reading"
    COMMITTING = "committing"
    ENDED = "ended"


class TransactionMemory(Protocol):
    """Account of all transactions of a router."""

    def reserve(self, transaction: Transaction, size: int) -> None:
        """Count bytes that a transaction is about to hold. Raises TransactionRefused."""
        ...

    def release(self, transaction: Transaction, size: int) -> None:
        """Return bytes that a transaction held."""
        ...

    def ended(self, transaction: Transaction) -> None:
        """Forget a transaction."""
        ...


class Transaction:
    """A local transaction; see the module's docstring for its states."""

    __slots__ = (
        "_charge", "_commits", "_done", "_holder", "_memory", "_party", "_postings", "_retirements", "_unread", "bytes",
        "fault", "name", "state", "used_at_s", "user",
    )  # fmt: skip

    def __init__(
        self,
        name: bytes,
        memory: TransactionMemory,
        commits: TransactionCommits,
        party: Origin,
        charge: Callable[[int], None],
        now_s: float,
    ) -> None:
        """`name`: its txn-id. `party`: its controller, which ends if its call back raises. `charge` is called with
        each change of the bytes that it holds, for the account of its connection. `now_s`: monotonic seconds."""
        self.name = name
        self.user = party.user
        """User that its memory is charged to."""
        self.state = TransactionState.OPEN
        self.fault: TransactionFault | None = None
        """Reason of the state FAILED, or why the discharge failed."""
        self.bytes = 0
        """Memory of its messages and deliveries."""
        self.used_at_s = now_s
        """Time of the last change by the client (monotonic seconds)."""
        self._memory = memory
        self._commits = commits
        self._party = party
        self._charge = charge
        self._holder = DeliveryHolder()
        self._postings: list[Posting] = []
        self._retirements: list[Retirement] = []
        self._unread = 0
        """Messages that are being read."""
        self._done: Discharged | None = None

    @property
    def is_empty(self) -> bool:
        """True while it holds neither messages nor deliveries."""
        return not (self._postings or self._retirements)

    @property
    def takes_changes(self) -> bool:
        """True before the discharge."""
        return self.state in (TransactionState.OPEN, TransactionState.FAILED)

    # --- changes ------------------------------------------------------------------------------------------------

    def post(self, posting: Posting, now_s: float) -> None:
        """Hold messages until the discharge. Raises TransactionRefused; then the transaction has failed."""
        if self.state is not TransactionState.OPEN:
            fault = self.fault or TransactionFault.REFUSED
            raise TransactionRefused(fault, f"the transaction cannot be committed: {fault.value}")
        self.used_at_s = now_s
        try:
            self._commits.check(posting)
            self._hold(posting.run.size + POSTED_MESSAGE_BYTES * len(posting.run.bodies))
        except TransactionRefused as refused:
            self.fail(refused.fault)
            raise
        self._postings.append(posting)

    def retire(self, retirement: Retirement, now_s: float) -> bool:
        """Hold a delivery with its outcome until the discharge. A failed transaction holds it too, so that the client
        does not get it again before it knows. Return False if the consumer does not have the delivery any more."""
        self.used_at_s = now_s
        subscription = retirement.subscription
        if isinstance(subscription, LogSubscription):
            taken = pass_on(subscription, retirement.consumer, self._holder, retirement.position)
            if not taken:
                return False
        try:
            self._hold(RETIRED_DELIVERY_BYTES)
        except TransactionRefused as refused:
            self.fail(refused.fault)
            self._retirements.append(retirement)
            self._restore(DeliveryOutcome.MODIFIED_FAILED)  # nothing is held beyond the limit
        else:
            self._retirements.append(retirement)
        return True

    def fail(self, fault: TransactionFault) -> None:
        """Drop the messages: the transaction can only be rolled back. Its deliveries stay until then."""
        if self.state is TransactionState.OPEN:
            self.state, self.fault = TransactionState.FAILED, fault
            self._drop_postings()
        elif self.state is TransactionState.READING:
            self.fault = fault

    def expire(self) -> None:
        """Roll back without the client, which learns it at the discharge."""
        self.fail(TransactionFault.IDLE)
        self._restore(DeliveryOutcome.MODIFIED_FAILED)

    # --- discharge ----------------------------------------------------------------------------------------------

    def roll_back(self, outcome: DeliveryOutcome = DeliveryOutcome.MODIFIED_FAILED) -> None:
        """Drop the messages, and return the retired deliveries with this outcome. Do nothing once it is being
        committed."""
        if self.state is TransactionState.COMMITTING or self.state is TransactionState.ENDED:
            return
        self._done = None
        self._end()
        self._restore(outcome)

    def commit(self, done: Discharged) -> None:
        """Commit, and call `done` with None once everything is on disk, or with the reason of the rollback."""
        if self.state is TransactionState.FAILED:
            self.roll_back()
            done(self.fault)
            return
        self.state, self._done = TransactionState.READING, done
        rejected = [
            each
            for each in self._retirements
            if each.outcome is DeliveryOutcome.REJECTED and isinstance(each.subscription, LogSubscription)
        ]
        self._unread = len(rejected)
        try:
            for each in rejected:
                self._commits.read(each, partial(self._take_read, each))
        except Exception:
            self._give_up(TransactionFault.STORE_FAILED)
            raise
        if not rejected:
            self._join()

    def _take_read(self, retirement: Retirement, runs: Sequence[Stored]) -> None:
        """Keep the message of a rejected delivery for its dead letter."""
        if self.state is not TransactionState.READING:
            return  # it was rolled back in the meantime
        if runs and runs[0].position == retirement.position:
            retirement.stored = part_of(runs[0], 0, 1)
        self._unread -= 1
        if not self._unread:
            try:
                self._join()
            except Exception as error:
                end_party(self._party, error)

    def _join(self) -> None:
        if self.fault is not None:  # since the discharge
            self._give_up(self.fault)
            return
        try:
            joined = self._commits.join(self._postings, self._retirements)
        except TransactionRefused as refused:
            self._give_up(refused.fault)
            return
        except StoreError:
            self._give_up(TransactionFault.STORE_FAILED)
            return
        except Exception:
            self._give_up(TransactionFault.STORE_FAILED)
            raise
        self.state = TransactionState.COMMITTING
        if joined.ticket is None:
            self._decide(joined, None)
        else:
            self._commits.await_commit(joined.ticket, self._party, partial(self._decide, joined))

    def _decide(self, joined: JoinedChanges, why: Refusal | None) -> None:
        """Process the end of the commit. An exception in one part does not affect the others."""
        if why is not None:
            self._give_up(TransactionFault.STORE_FAILED)
            return
        retirements, self._retirements = self._retirements, []
        self._end()
        self._settle(retirements, None)
        for each in retirements:
            if not each.settled:
                call_isolated("a retired delivery", each.client.retired, each)
        call_isolated("messages of a transaction", self._commits.finish, joined)
        self._call_done(None)

    # --- inside -------------------------------------------------------------------------------------------------

    def _give_up(self, fault: TransactionFault) -> None:
        """Roll back after a failed discharge. A failure of the store does not count as a failed delivery, or a full
        card would turn messages into dead letters."""
        self.fault = fault
        self._end()
        failed = fault is TransactionFault.STORE_FAILED
        self._restore(DeliveryOutcome.RELEASED if failed else DeliveryOutcome.MODIFIED_FAILED)
        self._call_done(fault)

    def _call_done(self, fault: TransactionFault | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(fault)

    def _end(self) -> None:
        self.state = TransactionState.ENDED
        self._drop_postings()
        self._memory.ended(self)

    def _drop_postings(self) -> None:
        self._postings = []
        self._free(self.bytes - RETIRED_DELIVERY_BYTES * len(self._retirements))

    def _restore(self, outcome: DeliveryOutcome) -> None:
        """Return retired deliveries: to the client those that it has not settled, the others with this outcome."""
        retirements, self._retirements = self._retirements, []
        self._free(self.bytes)
        self._settle([each for each in retirements if each.settled or not self._return_to(each)], outcome)

    def _return_to(self, retirement: Retirement) -> bool:
        """Let the consumer have its delivery again. Return False when it has left."""
        if not retirement.client.restored(retirement):
            return False
        if isinstance(retirement.subscription, LogSubscription):
            pass_on(retirement.subscription, self._holder, retirement.consumer, retirement.position)
        return True

    def _settle(self, retirements: Sequence[Retirement], outcome: DeliveryOutcome | None) -> None:
        """Settle deliveries at their subscriptions, in ranges of positions: with this outcome, or each with its own."""
        ranges: list[tuple[Subscription, Consumer, DeliveryOutcome, int, int]] = []
        for each in retirements:
            answer = each.outcome if outcome is None else outcome
            if answer is DeliveryOutcome.REJECTED and each.stored is not None:
                answer = DeliveryOutcome.ACCEPTED  # its dead letter is in the commit
            found = each.subscription, each.consumer, answer
            first = each.position
            if ranges and ranges[-1][:3] == found and ranges[-1][4] == each.position - 1:
                first = ranges.pop()[3]
            ranges.append((*found, first, each.position))
        for subscription, consumer, answer, first, last in ranges:
            call_isolated("a retired delivery", self._settle_range, subscription, consumer, answer, first, last)

    def _settle_range(
        self, subscription: Subscription, consumer: Consumer, outcome: DeliveryOutcome, first: int, last: int
    ) -> None:
        """Settle a range. The commit has acknowledged accepted messages of a log already."""
        if not isinstance(subscription, LogSubscription):
            subscription.settle(consumer, first, last, outcome)
            return
        party: Consumer = self._holder
        if outcome is not DeliveryOutcome.ACCEPTED and consumer in subscription.group:
            for position in range(first, last + 1):
                pass_on(subscription, self._holder, consumer, position)
            party = consumer  # it may be excluded, or get the message after others
        subscription.settle(party, first, last, outcome)

    def _hold(self, size: int) -> None:
        """Count memory. Raises TransactionRefused."""
        self._memory.reserve(self, size)
        self.bytes += size
        self._charge(size)

    def _free(self, size: int) -> None:
        if size:
            self.bytes -= size
            self._memory.release(self, size)
            self._charge(-size)
