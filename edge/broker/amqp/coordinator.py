"""Coordinator: the control link on which a client declares and discharges its transactions (AMQP 1.0 part 4)."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from typing import Any, Final

from bridge import sections
from bridge.amqp_values import DecodeError, DescribedValue, decode
from bridge.engine import Condition, DeliveryState, Detail, Engine, Link, Terminus, TerminusKind, Transfers
from edge.broker.amqp.addressing import AttachRefused
from edge.broker.amqp.scheduler import Flusher
from edge.broker.amqp.transactional import UNKNOWN_ID, discharge_condition
from edge.broker.limits import SERVICE_CREDIT, TRANSACTIONS_PER_CONNECTION_MAX
from edge.broker.model.interfaces import DeliveryOutcome, Origin, Refusal
from edge.broker.model.isolation import call_isolated
from edge.broker.router.router import Router
from edge.broker.router.transactions.changes import TransactionFault, TransactionRefused
from edge.broker.router.transactions.transaction import Transaction

CAPABILITIES: Final = ("amqp:local-transactions", "amqp:multi-txns-per-ssn", "amqp:multi-ssns-per-txn")
"""Capabilities of the coordinator (section 4.5.3): local transactions, several in a session, and each for all sessions
of its connection."""

_DECLARE: Final = (0x31, "amqp:declare:list")
_DISCHARGE: Final = (0x32, "amqp:discharge:list")


class CoordinatorLink(Origin):
    """Control link of one client. The transactions that it declares are rolled back when it ends."""

    def __init__(
        self,
        engine: Engine,
        link: Link,
        router: Router,
        driver: Flusher,
        transactions: MutableMapping[bytes, Transaction],
        *,
        name: str,
        user: str,
        detach: Callable[[Link, Condition], None],
    ) -> None:
        """`transactions`: those of the connection by txn-id, for its other links. `detach` ends this link with an
        error."""
        self.name = name
        self.user = user
        self._engine = engine
        self._link = link
        self._router = router
        self._driver = driver
        self._transactions = transactions
        self._detach = detach
        self._own: dict[bytes, Transaction] = {}
        """Transactions that this link has declared and not discharged."""
        self._discharging = 0
        self._ended = False
        self.delivered = 0
        """Requests since the attach."""

    @property
    def unsettled(self) -> int:
        """Number of discharges that wait for their commit."""
        return self._discharging

    @property
    def target(self) -> Terminus:
        """Return the target for the answer to the attach."""
        return Terminus(kind=TerminusKind.COORDINATOR, capabilities=CAPABILITIES)

    def received(self, event: Transfers) -> None:
        """Process requests: each is one message."""
        self.delivered += len(event.messages)
        if event.settled or event.transaction is not None:
            text = "a declare or discharge has to be sent unsettled, and outside of a transaction"
            self._detach(self._link, Condition("amqp:not-allowed", text))
            return
        for number, message in zip(event.deliveries, event.messages, strict=True):
            if self._ended:
                return  # an earlier request of this read has ended the link
            try:
                self._request(number, message)
            except DecodeError as error:
                self._reject(number, Condition("amqp:decode-error", str(error)))
            except AttachRefused as error:
                self._reject(number, error.condition)
        self.top_up()

    def top_up(self) -> None:
        """Grant credit for further requests."""
        link = self._link
        window = SERVICE_CREDIT - self._discharging
        if not link.closed and window > 0 and link.credit * 2 <= window:
            self._engine.grant(link, window - link.credit)
            self._driver.flush_soon()

    def ended(self, *, lost: bool) -> None:
        """Roll back all transactions that are not being committed (section 4.3). `lost`: the connection broke, or the
        peer ended it or the link with an error, so that deliveries count as attempts only where the address says so."""
        self._ended = True
        while self._own:
            outcome = DeliveryOutcome.LOST if lost else DeliveryOutcome.MODIFIED_FAILED
            call_isolated("a transaction", self._forget(next(iter(self._own))).roll_back, outcome)

    def abort(self) -> None:
        self._driver.abort()

    def accepted(self, tokens: Sequence[int]) -> None:
        """Do nothing, as it publishes nothing itself."""

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        """Do nothing, as it publishes nothing itself."""

    # --- inside -------------------------------------------------------------------------------------------------

    def _request(self, number: int, message: bytes) -> None:
        """Process one declare or discharge. Raises DecodeError or AttachRefused."""
        request = _request_of(message)
        fields = [*request.value, None, None] if isinstance(request.value, list) else [None, None]
        if request.descriptor in _DECLARE:
            if fields[0] is not None:
                raise AttachRefused("amqp:not-implemented", "distributed transactions (global-id) are not supported")
            self._declare(number)
        elif request.descriptor in _DISCHARGE:
            self._discharge(number, fields[0], failed=fields[1] is True)
        else:
            raise AttachRefused("amqp:not-implemented", "the request is neither declare nor discharge")

    def _declare(self, number: int) -> None:
        if len(self._transactions) >= TRANSACTIONS_PER_CONNECTION_MAX:
            text = f"the connection has {TRANSACTIONS_PER_CONNECTION_MAX} open transactions"
            raise AttachRefused("amqp:resource-limit-exceeded", text)
        try:
            transaction = self._router.transactions.declare(self, self._engine.count_owned)
        except TransactionRefused as refused:
            raise AttachRefused("amqp:resource-limit-exceeded", str(refused)) from None
        self._transactions[transaction.name] = self._own[transaction.name] = transaction
        self._settle(number, DeliveryState.DECLARED, transaction.name)

    def _discharge(self, number: int, name: object, *, failed: bool) -> None:
        if not isinstance(name, bytes) or name not in self._own:
            raise AttachRefused(UNKNOWN_ID, "this link has declared no transaction with this txn-id")
        transaction = self._forget(name)
        if failed:
            transaction.roll_back()
            self._settle(number, DeliveryState.ACCEPTED, None)
            return
        self._discharging += 1
        transaction.commit(partial(self._discharged, number))

    def _discharged(self, number: int, fault: TransactionFault | None) -> None:
        """Answer a discharge: everything is on disk, or rolled back."""
        self._discharging -= 1
        if fault is None:
            self._settle(number, DeliveryState.ACCEPTED, None)
        else:
            self._reject(number, discharge_condition(fault))
        self.top_up()

    def _forget(self, name: bytes) -> Transaction:
        self._transactions.pop(name, None)
        return self._own.pop(name)

    def _reject(self, number: int, condition: Condition) -> None:
        """Answer with an error: as an outcome, or with a detach if the client's source does not list `rejected`
        (section 4.3)."""
        listed = self._link.source.outcomes
        if listed and "amqp:rejected:list" not in listed:
            self._detach(self._link, condition)
        else:
            self._settle(number, DeliveryState.REJECTED, condition)

    def _settle(self, number: int, state: DeliveryState, detail: Detail) -> None:
        self._engine.settle(self._link, (number,), state, detail)
        self._driver.flush_soon()


def _request_of(message: bytes) -> DescribedValue:
    """Return the body of a request. Raises DecodeError."""
    _, start = sections.bare_message(message)
    for section in sections.sections(message[start:]):
        if section.code == sections.VALUE:
            value: Any = decode(message[start:], section.value)[0]
            if isinstance(value, DescribedValue):
                return value
    raise DecodeError("a request to the coordinator has a described value as its body")
