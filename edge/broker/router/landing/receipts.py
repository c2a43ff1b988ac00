"""Receipts for messages that a hub has in the lake, or that were dropped.

```
device ─ message with a request ─▶ route ─▶ store        AwaitedMessages.add_run, in the same commit
                                   store ─▶ sequence     number_run, in the next commit
hub    ─ accepts the batch ──────▶ settled               the message is due
hub    ◀─ request for statements ─ due messages          one request at a time (`exchange`)
hub    ─ signed statements ──────▶ queue of the device   the receipt is stored; then the message is forgotten
```

The hub answers from what it has confirmed on disk, so a request is harmless at any time: no statement means not yet.
So every crash leads to another request, and at worst to a second receipt.
"""

from __future__ import annotations

import base64
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from bridge.flow import Piece
from bridge.landing_receipt import (
    RECEIPT_LEVEL,
    LandingReceipt,
    LandingStatement,
    MessageSpan,
    ReceiptAnswer,
    ReceiptError,
    ReceiptOutcome,
    SignedLanding,
    WantedReceipt,
    receipt_address,
    receipt_run,
    statement_of,
    wanted_receipts,
    with_certificate,
)
from bridge.limits import RECEIPT_SPANS_MAX
from bridge.message import Run, Stored
from bridge.publisher import device_of
from edge.broker.limits import (
    LANDING_DEVICE_SHARE,
    LANDING_GAP_MAX,
    LANDING_LEDGER_ENTRIES_MAX,
    LANDING_RECOVERY_BYTES,
    LANDING_REQUESTS_KEPT_S,
    LANDING_REQUESTS_MAX,
    LANDING_RETRY_S_FIRST,
    LANDING_RETRY_S_MAX,
)
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.router.batch import Publication
from edge.broker.router.landing.exchange import ReceiptExchange
from edge.broker.router.landing.records import AwaitedMessages, UnnumberedRun
from edge.broker.router.router import Router
from edge.broker.store.contract import Store
from edge.broker.store.errors import StoreError
from edge.broker.store.records import Committed
from edge.broker.store.ticket import Ticket

log = logging.getLogger(__name__)

SET_ASIDE: Final = "set aside by the hub"
"""Reason of a message that the hub has accepted and not landed; the ledger of the lake says why."""
FORWARDERS: Final = "forwarder/"
"""Prefix of the forwarders in the loss ledger."""


class _StoringRun:
    """Run with requests that has joined a group. It keeps the run, so that no other one gets its `id`."""

    __slots__ = ("number", "run", "ticket", "wanted")

    def __init__(self, number: int, run: Run, wanted: list[WantedReceipt], ticket: Ticket) -> None:
        self.number = number
        self.run = run
        self.wanted = wanted
        self.ticket = ticket


class LandingReceipts(Origin):
    """Receipts of one space."""

    name = "landing receipts"

    def __init__(self, router: Router, store: Store) -> None:
        self.awaited: Final = AwaitedMessages(store.state)
        self.figures: Counter[str] = Counter()
        """Number of messages since the start: `requested`, `refused` (no room or no hub), `landed`, `dropped`,
        `abandoned`."""
        self._router = router
        self._store = store
        self._exchanges: dict[str, ReceiptExchange] = {}
        self._in_flight: dict[str, list[int]] = {}
        """Numbers of the messages in the request that a hub has not answered, by connector."""
        self._storing: dict[int, _StoringRun] = {}
        """Runs that wait for their commit, by `id` of the run."""
        self._storing_messages = 0
        """Number of messages with a request in these runs."""
        self._storing_by_device: Counter[str] = Counter()
        self._due: dict[int, float] = dict.fromkeys(self.awaited, 0.0)
        """Time of the next request, monotonic, of messages that may have landed or were dropped."""
        self._attempts: Counter[int] = Counter()
        """Requests without a statement, by number of the message."""
        self._accepted: set[int] = set()
        """Numbers of messages that a hub has accepted since the start."""
        self._published: set[int] = set()
        """Numbers of messages with a receipt that waits for its commit."""
        self._lost = True
        """True when the loss ledger may have entries that were not compared."""
        self._full = False
        self._started = False

    @property
    def in_use(self) -> bool:
        """True when messages have receipts to come."""
        return bool(self.awaited or self.awaited.unnumbered or self._storing)

    def start(self) -> None:
        """Take part in the router's work; idempotent. Without a start nothing is looked at."""
        if self._started:
            return
        self._started = True
        self._router.routes.reserve(f"{RECEIPT_LEVEL}/", self)  # a client could send receipts to other devices
        self._router.routes.record_requests(self)
        self._router.tick_listeners.add(self._tick)
        self._router.loss_listeners.add(self._note_losses)
        for number, record in list(self.awaited.unnumbered.items()):
            self._find(number, record, record.position)

    def set_exchange(self, connector: str, exchange: ReceiptExchange | None) -> None:
        """Use the exchange with the hub of a connector; None: the connector was removed. Messages that the former
        exchange has requested are requested again."""
        before = self._in_flight.pop(connector, ())
        self._make_due(number for number in before if number in self.awaited and number not in self._published)
        if exchange is None:
            self._exchanges.pop(connector, None)
        else:
            exchange.set_taker(partial(self._take, exchange))
            self._exchanges[connector] = exchange

    # --- requests of devices ------------------------------------------------------------------------------------------

    @property
    def gathered(self) -> int:
        return self._store.commits.gathered

    def record(self, log_number: int, run: Run) -> None:
        wanted = wanted_receipts(run)
        if not wanted:
            return
        device = device_of(run.device)
        if not self._has_room(device, len(wanted)) or not self._is_forwarded(run.address):
            self.figures["refused"] += len(wanted)
            return
        self.figures["requested"] += len(wanted)
        number, ticket = self.awaited.add_run(log_number, self._store.logs.bounds(log_number)[1], run)
        if not self._storing:
            self._router.commit_listeners.add(self._committed)
        self._storing[id(run)] = _StoringRun(number, run, wanted, ticket)
        self._storing_messages += len(wanted)
        self._storing_by_device[device] += len(wanted)

    def _has_room(self, device: str, more: int) -> bool:
        mine = self.awaited.of_device(device) + self._storing_by_device[device]
        if mine + more > LANDING_REQUESTS_MAX // LANDING_DEVICE_SHARE:
            return False
        if len(self.awaited) + self._storing_messages + more <= LANDING_REQUESTS_MAX:
            self._full = False
            return True
        if not self._full:
            self._full = True
            log.warning("%d messages wait for receipts; further ones get none for now", LANDING_REQUESTS_MAX)
        return False

    def _is_forwarded(self, address: str) -> bool:
        return any(exchange.forwards(address) for exchange in self._exchanges.values())

    def _committed(self, commit: Committed) -> None:
        """Record the sequences of runs that are stored now, and forget those that were refused."""
        for _, stored in commit.appended:
            each = self._storing.get(id(stored.run))
            if each is not None:
                self.awaited.add_messages(stored, each.wanted)
                self._end_storing(id(stored.run))
        for key in [key for key, each in self._storing.items() if each.ticket.decided]:
            self._end_storing(key)
        if not self._storing:
            self._storing_by_device.clear()  # names of devices with none
            self._router.commit_listeners.remove(self._committed)

    def _end_storing(self, key: int) -> None:
        each = self._storing.pop(key)
        self._storing_messages -= len(each.wanted)
        self._storing_by_device[device_of(each.run.device)] -= len(each.wanted)
        self.awaited.forget_run(each.number)

    def _find(self, number: int, record: UnnumberedRun, position: int) -> None:
        """Find a run of the last commit before a crash in its log; without it the commit has failed.

        Several runs may be alike, so the log is read to its end, which that commit has written.
        """

        def read(found: Sequence[Stored]) -> None:
            for stored in found:
                if record.is_same(stored.run):
                    last = stored.sequence + len(stored.run.bodies) - 1
                    self.awaited.add_messages(stored, wanted_receipts(stored.run))
                    self._make_due(self.awaited.within(record.address, stored.sequence, last))
            if found:
                self._find(number, record, found[-1].position + len(found[-1].run.bodies))
            else:
                self.awaited.forget_run(number)

        self._store.logs.read(record.log, position, LANDING_RECOVERY_BYTES, read)

    # --- messages that are due ----------------------------------------------------------------------------------------

    def settled(self, pieces: Iterable[Piece]) -> None:
        """Handle messages that a hub has accepted."""
        if not self.awaited:
            return
        for piece in pieces:
            first, run = piece.stored.sequence, piece.stored.run
            found = self.awaited.within(run.address, first, first + len(run.bodies) - 1)
            self._accepted.update(found)
            self._make_due(found)
        self._request()

    def _note_losses(self) -> None:
        self._lost = True

    def _compare_losses(self) -> None:
        """Compare the next entries of the loss ledger with the messages. One that grows later comes again."""
        after, ledger = self.awaited.ledger_read, self._store.ledger
        try:
            entries = ledger.entries(after, LANDING_LEDGER_ENTRIES_MAX, FORWARDERS, keep_growing=True)
        except StoreError as error:
            log.warning("cannot read the loss ledger, retrying later: %s", error)
            return
        for entry in entries:
            if entry.messages != entry.last + 1 - entry.first:
                continue  # ranges merged across gaps in a full ledger: some of these messages may still land
            for number in self.awaited.within(entry.address, entry.first, entry.last):
                if self.awaited[number].reason != entry.reason:
                    self.awaited.set_reason(number, entry.reason)
                    self._make_due((number,))
        if entries:
            self.awaited.keep_ledger_read(entries[-1].entry)
        self._lost = len(entries) == LANDING_LEDGER_ENTRIES_MAX

    def _make_due(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._due[number] = 0.0

    def _tick(self) -> None:
        if not self.awaited:
            return
        if self._lost:
            self._compare_losses()
        self._abandon_old()
        self._request()

    def _abandon_old(self) -> None:
        """Forget messages that have waited for too long; the oldest are the first ones."""
        before = self._router.now_ns() - int(LANDING_REQUESTS_KEPT_S * 1e9)
        while self.awaited:
            number = next(iter(self.awaited))
            if self.awaited[number].requested_at >= before:
                return
            self.figures["abandoned"] += 1
            self._remove(number)

    def _remove(self, number: int) -> None:
        self.awaited.remove(number)
        self._due.pop(number, None)
        self._attempts.pop(number, None)
        self._accepted.discard(number)

    # --- towards the hubs ---------------------------------------------------------------------------------------------

    def _request(self) -> None:
        """Request statements about the due messages from each hub that can be asked."""
        for connector, exchange in self._exchanges.items():
            if not self._due or not exchange.is_ready:
                continue
            now = self._router.now_s()
            due = [
                number
                for number, at in self._due.items()
                if at <= now and number not in self._published and exchange.forwards(self.awaited[number].address)
            ]
            spans, numbers = self._spans(due)
            if spans:
                for number in numbers:
                    del self._due[number]
                self._in_flight[connector] = numbers
                exchange.request(spans, partial(self._answered, connector, numbers))

    def _spans(self, due: Iterable[int]) -> tuple[list[MessageSpan], list[int]]:
        """Return ranges that cover messages, at most `RECEIPT_SPANS_MAX`, and the numbers of those that they cover.

        An answer may be full of other messages of a wide range, so a message is requested in one only once.
        """
        epochs, awaited = self._store.lineage.epochs, self.awaited
        spans: list[MessageSpan] = []
        numbers: list[int] = []
        for number in sorted(due, key=lambda number: (awaited[number].address, awaited[number].sequence)):
            address, sequence = awaited[number].address, awaited[number].sequence
            epoch = epochs.of(address, sequence)
            last = spans[-1] if spans else None
            gap = 1 if self._attempts[number] else LANDING_GAP_MAX
            if last and (last.epoch, last.address) == (epoch, address) and sequence - last.last <= gap:
                spans[-1] = MessageSpan(epoch, address, last.first, sequence)
            elif len(spans) == RECEIPT_SPANS_MAX:
                break
            else:
                spans.append(MessageSpan(epoch, address, sequence, sequence))
            numbers.append(number)
        return spans, numbers

    def _answered(self, connector: str, numbers: list[int]) -> None:
        if self._in_flight.get(connector) is numbers:  # otherwise the connector has another exchange by now
            del self._in_flight[connector]
            self._retry(numbers)

    def _retry(self, numbers: Iterable[int]) -> None:
        """Request messages again that had no statement: later each time, unless they became due in the meantime."""
        now = self._router.now_s()
        for number in numbers:
            if number in self.awaited and number not in self._published and number not in self._due:
                wait_s = LANDING_RETRY_S_FIRST * 2 ** min(self._attempts[number], 10)
                self._attempts[number] += 1
                self._due[number] = now + min(wait_s, LANDING_RETRY_S_MAX)
        self._request()

    def _take(self, exchange: ReceiptExchange, answer: ReceiptAnswer) -> None:
        """Publish receipts for the messages of those statements that were requested from the hub."""
        for signed in answer.statements:
            try:
                statement = statement_of(signed)
            except ReceiptError as error:
                log.error("the hub sent a statement that cannot be used: %s", error)  # noqa: TRY400
                continue
            if statement.gateway != exchange.gateway or not exchange.was_asked(statement):
                log.warning("%s: the hub sent a statement that was not requested", exchange.name)
                continue
            complete = with_certificate(signed, answer.certificate)
            for number in self.awaited.within(statement.address, statement.first, statement.last):
                self._publish(number, statement, complete)

    def _publish(self, number: int, statement: LandingStatement, signed: SignedLanding) -> None:
        """Publish the receipt of a message to the queue of its device, unless it is on its way."""
        message = self.awaited[number]
        address = receipt_address(message.device)
        epoch = self._store.lineage.epochs.of(message.address, message.sequence)
        if number in self._published or address is None or epoch != statement.epoch:
            return
        dropped = statement.outcome is ReceiptOutcome.DROPPED
        if dropped and not message.reason and number not in self._accepted:
            return  # a range merged across gaps: the message still waits for its hub
        receipt = LandingReceipt(
            outcome=statement.outcome,
            gateway=statement.gateway,
            epoch=epoch,
            address=message.address,
            sequence=message.sequence,
            reason=(message.reason or SET_ASIDE) if dropped else "",
            correlation=base64.b64encode(message.correlation).decode(),
            statement=signed,
        )
        self._published.add(number)
        self.figures[statement.outcome.value] += 1
        run = receipt_run(receipt, address, message.correlation, amqp=message.amqp)
        self._router.publish(Publication(self, run, (number,)))

    # --- Origin -------------------------------------------------------------------------------------------------------

    def accepted(self, tokens: Sequence[int]) -> None:
        for number in tokens:
            self._published.discard(number)
            if number in self.awaited:
                self._remove(number)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        """Request the statement again later: a receipt without room takes no memory."""
        log.warning("cannot store %d receipts for devices now (%s); they are retried", len(tokens), why.value)
        for number in tokens:
            self._published.discard(number)
        self._retry(tokens)
