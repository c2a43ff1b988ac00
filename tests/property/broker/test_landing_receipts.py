"""Landing receipts in any order of requests, landings, losses, answers and kills, over a store on disk.

A receipt never comes before the hub has the message, and always names the message that it answers. In the end each
acknowledged message that requested one has a receipt.
"""

from __future__ import annotations

import queue
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from bridge.flow import piece_of
from bridge.landing_receipt import ReceiptOutcome, read_receipt
from bridge.message import Run
from bridge.publish_properties import read
from edge.broker.model.address_policy import AddressPolicy, WhenFull
from edge.broker.model.interfaces import DeliveryOutcome, Origin, Refusal
from edge.broker.router.batch import Publication
from edge.broker.store.sqlite import open_store
from tests.support.receipt_site import ReceiptSite, wanting

DEADLINE_S: Final = 20.0
SMALL: Final = AddressPolicy(quota_bytes=400, when_full=WhenFull.DROP_OLDEST)
FORWARDER: Final = "forwarder/hub/"


class Posted:
    """Callbacks of the store's threads; waits for the next one."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.append = self._queue.put

    def popleft(self) -> Callable[[], None]:
        return self._queue.get(timeout=DEADLINE_S)

    def __bool__(self) -> bool:
        return not self._queue.empty()


class AcknowledgedOrigin(Origin):
    """Device that notes which of its messages were acknowledged."""

    name = "pump7"

    def __init__(self, acknowledged: set[int]) -> None:
        self._acknowledged = acknowledged

    def accepted(self, tokens: Sequence[int]) -> None:
        self._acknowledged.update(tokens)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        """Ignore it: the device sends the message again under another number."""


class DiskSite(ReceiptSite):
    """Site with a store on disk, which a kill leaves as it is at that moment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lives = 0
        super().__init__(SMALL)

    def open(self) -> None:
        self.posted = Posted()  # type: ignore[assignment]
        place = self.folder / f"{self.lives}"
        store = open_store(place, post=self.posted.append, clock=lambda: self.now)
        self.store, self.reading, read = store, 0, store.medium.read  # type: ignore[assignment]

        def count_read(state: Any, position: int, end: int, bytes_max: int, done: Callable[[Any], None]) -> None:
            self.reading += 1
            read(state, position, end, bytes_max, partial(self._was_read, done))

        store.medium.read = count_read  # type: ignore[method-assign]

    def _was_read(self, done: Callable[[Any], None], runs: Any) -> None:
        self.reading -= 1
        done(runs)

    def begin(self) -> None:
        if not self.lives:
            self.open()
        super().begin()
        while self.receipts.awaited.unnumbered:
            self.posted.popleft()()

    def kill(self, *, answered: bool = False) -> None:
        """End the process here, and start it again on what is on disk. `answered`: it has acknowledged the messages of
        the commit in progress, and has not started the next one."""
        place, after = self.folder / f"{self.lives}", self.folder / f"{self.lives + 1}"
        end_commit = self.posted.popleft() if answered and self.store.commits.committing else None
        shutil.copytree(place, after)
        if end_commit is not None:
            end_commit()
        self.store.commits.listeners.clear()
        self.store.close()
        self.lives += 1
        self.open()
        self.begin()

    def settle_down(self, *, wait_s: float = 0.0) -> None:
        self.now += wait_s
        for _ in range(4):
            self.router.tick()
            self.router.flush()
            while self.store.commits.committing or self.posted or self.reading:
                self.posted.popleft()()


class LandingReceiptMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.home = tempfile.TemporaryDirectory()
        self.site = DiskSite(Path(self.home.name))
        self.acknowledged: set[int] = set()
        self.requesting: dict[bytes, int] = {}
        """Number of each message that requests a receipt, by its body."""
        self.bodies: dict[tuple[str, str, int], bytes] = {}
        """Messages that the hub has received, by name."""
        self.receipts: dict[int, ReceiptOutcome] = {}
        self.numbers = 0
        self.unaccepted = False
        """The hub has messages, and the gateway does not know it."""

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            self.site.store.close()
            self.home.cleanup()

    # --- rules --------------------------------------------------------------------------------------------------------

    @rule(wants=st.booleans(), address=st.sampled_from(("plant/a", "plant/b")), now=st.booleans())
    def publish(self, *, wants: bool, address: str, now: bool) -> None:
        number, self.numbers = self.numbers, self.numbers + 1
        body = b"%040d" % number
        if wants:
            self.requesting[body] = number
        properties = wanting(str(number).encode()) if wants else b""
        run = Run(address, "pump7", 1, properties, [body])
        self.site.router.publish(Publication(AcknowledgedOrigin(self.acknowledged), run, (number,)))
        if now:
            self.site.settle_down()
        else:
            self.site.router.flush()  # the commit begins, and its end may not be seen before a kill

    @rule()
    def end_commit(self) -> None:
        """Handle the end of one commit: its messages are acknowledged, and the next commit begins."""
        if self.site.store.commits.committing:
            self.site.posted.popleft()()

    @rule(count=st.integers(1, 6), accepted=st.booleans())
    def land(self, *, count: int, accepted: bool) -> None:
        """Send messages to the hub, which lands them. Its acceptance may be lost with the connection."""
        forwarder = self.site.forwarder
        forwarder.credit = count
        forwarder.deliveries.clear()
        if forwarder.joined is not None:
            forwarder.joined.pump()
        self.site.settle_down()
        forwarder.credit = 0
        for subscription, stored in forwarder.deliveries:
            for index, body in enumerate(stored.run.bodies):
                name = (self.site.epoch, stored.run.address, stored.sequence + index)
                assert self.bodies.setdefault(name, body) == body, "one name, one message"
                self.site.hub.landed.add(name)
            if accepted:
                self.site.receipts.settled([piece_of(subscription, stored)])
                last = stored.position + len(stored.run.bodies) - 1
                subscription.settle(forwarder, stored.position, last, DeliveryOutcome.ACCEPTED)
            else:
                self.unaccepted = True

    @rule()
    def answer(self) -> None:
        self.note_losses()
        self.site.settle_down(wait_s=1.0)
        if self.site.hub.requests:
            self.site.answer()

    @rule()
    def lose_answer(self) -> None:
        if self.site.hub.requests:
            _, done = self.site.hub.requests.pop(0)
            done(True)

    @rule()
    def collect(self) -> None:
        for run in self.site.collected():
            for body in run.bodies:
                receipt = read_receipt(body)
                number = int(read(run.properties).correlation_data or b"")
                name = (receipt.epoch, receipt.address, receipt.sequence)
                if receipt.outcome is ReceiptOutcome.LANDED:
                    assert self.requesting[self.bodies[name]] == number
                else:
                    assert name in self.site.hub.dropped
                    assert receipt.reason == "evicted"
                self.receipts[number] = receipt.outcome

    @rule(answered=st.booleans())
    def kill(self, *, answered: bool) -> None:
        self.site.kill(answered=answered)
        self.unaccepted = False  # they are sent again

    @rule(address=st.sampled_from(("plant/a", "plant/b")))
    def kill_right_after_the_answer(self, *, address: str) -> None:
        self.publish(wants=True, address=address, now=False)
        self.kill(answered=True)

    # --- inside -------------------------------------------------------------------------------------------------------

    def note_losses(self) -> None:
        """Give the hub the loss ledger of the gateway."""
        for entry in self.site.store.ledger.entries(0, 10_000, FORWARDER):
            names = range(entry.first, entry.last + 1)
            self.site.hub.dropped |= {(self.site.epoch, entry.address, number) for number in names}

    def finish(self) -> None:
        self.site.settle_down()
        if self.unaccepted:
            self.kill(answered=False)
        for _ in range(30):
            self.land(count=1_000, accepted=True)
            self.note_losses()
            self.site.answer_all()
            self.collect()
            if not self.site.receipts.in_use:
                break
        assert not self.site.receipts.in_use
        owed = {number for number in self.requesting.values() if number in self.acknowledged}
        assert owed <= self.receipts.keys()


LandingReceiptMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestLandingReceipts = LandingReceiptMachine.TestCase
