"""The machine on byte streams: events do not depend on the splitting, and equal those of the packets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.broker.limits import Limits
from edge.broker.message.mqtt_properties import encode_run
from edge.broker.mqtt import events, packets
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.inbound import PublishReceiver
from edge.broker.mqtt.state import SessionState
from tests.property.mqtt.strategies import conversations, encoded_publishes
from tests.support.machines import take_all
from tests.unit.mqtt.cases import CASES


class Session:
    """Session that accepts and acknowledges messages at the end of each turn; flattens runs to messages."""

    def __init__(self, *, limits: Limits | None = None, acknowledges: bool = True) -> None:
        self.connection = MqttConnection(limits or Limits(), 0.0)
        self.flat: list[Any] = []
        self.output = b""
        self.unanswered: list[tuple[int, list[int]]] = []
        self._acknowledges = acknowledges

    def feed(self, data: bytes) -> None:
        self.take(take_all(self.connection, data, 0.0))
        self.output += self.connection.data_to_send()

    def take(self, found: Any) -> None:
        for event in found:
            match event:
                case events.ConnectEvent():
                    self.flat.append(event)
                    self.take(self.connection.accept(SessionState(), False, assigned_client_id="assigned"))
                case events.PublishEvent(run, ids):
                    for index, body in enumerate(run.bodies):
                        packet_id = ids[index] if ids else 0
                        self.flat.append((run.address, run.device, run.flags, run.properties, body, packet_id))
                    if ids and self._acknowledges:
                        self.unanswered.append((run.qos, ids))
                case events.PubRelEvent(ids):
                    self.flat.extend(("released", packet_id) for packet_id in ids)
                case _:
                    self.flat.append(event)

    def answer(self) -> None:
        for qos, ids in self.unanswered:
            self.connection.acknowledge(qos, ids)
        self.unanswered.clear()
        self.output += self.connection.data_to_send()

    def end(self) -> None:
        self.take(self.connection.receive_eof(0.0))
        assert [type(event) for event in self.flat].count(events.DisconnectedEvent) == 1
        assert isinstance(self.flat[-1], events.DisconnectedEvent)


def run(data: bytes, cuts: list[int], **options: Any) -> Session:
    session = Session(**options)
    start = 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        session.feed(data[start:cut])
        start = cut
    session.answer()
    session.end()
    return session


@settings(max_examples=80, deadline=None)
@given(conversations(), st.lists(st.integers(0, 100_000), max_size=6))
def test_splitting_changes_nothing(conversation: tuple[int, list[packets.Packet]], cuts: list[int]) -> None:
    version, steps = conversation
    data = b"".join(packet.encode(version) for packet in steps)
    whole, parts = run(data, []), run(data, cuts)
    assert whole.flat == parts.flat
    assert whole.output == parts.output


@settings(max_examples=40, deadline=None)
@given(conversations())
def test_single_bytes_change_nothing(conversation: tuple[int, list[packets.Packet]]) -> None:
    version, steps = conversation
    data = b"".join(packet.encode(version) for packet in steps)[:600]
    whole, parts = run(data, []), run(data, list(range(len(data))))
    assert whole.flat == parts.flat
    assert whole.output == parts.output


@settings(max_examples=80, deadline=None)
@given(conversations())
def test_hot_path_equals_the_packets(conversation: tuple[int, list[packets.Packet]]) -> None:
    version, steps = conversation
    session = run(b"".join(packet.encode(version) for packet in steps), [])
    expected: list[tuple[str, int, bool, bytes, bytes, int]] = []
    received: set[int] = set()
    for packet in steps:
        if isinstance(packet, packets.Publish):
            if packet.qos == 2:
                if packet.packet_id in received:
                    continue
                received.add(packet.packet_id)
            block = encode_run(packet.properties)
            expected.append((packet.topic, packet.qos, packet.retain, block, packet.payload, packet.packet_id))
    found = [
        (each[0], each[2] & 3, bool(each[2] & 4), *each[3:])
        for each in session.flat
        if isinstance(each, tuple) and len(each) == 6
    ]
    assert found == expected
    assert not session.connection.data_to_send()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_repeated_message_is_read_like_the_first(data: Any) -> None:
    """`PublishReceiver.read_known` skips checks and changes nothing, for repeated good and damaged packets."""
    version = data.draw(st.sampled_from((3, 4, 5)))
    pool = data.draw(st.lists(encoded_publishes(version), min_size=1, max_size=4))
    steps = data.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=30))
    stream = bytearray(b"".join(steps))
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 255)), max_size=2)):
        stream[at % len(stream)] = value
    cuts = data.draw(st.lists(st.integers(0, 10_000), max_size=4))
    limits = Limits(packet_bytes_max=data.draw(st.sampled_from((300, 1 << 20))), receive_maximum=12)
    read_with_and_without(packets.Connect("c", version).encode() + stream, cuts, limits)


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize(
    ("payload", "packet_id"), [(b"", 0), (bytes(400), 2), (b"", 2)], ids=["identifier 0", "too large", "good"]
)
def test_known_topic_is_still_checked(version: int, payload: bytes, packet_id: int) -> None:
    known, then = (packets.Publish("a", b"x", 1, packet_id=1), packets.Publish("a", payload, 1, packet_id=packet_id))
    first = packets.Connect("c", version).encode() + known.encode(version)
    stream = first + known.encode(version) + then.encode(version)
    session = read_with_and_without(stream, [len(first)], Limits(packet_bytes_max=300))
    assert len(session.flat) == 4 + (packet_id == 2 and not payload)


def test_packet_of_type_0_is_never_known() -> None:
    stream = packets.Connect("c", 4).encode(4) + packets.Publish("a", b"x").encode(4) + b"\x00\x04\x00\x01ax"
    ended = read_with_and_without(stream, [], Limits()).flat[-1]
    assert isinstance(ended, events.DisconnectedEvent)
    assert ended.reason == "packet type 0"


def read_with_and_without(stream: bytes, cuts: list[int], limits: Limits) -> Session:
    """Read a stream with and without `PublishReceiver.read_known`, and compare the events."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PublishReceiver, "read_known", lambda _self, _data, pos, _events: pos)
        unknown = run(stream, cuts, limits=limits)
    known = run(stream, cuts, limits=limits)
    assert known.flat == unknown.flat
    assert known.output == unknown.output
    assert known.connection.receiver.outstanding == unknown.connection.receiver.outstanding
    return known


@settings(max_examples=60, deadline=None)
@given(conversations(), st.sampled_from(CASES), st.data())
def test_case_of_the_table_is_handled_at_any_position(conversation: Any, case: Any, data: Any) -> None:
    """Good and bad packets between others give one Disconnected, last; and splitting changes nothing here either."""
    version, steps = conversation
    place = data.draw(st.integers(1, len(steps)))
    encoded = [packet.encode(version) for packet in steps]
    stream = b"".join([*encoded[:place], case.data, *encoded[place:]])
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=3))
    whole, parts = run(stream, []), run(stream, cuts)
    assert whole.flat == parts.flat
    assert whole.output == parts.output


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([None, 3, 4, 5]), st.lists(st.integers(0, 300), max_size=3))
def test_random_bytes_never_raise(data: bytes, version: int | None, cuts: list[int]) -> None:
    opening = packets.Connect("c", version).encode() if version else b""
    run(opening + data, cuts, limits=Limits(packet_bytes_max=1_000))


@settings(max_examples=80, deadline=None)
@given(conversations(), st.data())
def test_damaged_streams_never_raise(conversation: tuple[int, list[packets.Packet]], data: Any) -> None:
    version, steps = conversation
    stream = bytearray(b"".join(packet.encode(version) for packet in steps))
    for _ in range(data.draw(st.integers(1, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=3))
    whole, parts = run(bytes(stream), []), run(bytes(stream), cuts)
    assert whole.flat == parts.flat
