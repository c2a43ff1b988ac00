"""Messages and deliveries of one link that are part of transactions (AMQP 1.0 part 4, section 4.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Final, NamedTuple

from bridge.amqp_values import DecodeError
from bridge.engine import Condition, DeliveryState, Detail, Engine, Link, TransactionalState
from edge.broker.amqp.addressing import CONDITIONS, AttachRefused
from edge.broker.amqp.scheduler import Flusher
from edge.broker.delivery import LogSubscription
from edge.broker.model.interfaces import Consumer, DeliveryOutcome, Subscription
from edge.broker.router.transactions.changes import Posting, Retirement, TransactionFault, TransactionRefused
from edge.broker.router.transactions.transaction import Transaction

UNKNOWN_ID: Final = "amqp:transaction:unknown-id"
ROLLBACK: Final = "amqp:transaction:rollback"
TIMEOUT: Final = "amqp:transaction:timeout"
"""Errors of section 4.5.8."""

_OUTCOMES: Final[Mapping[DeliveryState, DeliveryOutcome]] = {
    DeliveryState.ACCEPTED: DeliveryOutcome.ACCEPTED,
    DeliveryState.REJECTED: DeliveryOutcome.REJECTED,
    DeliveryState.MODIFIED_FAILED: DeliveryOutcome.MODIFIED_FAILED,
    DeliveryState.MODIFIED_UNDELIVERABLE: DeliveryOutcome.MODIFIED_UNDELIVERABLE,
}
"""Outcomes of retired deliveries; all others release the message."""


def discharge_condition(fault: TransactionFault) -> Condition:
    """Return the error of a discharge that ended in a rollback."""
    return Condition(TIMEOUT if fault is TransactionFault.IDLE else ROLLBACK, fault.value)


def hold_message(
    transaction: Transaction | None, name: bytes, make: Callable[[], Posting], now_s: float
) -> tuple[DeliveryState, Detail]:
    """Hold a message in the transaction of this txn-id, and return the answer to its sender. `make` reads the message;
    it raises DecodeError or AttachRefused."""
    if transaction is None:
        return DeliveryState.REJECTED, _unknown(name)
    try:
        transaction.post(make(), now_s)
    except TransactionRefused as refused:
        condition = _posting_condition(refused)
    except AttachRefused as refused:
        condition = refused.condition
    except DecodeError as error:
        condition = Condition("amqp:decode-error", str(error))
    else:
        return DeliveryState.TRANSACTIONAL, TransactionalState(name, DeliveryState.ACCEPTED)
    transaction.fail(TransactionFault.REFUSED)
    return DeliveryState.TRANSACTIONAL, TransactionalState(name, DeliveryState.REJECTED, condition)


class UnsettledDelivery(NamedTuple):
    """A retired delivery that the client has not settled, with the state that it sent."""

    retirement: Retirement
    state: TransactionalState


class LinkRetirements:
    """Deliveries of one receiving link that transactions retire."""

    __slots__ = (
        "_consumer", "_detach", "_driver", "_ended", "_engine", "_in_no_log", "_link", "_outstanding", "_transactions",
        "_unsettled",
    )  # fmt: skip

    def __init__(
        self,
        consumer: Consumer,
        engine: Engine,
        link: Link,
        driver: Flusher,
        transactions: Mapping[bytes, Transaction],
        outstanding: MutableMapping[int, tuple[Subscription, int]],
        detach: Callable[[Condition], None],
    ) -> None:
        """`transactions`: those of the connection. `outstanding`: deliveries of the consumer that are part of none.
        `detach` ends the link with an error."""
        self._consumer = consumer
        self._engine = engine
        self._link = link
        self._driver = driver
        self._transactions = transactions
        self._outstanding = outstanding
        self._detach = detach
        self._unsettled: dict[int, UnsettledDelivery] = {}
        """Retired deliveries that the client has not settled, by tag."""
        self._in_no_log: set[Transaction] = set()
        """Transactions with deliveries that end with the link, because no log has them."""
        self._ended = False

    def __len__(self) -> int:
        return len(self._unsettled)

    def add(self, items: Sequence[tuple[int, DeliveryState, bool, Detail]], now_s: float) -> None:
        """Retire deliveries (`bridge.engine.Dispositions`)."""
        for tag, _, settled, state in items:
            if isinstance(state, TransactionalState):
                self._add(tag, state, now_s, settled=settled)

    def _add(self, tag: int, state: TransactionalState, now_s: float, *, settled: bool) -> None:
        """Retire one delivery. Detach the link if it is not possible."""
        held = self._unsettled.get(tag)
        if held is not None:
            if held.state[:2] != state[:2]:
                self._detach(Condition("amqp:not-allowed", "the delivery has another state in a transaction already"))
            elif settled:
                self.settled((tag,))
            return
        if self._ended or (state.outcome is DeliveryState.NONE and not settled):
            return  # the outcome follows
        transaction = self._transactions.get(state.transaction)
        if transaction is None:
            self._detach(_unknown(state.transaction))
            return
        subscription, position = self._outstanding.get(tag, (None, -1))
        logged = isinstance(subscription, LogSubscription)
        if isinstance(subscription, LogSubscription) and subscription.watcher is not None:
            self._detach(Condition("amqp:not-implemented", "a command cannot be settled in a transaction"))
            return
        self._outstanding.pop(tag, None)
        outcome = _OUTCOMES.get(state.outcome, DeliveryOutcome.RELEASED)
        if subscription is not None:
            retirement = Retirement(self, self._consumer, tag, subscription, position, outcome, settled=settled)
            if not settled:
                self._unsettled[tag] = UnsettledDelivery(retirement, state)
            if transaction.retire(retirement, now_s):
                if not logged:
                    self._in_no_log = {each for each in self._in_no_log if each.takes_changes} | {transaction}
                return
            self._unsettled.pop(tag, None)
        if not settled:
            self._engine.settle_sent(self._link, tag)  # nothing keeps the message, or another consumer has it

    def settled(self, tags: Sequence[int]) -> None:
        """Note that the client has settled these deliveries, as far as they are retired."""
        for tag in tags if self._unsettled else ():
            held = self._unsettled.pop(tag, None)
            if held is not None:
                held.retirement.settled = True

    def end(self) -> None:
        """Note the end of the link: its transactions go on, unless they need its deliveries."""
        self._ended = True
        self._unsettled.clear()
        for transaction in self._in_no_log:
            transaction.fail(TransactionFault.RECEIVER_LEFT)
        self._in_no_log.clear()

    # --- from transactions (`edge.broker.router.transactions.changes.RetiringClient`) -------------------------------

    def retired(self, retirement: Retirement) -> None:
        if self._unsettled.pop(retirement.tag, None) is not None:
            self._engine.settle_sent(self._link, retirement.tag)
            self._driver.flush_soon()

    def restored(self, retirement: Retirement) -> bool:
        if self._unsettled.pop(retirement.tag, None) is None:
            return False
        self._outstanding[retirement.tag] = retirement.subscription, retirement.position
        return True


def _unknown(name: bytes) -> Condition:
    return Condition(UNKNOWN_ID, f"the connection has no open transaction {name.hex()}")


def _posting_condition(refused: TransactionRefused) -> Condition:
    """Return the error of a refused message."""
    if refused.why is not None:
        return Condition(CONDITIONS[refused.why], str(refused))
    if refused.fault is TransactionFault.UNSUPPORTED:
        return Condition("amqp:not-implemented", str(refused))
    if refused.fault is TransactionFault.LIMIT:
        return Condition("amqp:resource-limit-exceeded", str(refused))
    return Condition(discharge_condition(refused.fault).name, str(refused))
