"""The machine on byte streams: the same events however they are split, the same as the packets say, and no crash."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from edge.broker.limits import Limits
from edge.broker.message.mqtt_properties import encode_run
from edge.broker.mqtt import events, packets
from edge.broker.mqtt.connection import Connection
from edge.broker.mqtt.state import SessionState
from tests.property.mqtt.strategies import conversations
from tests.unit.mqtt.cases import CASES


class Session:
    """Accepts, and acknowledges what came at the end of each turn; flattens runs to messages."""

    def __init__(self, *, limits: Limits | None = None, acknowledges: bool = True) -> None:
        self.connection = Connection(limits or Limits(), 0.0)
        self.flat: list[Any] = []
        self.output = b""
        self.unanswered: list[tuple[int, list[int]]] = []
        self._acknowledges = acknowledges

    def feed(self, data: bytes) -> None:
        self.take(self.connection.receive_data(data, 0.0))
        self.output += self.connection.data_to_send()

    def take(self, found: Any) -> None:
        for event in found:
            match event:
                case events.Connect():
                    self.flat.append(event)
                    self.take(self.connection.accept(SessionState(), False, assigned_client_id="assigned"))
                case events.Published(run, ids):
                    for index, body in enumerate(run.bodies):
                        packet_id = ids[index] if ids else 0
                        self.flat.append((run.address, run.device, run.flags, run.properties, body, packet_id))
                    if ids and self._acknowledges:
                        self.unanswered.append((run.qos, ids))
                case events.Released(ids):
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
        assert [type(event) for event in self.flat].count(events.Disconnected) == 1
        assert isinstance(self.flat[-1], events.Disconnected)


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
def test_byte_by_byte(conversation: tuple[int, list[packets.Packet]]) -> None:
    version, steps = conversation
    data = b"".join(packet.encode(version) for packet in steps)[:600]
    whole, parts = run(data, []), run(data, list(range(len(data))))
    assert whole.flat == parts.flat
    assert whole.output == parts.output


@settings(max_examples=80, deadline=None)
@given(conversations())
def test_hot_path_says_what_the_packets_say(conversation: tuple[int, list[packets.Packet]]) -> None:
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


@settings(max_examples=60, deadline=None)
@given(conversations(), st.sampled_from(CASES), st.data())
def test_a_case_of_the_table_anywhere(conversation: Any, case: Any, data: Any) -> None:
    """Good and bad packets between others: one Disconnected, last; and splitting changes nothing here either."""
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
