"""Landing receipts at a gateway: one for each request, never before the hub states it, across crashes and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec
import pytest

from bridge import sections as s
from bridge.amqp_values import Symbol, decode
from bridge.forwarders.inbox import Incoming
from bridge.forwarders.outcome import ForwardOutcome
from bridge.landing_receipt import (
    REQUEST,
    WANTED,
    LandingReceipt,
    LandingStatement,
    MessageSpan,
    ReceiptAnswer,
    ReceiptOutcome,
    SignedLanding,
    read_receipt,
)
from bridge.limits import RECEIPT_CORRELATION_BYTES_MAX, RECEIPT_SPANS_MAX, RECEIPT_STATEMENTS_MAX
from bridge.message import AMQP, Run
from bridge.plain import contents, data_section, parse, section
from bridge.publish_properties import read
from bridge.publisher import publisher_name
from edge.broker.limits import LANDING_GAP_MAX, LANDING_REQUESTS_KEPT_S, LANDING_REQUESTS_MAX, LANDING_RETRY_S_MAX
from edge.broker.model.address_policy import AddressPolicy, WhenFull
from edge.broker.router.batch import Publication
from edge.broker.router.landing import receipts as module
from edge.broker.router.landing.records import RUNS, UnnumberedRun
from edge.broker.store.errors import StoreFull
from tests.support.receipt_site import ReceiptSite, statement_about, unsigned, wanting
from tests.support.router_site import SilentOrigin


def test_receipt_follows_the_statement_of_the_hub() -> None:
    site = ReceiptSite()
    site.ask(correlation=b"r1")
    site.accept(0, landed=False)
    site.answer()
    assert site.told() == [], "the hub has not confirmed it"
    site.accept(0)
    site.answer_all()
    (run,) = site.collected()
    receipt = read_receipt(run.bodies[0])
    assert (receipt.gateway, receipt.epoch, receipt.address, receipt.sequence) == ("gw1", site.epoch, "plant/t", 0)
    assert receipt.statement.header == {"x5c": ["Y2VydA=="]}
    assert read(run.properties).correlation_data == b"r1"
    assert not site.receipts.in_use


def test_message_without_a_request_costs_nothing() -> None:
    site = ReceiptSite()
    site.publish(Run("plant/t", "pump7", 1, b"", [b"x"]))
    assert not site.receipts.in_use
    assert not site.receipts.figures
    site.accept(0)
    assert site.hub.requests == []


def test_message_at_an_address_without_receipts_gets_none() -> None:
    site = ReceiptSite()
    site.policies = {}
    site.begin()
    site.ask()
    assert not site.receipts.in_use


def test_each_message_of_a_run_gets_a_receipt() -> None:
    site = ReceiptSite()
    site.publish(Run("plant/t", "pump7", 1, wanting(), [b"a", b"b", b"c"]))
    site.accept(0, 1, 2)
    site.answer_all()
    assert site.told() == [(n, "landed", "") for n in range(3)]


@pytest.mark.parametrize("correlation", [b"\xa1\x03abc", b"\x53\x07", b"\xa0\x02\x00\xff"])
def test_amqp_message_gets_its_correlation_back(correlation: bytes) -> None:
    value = decode(correlation)[0]
    site = ReceiptSite()
    fields = [None, None, None, None, "landing-receipt/pump7", value]
    body = section(s.PROPERTIES, fields) + section(s.APPLICATION_PROPERTIES, {REQUEST: WANTED}) + data_section(b"x")
    site.publish(Run("plant/t", "pump7", AMQP | 1, b"", [body]))
    site.accept(0)
    site.answer_all()
    (run,) = site.collected()
    assert run.flags & AMQP
    (found,) = [value for _, value in contents(run.bodies[0], (s.PROPERTIES,))]
    assert (found[5], found[6]) == (value, Symbol("application/json"))


@pytest.mark.parametrize(
    "run",
    [
        Run("plant/t", "pump7", 1, wanting(response_topic="command/valve"), [b"x"]),
        Run("plant/t", "pump7", 1, wanting(value="stored"), [b"x"]),
        Run("plant/t", "pump7", 1, wanting(bytes(RECEIPT_CORRELATION_BYTES_MAX + 1)), [b"x"]),
        Run("plant/t", "a/b", 1, wanting(), [b"x"]),
        Run("plant/t", "anonymous", 1, wanting(), [b"x"]),
        Run("plant/t", publisher_name("gw2", "gw2", relay=True), 1, wanting(), [b"x"]),
        Run("plant/t", "pump7", AMQP | 1, b"", [b"\x00\x53\x74 waypost-receipt"]),
        Run("plant/t", "pump7", AMQP | 1, b"", [section(s.APPLICATION_PROPERTIES, {REQUEST: "no"})]),
    ],
    ids=["other reply", "other value", "long correlation", "levels", "anonymous", "relay", "broken", "other"],
)
def test_other_requests_are_ignored(run: Run) -> None:
    site = ReceiptSite()
    site.publish(run)
    assert not site.receipts.in_use


def test_client_cannot_send_receipts() -> None:
    site = ReceiptSite()
    site.publish(Run("landing-receipt/pump7", "rogue", 1, b"", [b"{}"]))
    assert site.told() == []


def test_dropped_message_gets_a_receipt_with_the_reason() -> None:
    site = ReceiptSite(AddressPolicy(quota_bytes=100, when_full=WhenFull.DROP_OLDEST))
    site.ask(body=bytes(80))
    site.publish(Run("plant/t", "pump7", 1, b"", [bytes(80)]))
    site.hub.dropped.add((site.epoch, "plant/t", 0))
    site.answer_all()
    assert site.told() == [(0, "dropped", "evicted")]


def test_losses_of_an_address_stay_one_row_while_the_hub_is_away() -> None:
    """A row for each tick would fill the ledger, which then deletes entries that no hub has."""
    site = ReceiptSite(AddressPolicy(quota_bytes=100, when_full=WhenFull.DROP_OLDEST))
    site.ask(body=bytes(80))
    for _ in range(1_000):
        site.publish(Run("plant/t", "pump7", 1, b"", [bytes(80)]))
    assert [each.reason for each in site.receipts.awaited.values()] == ["evicted"]
    (entry,) = site.store.ledger.entries(0, 1_000)
    assert (entry.first, entry.last, entry.messages) == (0, 999, 1_000)
    assert len(site.hub.requests) == 1, "a longer entry names no message again"


def test_statement_of_a_loss_is_not_believed_while_the_message_waits() -> None:
    """A full ledger merges ranges across gaps, so a range may name messages that are still to be sent."""
    site = ReceiptSite()
    site.ask()
    site.hub.dropped.add((site.epoch, "plant/t", 0))
    site.receipts._make_due(site.receipts.awaited)
    site.answer_all()
    assert site.told() == []
    site.hub.dropped.clear()
    site.accept(0)
    site.answer_all()
    assert site.told() == [(0, "landed", "")]


def test_message_that_the_hub_has_set_aside_gets_a_receipt() -> None:
    site = ReceiptSite()
    site.ask()
    site.accept(0, landed=False)
    site.hub.dropped.add((site.epoch, "plant/t", 0))
    site.answer_all()
    assert site.told() == [(0, "dropped", module.SET_ASIDE)]


def test_request_of_a_refused_message_is_forgotten() -> None:
    site = ReceiptSite()
    site.store.failure = StoreFull("full")
    site.ask()
    site.store.failure = None
    site.settle_down(wait_s=10)
    assert not site.receipts.in_use
    site.ask()
    site.accept(0)
    site.answer_all()
    assert site.told() == [(0, "landed", "")]


def test_receipt_without_room_is_given_later() -> None:
    site = ReceiptSite()
    site.policies["landing-receipt/#"] = AddressPolicy(quota_bytes=10)
    site.begin()
    site.ask()
    site.accept(0)
    site.answer()
    assert site.receipts.in_use
    site.policies.pop("landing-receipt/#")
    site.router.reconfigure(site.table, site.policies)
    site.answer_all()
    assert site.told() == [(0, "landed", "")]


@pytest.mark.parametrize("numbered", [False, True])
def test_request_survives_a_crash(*, numbered: bool) -> None:
    """The record of the sequence is in the commit after that of the message: a crash comes before or after it."""
    site = ReceiptSite()
    site.ask("plant/other")
    site.publish(Run("plant/t", "pump7", 1, b"", [b"x"]))
    site.ask(correlation=b"r")
    if not numbered:
        for number, message in list(site.receipts.awaited.items()):
            position = {"plant/other": 0, "plant/t": 1}[message.address]
            log = site.store.logs.find("topic plant/#")
            record = UnnumberedRun(log or 0, position, message.address, "pump7", message.requested_at)
            site.store.state.put(RUNS, f"{number:016}", msgspec.msgpack.encode(record))
            site.receipts.awaited.remove(number)
    site.settle_down()
    site.hub.landed |= {(site.epoch, "plant/t", 1), (site.epoch, "plant/other", 0)}
    site.begin()
    site.answer_all()
    assert sorted(site.told()) == [(0, "landed", ""), (1, "landed", "")]
    assert not site.receipts.in_use


def test_record_of_a_failed_commit_is_forgotten_at_the_start() -> None:
    site = ReceiptSite()
    site.publish(Run("plant/t", "pump7", 1, b"", [b"x"]))
    record = UnnumberedRun(site.store.logs.find("topic plant/#") or 0, 0, "plant/t", "pump7", 12345)
    site.store.state.put(RUNS, f"{9:016}", msgspec.msgpack.encode(record))
    site.settle_down()
    site.begin()
    assert not site.receipts.in_use


def test_limit_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LANDING_REQUESTS_MAX >= 1_000
    monkeypatch.setattr(module, "LANDING_REQUESTS_MAX", 5)
    monkeypatch.setattr(module, "LANDING_DEVICE_SHARE", 1)
    site = ReceiptSite()
    site.publish(Run("plant/t", "pump7", 1, wanting(), [b"a"] * 3))
    site.publish(Run("plant/t", "pump7", 1, wanting(), [b"a"] * 3))
    site.ask()
    assert site.receipts.figures == {"requested": 4, "refused": 3}
    site.accept(0, 1, 2, 6)
    site.answer_all()
    site.ask()
    assert site.receipts.figures["requested"] == 5


def test_one_device_takes_a_quarter_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LANDING_REQUESTS_MAX", 8)
    site = ReceiptSite()
    for device in ("pump7", "pump8"):
        for _ in range(3):  # of one commit, so the first ones are not numbered yet
            site.router.publish(Publication(SilentOrigin(), Run("plant/t", device, 1, wanting(), [b"a"]), ()))
    site.settle_down()
    assert site.receipts.figures == {"requested": 4, "refused": 2}
    site.begin()
    site.ask()
    assert site.receipts.figures == {"refused": 1}, "also after a restart"
    site.accept(0, 1, 3, 4)
    site.answer_all()
    site.ask()
    assert site.receipts.figures["requested"] == 1


@pytest.mark.parametrize("change", [{"gateway": "gw2"}, {"last": 9}, {"address": "plant/u", "first": 0, "last": 0}])
def test_statement_that_was_not_requested_is_skipped(change: dict[str, Any]) -> None:
    site = ReceiptSite()
    site.ask()
    site.ask("plant/u")
    site.accept(0)
    [(request, _done)] = site.hub.requests
    right = statement_about(request.spans[0], 0, ReceiptOutcome.LANDED)
    wrong = msgspec.structs.replace(right, **change)

    def receive(made: LandingStatement) -> None:
        body = msgspec.json.encode(ReceiptAnswer("Y2VydA==", [unsigned(made)]))
        site.exchange.receive([Incoming(None, (), b"", (), parse(data_section(body)).run)])
        site.settle_down()

    receive(wrong)
    assert site.told() == []
    receive(right)
    assert site.told() == [(0, "landed", "")]
    site.answer()
    receive(msgspec.structs.replace(right, address="plant/u"))
    assert site.told() == [], "no request is in flight"


class UnreadRuns(dict[int, Any]):
    def values(self) -> NoReturn:
        raise AssertionError("each message would look at all that wait for their commit")


def test_limit_counts_messages_that_wait_for_their_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LANDING_REQUESTS_MAX", 5)
    monkeypatch.setattr(module, "LANDING_DEVICE_SHARE", 1)
    site = ReceiptSite()
    site.receipts._storing = UnreadRuns()
    for failure in (StoreFull("full"), None):
        site.store.failure = failure
        for count in (3, 2, 1):
            run = Run("plant/t", "pump7", 1, wanting(), [b"a"] * count)
            site.router.publish(Publication(SilentOrigin(), run, ()))
        site.settle_down()
    assert site.receipts.figures == {"requested": 10, "refused": 2}
    assert (len(site.receipts.awaited), site.receipts._storing_messages) == (5, 0)


def test_spans_of_a_request_are_limited() -> None:
    site = ReceiptSite()
    addresses = [f"plant/{n:03}" for n in range(RECEIPT_SPANS_MAX + 10)]
    for address in addresses:
        site.ask(address)
    for address in addresses:
        site.hub.landed.add((site.epoch, address, 0))
    site.receipts._make_due(site.receipts.awaited)
    site.settle_down()
    assert len(site.hub.requests[0][0].spans) == RECEIPT_SPANS_MAX
    site.answer_all()
    assert len(site.told()) == len(addresses)


def test_span_covers_messages_that_are_near_each_other() -> None:
    site = ReceiptSite()
    site.ask()
    site.publish(Run("plant/t", "pump7", 1, b"", [b"x"] * (LANDING_GAP_MAX - 1)))
    site.ask()
    site.publish(Run("plant/t", "pump7", 1, b"", [b"x"] * LANDING_GAP_MAX))
    site.ask()
    site.receipts._make_due(site.receipts.awaited)
    site.settle_down()
    (request, _), last = site.hub.requests[0], 2 * LANDING_GAP_MAX + 1
    spans = [(span.first, span.last) for span in request.spans]
    assert spans == [(0, LANDING_GAP_MAX), (last, last)]


def test_message_behind_more_statements_than_an_answer_has_gets_a_receipt() -> None:
    """One range covers both requested messages. The first has not landed, and the answer is full before the last."""
    site = ReceiptSite()
    site.ask()
    site.publish(Run("plant/t", "pump7", 1, b"", [b"x"] * RECEIPT_STATEMENTS_MAX))
    site.ask()
    last = RECEIPT_STATEMENTS_MAX + 1
    site.hub.landed |= {(site.epoch, "plant/t", sequence) for sequence in range(1, last + 1)}
    site.receipts._make_due(site.receipts.awaited)
    site.answer_all()
    assert site.told() == [(last, "landed", "")]


def test_request_is_given_up_in_the_end() -> None:
    site = ReceiptSite()
    site.ask()
    site.settle_down(wait_s=LANDING_REQUESTS_KEPT_S - 5)
    assert site.receipts.in_use
    site.settle_down(wait_s=10)
    assert not site.receipts.in_use
    assert site.receipts.figures["abandoned"] == 1


def test_hub_without_receipts_is_not_asked() -> None:
    site = ReceiptSite()
    site.exchange.detached()
    site.ask()
    site.accept(0)
    assert site.hub.requests == []
    site.exchange.attached(lambda _tokens, _outcome, _why: None, lambda: None)
    site.answer_all()
    assert site.told() == [(0, "landed", "")]


def test_lost_answer_is_requested_again() -> None:
    site = ReceiptSite()
    site.ask()
    site.accept(0)
    for _ in range(3):
        _, done = site.hub.requests.pop(0)
        done(True)
        site.settle_down()
        assert site.hub.requests == [], "not at once"
        site.settle_down(wait_s=LANDING_RETRY_S_MAX)
        assert len(site.hub.requests) == 1
    site.answer_all()
    assert site.told() == [(0, "landed", "")]


def test_request_in_flight_is_sent_again_when_the_connector_changes() -> None:
    site = ReceiptSite()
    site.ask()
    site.accept(0)
    ((_, done_late),) = site.hub.requests
    site.receipts.set_exchange("hub", None)
    site.hub.requests.clear()
    site.receipts.set_exchange("hub", site.new_exchange())
    site.settle_down()
    assert len(site.hub.requests) == 1
    done_late(True)
    site.settle_down(wait_s=LANDING_RETRY_S_MAX)
    assert len(site.hub.requests) == 1, "the new hub has not answered"
    site.answer_all()
    assert site.told() == [(0, "landed", "")]


def test_answer_that_cannot_be_read_is_settled() -> None:
    site = ReceiptSite()
    settled: list[tuple[Sequence[int], ForwardOutcome]] = []
    site.exchange.attached(lambda tokens, outcome, _why: settled.append((tokens, outcome)), lambda: None)
    for body in (b"nothing", msgspec.json.encode(ReceiptAnswer("", [SignedLanding("e30", "e30", "")]))):
        site.exchange.receive([Incoming(3, (), b"", (), parse(data_section(body)).run)])
    assert settled == [((3,), ForwardOutcome.ACCEPTED)] * 2


def test_receipt_is_a_small_document() -> None:
    made = statement_about(MessageSpan("e" * 32, "plant/7/temp", 0, 9), 3, ReceiptOutcome.LANDED)
    receipt = LandingReceipt(
        outcome=made.outcome,
        gateway="gw1",
        epoch=made.epoch,
        address=made.address,
        sequence=3,
        statement=unsigned(made),
    )
    assert len(msgspec.json.encode(receipt)) < 600, "without certificate and signature"
