"""Seeds of the fuzzer: valid streams, which the fuzzer damages."""

from __future__ import annotations

from edge.broker.message.mqtt_properties import Properties
from edge.broker.mqtt import packets
from edge.broker.mqtt.events import SubscriptionRequest
from tests.property.amqp.conversation import TURNS
from tests.unit.mqtt.cases import CASES

AMQP_STREAM = b"".join(TURNS)
"""A client's side of a whole AMQP conversation."""


def mqtt_steps(version: int) -> list[bytes]:
    """Return the steps of an MQTT client; each step is valid after the answer to the one before.

    They contain CONNECT, every QoS, a subscription to its own messages, a retained message, and the acknowledgements.
    """
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


def mqtt_rich() -> list[bytes]:
    """Return an MQTT 5 conversation with every client property, anycast and multicast, and refused packets."""
    will_block = Properties(will_delay_interval_s=1, content_type="a/b", response_topic="r", correlation_data=b"c")
    connect_block = Properties(
        session_expiry_interval_s=9, receive_maximum=3, maximum_packet_size=200, topic_alias_maximum=2,
        request_response_information=1, request_problem_information=1, user_property=(("a", "b"),),
    )  # fmt: skip
    text = Properties(
        payload_format_indicator=1, message_expiry_interval_s=1, content_type="a/b", response_topic="r",
        correlation_data=b"\0", user_property=(("a", "b"), ("a", "c")), topic_alias=1,
    )  # fmt: skip
    steps: list[packets.Packet] = [
        packets.Connect("rich", 5, will=packets.WillMessage("w", b"x", 1, True, will_block), properties=connect_block),
        packets.Subscribe(1, (SubscriptionRequest("$share/g/topic/#", 2, False, True, 1),)),
        packets.Subscribe(2, (SubscriptionRequest("anycast/a", 1),), Properties(subscription_identifier=(3,))),
        packets.Subscribe(3, (SubscriptionRequest("$SYS/#", 0), SubscriptionRequest("multicast/#", 1))),
        packets.Publish("topic/a", "grün".encode(), qos=1, packet_id=1, properties=text),
        packets.Publish("", b"\xff", qos=2, packet_id=2, properties=text),
        packets.Publish("anycast/a", b"1", qos=1, packet_id=3),
        packets.Publish("anycast/b", b"1"),
        packets.Publish("multicast/a", b"1", qos=2, packet_id=4),
        packets.Publish("$SYS/a", b"1", qos=1, packet_id=5),
        packets.PubRec(1, packets.R.QUOTA_EXCEEDED),
        packets.PubAck(2, packets.R.UNSPECIFIED_ERROR, Properties(reason_string="no")),
        packets.Disconnect(packets.R.DISCONNECT_WITH_WILL_MESSAGE, Properties(session_expiry_interval_s=2)),
    ]
    return [packet.encode(5) for packet in steps]


def mqtt_seeds() -> list[bytes]:
    """Return whole conversations, and every packet of the case table after a CONNECT."""
    seeds = [b"".join(mqtt_steps(version)) for version in (3, 4, 5)]
    seeds.append(b"".join(mqtt_rich()))
    for case in CASES:
        seeds.extend(packets.Connect("fuzz", version).encode() + case.data for version in case.versions)
    return seeds


def amqp_seeds() -> list[bytes]:
    """Return the conversation, and each of its beginnings by turns."""
    return [b"".join(TURNS[:end]) for end in range(1, len(TURNS) + 1)]
