"""Packets survive a round trip, handle truncation, and read the same on the hot path as through the packet structs."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from edge.broker.limits import Limits
from edge.broker.message.mqtt_errors import RemoteError
from edge.broker.message.mqtt_wire import PacketReader, encode_variable_byte_integer, read_fixed_header
from edge.broker.mqtt import packets
from edge.broker.mqtt.acknowledgements import encode_acknowledgements, encode_packet_ids, read_packet_ids
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.names import check_topic_filter
from edge.broker.mqtt.state import SessionState
from tests.property.mqtt.strategies import any_packet, packet_ids, versions
from tests.support.mqtt_connection import split

any_versioned = versions.flatmap(lambda version: st.tuples(st.just(version), any_packet(version)))


@settings(max_examples=100, deadline=None)
@given(any_versioned)
def test_packet_survives_a_round_trip(versioned: tuple[int, packets.Packet]) -> None:
    version, packet = versioned
    assert split(packet.encode(version), version) == [packet]


@settings(max_examples=60, deadline=None)
@given(any_versioned)
def test_truncated_packet_is_awaited(versioned: tuple[int, packets.Packet]) -> None:
    """The beginning of any packet alone neither raises, nor emits, nor closes an open connection."""
    version, packet = versioned
    data = packet.encode(version)
    opening = packets.Connect("c", version).encode()
    for end in range(len(data)):
        connection = MqttConnection(Limits(), 0.0)
        assert len(connection.receive_data(opening, 0.0)) == 1
        assert not connection.accept(SessionState(), False)
        connection.data_to_send()
        assert not connection.receive_data(data[:end], 0.0)
        assert not connection.closed
        assert connection.data_to_send() == b""


@settings(max_examples=60, deadline=None)
@given(any_versioned)
def test_truncated_first_packet_is_awaited(versioned: tuple[int, packets.Packet]) -> None:
    """Only a truncated CONNECT is waited for at the start."""
    version, packet = versioned
    data = packet.encode(version)
    for end in range(len(data)):
        connection = MqttConnection(Limits(), 0.0)
        found = connection.receive_data(data[:end], 0.0)
        assert connection.closed is (end > 0 and not isinstance(packet, packets.Connect))
        assert len(found) == connection.closed


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 15), st.integers(0, 15), st.binary(max_size=60), versions)
def test_random_content_raises_only_remote_errors(kind: int, flags: int, body: bytes, version: int) -> None:
    try:
        packet = packets.decode(kind << 4 | flags, body, version)
    except RemoteError:
        pass
    else:
        own = packet.version if isinstance(packet, packets.Connect) else version
        encoded = packet.encode(own)
        header = read_fixed_header(encoded, 0)
        assert header is not None
        assert packets.decode(encoded[0], encoded[header[0] :], own) == packet


@given(st.integers(0, 268_435_455))
def test_variable_byte_integer_survives_a_round_trip(value: int) -> None:
    encoded = encode_variable_byte_integer(value)
    assert PacketReader(encoded).variable_byte_integer() == value
    assert read_fixed_header(b"\x30" + encoded, 0) == (1 + len(encoded), value, True)
    assert len(encoded) == max(1, -(-value.bit_length() // 7))


@given(st.lists(packet_ids, max_size=30), st.sampled_from([0x40, 0x50, 0x62, 0x70]))
def test_series_of_acknowledgements_survive_a_round_trip(ids: list[int], first: int) -> None:
    """Acknowledgements that C makes in one call equal the single packets."""
    data = encode_acknowledgements(first, ids)
    assert data == b"".join(bytes((first, 2)) + packet_id.to_bytes(2, "big") for packet_id in ids)
    assert encode_packet_ids(ids) == [packet_id.to_bytes(2, "big") for packet_id in ids]
    if ids:
        read: list[int] = []
        assert read_packet_ids(data + b"\x30\x00" + data, 0, read) == len(data)
        assert read == ids


@given(st.text(st.sampled_from("a+#/$"), min_size=1, max_size=8))
def test_topic_filters_match_the_definition(topic_filter: str) -> None:
    levels = topic_filter.split("/")
    good = all(
        (level == "#" and index == len(levels) - 1) or level == "+" or not set(level) & set("+#")
        for index, level in enumerate(levels)
    )
    try:
        check_topic_filter(topic_filter, 100)
    except RemoteError:
        assert not good
    else:
        assert good
