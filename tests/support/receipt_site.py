"""Gateway with landing receipts, and a hub that answers its requests on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from bridge.flow import piece_of
from bridge.forwarders.inbox import Incoming
from bridge.landing_receipt import (
    REQUEST,
    WANTED,
    LandingStatement,
    MessageSpan,
    ReceiptAnswer,
    ReceiptOutcome,
    ReceiptRequest,
    SignedLanding,
    base64url,
    read_receipt,
)
from bridge.limits import RECEIPT_STATEMENTS_MAX
from bridge.message import Run, Stored
from bridge.plain import data_section, parse
from bridge.publish_properties import PublishProperties, write
from edge.broker.limits import LANDING_RETRY_S_MAX
from edge.broker.model.address_policy import AddressPolicy, Receipts
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import DeliveryOutcome, SubscribeOptions, Subscription
from edge.broker.router.batch import Publication
from edge.broker.router.landing.exchange import ReceiptExchange
from edge.broker.router.landing.receipts import LandingReceipts
from tests.support.router_site import RecordingConsumer, RouterSite, SilentOrigin

PATTERN = "plant/#"
FORWARDER = SubscribeOptions(durable_name="forwarder/hub/plant", all_qos=True)


class FakeHub:
    """The hub of one gateway: it knows what has landed and what was dropped, and signs nothing."""

    def __init__(self) -> None:
        self.landed: set[tuple[str, str, int]] = set()
        self.dropped: set[tuple[str, str, int]] = set()
        self.requests: list[tuple[ReceiptRequest, Callable[[bool], None]]] = []
        self.stated: list[LandingStatement] = []

    def request_receipts(self, document: dict[str, Any], done: Callable[[bool], None]) -> None:
        self.requests.append((msgspec.convert(document, ReceiptRequest), done))

    def state(self, span: MessageSpan) -> list[LandingStatement]:
        """State the outcome of each message of a span by itself."""
        found = []
        for sequence in range(span.first, span.last + 1):
            name = (span.epoch, span.address, sequence)
            for outcome, known in ((ReceiptOutcome.LANDED, self.landed), (ReceiptOutcome.DROPPED, self.dropped)):
                if name in known:
                    found.append(statement_about(span, sequence, outcome))
        return found


def statement_about(span: MessageSpan, sequence: int, outcome: ReceiptOutcome) -> LandingStatement:
    return LandingStatement(
        tenant="default",
        gateway="gw1",
        epoch=span.epoch,
        address=span.address,
        first=sequence,
        last=sequence,
        outcome=outcome,
        table="telemetry",
        version=7,
        stated_at=1,
    )


def unsigned(made: LandingStatement) -> SignedLanding:
    return SignedLanding("e30", base64url(msgspec.json.encode(made)), "")


class NotingConsumer(RecordingConsumer):
    """Consumer that keeps its deliveries, so that a test can settle them later."""

    def __init__(self, name: str = "c", credit: int = 1000) -> None:
        super().__init__(name, credit)
        self.deliveries: list[tuple[Subscription, Stored]] = []

    def take(self, subscription: Subscription, stored: Stored) -> None:
        super().take(subscription, stored)
        self.deliveries.append((subscription, stored))


class ReceiptSite(RouterSite):
    """Gateway with receipts at `plant/#`, a forwarder, and a hub that answers on demand."""

    def __init__(self, policy: AddressPolicy | None = None) -> None:
        super().__init__()
        rules = [AddressRule(PATTERN, AddressType.TOPIC), AddressRule("landing-receipt/#", AddressType.QUEUE)]
        self.table = AddressTable(rules)
        self.policies = {PATTERN: msgspec.structs.replace(policy or AddressPolicy(), receipts=Receipts.LANDED)}
        self.hub = FakeHub()
        self.begin()

    def begin(self) -> None:
        """Start a process on the store."""
        self.hub.requests.clear()
        self.takers: dict[str, RecordingConsumer] = {}
        self.boot()
        self.forwarder = NotingConsumer("forwarder", 0)
        self.forwarder.joined = self.router.subscriptions.subscribe(self.forwarder, PATTERN, FORWARDER)
        self.receipts = LandingReceipts(self.router, self.store)
        self.receipts.set_exchange("hub", self.new_exchange())
        self.receipts.start()
        self.settle_down()

    def new_exchange(self) -> ReceiptExchange:
        """Make an exchange with the hub, attached to a connection."""
        self.exchange = ReceiptExchange(
            "hub", self.hub, lambda address: address.startswith("plant/"), lambda: True, "gw1"
        )
        self.exchange.attached(lambda _tokens, _outcome, _why: None, lambda: None)
        return self.exchange

    @property
    def epoch(self) -> str:
        return self.store.lineage.epoch

    def ask(self, address: str = "plant/t", *, correlation: bytes = b"", body: bytes = b"x") -> None:
        """Publish a message that wants a receipt."""
        self.publish(Run(address, "pump7", 1, wanting(correlation), [body]))

    def publish(self, run: Run) -> None:
        self.router.publish(Publication(SilentOrigin(), run, ()))
        self.settle_down()

    def accept(self, *sequences: int, address: str = "plant/t", landed: bool = True) -> None:
        """Have the hub accept messages."""
        for sequence in sequences:
            if landed:
                self.hub.landed.add((self.epoch, address, sequence))
            stored = Stored(sequence, sequence, Run(address, "", 1, b"", [b""]))
            self.receipts.settled([piece_of(self.forwarder, stored)])  # type: ignore[arg-type]

    def answer(self) -> None:
        """Have the hub answer its oldest request."""
        request, done = self.hub.requests.pop(0)
        made = [each for span in request.spans for each in self.hub.state(span)][:RECEIPT_STATEMENTS_MAX]
        self.hub.stated += made
        if made:
            body = msgspec.json.encode(ReceiptAnswer("Y2VydA==", [unsigned(each) for each in made]))
            self.exchange.receive([Incoming(None, (), b"", (), parse(data_section(body)).run)])
        done(True)
        self.settle_down()

    def answer_all(self) -> None:
        for _ in range(20):
            self.settle_down(wait_s=LANDING_RETRY_S_MAX)
            if not self.hub.requests:
                return
            self.answer()

    def collected(self, device: str = "pump7") -> list[Run]:
        """Take all receipts of a device since the last call."""
        taker = self.takers.get(device)
        if taker is None:
            taker = self.takers[device] = self.consumer(f"landing-receipt/{device}")
        self.settle_down()
        while taker.last is not None:
            last, taker.last = taker.last, None
            last[0].settle(taker, last[1], last[1], DeliveryOutcome.ACCEPTED)
            self.settle_down()
        runs, taker.runs = taker.runs, []
        return runs

    def told(self, device: str = "pump7") -> list[tuple[int, str, str]]:
        """Return (sequence, outcome, reason) of all receipts of a device."""
        found = [read_receipt(body) for run in self.collected(device) for body in run.bodies]
        return [(each.sequence, each.outcome.value, each.reason) for each in found]


def wanting(correlation: bytes = b"", response_topic: str | None = None, value: str = WANTED) -> bytes:
    return write(
        PublishProperties(
            correlation_data=correlation or None, response_topic=response_topic, users=((REQUEST, value),)
        )
    )
