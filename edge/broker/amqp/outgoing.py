"""Link on which a device receives: a consumer of the router, with its deliveries and their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from bridge.amqp_values import DecodeError
from bridge.engine import Condition, DeliveryState, Detail, Dispositions, Engine, Link, Terminus
from bridge.message import Run, Stored
from edge.broker.amqp.addressing import CONDITIONS
from edge.broker.amqp.scheduler import Scheduler
from edge.broker.delivery import AnycastGroup, LogSubscription
from edge.broker.delivery.batches import SETTLED, EncodedBatch
from edge.broker.delivery.durable import DurableSubscription
from edge.broker.delivery.pattern import Joinable
from edge.broker.limits import RETAINED_STEPS_MAX
from edge.broker.message.selectable import selectable_values
from edge.broker.message.selector import MessageSelector
from edge.broker.message.translation import amqp_messages
from edge.broker.model.interfaces import Consumer, DeliveryOutcome, Explanation, Refusal, SubscribeOptions, Subscription
from edge.broker.router.router import Router

if TYPE_CHECKING:
    from edge.broker.amqp.transactional import LinkRetirements
    from edge.broker.router.transactions.transaction import Transaction

NO_TRANSACTIONS: Final[Mapping[bytes, Transaction]] = {}
_SETTLED, _UNSETTLED = 1, 0
_ACCEPTED, _STATE_ACCEPTED, _LOST = DeliveryOutcome.ACCEPTED, DeliveryState.ACCEPTED, DeliveryOutcome.LOST
_TRANSACTIONAL: Final = DeliveryState.TRANSACTIONAL
STOLEN: Final = Condition("amqp:link:stolen", "attached again elsewhere")
_NOTHING: tuple[Subscription | None, int] = (None, -1)
_tag_of = itemgetter(0)

_OUTCOMES = {
    DeliveryState.ACCEPTED: DeliveryOutcome.ACCEPTED,
    DeliveryState.REJECTED: DeliveryOutcome.REJECTED,
    DeliveryState.RELEASED: DeliveryOutcome.RELEASED,
    DeliveryState.MODIFIED: DeliveryOutcome.RELEASED,
    DeliveryState.MODIFIED_FAILED: DeliveryOutcome.MODIFIED_FAILED,
    DeliveryState.MODIFIED_UNDELIVERABLE: DeliveryOutcome.MODIFIED_UNDELIVERABLE,
    DeliveryState.NONE: DeliveryOutcome.RELEASED,  # settled without an outcome: not accepted
}


class OutgoingLink(Consumer):
    """Consumer behind one link."""

    __slots__ = (
        "_clock_ns", "_driver", "_durable", "_ending", "_engine", "_forget", "_link", "_outstanding", "_paused",
        "_retained", "_retirements", "_router", "_selector", "_subscription", "_tag", "_transactions", "name",
        "selection", "user",
    )  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        link: Link,
        router: Router,
        driver: Scheduler,
        name: str,
        *,
        durable: bool,
        clock_ns: Callable[[], int],
        selector: MessageSelector | None = None,
        shared: bool = False,
        forget: Callable[[Link], object] = lambda _: None,
        user: str = "",
        transactions: Mapping[bytes, Transaction] = NO_TRANSACTIONS,
    ) -> None:
        """`durable`: the subscription outlives the link unless that is closed. `selector`: only matching messages are
        delivered. `shared`: other messages stay for other consumers (queues), else they are skipped (topics, browsing).
        `forget` is called before a link is detached, or a subscription could not be stored. `transactions`: those of
        the connection, by txn-id.
        """
        self.name = name
        self.user = user
        self._subscription: Joinable | None = None
        self._engine = engine
        self._link = link
        link.report_accepted_by_tag()
        self._router = router
        self._driver = driver
        self._durable = durable
        self._clock_ns = clock_ns
        self.selection = QueueSelection(selector) if selector is not None and shared else None
        self._selector = None if shared else selector
        self._forget = forget
        self._retained: Iterator[Run | None] | None = None
        self._paused = False
        """Retained messages continue in the next turn of the loop."""
        self._tag = 0
        self._ending = False
        self._outstanding: dict[int, tuple[Subscription, int]] = {}
        self._transactions = transactions
        self._retirements: LinkRetirements | None = None

    # --- from the router ----------------------------------------------------------------------------------------

    @property
    def credit(self) -> int:
        link = self._link
        return 0 if self._ending or link.closed or not link.attached or self._driver.congested else link.credit

    @property
    def unsettled(self) -> int:
        """Number of messages that the peer has not settled."""
        return len(self._outstanding) + (len(self._retirements) if self._retirements is not None else 0)

    @property
    def delivered(self) -> int:
        """Messages sent since the attach."""
        return self._tag

    def deliver(self, subscription: Subscription, batch: Collection[Stored]) -> None:
        """Send a batch, with one call of the engine if no message has to be checked."""
        if self._selector is not None or self._link.snd_settle_mode == _SETTLED:
            self._deliver_each(subscription, batch)
        elif isinstance(batch, EncodedBatch) and self._fits(batch.messages):
            self._send_unsettled(subscription, range(batch.position, batch.position + len(batch)), batch.messages)
        elif len(batch) == 1 or self._link.max_message_size or any(stored.position < 0 for stored in batch):
            self._deliver_each(subscription, batch)
        else:
            self._deliver_together(subscription, batch)

    def exhausted(self) -> None:
        """Complete a drain, as the store has been read to its end."""
        if self._link.draining:
            self._drain()

    def stolen(self) -> bool:
        """Detach: the same device has attached again (link stealing, section 2.6.1)."""
        self._detach(STOLEN, closed=False)
        return True

    def abort(self) -> None:
        self._driver.abort()

    # --- from the session ---------------------------------------------------------------------------------------

    def subscribe(self, address: str, options: SubscribeOptions) -> None:
        """Subscribe this link at the router. Raises AddressError."""
        self._subscription = self._router.subscriptions.subscribe(self, address, options)
        self._link.defer_close_to_owner(answers=isinstance(self._subscription, DurableSubscription))

    def answer(self, source: Terminus) -> None:
        """Answer the attach with this source. For a new durable subscription the answer waits for its commit, as
        messages are guaranteed from the answer on."""
        subscription = self._subscription
        made = subscription.made if isinstance(subscription, DurableSubscription) else None
        if made is None:
            self._answer(source, None)
        else:
            self._router.waits.add(made, self, partial(self._answer, source))

    def _answer(self, source: Terminus, why: Refusal | None) -> None:
        link = self._link
        if link.closed:
            return  # detached in the meantime
        if why is None:
            self._engine.accept(link, source=source)
            self.flow()
        else:
            self._forget(link)
            self.ended(closed=True)
            self._engine.refuse(link, Condition(CONDITIONS[why], f"the subscription cannot be stored: {why.value}"))
        self._driver.flush_soon()

    def flow(self) -> None:
        """Deliver waiting messages after a change of credit. A drain returns the rest of the credit."""
        if self._subscription is None or self._link.closed or not self._link.attached:
            return
        if self._retained is not None and not self._paused:
            self._send_retained(self._subscription, self._retained)
        if self._link.credit > 0:
            self._subscription.pump()
        if self._link.draining:
            self._drain()

    def feed(self, walk: Iterator[Run | None]) -> None:
        """Send the retained messages that `walk` yields (None: a name without one), as credit allows.

        Each turn of the loop sends a part, as a filter may match 100 000. A message is read when it is sent, so it is
        not older than live messages sent before.
        """
        self._retained = walk

    def accepted(self, tags: list[int]) -> None:
        """Process messages that the peer has accepted and settled; see `settled`."""
        self._settle_all(tags, _ACCEPTED)

    def _settle_all(self, tags: list[int], outcome: DeliveryOutcome) -> None:
        """Settle messages at the router with one outcome."""
        tags.sort()
        if self._retirements is not None:
            self._retirements.settled(tags)
        take = self._outstanding.pop
        _settle_ranges(self, [(*take(tag, _NOTHING), outcome) for tag in tags])

    def settled(self, event: Dispositions) -> None:
        """Settle messages at the router, and retire those that are part of transactions."""
        items = sorted(event.items, key=_tag_of)
        transactional = [item for item in items if item[1] is _TRANSACTIONAL]
        items = [item for item in items if item[1] is not _TRANSACTIONAL] if transactional else items
        if self._retirements is not None:
            self._retirements.settled([item[0] for item in items])
        take, answers = self._outstanding.pop, list[tuple[Subscription | None, int, DeliveryOutcome]]()
        for tag, state, settled, detail in items:
            if not settled:
                self._engine.settle_sent(self._link, tag)
            subscription, position = take(tag, _NOTHING)
            if detail is not None and subscription is not None and position >= 0:
                self._explain(subscription, position, detail)
            # Hashing an enumeration member calls Python, so the table is used for rare states only.
            answer = _ACCEPTED if state is _STATE_ACCEPTED else _OUTCOMES.get(state, DeliveryOutcome.RELEASED)
            answers.append((subscription, position, answer))
        _settle_ranges(self, answers)
        if transactional:
            self._retire(transactional)

    def _retire(self, items: Sequence[tuple[int, DeliveryState, bool, Detail]]) -> None:
        if self._retirements is None:
            from edge.broker.amqp.transactional import LinkRetirements  # noqa: PLC0415 - few clients have transactions

            parts = self._engine, self._link, self._driver, self._transactions, self._outstanding, self._detach
            self._retirements = LinkRetirements(self, *parts)
        self._retirements.add(items, self._router.now_s())

    def ended(self, *, closed: bool, lost: bool = False) -> None:
        """Return unsettled messages of an ended link.

        `closed` ends a durable subscription; the peer gets the answer after the commit. `lost`: link or connection
        broke, or the peer ended it with an error, so each unsettled delivery counts as an attempt.
        """
        self._retained = None
        self._ending = True
        if lost:
            self._settle_lost()
        self._outstanding.clear()
        if self._retirements is not None:
            self._retirements.end()
        subscription, self._subscription = self._subscription, None
        deleted = None
        if subscription is not None:
            deleted = self._router.subscriptions.unsubscribe(self, subscription, forget=closed or not self._durable)
        if not self._link.answers_close:
            return
        if deleted is None:
            self._answer_close(None)
        else:
            self._router.waits.add(deleted, self, self._answer_close)

    # --- inside -------------------------------------------------------------------------------------------------

    def _detach(self, condition: Condition, *, closed: bool = True) -> None:
        self._forget(self._link)
        self._engine.detach(self._link, closed=closed, condition=condition)
        self._driver.flush_soon()
        self.ended(closed=False)

    def _settle_lost(self) -> None:
        """Settle all unsettled messages as lost: one of them may have crashed the consumer."""
        self._settle_all([tag for tag, (of, _) in self._outstanding.items() if isinstance(of, LogSubscription)], _LOST)

    def _explain(self, subscription: Subscription, position: int, detail: Detail) -> None:
        """Pass annotations or error of an outcome to the message, or to its sender."""
        if isinstance(detail, bytes):
            if isinstance(subscription, LogSubscription):
                subscription.annotate(self, position, detail)
            elif isinstance(subscription, AnycastGroup):
                subscription.explain(self, position, Explanation(annotations=detail))
        elif isinstance(subscription, AnycastGroup) and isinstance(detail, Condition):
            subscription.explain(self, position, Explanation(detail.name, detail.description))

    def _answer_close(self, why: Refusal | None) -> None:
        """Answer the peer's close of the link, if there is one."""
        failed = why and Condition(CONDITIONS[why], f"the subscription could not be deleted: {why.value}")
        self._engine.answer_close(self._link, failed or None)
        self._driver.flush_soon()

    def _send_retained(self, subscription: Subscription, walk: Iterator[Run | None]) -> None:
        for _ in range(RETAINED_STEPS_MAX):
            if self.credit <= 0:
                return
            try:
                run = next(walk)
            except StopIteration:
                self._retained = None
                return
            if run is not None:  # in mode mixed: settled as it was published
                mode = self._link.snd_settle_mode
                settled = mode == _SETTLED or (run.qos == 0 and mode != _UNSETTLED)
                self._deliver(subscription, Stored(SETTLED, 0, run), settled=settled)
        self._paused = True
        self._router.ready.add(self._continue)

    def _continue(self) -> None:
        self._paused = False
        self._driver.run(self.flow)

    def _deliver_each(self, subscription: Subscription, batch: Collection[Stored]) -> None:
        """Send run by run. A run that needs no answer is sent settled unless the link requires unsettled messages."""
        mode = self._link.snd_settle_mode
        for stored in batch:
            settled = mode == _SETTLED or (stored.position < 0 and mode != _UNSETTLED)
            self._deliver(subscription, stored, settled=settled)

    def _deliver_together(self, subscription: Subscription, batch: Collection[Stored]) -> None:
        messages: list[bytes] = []
        positions: list[int] = []
        for stored in batch:
            messages += self._messages(subscription, stored.run)
            positions += range(stored.position, stored.position + len(stored.run.bodies))
        self._send_unsettled(subscription, positions, messages)

    def _messages(self, subscription: Subscription, run: Run) -> list[bytes]:
        clock = self._router.clock
        now_ns = clock.now_for(run) if clock.stepped else self._clock_ns()
        return amqp_messages(run, now_ns=now_ns, attempts=subscription.attempts)

    def _fits(self, messages: Sequence[bytes]) -> bool:
        """Return True if no message is too large for the peer."""
        limit = self._link.max_message_size
        return not limit or max(map(len, messages)) <= limit

    def _send_unsettled(self, subscription: Subscription, positions: Iterable[int], messages: Sequence[bytes]) -> None:
        first = self._tag
        self._tag += len(messages)
        self._router.figures.sent += len(messages)
        self._engine.send_all(self._link, first, messages)
        self._outstanding.update(enumerate(zip(repeat(subscription), positions), first))
        self._driver.flush_soon()

    def _deliver(self, subscription: Subscription, stored: Stored, *, settled: bool) -> None:
        position = stored.position
        messages = self._messages(subscription, stored.run)
        if self._selector is not None:
            self._deliver_selected(self._selector, subscription, position, messages, settled=settled)
            return
        if self._fits(messages):
            self._send(subscription, position, messages, settled=settled)
        else:
            self._deliver_fitting(subscription, position, messages, self._link.max_message_size, settled=settled)
        self._driver.flush_soon()

    def _send(self, subscription: Subscription, position: int, messages: list[bytes], *, settled: bool) -> None:
        first = self._tag
        self._tag += len(messages)
        self._router.figures.sent += len(messages)
        self._engine.send_all(self._link, first, messages, settled=settled)
        if settled:
            if position >= 0:  # at most once: settled as soon as the transport has it
                subscription.settle(self, position, position + len(messages) - 1, DeliveryOutcome.ACCEPTED)
        elif position >= 0:
            if len(messages) == 1:
                self._outstanding[first] = subscription, position
                return
            positions = range(position, position + len(messages))
            self._outstanding.update(enumerate(zip(repeat(subscription), positions), first))

    def _deliver_fitting(
        self, subscription: Subscription, position: int, messages: list[bytes], limit: int, *, settled: bool
    ) -> None:
        """Send messages one by one; settle those that are too large for the peer."""
        for i, message in enumerate(messages):
            at = position + i if position >= 0 else position
            if len(message) <= limit:
                self._send(subscription, at, [message], settled=settled)
            elif at >= 0:
                subscription.settle(self, at, at, DeliveryOutcome.TOO_LARGE)

    def _deliver_selected(
        self,
        selector: MessageSelector,
        subscription: Subscription,
        position: int,
        messages: list[bytes],
        *,
        settled: bool,
    ) -> None:
        """Send selected messages one by one; settle the others as accepted."""
        limit = self._link.max_message_size or max(map(len, messages))
        for i, message in enumerate(messages):
            at = position + i if position >= 0 else position
            if _is_selected(selector, message):
                self._deliver_fitting(subscription, at, [message], limit, settled=settled)
            elif at >= 0:
                subscription.settle(self, at, at, DeliveryOutcome.ACCEPTED)
        self._driver.flush_soon()

    def _drain(self) -> None:
        """Return the remaining credit to the peer.

        It waits while the store is read (`exhausted` calls again), while retained messages are sent, and while the
        peer does not read.
        """
        link = self._link
        if link.closed or not link.draining or self._subscription is None or self._driver.congested:
            return
        if link.credit <= 0 or (self._retained is None and self._subscription.idle_now):
            self._engine.drained(link)
            self._driver.flush_soon()


def _settle_ranges(consumer: Consumer, answers: Sequence[tuple[Subscription | None, int, DeliveryOutcome]]) -> None:
    """Settle messages in ranges of positions. Without a subscription, or with a negative position, none is needed."""
    current: Subscription | None = None
    outcome = _ACCEPTED
    first = last = 0
    for subscription, position, answer in answers:
        if subscription is None or position < 0:
            continue
        if subscription is current and position == last + 1 and answer is outcome:
            last = position
            continue
        if current is not None:
            current.settle(consumer, first, last, outcome)
        current, outcome, first, last = subscription, answer, position, position
    if current is not None:
        current.settle(consumer, first, last, outcome)


class QueueSelection:
    """Selector of a queue's consumer (`model.interfaces.Selection`). Other messages stay for other consumers."""

    def __init__(self, selector: MessageSelector) -> None:
        self.text = selector.text
        self._selector = selector

    def wanted(self, run: Run) -> list[bool]:
        return [_is_selected(self._selector, message) for message in amqp_messages(run)]


def _is_selected(selector: MessageSelector, message: bytes) -> bool:
    try:
        return selector.matches(selectable_values(message))
    except DecodeError:
        return False
