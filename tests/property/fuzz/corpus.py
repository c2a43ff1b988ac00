"""What a fuzzer begins with: streams a broker understands, to be damaged."""

from __future__ import annotations

from edge.broker.mqtt import packets
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.mqtt.properties import Properties
from tests.property.amqp.test_engine_bytes import TURNS
from tests.unit.mqtt.cases import CASES

AMQP_STREAM = b"".join(TURNS)
"""A client's side of a whole AMQP conversation."""


def mqtt_steps(version: int) -> list[bytes]:
    """CONNECT, every QoS, a subscription that gets its own messages, a retained one, and the acknowledgements: packets
    that are right when each waits for the answer to those before it."""
    alias = Properties(topic_alias=3) if version == 5 else Properties()
    steps: list[packets.Packet] = [
        packets.Connect("fuzz", version, clean_start=True, keep_alive_s=60),
        packets.Subscribe(1, (SubscriptionRequest("topic/#", 2), SubscriptionRequest("queue/a", 1))),
        packets.Publish("topic/a", b"zero", properties=alias),
        packets.Publish("topic/a", b"one", qos=1, packet_id=2, retain=True),
        packets.Publish("topic/b", b"two", qos=2, packet_id=3),
        packets.PubRel(3),
        packets.Publish("queue/a", b"kept", qos=1, packet_id=4),
        packets.PubAck(1),
        packets.PubRec(2),
        packets.PubComp(2),
        packets.PubAck(3),
        packets.PingReq(),
        packets.Unsubscribe(5, ("topic/#",)),
    ]
    return [packet.encode(version) for packet in steps]


def mqtt_seeds() -> list[bytes]:
    """Whole conversations, and every packet of the case table behind a CONNECT."""
    seeds = [b"".join(mqtt_steps(version)) for version in (3, 4, 5)]
    for case in CASES:
        seeds.extend(packets.Connect("fuzz", version).encode() + case.data for version in case.versions)
    return seeds


def amqp_seeds() -> list[bytes]:
    """The conversation, and its beginnings turn by turn."""
    return [b"".join(TURNS[:end]) for end in range(1, len(TURNS) + 1)]
