"""Downlinks of LoRaWAN devices without a server: when each leaves, and what ends it."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest

from bridge.connectors.chirpstack import downlinks
from bridge.connectors.chirpstack.downlinks import DownlinkQueue
from bridge.connectors.chirpstack.events import (
    DeviceClass,
    DeviceEvent,
    DeviceInfo,
    EventError,
    EventName,
    name_of,
    read_event,
)
from bridge.connectors.limits import (
    LORAWAN_ACKNOWLEDGE_S,
    LORAWAN_ACKNOWLEDGE_UPLINKS,
    LORAWAN_EXPIRY_CHECK_S,
    LORAWAN_EXPIRY_GRACE_S,
    LORAWAN_HAND_OVERS_MAX,
    LORAWAN_HANDED_AGAIN_S,
    LORAWAN_HANDED_AGAIN_UPLINKS,
    LORAWAN_HELD_PER_DEVICE_MAX,
    LORAWAN_PAYLOAD_BYTES_MAX,
    LORAWAN_QUIET_S,
    LORAWAN_REMEMBERED_MAX,
    LORAWAN_TRIES_MAX,
)
from bridge.connectors.settings import DownlinkSettings
from bridge.forwarders.outbox import Outgoing, SendOptions
from bridge.forwarders.outcome import ForwardOutcome
from bridge.message import Run, Stored
from bridge.plain import Hop
from bridge.publish_properties import PublishProperties, read, write

EUI, OTHER = "0101010101010101", "0202020202020202"
NOW_NS = 1_796_000_000 * 10**9


class Network:
    """Queue of downlinks, with a clock of its own."""

    def __init__(self, **settings: Any) -> None:
        self.now_s, self.clock_good = 0.0, True
        self.judged = 0
        """Times that the router was asked."""
        self.queue = DownlinkQueue(
            DownlinkSettings(**settings),
            lambda run: [run],
            left_ns=self._left_ns,
            utc_ns=lambda: NOW_NS + int(self.now_s * 1e9) if self.clock_good else None,
            monotonic_s=lambda: self.now_s,
        )
        self.tickets = 0

    def _left_ns(self, run: Run) -> int | None:
        """Judge as the router does."""
        self.judged += 1
        expiry_s = read(run.properties).expiry_s
        return expiry_s * 10**9 - int(self.now_s * 1e9) if self.clock_good and expiry_s is not None else None

    def command(self, payload: bytes = b"\x01", device: str = EUI, expiry_s: int | None = None, **where: Any) -> int:
        """Give a command; return its ticket."""
        self.tickets += 1
        properties = write(PublishProperties(expiry_s=expiry_s)) if expiry_s is not None else b""
        run = Run(f"command/{device}", "app", 1, properties, [payload], NOW_NS)
        address = where.get("address", f"application/a/device/{device}/command/down")
        stored = Stored(self.tickets, where.get("sequence", self.tickets), run)
        self.queue.add(Outgoing(self.tickets, address, stored, Hop("gw1", "e1"), SendOptions()))
        return self.tickets

    def event(self, kind: str = "up", device: str = EUI, **fields: Any) -> None:
        self.queue.observe(EventName(device, kind), DeviceEvent(**fields))

    def due(self, count_max: int = 100) -> list[dict[str, Any]]:
        return [json.loads(each.stored.run.bodies[0]) for each in self.queue.due(count_max)]

    def answers(self) -> list[tuple[int, ForwardOutcome]]:
        self.queue.review()
        return [(ticket, answer.outcome) for ticket, answer in self.queue.take_answers()]


def test_command_of_class_a_leaves_in_the_window_of_an_uplink() -> None:
    network = Network()
    ticket = network.command(b"\x01\x02")
    assert network.due() == [], "nothing is known of the device"
    network.event()
    network.now_s = 0.2
    assert network.due() == [], "the window is over"
    network.event()
    network.now_s = 0.25
    (downlink,) = network.due()
    assert (downlink["devEui"], downlink["fPort"], downlink["data"]) == (EUI, 1, "AQI=")
    assert "confirmed" not in downlink
    assert network.due() == [], "once"
    network.event("txack", queue_item_id=downlink["id"])
    assert network.answers() == [(ticket, ForwardOutcome.ACCEPTED)]


@pytest.mark.parametrize("kind", [DeviceClass.B, DeviceClass.C])
def test_command_of_a_device_that_listens_leaves_at_once(kind: DeviceClass) -> None:
    network = Network()
    network.event("status", device_info=DeviceInfo(kind))
    network.now_s = 1_000
    network.command()
    (downlink,) = network.due()
    network.now_s += LORAWAN_HANDED_AGAIN_S
    assert network.due() == [downlink], "again, with its identifier, as no txack came"


def test_join_opens_no_window() -> None:
    network = Network()
    network.command()
    network.event("join")
    assert network.due() == []


@pytest.mark.parametrize(("newest_wins", "left"), [(False, [1, 2, 3]), (True, [3])])
def test_commands_leave_in_order_or_the_newest_alone(newest_wins: bool, left: Sequence[int]) -> None:
    network = Network(newest_wins=newest_wins)
    tickets = [network.command(bytes([number])) for number in (1, 2, 3)]
    sent = []
    for _ in range(3):
        network.event()
        for downlink in network.due():
            sent.append(base64.b64decode(downlink["data"])[0])
            network.event("txack", queue_item_id=downlink["id"])
    assert sent == left
    answers = dict(network.answers())
    assert [answers[ticket] for ticket in tickets] == [
        ForwardOutcome.ACCEPTED if number in left else ForwardOutcome.REJECTED for number in (1, 2, 3)
    ]


def test_newer_command_does_not_replace_one_that_the_network_has() -> None:
    network = Network(newest_wins=True)
    first = network.command(b"1")
    network.event()
    (downlink,) = network.due()
    network.command(b"2")
    assert network.answers() == []
    assert network.due() == [], "the network gets one downlink of a device at a time"
    network.event("txack", queue_item_id=downlink["id"])
    assert network.answers() == [(first, ForwardOutcome.ACCEPTED)]


def test_confirmed_command_ends_with_the_acknowledgement_of_the_device() -> None:
    network = Network(confirmed=True)
    ticket = network.command()
    network.event()
    (downlink,) = network.due()
    assert downlink["confirmed"] is True
    network.event("txack", queue_item_id=downlink["id"])
    assert network.answers() == []
    for _ in range(LORAWAN_HANDED_AGAIN_UPLINKS + 1):
        network.event()
        assert network.due() == [], "the network waits for the device"
    network.event("ack", queue_item_id=downlink["id"], acknowledged=True)
    assert network.answers() == [(ticket, ForwardOutcome.ACCEPTED)]


def test_command_that_a_device_never_acknowledges_is_rejected() -> None:
    network = Network(confirmed=True)
    ticket = network.command()
    for number in range(LORAWAN_TRIES_MAX):
        assert network.answers() == [], number
        network.event()
        (downlink,) = network.due()
        network.event("txack", queue_item_id=downlink["id"])
        network.event("ack", queue_item_id=downlink["id"])
    assert network.answers() == [(ticket, ForwardOutcome.REJECTED)]


def test_command_without_an_answer_is_handed_over_again_with_its_identifier() -> None:
    network = Network()
    network.command()
    network.event()
    (downlink,) = network.due()
    for _ in range(LORAWAN_HANDED_AGAIN_UPLINKS):
        assert network.due() == []
        network.event()
    assert network.due() == [downlink]


@pytest.mark.parametrize(
    ("code", "outcome"),
    [("DOWNLINK_PAYLOAD_SIZE", ForwardOutcome.REJECTED), ("EXPIRED", ForwardOutcome.EXPIRED)],
)
def test_downlink_that_the_network_discards_is_answered(code: str, outcome: ForwardOutcome) -> None:
    network = Network()
    ticket = network.command()
    network.event()
    (downlink,) = network.due()
    network.event("log", code=code, context={"queue_item_id": downlink["id"]})
    assert network.answers() == [(ticket, outcome)]


def test_command_expires_while_it_waits() -> None:
    network = Network()
    ticket = network.command(expiry_s=60)
    network.now_s = 59
    assert network.answers() == []
    network.now_s = 60
    network.event()
    assert network.due() == []
    assert network.answers() == [(ticket, ForwardOutcome.EXPIRED)]


def test_command_that_the_network_has_expires_some_seconds_later() -> None:
    """Its txack may be on its way."""
    network = Network()
    ticket = network.command(expiry_s=60)
    network.event()
    (downlink,) = network.due()
    assert downlink["expiresAt"] == "2026-11-30T00:54:20Z"
    network.now_s = 60 + LORAWAN_EXPIRY_GRACE_S - 1
    assert network.answers() == []
    network.now_s += 1
    assert network.answers() == [(ticket, ForwardOutcome.EXPIRED)]


def test_command_that_was_sent_before_its_end_is_delivered() -> None:
    network = Network()
    ticket = network.command(expiry_s=60)
    network.event()
    (downlink,) = network.due()
    network.now_s = 61
    assert network.answers() == []
    network.event("txack", queue_item_id=downlink["id"])
    assert network.answers() == [(ticket, ForwardOutcome.ACCEPTED)]


def test_router_alone_judges_expiry() -> None:
    """A command of unknown age stays, and ChirpStack gets no time from a clock that may be wrong."""
    network = Network()
    network.clock_good = False
    ticket = network.command(expiry_s=1)
    network.now_s = 1_000
    assert network.answers() == []
    network.event()
    (downlink,) = network.due()
    assert "expiresAt" not in downlink
    network.clock_good = True
    network.now_s += LORAWAN_EXPIRY_CHECK_S
    assert network.answers() == [(ticket, ForwardOutcome.EXPIRED)]


def test_command_whose_answer_came_before_it_is_answered_at_once() -> None:
    """After a break the answer may be faster than the command, which its queue delivers again."""
    network = Network()
    network.command(sequence=7)
    network.event()
    (downlink,) = network.due()
    network.queue.disconnected()
    network.event("txack", queue_item_id=downlink["id"])
    ticket = network.command(sequence=7)
    assert network.answers() == [(ticket, ForwardOutcome.ACCEPTED)]


def _restart(network: Network, *, process: bool, **settings: Any) -> Network:
    """Break the connection; with `process` of a new process, which knows nothing."""
    if not process:
        network.queue.disconnected()
        return network
    return Network(**settings)


@pytest.mark.parametrize("process", [False, True])
@pytest.mark.parametrize("acknowledged", [True, False])
def test_early_txack_of_a_confirmed_command_does_not_deliver_it(process: bool, acknowledged: bool) -> None:
    network = Network(confirmed=True)
    network.command(sequence=7)
    network.event()
    (downlink,) = network.due()
    network = _restart(network, process=process, confirmed=True)
    network.event("txack", queue_item_id=downlink["id"])
    ticket = network.command(sequence=7)
    network.event()
    assert network.due() == [], "the network waits for the device"
    assert network.answers() == []
    network.event("ack", queue_item_id=downlink["id"], acknowledged=acknowledged)
    if acknowledged:
        assert network.answers() == [(ticket, ForwardOutcome.ACCEPTED)]
    else:
        network.event()
        assert network.due() == [downlink]


@pytest.mark.parametrize("process", [False, True])
def test_one_early_refusal_of_a_device_is_one_try(process: bool) -> None:
    network = Network(confirmed=True)
    network.command(sequence=7)
    network.event()
    (downlink,) = network.due()
    network = _restart(network, process=process, confirmed=True)
    network.event("ack", queue_item_id=downlink["id"])
    ticket = network.command(sequence=7)
    assert network.answers() == []
    for _ in range(LORAWAN_TRIES_MAX - 1):
        network.event()
        assert network.due() == [downlink]
        network.event("ack", queue_item_id=downlink["id"])
    assert network.answers() == [(ticket, ForwardOutcome.REJECTED)]


def test_lost_acknowledgement_of_class_a_is_a_try() -> None:
    network = Network(confirmed=True)
    ticket, following = network.command(), network.command()
    for _ in range(LORAWAN_TRIES_MAX):
        network.event()
        (downlink,) = network.due()
        network.event("txack", queue_item_id=downlink["id"])
        for _ in range(LORAWAN_ACKNOWLEDGE_UPLINKS - 1):
            network.event()
            assert network.due() == []
        network.now_s += 1
        network.event(kind="up")
        network.now_s += 1
        network.queue.review()
    assert network.answers() == [(ticket, ForwardOutcome.REJECTED)]
    network.event()
    (downlink,) = network.due()
    network.event("ack", queue_item_id=downlink["id"], acknowledged=True)
    assert network.answers() == [(following, ForwardOutcome.ACCEPTED)]


def test_lost_acknowledgement_of_class_c_is_a_try() -> None:
    network = Network(confirmed=True)
    network.event(device_info=DeviceInfo(DeviceClass.C))
    ticket = network.command()
    for _ in range(LORAWAN_TRIES_MAX):
        (downlink,) = network.due()
        network.event("txack", queue_item_id=downlink["id"], device_info=DeviceInfo(DeviceClass.C))
        network.now_s += LORAWAN_ACKNOWLEDGE_S - 1
        assert network.due() == []
        network.now_s += 1
    assert network.due() == []
    assert network.answers() == [(ticket, ForwardOutcome.REJECTED)]


@pytest.mark.parametrize("kind", [DeviceClass.A, DeviceClass.C])
def test_downlink_that_the_network_does_not_answer_is_rejected(kind: DeviceClass) -> None:
    network = Network()
    ticket = network.command()
    times = 0
    for _ in range(LORAWAN_HAND_OVERS_MAX * LORAWAN_HANDED_AGAIN_UPLINKS + 1):
        network.now_s += LORAWAN_HANDED_AGAIN_S
        network.event(device_info=DeviceInfo(kind))
        times += len(network.due())
    assert times == LORAWAN_HAND_OVERS_MAX
    assert network.answers() == [(ticket, ForwardOutcome.REJECTED)]


def test_dead_device_holds_a_bounded_number_of_commands() -> None:
    network = Network()
    tickets = [network.command() for _ in range(LORAWAN_HELD_PER_DEVICE_MAX + 1)]
    assert network.answers() == [(tickets[-1], ForwardOutcome.REJECTED)]
    assert network.queue.held == LORAWAN_HELD_PER_DEVICE_MAX


def test_event_costs_its_device_alone() -> None:
    network = Network()
    for number in range(1_000):
        network.command(device=f"{number:016x}", expiry_s=3_600)
    network.queue.review()
    network.judged = 0
    network.event(device=f"{7:016x}")
    assert len(network.due()) == 1
    assert network.judged == 0, "no command is looked at before it can have expired"


def test_commands_that_were_due_at_once_leave_in_parts() -> None:
    network = Network()
    for device in (EUI, OTHER):
        network.command(device=device)
        network.event(device=device)
    assert len(network.due(1)) == len(network.due(1)) == 1
    assert network.due(1) == []


def test_known_devices_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downlinks, "LORAWAN_DEVICES_MAX", 3)
    network = Network()
    network.command(device=EUI)
    for number in range(10):
        network.event(device=f"{number:016x}")
    assert len(network.queue._devices) == 3
    network.event(device=EUI)
    assert len(network.due()) == 1, "a device with a command stays"


def test_command_that_the_network_has_does_not_leave_again_after_a_break() -> None:
    network = Network()
    network.command(sequence=7)
    network.event()
    (downlink,) = network.due()
    network.queue.disconnected()
    ticket = network.command(sequence=7)
    network.event()
    assert network.due() == []
    network.event("txack", queue_item_id=downlink["id"])
    assert network.answers() == [(ticket, ForwardOutcome.ACCEPTED)]


def test_events_that_the_broker_has_kept_come_before_the_first_downlink() -> None:
    network = Network(window_s=60.0)
    network.queue.connected()
    network.command()
    network.event()
    assert network.due() == []
    network.now_s = LORAWAN_QUIET_S
    assert len(network.due()) == 1


def test_answers_that_nothing_waits_for_are_bounded() -> None:
    network = Network()
    for number in range(LORAWAN_REMEMBERED_MAX + 5):
        network.event("txack", queue_item_id=str(number))
    assert len(network.queue._remembered) == LORAWAN_REMEMBERED_MAX


def test_devices_do_not_wait_for_each_other() -> None:
    network = Network()
    network.command(device=EUI)
    network.command(device=OTHER)
    network.event(device=OTHER)
    assert [each["devEui"] for each in network.due()] == [OTHER]
    assert network.queue.held == 2


@pytest.mark.parametrize(
    ("payload", "fields"),
    [
        (b'{"data": "AQ=="}', {"data": "AQ==", "fPort": 1}),
        (
            b'{"fPort": 9, "confirmed": true, "object": {"led": 1}}',
            {"object": {"led": 1}, "fPort": 9, "confirmed": True},
        ),
        (b'{"interval_ms": 500}', {"data": base64.b64encode(b'{"interval_ms": 500}').decode(), "fPort": 1}),
        (b"\xff\x00", {"data": "/wA=", "fPort": 1}),
    ],
)
def test_payload_is_bytes_or_names_its_fields(payload: bytes, fields: dict[str, Any]) -> None:
    network = Network()
    network.command(payload)
    network.event()
    (downlink,) = network.due()
    assert {key: value for key, value in downlink.items() if key not in ("id", "devEui")} == fields


@pytest.mark.parametrize(
    ("payload", "where"),
    [
        (b'{"data": "AQ==", "object": {}}', {}),
        (b'{"data": "A"}', {}),
        (b'{"data": "AQ==", "fPort": 224}', {}),
        (b"x" * (LORAWAN_PAYLOAD_BYTES_MAX + 1), {}),
        (b"x", {"address": "application/a/device/pump7/command/down"}),
        (b"x", {"address": "elsewhere"}),
    ],
)
def test_command_that_is_no_downlink_is_rejected(payload: bytes, where: dict[str, Any]) -> None:
    network = Network()
    ticket = network.command(payload, **where)
    assert network.answers() == [(ticket, ForwardOutcome.REJECTED)]


def test_broker_that_refuses_a_downlink_ends_it() -> None:
    network = Network()
    ticket = network.command()
    network.queue.refused(ticket, "no right")
    assert network.answers() == [(ticket, ForwardOutcome.REJECTED)]
    assert network.queue.held == 0


def test_events_are_read_as_chirpstack_writes_them() -> None:
    """The document is an uplink of ChirpStack 4's documentation."""
    document = {
        "deduplicationId": "3ac7e3c4-4401-4b8d-9386-a5c902f9202d",
        "time": "2022-07-18T09:34:15.775023242+00:00",
        "deviceInfo": {
            "tenantId": "52f14cd4-c6f1-4fbd-8f87-4025e1d49242",
            "applicationId": "17c82e96-be03-4f38-aef3-f83d48582d97",
            "devEui": EUI,
            "deviceClassEnabled": "CLASS_C",
            "tags": {"key": "value"},
        },
        "devAddr": "00189440",
        "dr": 1,
        "fPort": 1,
        "data": "qg==",
        "rxInfo": [{"gatewayId": "0016c001f153a14c", "rssi": -36, "snr": 10.5, "metadata": {"region_name": "eu868"}}],
        "txInfo": {"frequency": 868100000, "modulation": {"lora": {"bandwidth": 125000, "spreadingFactor": 11}}},
    }
    event = read_event(json.dumps(document).encode())
    assert event.device_info.device_class_enabled is DeviceClass.C
    assert name_of(f"application/17c82e96-be03-4f38-aef3-f83d48582d97/device/{EUI}/event/up") == (EUI, "up")
    assert name_of(f"application/a/device/{EUI}/command/down") is None


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"\x0a\x24protobuf", "json=true"),
        (b'{"deviceInfo": {"deviceClassEnabled": "CLASS_D"}}', "CLASS_D"),
    ],
)
def test_event_that_cannot_be_read_says_why(payload: bytes, said: str) -> None:
    with pytest.raises(EventError, match=said):
        read_event(payload)
