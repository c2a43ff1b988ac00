"""Transactions of a router over a store on disk: postings, retirements, rollbacks, failed commits and crashes."""

from __future__ import annotations

import queue
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from bridge.message import Run, Stored
from edge.broker.model import interfaces
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import DeliveryOutcome, Refusal, Subscription
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router, SubscribeOptions
from edge.broker.router.transactions.changes import Posting, Retirement, TransactionFault
from edge.broker.router.transactions.transaction import Transaction
from edge.broker.store.lock import LOCK_NAME
from edge.broker.store.sqlite import open_store
from tests.support.examples import examples
from tests.support.run_consumer import RunConsumer
from tests.support.writer_thread import execute_on

QUEUES = ("a", "b")
TABLE = AddressTable([AddressRule(name, AddressType.QUEUE) for name in QUEUES])
DEADLINE_S = 20.0


class Party(interfaces.Origin):
    """Publisher and controller."""

    name = "party"

    def accepted(self, tokens: Sequence[int]) -> None:
        """Ignore the answer."""

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        raise AssertionError(why)

    def abort(self) -> None:
        raise AssertionError("a call back raised")


class Taker(RunConsumer):
    """Consumer of one queue, and its link: the messages that it has, by tag."""

    credit = 1000

    def __init__(self, name: str) -> None:
        self.name = name
        self.has: dict[int, tuple[Subscription, int, bytes]] = {}
        self._tag = 0

    def take(self, subscription: Any, stored: Stored) -> None:
        for place, body in enumerate(stored.run.bodies):
            self._tag += 1
            self.has[self._tag] = subscription, stored.position + place, body

    def retired(self, retirement: Retirement) -> None:
        raise AssertionError("all retirements are settled")

    def restored(self, retirement: Retirement) -> bool:
        return False


class Open:
    """A transaction of the model."""

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.posted: list[tuple[str, bytes]] = []
        self.accepted: list[tuple[str, bytes]] = []
        self.rejected: list[tuple[str, bytes]] = []

    @property
    def retired(self) -> list[tuple[str, bytes]]:
        return self.accepted + self.rejected


class TransactionMachine(RuleBasedStateMachine):
    transactions = Bundle("transactions")
    names = st.sampled_from(QUEUES)

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.boots = self.number = self.lost = 0
        self.there: dict[str, list[bytes]] = {name: [] for name in QUEUES}
        self.open: list[Open] = []
        self.boot()

    def boot(self) -> None:
        self.party = Party()
        self.posted = queue.SimpleQueue()
        self.now_s = 1000.0 + self.boots
        self.store = open_store(self.folder / str(self.boots), post=self.posted.put)
        clock_ns = lambda: int(self.now_s * 1e9)  # noqa: E731
        self.router = Router(self.store, TABLE, clock_ns=clock_ns, flush_soon=lambda: None, soon=self.posted.put)
        self.takers = {name: Taker(name) for name in QUEUES}
        for name, taker in self.takers.items():
            self.router.subscriptions.subscribe(taker, name, SubscribeOptions()).pump()

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    def until(self, condition: Callable[[], bool]) -> None:
        """Run commits and call backs of the store until `condition` holds."""
        while not condition():
            if not self.store.commits.committing:
                self.router.flush()
            self.posted.get(timeout=DEADLINE_S)()

    def commit(self) -> None:
        self.router.flush()
        self.until(lambda: not self.store.commits.committing)

    def run_of(self, name: str, body: bytes) -> Run:
        return Run(name, "party", 1, b"", [body])

    def body(self, size: int = 0) -> bytes:
        self.number += 1
        return b"%d" % self.number + Random(self.number).randbytes(size)

    @rule(name=names)
    def publish(self, name: str) -> None:
        body = self.body()
        self.router.publish(Publication(self.party, self.run_of(name, body), (1,)))
        self.commit()
        self.there[name].append(body)

    @rule(target=transactions)
    def declare(self) -> Open:
        self.open.append(Open(self.router.transactions.declare(self.party, lambda _: None)))
        return self.open[-1]

    @rule(one=transactions, name=names)
    def post(self, one: Open, name: str) -> None:
        if one in self.open:
            body = self.body()
            one.transaction.post(Posting(self.party, self.run_of(name, body)), self.now_s)
            one.posted.append((name, body))

    @rule(one=transactions, name=names, rejects=st.booleans())
    def retire(self, one: Open, name: str, rejects: bool) -> None:
        taker = self.takers[name]
        if one in self.open and taker.has:
            tag = min(taker.has)
            subscription, position, body = taker.has.pop(tag)
            outcome = DeliveryOutcome.REJECTED if rejects else DeliveryOutcome.ACCEPTED
            retirement = Retirement(taker, taker, tag, subscription, position, outcome, settled=True)
            one.transaction.retire(retirement, self.now_s)
            (one.rejected if rejects else one.accepted).append((name, body))

    def discharge(self, one: Open) -> TransactionFault | None:
        self.open.remove(one)
        answers: list[TransactionFault | None] = []
        one.transaction.commit(answers.append)
        self.until(lambda: bool(answers))
        return answers[0]

    @rule(one=consumes(transactions))
    def commit_transaction(self, one: Open) -> None:
        if one not in self.open:
            return
        assert self.discharge(one) is None
        for name, body in one.retired:
            self.there[name].remove(body)
        for name, body in one.posted:
            self.there[name].append(body)
        self.lost += len(one.rejected)

    @rule(one=consumes(transactions))
    def roll_back(self, one: Open) -> None:
        if one in self.open:
            self.open.remove(one)
            one.transaction.roll_back()

    @rule(one=consumes(transactions), name=names)
    def commit_on_a_full_medium(self, one: Open, name: str) -> None:
        if one not in self.open:
            return
        one.transaction.post(Posting(self.party, self.run_of(name, self.body(100_000))), self.now_s)
        execute_on(self.store.medium.writer, "PRAGMA max_page_count = 1")
        assert self.discharge(one) is TransactionFault.STORE_FAILED
        execute_on(self.store.medium.writer, "PRAGMA max_page_count = 1000000")
        self.store.state.put("probe", "probe", b"")
        self.commit()

    @precondition(lambda self: self.boots < 3)
    @rule(discharging=st.booleans())
    def crash(self, discharging: bool) -> None:
        """Continue with a copy of the files, as a kill leaves them, perhaps after a discharge without its commit."""
        if discharging and self.open:
            self.open[0].transaction.commit(lambda _: None)
        self.boots += 1
        here = self.folder / str(self.boots - 1)
        shutil.copytree(here, self.folder / str(self.boots), ignore=shutil.ignore_patterns(LOCK_NAME))
        self.store.close()
        self.open.clear()
        self.boot()

    @invariant()
    def committed_messages_are_delivered(self) -> None:
        for name, taker in self.takers.items():
            held = [body for one in self.open for place, body in one.retired if place == name]
            available = sorted(body for body in self.there[name] if body not in held)
            self.until(lambda taker=taker, wanted=available: len(taker.has) >= len(wanted))  # type: ignore[misc]
            assert sorted(body for _, _, body in taker.has.values()) == available
            cursor = self.router.queues[name].cursor
            assert self.store.cursors.backlog(cursor) == len(self.there[name])

    @invariant()
    def lost_messages_are_in_the_ledger(self) -> None:
        assert sum(entry.messages for entry in self.store.ledger.entries(0, 1000)) == self.lost

    @invariant()
    def ended_transactions_hold_nothing(self) -> None:
        transactions = self.router.transactions
        assert len(transactions) == len(self.open)
        assert transactions.bytes == sum(one.transaction.bytes for one in self.open)


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(max_examples=examples(15), stateful_step_count=20, deadline=None)
