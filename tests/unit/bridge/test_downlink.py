"""Messages to a gateway: the lines of the hub against the link of a gateway, and the end of either."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from bridge.command import HubCommand, fault, message, read
from bridge.downlink import Downlink, GatewayLink
from bridge.engine import Closed, Condition, Detached, Engine
from bridge.engine.terminus import source
from bridge.forwarders.inbox import Incoming, Settle
from bridge.forwarders.outcome import ForwardOutcome
from bridge.forwarders.receivers import Receivers
from bridge.intake import Intake
from bridge.limits import (
    COMMAND_NAME_CHARACTERS_MAX,
    COMMAND_PAYLOAD_BYTES_MAX,
    COMMAND_TTL_S_MAX,
    DEVICE_CHARACTERS_MAX,
    LEAVE_TIMEOUT_S,
)
from bridge.plain import MessageError, data_section
from tests.support.machines import take_all
from tests.support.shell import Shell
from tests.unit.bridge.intake_service import RecordingService


class Given:
    """Source that records its calls."""

    def __init__(self) -> None:
        self.lines: list[GatewayLink] = []
        self.settlements: list[tuple[int, ForwardOutcome, str]] = []
        self.over: list[GatewayLink] = []

    def ready(self, line: GatewayLink) -> None:
        self.lines.append(line)

    def settled(self, line: GatewayLink, tag: int, outcome: ForwardOutcome, why: str) -> None:
        self.settlements.append((tag, outcome, why))

    def ended(self, line: GatewayLink) -> None:
        self.over.append(line)


class Taker:
    """Inbox that keeps messages until the test settles them."""

    name, remote, qos = "taker", "commands", 1

    def __init__(self) -> None:
        self.room = 2
        self.messages: list[Incoming] = []
        self.settle: Settle | None = None
        self.left: Callable[[], None] | None = None

    def attached(self, settle: Settle, credit_changed: Callable[[], None]) -> None:
        self.settle = settle

    def leave(self, left: Callable[[], None]) -> None:
        self.room, self.left = 0, left

    def detached(self) -> None:
        self.settle = None

    @property
    def credit(self) -> int:
        return self.room

    def receive(self, messages: Sequence[Incoming]) -> None:
        self.messages += messages


class Pair:
    """The engine of a gateway with receivers, and an intake with a downlink."""

    def __init__(self, *, knows: bool = True) -> None:
        self.source, self.taker = Given(), Taker()
        self.client = Engine(container_id="gw1", server=False)
        self.server = Engine(container_id="hub", server=True)
        downlink = Downlink(("acme", "gw1"), {"commands": self.source} if knows else {})
        self.intake = Intake(self.server, RecordingService(), Shell(), gateway="gw1", downlink=downlink)
        self.receivers = Receivers([self.taker], again=False)
        self.cut: list[str] = []
        self.events: list[object] = []
        self.client.open()
        self.settle()
        self.receivers.begin(self.client, lambda: None, self.cut.append)
        self.settle()

    def settle(self) -> None:
        while True:
            up, down = self.client.data_to_send(), self.server.data_to_send()
            if not up and not down:
                return
            if up:
                self.intake.handle(take_all(self.server, up, 0.0))
            for event in take_all(self.client, down, 0.0) if down else ():
                self.events.append(event)
                if isinstance(event, Detached):
                    self.receivers.detached(event, 0.0)
                elif hasattr(event, "messages"):
                    assert self.receivers.received(event)
                elif hasattr(event, "link") and not hasattr(event, "items"):
                    self.receivers.attached(event.link)

    def answer(self, outcome: ForwardOutcome, why: str = "") -> None:
        assert self.taker.settle is not None
        message = self.taker.messages.pop(0)
        assert message.token is not None
        self.taker.settle((message.token,), outcome, why)
        self.settle()


def test_gateway_gets_messages_up_to_its_credit() -> None:
    pair = Pair()
    (line,) = pair.source.lines
    assert (line.gateway, line.credit, line.open) == (("acme", "gw1"), 2, True)
    line.send(7, data_section(b"one"))
    line.send(8, data_section(b"two"))
    assert line.credit == 0
    pair.settle()
    assert [each.run.bodies[0][-3:] for each in pair.taker.messages] == [b"one", b"two"]
    pair.answer(ForwardOutcome.ACCEPTED)
    pair.answer(ForwardOutcome.REJECTED, "no such device")
    assert pair.source.settlements == [(7, ForwardOutcome.ACCEPTED, ""), (8, ForwardOutcome.REJECTED, "no such device")]
    assert pair.source.lines[-1] is line, "there is room again"


def test_released_message_is_returned() -> None:
    pair = Pair()
    pair.source.lines[0].send(1, data_section(b"one"))
    pair.settle()
    pair.answer(ForwardOutcome.RELEASED)
    assert pair.source.settlements == [(1, ForwardOutcome.RELEASED, "")]


def test_hub_without_the_capability_refuses_and_the_link_remains() -> None:
    pair = Pair(knows=False)
    assert not pair.source.lines
    assert not pair.taker.settle
    assert not pair.cut
    assert not pair.client.closed


def test_closing_gateway_waits_a_limited_time_for_answers() -> None:
    pair = Pair()
    pair.source.lines[0].send(1, data_section(b"one"))
    pair.settle()
    left: list[float] = []
    pair.receivers.leave(lambda: left.append(0.0))
    assert pair.receivers.deadline == 0.0, "it does not know what time it is"
    pair.receivers.handle_timeout(100.0)
    assert pair.receivers.deadline == 100.0 + LEAVE_TIMEOUT_S
    pair.receivers.handle_timeout(100.0 + LEAVE_TIMEOUT_S - 0.1)
    assert not left
    pair.receivers.handle_timeout(100.0 + LEAVE_TIMEOUT_S)
    assert pair.receivers.deadline is None
    assert pair.taker.left is not None
    pair.taker.left()
    assert len(left) == 1


def test_closing_gateway_releases_new_messages_and_answers_earlier_ones() -> None:
    pair = Pair()
    (line,) = pair.source.lines
    line.send(1, data_section(b"one"))
    pair.settle()
    left: list[bool] = []
    pair.receivers.leave(lambda: left.append(True))
    line.send(2, data_section(b"two"))
    pair.settle()
    assert pair.source.settlements == [(2, ForwardOutcome.RELEASED, "")]
    pair.answer(ForwardOutcome.ACCEPTED)
    assert pair.source.settlements[1:] == [(1, ForwardOutcome.ACCEPTED, "")]
    assert not left
    assert pair.taker.left is not None
    pair.taker.left()
    assert left == [True]


def test_line_ends_with_its_connection() -> None:
    pair = Pair()
    (line,) = pair.source.lines
    line.send(1, data_section(b"one"))
    pair.intake.close("amqp:connection:forced", "the gateway has connected again")
    assert pair.source.over == [line]
    assert not line.open
    assert line.credit == 0
    pair.settle()
    pair.intake.handle((Closed(None),))
    assert pair.source.over == [line], "once"


def test_line_ends_when_the_gateway_detaches() -> None:
    pair = Pair()
    for link in pair.client.links:
        pair.client.detach(link)
    pair.settle()
    assert len(pair.source.over) == 1


def test_other_receivers_are_refused() -> None:
    pair = Pair()
    pair.client.attach_receiver("other", source("plant/1"))
    pair.settle()
    detached = [event for event in pair.events if isinstance(event, Detached)]
    assert detached[-1].condition == Condition("amqp:not-found", "this hub has no address 'plant/1'")


COMMAND = HubCommand(
    id="a1", device="pump7", name="on", payload=b"{}", content_type="application/json", ttl_ms=5_000, response=True
)


def test_command_survives_encoding() -> None:
    assert read(message(COMMAND)) == COMMAND


@pytest.mark.parametrize("length", range(0, len(message(COMMAND)), 3))
def test_truncated_command_is_invalid(length: int) -> None:
    with pytest.raises(MessageError):
        read(message(COMMAND)[:length])


@pytest.mark.parametrize(
    ("device", "name", "size", "content_type", "ttl_s", "words"),
    [
        ("", "on", 0, None, 1, "a device name"),
        ("a/b", "on", 0, None, 1, "a device name"),
        ("#", "on", 0, None, 1, "a device name"),
        ("x" * (DEVICE_CHARACTERS_MAX + 1), "on", 0, None, 1, "a device name"),
        ("pump7", "", 0, None, 1, "a command name"),
        ("pump7", "x" * (COMMAND_NAME_CHARACTERS_MAX + 1), 0, None, 1, "a command name"),
        ("pump7", "on", COMMAND_PAYLOAD_BYTES_MAX + 1, None, 1, "payload has"),
        ("pump7", "on", 0, "é", 1, "content type"),
        ("pump7", "on", 0, None, 0, "time to live"),
        ("pump7", "on", 0, None, COMMAND_TTL_S_MAX + 1, "time to live"),
    ],
)
def test_invalid_commands_raise(
    device: str, name: str, size: int, content_type: str | None, ttl_s: float, words: str
) -> None:
    assert words in (fault(device, name, bytes(size), content_type, ttl_s) or "")


def test_largest_command_is_accepted() -> None:
    largest = ("x" * DEVICE_CHARACTERS_MAX, "x" * COMMAND_NAME_CHARACTERS_MAX, bytes(COMMAND_PAYLOAD_BYTES_MAX))
    assert fault(*largest, "text/plain", COMMAND_TTL_S_MAX) is None
