"""Commands of a hub at a gateway: each enters the queue of its device once, and every result has a receipt."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bridge.command import Receipt, receipt_body
from bridge.forwarders.outcome import ForwardOutcome as Answer
from bridge.message import Run
from edge.broker.configuration import AddressConfiguration, BrokerConfiguration
from edge.broker.hono.hub_commands import HubCommandAddresses
from edge.broker.limits import RECEIPTS_WAITING_MAX
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import DeliveryOutcome, Refusal
from edge.broker.router.batch import Publication
from edge.broker.router.commands.addresses import ATTEMPTS_MAX, PLAIN, with_commands
from edge.broker.store.errors import StoreFull
from tests.support.router_site import SilentOrigin
from tests.unit.broker.command_site import HUB, Gateway


class Sender(SilentOrigin):
    def __init__(self) -> None:
        self.refusals: list[Refusal] = []

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self.refusals += [why] * len(tokens)


def test_command_is_queued_before_the_hub_is_notified_and_only_once() -> None:
    gateway = Gateway()
    gateway.command()
    assert gateway.answers == [(1, Answer.ACCEPTED, "")]
    gateway.inbox.detached()
    gateway.inbox.attached(gateway._settle, lambda: None)
    gateway.command()
    assert gateway.answers[1:] == [(2, Answer.ACCEPTED, "")]
    assert gateway.unacknowledged("command/pump7") == 1


@pytest.mark.parametrize(
    ("outcome", "receipt"),
    [
        (DeliveryOutcome.ACCEPTED, Receipt.DELIVERED),
        (DeliveryOutcome.REJECTED, Receipt.REJECTED),
        (DeliveryOutcome.EXPIRED, Receipt.EXPIRED),
    ],
)
def test_outcome_of_the_device_becomes_a_receipt(outcome: DeliveryOutcome, receipt: Receipt) -> None:
    gateway = Gateway()
    gateway.command()
    device = gateway.consumer("command/pump7")
    assert gateway.told == []
    device.answer(outcome)
    assert gateway.told == [("a1", receipt.value)]
    assert gateway.receipts.figures == {receipt: 1}
    assert gateway.hub.runs[0].device == "pump7"


def test_command_that_its_device_never_takes_is_rejected() -> None:
    gateway = Gateway()
    gateway.command()
    device = gateway.consumer("command/pump7")
    for _ in range(ATTEMPTS_MAX):
        assert gateway.told == []
        device.answer(DeliveryOutcome.MODIFIED_FAILED)
        gateway.settle_down()
    assert gateway.told == [("a1", "rejected")]


def test_expired_command_is_dropped_without_a_consumer() -> None:
    gateway = Gateway()
    gateway.good = True
    gateway.command(ttl_ms=5_000)
    gateway.settle_down(wait_s=4.0)
    assert gateway.told == []
    gateway.settle_down(wait_s=60.0)
    gateway.settle_down(wait_s=60.0)
    assert gateway.told == [("a1", "expired")]
    assert [entry.reason for entry in gateway.lost] == ["expired"]


def test_message_of_a_local_application_has_no_receipt() -> None:
    gateway = Gateway()
    device = gateway.consumer("command/pump7")
    gateway.send("command/pump7", b"hello")
    device.answer(DeliveryOutcome.ACCEPTED)
    assert gateway.told == []


def test_invalid_command_is_rejected_with_the_reason() -> None:
    gateway = Gateway()
    gateway.command(device="stranger")
    gateway.arrive(b"\x00\x53\x75\xa0\x01x")
    said = [why for _, outcome, why in gateway.answers if outcome is Answer.REJECTED]
    assert said[0] == "unknown device here: stranger; on this gateway, run: waypost user add stranger"
    assert said[1].startswith("a command needs a ttl")
    gateway.router.reconfigure(AddressTable([AddressRule("command/#", AddressType.TOPIC)]))
    gateway.command()
    assert gateway.answers[-1][2].startswith("command/pump7 has to be a queue, but is a topic")


def test_receipt_without_room_is_retried() -> None:
    gateway = Gateway()
    gateway.command()
    device = gateway.consumer("command/pump7")
    gateway.store.medium.failure = StoreFull("the medium is full")
    device.answer(DeliveryOutcome.ACCEPTED)
    gateway.settle_down()
    assert gateway.told == []
    gateway.store.medium.failure = None
    gateway.settle_down(wait_s=3_600.0)
    gateway.settle_down(wait_s=3_600.0)
    assert gateway.told[:1] == [("a1", "delivered")]


def test_oldest_of_too_many_receipts_is_dropped_and_recorded(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway()
    receipts = gateway.receipts
    for number in range(RECEIPTS_WAITING_MAX + 1):
        receipts._tell(f"d{number}", "a1", Receipt.DELIVERED)
        receipts.refused((number,), Refusal.FULL)
    assert "dropped a receipt of a command, as too many wait: command-receipt/d0" in caplog.text


def test_resource_of_an_address_applies() -> None:
    own = AddressConfiguration(AddressRule("command/#", AddressType.TOPIC))
    made = with_commands(BrokerConfiguration(connectors=(HUB,), addresses=(own,)), PLAIN)
    assert [rule.pattern for rule in made.rules] == ["command/#", "command-receipt/#", "command-response/#"]
    assert with_commands(BrokerConfiguration(addresses=(own,)), PLAIN).addresses == (own,), "there is no hub"
    hono = with_commands(BrokerConfiguration(connectors=(HUB,)), HubCommandAddresses("ACME"))
    assert [rule.pattern for rule in hono.rules] == ["command-receipt/#", "command_response/ACME/hub"]


def test_device_of_the_device_api_has_a_hono_queue() -> None:
    addresses = HubCommandAddresses("ACME")
    assert addresses.queue("4711") == "command/ACME/4711"
    assert addresses.device("command/ACME/4711") == "4711"
    assert addresses.reply("4711") == "command_response/ACME/hub"


@pytest.mark.parametrize("qos", [0, 1])
def test_other_clients_cannot_make_receipts(qos: int) -> None:
    """A client with the right to send there must not forge receipts for commands of others."""
    gateway = Gateway()
    gateway.command()
    device = gateway.consumer("command/pump7")
    for _ in range(2):  # the second time the route is cached
        sender = Sender()
        forged = receipt_body("a1", Receipt.REJECTED, "forged")
        gateway.router.publish(
            Publication(sender, Run("command-receipt/pump7", "other", qos, b"", [forged]), (1,) * qos)
        )
        gateway.settle_down()
        assert sender.refusals == [Refusal.NOT_AUTHORIZED] * qos
        assert gateway.router.find_targets("command-receipt/pump7", qos) is None
        assert gateway.router.routes.prefix("command-receipt/pump7") == ""
    assert gateway.told == []
    device.answer(DeliveryOutcome.ACCEPTED)
    assert gateway.told == [("a1", "delivered")]
