"""Messages that expand, at a real gateway: their expansion is bounded, and other clients do not wait.

Their subscriber gets each of them, in order; messages that are too large to translate arrive untranslated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from bridge.amqp_values import encode
from bridge.engine import DeliveryState
from bridge.limits import SECTIONS_MAX, VALUES_MAX
from edge.broker.limits import ADDRESS_BYTES_MAX, USER_PROPERTIES_MAX
from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.message.mqtt_wire import encode_variable_byte_integer
from edge.broker.message.translation import AMQP_MESSAGE
from edge.broker.mqtt import packets
from tests.fault.hostile.figures import Figures
from tests.fault.hostile.watch import await_memory, watched
from tests.support.amqp_sender import AmqpSender
from tests.support.hostile import GROWTH_MIB_MAX, Raw, unharmed
from tests.support.processes import Waypost, resident_mib

RETURNED_S = 60.0
FLOOR_S = 0.5
"""Floor for the p99 of another client, with two busy cores: a message of 16 MiB is copied in one piece."""
RESIDENT_MIB_MAX = 256.0
"""The guarantee for any attack."""
ROUND_TRIP_S_MAX = 3.0
"""Longest round trip of another client, with two cores busy with other tests.

Alone it is some 30 ms, and it once was 48 s.
"""


@pytest.fixture(scope="module")
def before_mib(gateway: Waypost) -> float:
    return resident_mib(gateway.pid)


@pytest.fixture(autouse=True)
def memory_returned(gateway: Waypost, before_mib: float) -> Iterator[None]:
    """Check that each attack, and all together, return their memory."""
    yield
    await_memory(gateway.pid, before_mib, kept_mib=GROWTH_MIB_MAX, timeout_s=RETURNED_S)


def lists(count: int) -> bytes:
    """Return an AMQP message with a list of this many empty lists."""
    return b"\0\x53\x77\xd0" + (count + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + b"\x45" * count


def received(client: Raw, count: int) -> list[packets.Publish]:
    """Return the next messages."""
    found: list[packets.Publish] = []
    while len(found) < count:
        packet = client.receive()
        assert packet is not None
        if isinstance(packet, packets.Publish):
            found.append(packet)
    return found


@contextlib.contextmanager
def attacked(gateway: Waypost) -> Iterator[None]:
    with unharmed(gateway, round_trip_s_max=ROUND_TRIP_S_MAX, resident_mib_max=RESIDENT_MIB_MAX):
        yield


@pytest.mark.parametrize("mib", [2, 15])
def test_large_list_of_empty_lists_does_not_block_the_loop(
    gateway: Waypost, control: Waypost, figures: Callable[[Figures], None], mib: int
) -> None:
    """A large list of empty lists does not block the loop, which it once did for 48 s."""
    body, attack = lists(mib << 20), f"a list of {mib} Mi empty lists"
    with (
        attacked(gateway),
        watched(gateway, control, attack, figures, floor_s=FLOOR_S, grown_mib=GROWTH_MIB_MAX),
        Raw(gateway, 5).connect("reader") as reader,
        AmqpSender(gateway.port("amqp"), "writer", "topic/a") as sender,
    ):
        reader.subscribe("topic/a")
        assert sender.send(body, lists(3)).settled() == [DeliveryState.ACCEPTED] * 2
        large, small = received(reader, 2)
    assert large.payload == body
    assert large.properties.content_type == AMQP_MESSAGE
    assert small.payload == b"[[],[],[]]"


def test_many_lists_reach_many_subscribers_once_in_order(gateway: Waypost) -> None:
    """Lists up to the limit of translation reach ten subscribers in parts, once and in order.

    They have a million values in all.
    """
    count, readers = 250, 10
    bodies = [b"\0\x53\x77" + encode([i, *[[]] * (VALUES_MAX - 1)]) for i in range(count)]
    with attacked(gateway):
        clients = [Raw(gateway).connect(f"reader-{i}") for i in range(readers)]
        for i, client in enumerate(clients):
            client.subscribe("topic/b", qos=i % 2)
        with AmqpSender(gateway.port("amqp"), "writer", "topic/b") as sender:
            assert sender.send(*bodies).settled() == [DeliveryState.ACCEPTED] * count
            for client in clients:
                numbers = [int(packet.payload[1:].partition(b",")[0]) for packet in received(client, count)]
                assert numbers == list(range(count))
                client.close()


def test_long_topic_name_behind_alias_is_not_expanded(
    gateway: Waypost, control: Waypost, figures: Callable[[Figures], None]
) -> None:
    """A long topic name behind an alias is not written out for each message.

    It would expand 100 000 times for each of five clients that do not read: 500 MB.
    """
    name = "topic/" + "x" * (ADDRESS_BYTES_MAX - 6)
    first = packets.Publish(name, b"", properties=Properties(topic_alias=1)).encode(5)
    others = packets.Publish("", b"", properties=Properties(topic_alias=1)).encode(5)
    with (
        attacked(gateway),
        watched(gateway, control, "a long topic behind an alias", figures, floor_s=FLOOR_S, grown_mib=GROWTH_MIB_MAX),
    ):
        readers = [Raw(gateway, receive_bytes=4096).connect(f"deaf-{i}") for i in range(5)]
        for reader in readers:
            reader.subscribe("topic/#")
        with Raw(gateway, 5).connect("writer") as writer:
            writer.send(first + others * 100_000, packets.PingReq())
            while not isinstance(writer.receive(), packets.PingResp):
                pass
        for reader in readers:
            reader.close()


def publish(topic: bytes, user_properties: int) -> bytes:
    """Return a PUBLISH of QoS 1 with this many empty User Properties."""
    block = encode_variable_byte_integer(5 * user_properties) + b"\x26\0\0\0\0" * user_properties
    content = len(topic).to_bytes(2, "big") + topic + b"\0\1" + block
    return b"\x32" + encode_variable_byte_integer(len(content)) + content


@pytest.mark.parametrize(
    ("topic", "user_properties", "reason"),
    [
        (b"t" * (ADDRESS_BYTES_MAX + 1), 0, ReasonCode.TOPIC_NAME_INVALID),
        (b"t", USER_PROPERTIES_MAX + 1, ReasonCode.QUOTA_EXCEEDED),
        (b"t", 3_000_000, ReasonCode.QUOTA_EXCEEDED),
    ],
)
def test_message_above_limits_is_refused_with_reason(
    gateway: Waypost, topic: bytes, user_properties: int, reason: ReasonCode
) -> None:
    """The gateway refuses the message with the protocol's own reason, and without an acknowledgement."""
    with attacked(gateway), Raw(gateway, 5).connect("writer") as writer:
        writer.send(publish(topic, user_properties))
        answer = writer.receive()
    assert isinstance(answer, packets.Disconnect)
    assert answer.reason is reason


def test_message_with_too_many_sections_is_rejected(gateway: Waypost) -> None:
    """A message of 3 million empty data sections is rejected; allowed numbers of sections are joined."""
    section = b"\0\x53\x75\xa0\0"
    with (
        attacked(gateway),
        Raw(gateway, 5).connect("reader") as reader,
        AmqpSender(gateway.port("amqp"), "writer", "topic/c") as sender,
    ):
        reader.subscribe("topic/c")
        assert sender.send(section * 3_000_000).settled() == [DeliveryState.REJECTED]
        assert sender.send(section * SECTIONS_MAX).settled() == [DeliveryState.REJECTED, DeliveryState.ACCEPTED]
        assert received(reader, 1)[0].payload == b""


def test_message_with_too_many_properties_is_rejected(gateway: Waypost) -> None:
    """A message with too many properties is rejected on arrival, with a reason."""
    fields = lists(1 << 20)[3:]
    message = b"\0\x53\x73" + fields + b"\0\x53\x75\xa0\1x"
    with attacked(gateway), AmqpSender(gateway.port("amqp"), "writer", "topic/d") as sender:
        assert sender.send(message).settled() == [DeliveryState.REJECTED]


def test_restart_frees_the_memory(gateway: Waypost, before_mib: float) -> None:
    """A restart frees the memory of all attacks; this test runs last, with the store that the others left."""
    assert gateway.stop() == 0
    gateway.start()
    with Raw(gateway, 5).connect("after") as client:
        assert client.subscribe("topic/#") == [0]
    assert resident_mib(gateway.pid) < before_mib + GROWTH_MIB_MAX
