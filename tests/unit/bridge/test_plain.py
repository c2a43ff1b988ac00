"""Plain messages in both directions: names in annotations, MQTT's properties in AMQP's places, bare messages
unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proton import Message

from bridge import plain
from bridge.amqp_values import Ubyte, Uint, encode
from bridge.message import AMQP, DURABLE, Run
from bridge.plain import Hop, MessageError
from bridge.publish_properties import read
from bridge.sections import HEADER as HEADER_SECTION
from bridge.sections import sections
from edge.broker.message.translation import mqtt_runs

HOP = Hop("gw1", "epoch")


def proton(data: bytes) -> Message:
    """Return a message as the reference implementation decodes it."""
    message = Message()
    message.decode(data)
    return message


def prefixed(text: bytes) -> bytes:
    return len(text).to_bytes(2) + text


class TestFromMqtt:
    def test_name_and_body_are_encoded(self) -> None:
        run = Run("plant/7/temp", "pump", 1 | DURABLE, b"", [b"22.5", b"22.6"], 99)
        first, second = map(proton, plain.messages(HOP, 7, run))
        assert (bytes(first.body), bytes(second.body)) == (b"22.5", b"22.6")
        assert (first.address, first.durable, first.id) == ("plant/7/temp", True, "epoch/7/plant/7/temp")
        assert second.annotations == {
            "x-opt-waypost-gateway": "gw1",
            "x-opt-waypost-epoch": "epoch",
            "x-opt-waypost-address": "plant/7/temp",
            "x-opt-waypost-sequence": 8,
            "x-opt-waypost-device": "pump",
            "x-opt-waypost-received-at": 99,
            "x-opt-waypost-hops": ["gw1"],
        }

    def test_properties_are_translated(self) -> None:
        properties = b"".join(
            (
                b"\x01\x01",
                b"\x02" + (90).to_bytes(4),
                b"\x03" + prefixed(b"application/json"),
                b"\x08" + prefixed(b"reply/here"),
                b"\x09" + prefixed(b"\x00\x01"),
                b"\x26" + prefixed(b"unit") + prefixed("°C".encode()),
            )
        )
        [message] = map(proton, plain.messages(HOP, 0, Run("a", "d", 1, properties, [b"{}"])))
        assert message.content_type == "application/json"
        assert message.reply_to == "reply/here"
        assert bytes(message.correlation_id) == b"\x00\x01"
        assert message.ttl == 90.0
        assert message.properties == {"unit": "°C"}

    @pytest.mark.parametrize("hops", [(), (plain.HOPS_PROPERTY, "far")])
    def test_repeated_user_properties_are_preserved(self, hops: tuple[str, ...]) -> None:
        users = [("k", "1"), ("other", "x"), ("k", "2"), *([hops] if hops else [])]
        properties = b"".join(b"\x26" + prefixed(a.encode()) + prefixed(b.encode()) for a, b in users)
        run = Run("a", "d", 1, properties, [b"first", b"second"])
        for encoded in plain.messages(HOP, 0, run):
            message = proton(encoded)
            assert message.annotations["x-opt-mqtt-user-properties"] == ["k", "1", "other", "x", "k", "2"]
            assert message.properties == {"k": "2", "other": "x"}
            arrived = plain.parse(encoded)
            assert arrived.hops == (*hops[1:], "gw1")
            (translated,) = mqtt_runs(arrived.run)
            came = read(translated.properties).users
            assert came[:3] == (("k", "1"), ("other", "x"), ("k", "2"))

    def test_distinct_user_properties_need_no_list(self) -> None:
        run = Run("a", "d", 1, b"\x26" + prefixed(b"k") + prefixed(b"1"), [b""])
        [message] = map(proton, plain.messages(HOP, 0, run))
        assert "x-opt-mqtt-user-properties" not in message.annotations

    def test_qos_0_is_not_durable(self) -> None:
        [message] = map(proton, plain.messages(HOP, 0, Run("a", "d", 0, b"", [b""])))
        assert not message.durable

    def test_forwarder_that_waits_for_answers_marks_durable(self) -> None:
        [message] = map(proton, plain.messages(HOP, 0, Run("a", "d", 0, b"", [b""]), plain.KEPT))
        assert message.durable

    def test_message_ids_are_short_and_distinct(self) -> None:
        ids = {proton(plain.messages(HOP, 0, Run("x" * 200 + end, "d", 0, b"", [b""]))[0]).id for end in "ab"}
        assert len(ids) == 2
        assert all(len(name) <= plain.MESSAGE_ID_LENGTH_MAX for name in ids)

    @given(st.binary(max_size=40))
    @settings(max_examples=200, deadline=None)
    def test_unreadable_properties_do_not_block_the_message(self, properties: bytes) -> None:
        [message] = plain.messages(HOP, 0, Run("a", "d", 0, properties, [b"body"]))
        assert plain.body_of(message) == b"body"


class TestFromAmqp:
    HEADER = b"\x00\x53\x70" + encode([True])
    BODY = b"\x00\x53\x73" + encode(["id-1"]) + b"\x00\x53\x77" + encode("value") + b"\x00\x53\x78" + encode({})

    def message(self, body: bytes) -> bytes:
        [message] = plain.messages(HOP, 7, Run("queue/1", "sensor", 1 | AMQP, self.HEADER, [body], 5))
        return message

    def test_bare_message_is_unchanged(self) -> None:
        message = self.message(self.BODY)
        assert message.startswith(self.HEADER)
        assert message.endswith(self.BODY)
        assert proton(message).annotations["x-opt-waypost-sequence"] == 7

    @pytest.mark.parametrize("pad", [1, 300])
    def test_own_annotations_remain(self, pad: int) -> None:
        theirs = {"x-opt-other": "v" * pad, "x-opt-waypost-gateway": "old", "x-opt-waypost-hops": ["gw0", "hub"]}
        annotations = b"\x00\x53\x72" + encode(theirs)
        message = self.message(annotations + self.BODY)
        assert message.endswith(self.BODY)
        read = plain.parse(message)
        assert (read.gateway, read.hops) == ("gw1", ("gw0", "hub", "gw1"))
        assert proton(message).annotations["x-opt-other"] == "v" * pad

    @pytest.mark.parametrize(
        "header", [b"", b"\x00\x53\x70\x45", plain.section(HEADER_SECTION, [None, Ubyte(7), Uint(60_000)])]
    )
    def test_forwarder_that_waits_for_answers_marks_durable(self, header: bytes) -> None:
        run = Run("queue/1", "sensor", 1 | AMQP, header, [self.BODY], 5)
        as_it_says, kept = (
            proton(plain.messages(HOP, 7, run, heading)[0]) for heading in (plain.AS_THEY_SAY, plain.KEPT)
        )
        assert (as_it_says.durable, kept.durable) == (False, True)
        assert (kept.priority, kept.ttl) == (as_it_says.priority, as_it_says.ttl)

    @pytest.mark.parametrize(("key", "said"), [("dev", "dev"), ("d" * 200, None)])
    def test_partition_key_replaces_the_one_of_the_message(self, key: str, said: str | None) -> None:
        body = b"\x00\x53\x72" + encode({"x-opt-partition-key": "theirs", "x-opt-other": 1}) + self.BODY
        run = Run("queue/1", "sensor", 1 | AMQP, b"", [body], 5)
        [message] = plain.messages(HOP, 7, run, plain.Heading(partition_key=key))
        annotations = proton(message).annotations
        assert len(annotations["x-opt-partition-key"]) <= plain.PARTITION_KEY_LENGTH_MAX
        assert annotations["x-opt-partition-key"] == (said or annotations["x-opt-partition-key"])
        assert (annotations["x-opt-other"], annotations["x-opt-waypost-sequence"]) == (1, 7)
        assert plain.parse(message).hops == ("gw1",)

    def test_invalid_message_is_passed_on(self) -> None:
        assert self.message(b"junk").endswith(b"junk")


class TestParse:
    def test_message_survives_a_round_trip(self) -> None:
        body = TestFromAmqp.BODY
        [message] = plain.messages(HOP, 7, Run("queue/1", "sensor", 1 | AMQP, TestFromAmqp.HEADER, [body], 5))
        read = plain.parse(message)
        assert (read.gateway, read.epoch, read.sequence) == ("gw1", "epoch", 7)
        run = read.run
        assert (run.address, run.device, run.received_at) == ("queue/1", "sensor", 5)
        assert run.flags == AMQP | DURABLE | 1
        assert run.properties == TestFromAmqp.HEADER
        assert run.bodies[0].endswith(body)

    def test_foreign_message_is_parsed(self) -> None:
        message = Message(body="hello", address="plant")
        read = plain.parse(message.encode())
        assert (read.gateway, read.epoch, read.sequence, read.hops) == (None, None, None, ())
        assert read.run.address == "plant"

    @given(st.binary(max_size=60))
    @settings(max_examples=200, deadline=None)
    def test_garbage_is_a_message_error_or_a_message(self, data: bytes) -> None:
        for reader in (plain.parse, plain.body_of):
            try:
                reader(data)
            except MessageError:
                continue

    def test_every_truncation_is_an_error_or_a_message(self) -> None:
        [message] = plain.messages(HOP, 7, Run("a", "d", 1, b"", [b"body"], 5))
        boundaries = {section.start for section in sections(message)} | {len(message)}
        for length in range(len(message)):
            if length not in boundaries or length == 0:
                with pytest.raises(MessageError):
                    plain.parse(message[:length])

    @pytest.mark.parametrize("value", [5, "text", [1], {"a": 1}, None])
    @pytest.mark.parametrize("section", [0x70, 0x72, 0x73])
    def test_sections_of_the_wrong_type_are_skipped(self, section: int, value: object) -> None:
        message = bytes((0, 0x53, section)) + encode(value) + plain.data_section(b"x")
        assert plain.parse(message).sequence is None
