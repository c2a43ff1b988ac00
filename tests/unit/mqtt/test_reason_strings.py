"""Reason Strings (MQTT 5 sections 3.4.2.2.2, 3.5.2.2.2, 3.9.2.1.2, 3.14.2.2.3) are sent where they fit, and only
there."""

from __future__ import annotations

import pytest

from edge.broker.limits import Limits
from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode as R
from edge.broker.mqtt import packets
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.limits import REASON_STRING_CHARACTERS_MAX
from tests.support.mqtt_connection import Opened, split

TEXT = "the store is full, says the test"


def opened(**properties: int) -> Opened:
    return Opened(5, packets.Connect("c", 5, properties=Properties(**properties)))


def answers(client: Opened, text: str = TEXT) -> list[packets.Packet]:
    """Return PUBACK, PUBREC and SUBACK with an error."""
    client.send(packets.Publish("t", b"", 1, packet_id=1), packets.Publish("t", b"", 2, packet_id=2))
    client.connection.acknowledge(1, [1], R.QUOTA_EXCEEDED, text)
    client.connection.acknowledge(2, [2], R.QUOTA_EXCEEDED, text)
    client.connection.subscribed(3, [0x97, 1], text)
    return client.sent()


def words(found: list[packets.Packet]) -> list[str | None]:
    return [packet.properties.reason_string for packet in found]  # type: ignore[attr-defined]


def test_reason_string_is_sent() -> None:
    found = answers(opened())
    assert [type(packet) for packet in found] == [packets.PubAck, packets.PubRec, packets.SubAck]
    assert words(found) == [TEXT] * 3


def test_reason_string_is_not_sent_unless_requested() -> None:
    client = opened(request_problem_information=0)
    assert words(answers(client)) == [None] * 3
    client.send(b"\x36\x00")
    assert words(client.sent()) == [None]


@pytest.mark.parametrize("version", [3, 4])
def test_reason_string_is_not_sent_before_mqtt_5(version: int) -> None:
    client = Opened(version)
    client.connection.subscribed(3, [0x97], TEXT)
    assert client.sent() == [packets.SubAck(3, (0x80 if version == 4 else 0,))]


@pytest.mark.parametrize("size", range(40, 60))
def test_reason_string_stays_within_the_maximum_packet_size(size: int) -> None:
    """A packet above the client's maximum goes without its Reason String [MQTT-3.4.2-2] [MQTT-3.9.2-1]
    [MQTT-3.14.2-3]."""
    client = opened(maximum_packet_size=max(size, 40))
    client.connection.data_to_send()
    client.send(packets.Publish("t", b"", 1, packet_id=1))
    client.connection.acknowledge(1, [1], R.QUOTA_EXCEEDED, TEXT)
    data = client.connection.data_to_send()
    assert 0 < len(data) <= size
    client.connection.subscribed(3, [0x97] * 4, TEXT)
    data = client.connection.data_to_send()
    assert 0 < len(data) <= size
    client.send(b"\x36\x00")
    assert 0 < len(client.connection.data_to_send()) <= size


def test_reason_string_is_sent_up_to_exactly_the_maximum() -> None:
    assert words(answers(opened(maximum_packet_size=48)))[0] == TEXT
    assert words(answers(opened(maximum_packet_size=40)))[0] is None


def test_long_text_is_cut() -> None:
    for letter in ("x", "\N{SNOWMAN}"):
        assert words(answers(opened(), letter * 70_000)) == [letter * REASON_STRING_CHARACTERS_MAX] * 3


def test_refused_connect_has_a_reason_string() -> None:
    for version in (4, 5):
        connection = MqttConnection(Limits(), 0.0)
        connection.receive_data(packets.Connect("c", version).encode(), 0.0)
        connection.refuse(R.QUOTA_EXCEEDED, TEXT)
        (answer,) = split(connection.data_to_send(), version)
        assert isinstance(answer, packets.ConnAck)
        assert answer.reason is (R.QUOTA_EXCEEDED if version == 5 else R.SERVER_UNAVAILABLE)
        assert answer.properties.reason_string == (TEXT if version == 5 else None)
