"""Commands for devices that the hub took away from a gateway: they leave their queues once, and the hub gets them."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import pytest

from bridge.command import HubCommand, Receipt, ReceiptDocument, message
from bridge.forwarders.outcome import ForwardOutcome as Answer
from edge.broker.limits import RETURNED_DEVICES_MAX, RETURNED_KEPT_S
from edge.broker.model.interfaces import DeliveryOutcome
from edge.broker.router.commands.returns import CommandReturns
from edge.broker.store.errors import StoreFull
from tests.unit.broker.command_site import Gateway


class LeftGateway(Gateway):
    """Gateway that devices leave."""

    def __init__(self) -> None:
        super().__init__()
        self.users: set[str] = set()
        self.arriving = False
        self.completed: list[str] = []
        self.start_returns()

    def start_returns(self) -> None:
        self.returns = CommandReturns(
            self.router,
            self.store.logs,
            self.store.cursors,
            self.receipts,
            knows=self.users.__contains__,
            arriving=lambda: self.arriving,
            completed=self._complete,
        )

    def _complete(self, devices: Collection[str]) -> None:
        self.completed += devices

    def leave(self, *devices: str) -> None:
        self.returns.follow(devices)
        self.settle_down()

    @property
    def receipts_told(self) -> list[ReceiptDocument]:
        self.settle_down()
        return [msgspec.json.decode(body, type=ReceiptDocument) for body, _ in self.hub.got]

    @property
    def returned(self) -> list[str]:
        assert all(each.receipt is Receipt.REJECTED for each in self.receipts_told if each.returned)
        return [each.command for each in self.receipts_told if each.returned]


@pytest.fixture
def gateway() -> LeftGateway:
    return LeftGateway()


def test_waiting_commands_go_back_in_order(gateway: LeftGateway) -> None:
    for identifier in ("a1", "a2", "a3"):
        gateway.command(identifier)
    gateway.command("b1", device="pump8")
    gateway.leave("pump7")
    assert gateway.returned == ["a1", "a2", "a3"]
    assert [gateway.unacknowledged(f"command/{each}") for each in ("pump7", "pump8")] == [0, 1]
    assert gateway.lost == [], "nothing is lost"


def test_a_delivered_command_does_not_go_back(gateway: LeftGateway) -> None:
    gateway.command("a1")
    gateway.command("a2")
    device = gateway.consumer("command/pump7", credit=1)
    device.answer(DeliveryOutcome.ACCEPTED)
    assert device.joined is not None
    device.joined.leave(device, keep=False)
    gateway.leave("pump7")
    assert gateway.told == [("a1", "delivered"), ("a2", "rejected")]
    assert gateway.returned == ["a2"]


def test_a_command_with_a_present_consumer_waits_for_its_end(gateway: LeftGateway) -> None:
    gateway.command("a1")
    device = gateway.consumer("command/pump7")
    gateway.leave("pump7")
    assert gateway.told == []
    assert device.joined is not None
    device.joined.leave(device, keep=False)
    assert gateway.returned == ["a1"]


def test_an_unacknowledged_command_of_a_session_is_reported(gateway: LeftGateway) -> None:
    gateway.command("a1")
    gateway.command("a2")
    device = gateway.consumer("command/pump7", credit=1)
    assert device.joined is not None
    device.joined.leave(device, keep=True)
    gateway.leave("pump7")
    first, second = gateway.receipts_told
    assert (first.command, first.returned, first.receipt) == ("a1", False, Receipt.REJECTED)
    assert (second.command, second.returned) == ("a2", True)
    device.answer(DeliveryOutcome.ACCEPTED)
    assert len(gateway.receipts_told) == 2, "a late acknowledgement changes nothing"
    assert gateway.unacknowledged("command/pump7") == 0


def test_messages_of_local_applications_stay(gateway: LeftGateway) -> None:
    gateway.send("command/pump7", b"hello")
    gateway.command("a1")
    gateway.send("command/pump7", b"again")
    gateway.leave("pump7")
    assert gateway.returned == ["a1"]
    assert gateway.unacknowledged("command/pump7") == 2


def test_a_queue_of_local_messages_is_read_once(gateway: LeftGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.send("command/pump7", b"hello")
    gateway.command("a1")
    gateway.leave("pump7")
    looks: list[str] = []
    monkeypatch.setattr(gateway.returns, "_look", looks.append)
    gateway.settle_down(wait_s=RETURNED_KEPT_S / 2)
    gateway.settle_down(wait_s=RETURNED_KEPT_S)
    assert looks == []
    assert gateway.completed == ["pump7"]


def test_commands_of_a_user_with_the_same_name_stay(gateway: LeftGateway) -> None:
    gateway.users.add("pump7")
    gateway.command("a1")
    gateway.leave("pump7")
    assert gateway.told == []


def test_a_device_that_is_back_gets_its_commands(gateway: LeftGateway) -> None:
    gateway.command("a1")
    gateway.returns.follow(["pump7"])
    gateway.router.tick()  # reads the queue
    gateway.returns.follow([])
    gateway.settle_down()
    device = gateway.consumer("command/pump7")
    assert len(device.got) == 1
    assert gateway.told == []


def test_all_commands_go_back_or_none(gateway: LeftGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that comes back between two reads would get the later ones first."""
    monkeypatch.setattr("edge.broker.router.commands.returns.RETURNED_COMMANDS_BYTES", 1)
    for identifier in ("a1", "a2", "a3"):
        gateway.command(identifier)
    gateway.returns.follow(["pump7"])
    gateway.router.tick()
    gateway.posted.popleft()()  # the first read
    gateway.returns.follow([])
    gateway.settle_down()
    assert gateway.told == []
    assert len(gateway.consumer("command/pump7").got) == 3


def test_a_command_that_comes_late_goes_back_too(gateway: LeftGateway) -> None:
    gateway.leave("pump7")
    gateway.settle_down(wait_s=RETURNED_KEPT_S / 2)
    gateway.command("a1")
    assert gateway.returned == ["a1"]


def test_a_device_is_followed_until_nothing_can_come(gateway: LeftGateway) -> None:
    gateway.arriving = True
    gateway.leave("pump7")
    gateway.settle_down(wait_s=2 * RETURNED_KEPT_S)
    assert gateway.completed == []
    gateway.arriving = False
    gateway.settle_down(wait_s=RETURNED_KEPT_S / 2)
    assert gateway.completed == []
    gateway.settle_down(wait_s=RETURNED_KEPT_S)
    assert gateway.completed == ["pump7"]
    gateway.settle_down(wait_s=RETURNED_KEPT_S)
    assert gateway.completed == ["pump7"] * 2, "a failed write is repeated"


def test_more_devices_than_one_tick_looks_at(gateway: LeftGateway) -> None:
    devices = [f"pump{number}" for number in range(2 * RETURNED_DEVICES_MAX + 1)]
    for number, device in enumerate(devices):
        gateway.command(f"c{number}", device=device)
    gateway.leave(*devices)
    assert sorted(gateway.returned) == sorted(f"c{number}" for number in range(len(devices)))


def test_a_full_store_returns_each_command_once(gateway: LeftGateway) -> None:
    gateway.command("a1")
    gateway.store.medium.failure = StoreFull("the medium is full")
    gateway.leave("pump7")
    assert gateway.told == []
    gateway.store.medium.failure = None
    gateway.settle_down(wait_s=3_600.0)
    gateway.settle_down(wait_s=3_600.0)
    assert gateway.returned == ["a1"]
    assert gateway.unacknowledged("command/pump7") == 0


def test_a_repeated_command_is_accepted_after_its_device_has_left(gateway: LeftGateway) -> None:
    """The hub has had no answer: a refusal would let it send a command elsewhere that was delivered here."""
    gateway.command("a1", device="stranger")
    assert gateway.answers[-1][1] is Answer.REJECTED
    gateway.inbox._knows = lambda _device: True
    gateway.command("a2", device="stranger")
    gateway.inbox._knows = lambda _device: False
    gateway.inbox.detached()
    gateway.inbox.attached(gateway._settle, lambda: None)
    gateway.command("a2", device="stranger")
    assert [outcome for _, outcome, _ in gateway.answers] == [Answer.REJECTED, Answer.ACCEPTED, Answer.ACCEPTED]


def test_an_online_command_leaves_its_queue_too(gateway: LeftGateway) -> None:
    """The hub rejects it: it goes to no other gateway."""
    device = gateway.consumer("command/pump7", credit=1)
    online = HubCommand(
        id="a1", device="pump7", name="on", payload=b"x", content_type=None, ttl_ms=9_000, response=False
    )
    gateway.arrive(message(msgspec.structs.replace(online, online_until_ms=int((gateway.now + 9) * 1_000))))
    assert device.joined is not None
    device.joined.leave(device, keep=False)
    gateway.leave("pump7")
    assert gateway.returned == ["a1"]
    assert gateway.unacknowledged("command/pump7") == 0


def test_changes_do_not_begin_the_looks_anew(gateway: LeftGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of pages would otherwise let the same devices be looked at, and no others."""
    devices = [f"pump{number}" for number in range(2 * RETURNED_DEVICES_MAX)]
    for number, device in enumerate(devices):
        gateway.command(f"c{number}", device=device)
    looks: list[str] = []
    monkeypatch.setattr(gateway.returns, "_look", looks.append)
    gateway.returns.follow(devices)
    gateway.router.tick()
    gateway.returns.follow(devices)
    gateway.router.tick()
    assert sorted(looks) == sorted(devices)
