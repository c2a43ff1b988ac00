"""Packets against the table of cases, both ways."""

from __future__ import annotations

import time

import pytest

from edge.broker.limits import ADDRESS_BYTES_MAX, USER_PROPERTIES_MAX
from edge.broker.message.mqtt_errors import ProtocolError, RemoteError
from edge.broker.message.mqtt_properties import Properties, decode, decode_run, split_publish, subscription_identifiers
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.message.mqtt_wire import PacketReader, PacketType, encode_variable_byte_integer, read_fixed_header
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.names import check_topic_name
from tests.unit.mqtt.cases import BAD, CASES, GOOD, Case

GOOD_VERSIONS = [pytest.param(case, v, id=f"{case.name}-{v}") for case in GOOD for v in case.versions]
BAD_VERSIONS = [pytest.param(case, v, id=f"{case.name}-{v}") for case in BAD for v in case.versions]


def body_of(data: bytes) -> bytes:
    header = read_fixed_header(data, 0)
    assert header is not None
    assert header[0] + header[1] == len(data), "the table has a wrong remaining length"
    return data[header[0] :]


@pytest.mark.parametrize(("case", "version"), GOOD_VERSIONS)
def test_packet_is_decoded(case: Case, version: int) -> None:
    assert p.decode(case.data[0], body_of(case.data), version) == case.packet


@pytest.mark.parametrize(("case", "version"), GOOD_VERSIONS)
def test_packet_is_encoded(case: Case, version: int) -> None:
    assert case.packet is not None
    encoded = case.packet.encode(version)
    assert (encoded == case.data) is case.exact
    assert p.decode(encoded[0], body_of(encoded), version) == case.packet


@pytest.mark.parametrize(("case", "version"), BAD_VERSIONS)
def test_invalid_packet_raises_its_error(case: Case, version: int) -> None:
    assert case.error is not None
    with pytest.raises(case.error) as caught:
        p.decode(case.data[0], body_of(case.data), version)
    assert type(caught.value) is case.error
    assert caught.value.reason is (case.reason or case.error.reason)


def test_truncated_packet_is_malformed() -> None:
    """The remaining length matches the bytes; the content ends too early."""
    for case in GOOD:
        body = body_of(case.data)
        for version in case.versions:
            for end in range(len(body)):
                try:
                    p.decode(case.data[0], body[:end], version)
                except RemoteError:
                    continue
                kind = case.data[0] >> 4
                whole_elsewhere = {
                    PacketType.PUBLISH,  # a shorter payload
                    PacketType.SUBSCRIBE,  # fewer filters
                    PacketType.UNSUBSCRIBE,
                    PacketType.SUBACK,  # fewer codes
                    PacketType.UNSUBACK,
                    PacketType.CONNECT,  # MQTT 3.1: user name and password may be missing
                }
                assert kind in whole_elsewhere or version == 5, (case.name, version, end)


def test_names_of_cases_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))


class TestNotEncodable:
    def test_connack_without_a_return_code_raises(self) -> None:
        with pytest.raises(ValueError, match="no return code"):
            p.ConnAck(reason=ReasonCode.PACKET_TOO_LARGE).encode(4)

    def test_auth_before_mqtt_5_raises(self) -> None:
        with pytest.raises(ValueError, match="MQTT 5"):
            p.Auth().encode(4)

    def test_property_of_another_packet_raises(self) -> None:
        with pytest.raises(ValueError, match="topic_alias"):
            p.PubAck(1, properties=Properties(topic_alias=1)).encode(5)

    def test_string_with_u0000_raises(self) -> None:
        with pytest.raises(ValueError, match=r"U\+0000"):
            p.Publish("a\0").encode(4)

    def test_topic_of_more_than_65_535_bytes_raises(self) -> None:
        with pytest.raises(ValueError, match="two byte length"):
            p.Publish("a" * 65_536).encode(4)


class TestBounds:
    """Bounds of the work for one packet of any size."""

    def test_user_properties_are_bounded(self) -> None:
        def block(count: int) -> bytes:
            raw = subscription_identifiers((7,)) + b"\x26\0\1a\0\1b" * count
            return encode_variable_byte_integer(len(raw)) + raw

        found = decode(PacketReader(block(USER_PROPERTIES_MAX)), PacketType.SUBSCRIBE)
        assert len(found.user_property) == USER_PROPERTIES_MAX
        with pytest.raises(ProtocolError) as error:
            decode(PacketReader(block(USER_PROPERTIES_MAX + 1)), PacketType.SUBSCRIBE)
        assert error.value.reason == ReasonCode.QUOTA_EXCEEDED

    def test_user_properties_of_a_publish_are_bounded(self) -> None:
        raw = b"\x26\0\1a\0\1b" * (USER_PROPERTIES_MAX + 1)
        with pytest.raises(ProtocolError):
            split_publish(PacketReader(encode_variable_byte_integer(len(raw)) + raw))
        assert len(decode_run(raw).user_property) == USER_PROPERTIES_MAX + 1, "what is stored stays readable"

    def test_many_stored_properties_are_read_quickly(self) -> None:
        """Decoding once copied each property for each later one."""
        raw = b"\x26\0\0\0\0" * 100_000
        begin = time.process_time()
        assert len(decode_run(raw).user_property) == 100_000
        assert time.process_time() - begin < 2

    def test_topic_name_bytes_are_bounded(self) -> None:
        check_topic_name("ü" * (ADDRESS_BYTES_MAX // 2), 9)
        for name in ("ü" * (ADDRESS_BYTES_MAX // 2 + 1), "a" * (ADDRESS_BYTES_MAX + 1)):
            with pytest.raises(ProtocolError) as error:
                check_topic_name(name, 9)
            assert error.value.reason == ReasonCode.TOPIC_NAME_INVALID
