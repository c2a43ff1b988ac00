"""Malicious data of a peer: sizes, garbage, filters and topics by the thousand.

The gateway answers as the standard requires, and other clients notice nothing (`ROUND_TRIP_S_MAX`).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator

import pytest

from bridge.amqp_values import Uint
from edge.broker.limits import ADDRESS_BYTES_MAX, SUBSCRIPTIONS_PER_SESSION_MAX, TOPIC_LEVELS_MAX, Limits
from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.message.mqtt_wire import encode_variable_byte_integer
from edge.broker.mqtt import packets
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.mqtt.limits import CONNECT_BYTES_MAX, TOPIC_ALIAS_MAXIMUM
from tests.support.amqp_client import amqp_client
from tests.support.frames import (
    ATTACH,
    BEGIN,
    RECEIVER,
    ROOM,
    SENDER,
    SOURCE,
    TARGET,
    TRANSFER,
    FramePeer,
    frame,
    terminus,
)
from tests.support.hostile import Raw, unharmed
from tests.support.processes import Waypost, edge, resident_mib

ROUND_TRIP_S_MAX = 5.0
RESIDENT_MIB_MAX = 100.0
"""Limit of a gateway that starts at 35 MiB."""
RESIDENT_AFTER_ALL_MIB_MAX = 200.0
"""Limit of one gateway after everything in this module.

No attack may add to the peak of the largest ones (three packets of 16 MiB at once, 100 000 retained topics); the
allocator keeps much of that.
"""
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    with edge(tmp_path_factory.mktemp("hostile"), "gw") as running:
        yield running
        resident = resident_mib(running.pid)
        print(f"\n{resident:.0f} MiB resident after all attacks")
        assert resident < RESIDENT_AFTER_ALL_MIB_MAX, f"{resident:.0f} MiB resident after all attacks"


@pytest.fixture(autouse=True)
def others_feel_nothing(gateway: Waypost, request: pytest.FixtureRequest) -> Iterator[None]:
    """Check others around every test; its attribute `resident_mib_max` allows more memory, with a reason."""
    allowed = getattr(request.function, "resident_mib_max", RESIDENT_MIB_MAX)
    with unharmed(gateway, round_trip_s_max=ROUND_TRIP_S_MAX, resident_mib_max=allowed):
        yield


def transfers_to_a_receiver() -> bytes:
    message = b"\x00\x53\x75\xb0\x00\x00\x27\x10" + bytes(10_000)
    return frame(TRANSFER, Uint(0), Uint(0), b"tag", Uint(0), payload=message) * 100


def begins_on_one_channel() -> bytes:
    return frame(BEGIN, None, Uint(0), ROOM, ROOM) * 10_000


def attaches_on_one_handle() -> bytes:
    fields = (Uint(1), SENDER, None, None, terminus(SOURCE, None), terminus(TARGET, "queue/a"), None, None, Uint(0))
    return b"".join(frame(ATTACH, f"l{random.random()}", *fields) for _ in range(4_000))


def send_a_lot(peer: FramePeer, flood: Callable[[], bytes]) -> None:
    sent = 0
    while sent < 50 << 20:
        data = flood()
        peer.socket.sendall(data)
        sent += len(data)


def farewell(client: Raw) -> ReasonCode:
    """Return the reason of the DISCONNECT with which the gateway ends."""
    while not isinstance(packet := client.receive(), packets.Disconnect):
        assert packet is not None, "closed without a word"
    assert client.receive() is None
    return packet.reason


class TestSizes:
    def test_huge_connect_is_refused_by_its_length(self, gateway: Waypost) -> None:
        """A huge CONNECT is refused by its length, before it is read [MQTT 5 section 4.13]."""
        with Raw(gateway, 5) as client:
            client.send(b"\x10" + encode_variable_byte_integer(CONNECT_BYTES_MAX + 1) + b"\x00\x04MQTT\x05")
            answer = client.receive()
            assert answer is None or (isinstance(answer, packets.ConnAck) and answer.reason.failed)

    def test_packet_above_the_maximum_is_refused(self, gateway: Waypost) -> None:
        with Raw(gateway, 5).connect("large") as client:
            client.send(b"\x30" + encode_variable_byte_integer(Limits().packet_bytes_max) + b"\x00\x01t")
            assert farewell(client) is ReasonCode.PACKET_TOO_LARGE

    def test_packets_at_the_maximum_are_acknowledged(self, gateway: Waypost) -> None:
        """Packets of the maximum size from three clients at once are acknowledged."""
        body = bytes(Limits().packet_bytes_max - 20)
        clients = [Raw(gateway).connect(f"large-{i}") for i in range(3)]
        for client in clients:
            client.send(packets.Publish("large", body, qos=1, packet_id=1))
        for client in clients:
            assert isinstance(client.receive(), packets.PubAck)
            client.close()

    test_packets_at_the_maximum_are_acknowledged.resident_mib_max = 260.0  # type: ignore[attr-defined]  # 48 MiB, and one copy of each

    def test_incomplete_packets_hold_only_received_bytes(self, gateway: Waypost) -> None:
        """Announcing a large packet costs nothing: 20 clients announce 16 MiB and send 1 MiB, and only that is held."""
        clients = [Raw(gateway).connect(f"half-{i}") for i in range(20)]
        for client in clients:
            client.send(b"\x30" + encode_variable_byte_integer(15_000_000) + b"\x00\x01t" + bytes(1 << 20))
        for client in clients:
            client.close()

    test_incomplete_packets_hold_only_received_bytes.resident_mib_max = 160.0  # type: ignore[attr-defined]

    def test_amqp_frame_above_the_maximum_ends_connection(self, gateway: Waypost) -> None:
        with Raw(gateway, protocol="amqp") as client:
            client.send(AMQP_HEADER + b"\xff\xff\xff\xff\x02\x00\x00\x00" + bytes(100_000))
            assert client.rest().startswith(AMQP_HEADER)

    @pytest.mark.parametrize("flood", [transfers_to_a_receiver, begins_on_one_channel, attaches_on_one_handle])
    def test_forbidden_amqp_flood_leaves_no_memory(self, gateway: Waypost, flood: Callable[[], bytes]) -> None:
        """Nothing remains of 50 MiB of forbidden AMQP on each of two connections (`others_feel_nothing`)."""
        for i in range(2):
            with FramePeer(gateway.port("amqp"), f"flood-{i}") as peer:
                peer.begin()
                peer.attach("l", 0, RECEIVER, "queue/none").expect(ATTACH)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it stops reading, or will soon
                    send_a_lot(peer, flood)


class TestGarbage:
    @pytest.mark.parametrize("version", [3, 4, 5])
    def test_garbage_after_connect_ends_connection(self, gateway: Waypost, version: int) -> None:
        """Random bytes after CONNECT end in a DISCONNECT with a reason (MQTT 5) or a closed connection (before)."""
        source = random.Random(version)
        for i in range(60):
            with Raw(gateway, version).connect(f"garbage-{i}") as client:
                client.send(b"\xf0\x01" + source.randbytes(200))  # AUTH, wrong in every version
                if version == 5:
                    assert farewell(client).failed
                else:
                    assert client.receive() is None

    def test_garbage_after_amqp_header_closes_with_condition(self, gateway: Waypost) -> None:
        source = random.Random(1)
        for _ in range(60):
            with Raw(gateway, protocol="amqp") as client:
                client.send(AMQP_HEADER + b"\x00\x00\x00\x40\x02\x00\x00\x00" + source.randbytes(200))
                assert b"amqp:" in client.rest(), "a close frame says what was wrong"

    def test_http_on_another_listener_ends_connection(self, gateway: Waypost) -> None:
        for protocol in ("mqtt", "amqp"):
            with Raw(gateway, protocol=protocol) as client:
                client.send(b"GET / HTTP/1.1\r\nHost: gateway\r\n\r\n")
                answer = client.rest()
                # [AMQP section 2.2]: the header that would have been right
                assert answer == b"" if protocol == "mqtt" else answer.startswith(b"AMQP")


class TestTopics:
    def test_topic_alias_above_the_maximum_is_refused(self, gateway: Waypost) -> None:
        with Raw(gateway, 5).connect("alias") as client:
            client.send(packets.Publish("a", b"", properties=Properties(topic_alias=TOPIC_ALIAS_MAXIMUM + 1)))
            assert farewell(client) is ReasonCode.TOPIC_ALIAS_INVALID

    def test_aliases_of_longest_names_stay_within_memory_limit(self, gateway: Waypost) -> None:
        """Aliases for the longest names in 50 clients stay within the memory limit."""
        clients = [Raw(gateway, 5).connect(f"alias-{i}") for i in range(50)]
        for client in clients:
            for alias in range(1, TOPIC_ALIAS_MAXIMUM + 1):
                name = f"{alias}/".ljust(ADDRESS_BYTES_MAX, "x")
                client.send(packets.Publish(name, b"", properties=Properties(topic_alias=alias)))
            client.send(packets.PingReq())
            assert isinstance(client.receive(), packets.PingResp)
        for client in clients:
            client.close()

    def test_topic_name_above_the_limit_is_refused(self, gateway: Waypost) -> None:
        with Raw(gateway, 5).connect("long") as client:
            client.send(packets.Publish("x" * (ADDRESS_BYTES_MAX + 1), b""))
            assert farewell(client) is ReasonCode.TOPIC_NAME_INVALID

    def test_filter_with_too_many_levels_is_refused(self, gateway: Waypost) -> None:
        with Raw(gateway, 5).connect("levels") as client:
            client.send(packets.Subscribe(1, (SubscriptionRequest("+/" * TOPIC_LEVELS_MAX + "+", 0),)))
            assert farewell(client).failed

    def test_many_overlapping_wildcards_do_no_harm(self, gateway: Waypost) -> None:
        """Every mix of ``+`` and a name over ten levels matches its messages without harm."""
        filters = ["/".join("+" if i >> level & 1 else "a" for level in range(10)) for i in range(1_000)]
        with Raw(gateway, 5).connect("exploder") as client, Raw(gateway, 5).connect("trigger") as trigger:
            for start in range(0, len(filters), 100):
                assert not any(code >= 0x80 for code in client.subscribe(*filters[start : start + 100]))
            assert client.subscribe("one/more") == [ReasonCode.QUOTA_EXCEEDED]
            assert len(filters) == SUBSCRIPTIONS_PER_SESSION_MAX
            for i in range(200):
                trigger.send(packets.Publish("/".join("a" * 10), b"%d" % i))
            trigger.send(packets.PingReq())
            assert isinstance(trigger.receive(), packets.PingResp)

    test_many_overlapping_wildcards_do_no_harm.resident_mib_max = 200.0  # type: ignore[attr-defined]

    @pytest.mark.parametrize("topics", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
    def test_filters_over_many_retained_topics_do_no_harm(self, gateway: Waypost, topics: int) -> None:
        """300 filters over all retained messages, for clients that do not read, do no harm."""
        with Raw(gateway).connect("retainer") as retainer:
            batch = [packets.Publish(f"r/{i % 97}/{i}", b"kept", retain=True).encode(4) for i in range(topics)]
            for start in range(0, topics, 500):
                retainer.send(b"".join(batch[start : start + 500]), packets.PingReq())
                assert isinstance(retainer.receive(), packets.PingResp)
            clients = [Raw(gateway, receive_bytes=4096).connect(f"asker-{i}") for i in range(3)]
            for client in clients:
                wild = [SubscriptionRequest(f"+/+/{'+/' * (i % 3)}{i}", 0) for i in range(99)]
                client.send(packets.Subscribe(1, (SubscriptionRequest("r/#", 0), *wild)))
            with Raw(gateway).connect("reader") as reader:
                reader.subscribe("r/#")
                seen = {
                    packet.topic
                    for packet in (reader.receive() for _ in range(topics))
                    if isinstance(packet, packets.Publish)
                }
                assert len(seen) == topics
            for client in clients:
                client.close()
            for i in range(topics):
                retainer.send(packets.Publish(f"r/{i % 97}/{i}", b"", retain=True))

    test_filters_over_many_retained_topics_do_no_harm.resident_mib_max = 260.0  # type: ignore[attr-defined]

    @pytest.mark.parametrize("topics", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
    def test_amqp_receivers_of_many_retained_topics_do_no_harm(self, gateway: Waypost, topics: int) -> None:
        """Three receivers request everything and do not read; a fourth one reads it all."""
        with Raw(gateway).connect("retainer") as retainer, contextlib.ExitStack() as stack:
            batch = [packets.Publish(f"r/{i % 97}/{i}", b"kept", retain=True).encode(4) for i in range(topics)]
            for start in range(0, topics, 500):
                retainer.send(b"".join(batch[start : start + 500]), packets.PingReq())
                assert isinstance(retainer.receive(), packets.PingResp)
            for _ in range(3):
                idle = stack.enter_context(amqp_client(gateway, timeout_s=60))
                idle.create_receiver("r/#", credit=topics)
            reading = stack.enter_context(amqp_client(gateway, timeout_s=60))
            receiver = reading.create_receiver("r/#", credit=1_000)
            seen: set[str] = set()
            while len(seen) < topics:
                seen.add(receiver.receive().address)
            for i in range(topics):
                retainer.send(packets.Publish(f"r/{i % 97}/{i}", b"", retain=True))

    test_amqp_receivers_of_many_retained_topics_do_no_harm.resident_mib_max = 260.0  # type: ignore[attr-defined]
