"""Topic aliases towards a client (MQTT 5 section 3.3.2.3.4)."""

from __future__ import annotations

from bridge.message import Run
from edge.broker.message.mqtt_properties import Properties, encode_run
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.aliases import TopicAliases
from edge.broker.mqtt.events import MqttDelivery
from edge.broker.mqtt.limits import ALIAS_TOPIC_BYTES_MIN, ALIASES_SENT_MAX, HEADS_CACHED_MAX
from edge.broker.mqtt.state import SessionState
from tests.support.mqtt_connection import Opened


def connect(maximum: int, **more: int) -> p.Connect:
    return p.Connect("c", 5, properties=Properties(topic_alias_maximum=maximum, **more))  # type: ignore[arg-type]


def delivery(topic: str, *bodies: bytes, qos: int = 0, identifiers: tuple[int, ...] = ()) -> MqttDelivery:
    raw = encode_run(Properties(content_type="a/b"))
    return MqttDelivery(Run(topic, "d", qos, raw, list(bodies)), qos, retain=False, token=None, identifiers=identifiers)


def told(opened: Opened) -> list[tuple[str, int | None, bytes]]:
    return [(each.topic, each.properties.topic_alias, each.payload) for each in opened.sent()]  # type: ignore[attr-defined]


def test_first_message_sets_the_alias_and_later_ones_use_it() -> None:
    opened = Opened(5, connect(2))
    for qos in (0, 1, 2):
        opened.connection.deliver(delivery(f"topic/{qos}", b"1", b"2", qos=qos, identifiers=(7,)))
    sent = opened.sent()
    assert [(each.topic, each.properties.topic_alias) for each in sent] == [  # type: ignore[attr-defined]
        ("topic/0", 1), ("", 1), ("topic/1", 2), ("", 2), ("topic/2", None), ("topic/2", None),
    ]  # fmt: skip
    assert all(each.properties.content_type == "a/b" for each in sent)  # type: ignore[attr-defined]
    assert all(each.properties.subscription_identifier == (7,) for each in sent)  # type: ignore[attr-defined]
    assert [each.packet_id for each in sent] == [0, 0, 1, 2, 3, 4]  # type: ignore[attr-defined]


def test_no_aliases_are_used_without_a_maximum() -> None:
    for opened in (Opened(5), Opened(4)):
        opened.connection.deliver(delivery("topic/a", b"1", b"2"))
        assert all(topic == "topic/a" and alias is None for topic, alias, _ in told(opened))


def test_short_topics_are_sent_in_full() -> None:
    opened = Opened(5, connect(9))
    short, long = "t" * (ALIAS_TOPIC_BYTES_MIN - 1), "t" * ALIAS_TOPIC_BYTES_MIN
    opened.connection.deliver(delivery(short, b"1"))
    opened.connection.deliver(delivery(long, b"1", b"2"))
    assert told(opened) == [(short, None, b"1"), (long, 1, b"1"), ("", 1, b"2")]


def test_alias_does_not_exceed_the_maximum_packet_size() -> None:
    """A packet that fits without an alias is sent, with one or without [MQTT-3.1.2-24]."""
    for size in range(20, 100):
        opened = Opened(5, connect(9, maximum_packet_size=100))
        skipped = opened.connection.deliver(delivery("topic/aaaaaaaa", bytes(size), bytes(size)))
        fits = len(p.Publish("topic/aaaaaaaa", bytes(size), properties=Properties(content_type="a/b")).encode(5)) <= 100
        packets = opened.sent()
        assert bool(skipped) is not fits
        assert len(packets) == (2 if fits else 0)
        assert all(len(packet.encode(5)) <= 100 for packet in packets)


def test_new_connection_has_no_aliases() -> None:
    state = SessionState()
    first = Opened(5, connect(9), state)
    first.connection.deliver(delivery("topic/a", b"1", qos=1))
    assert told(first) == [("topic/a", 1, b"1")]
    first.connection.receive_eof(first.now)
    second = Opened(5, connect(9), state)
    assert [(each.topic, each.properties.topic_alias) for each in second.first[1:]] == [("topic/a", None)]  # type: ignore[attr-defined]


def test_most_used_topics_get_the_aliases() -> None:
    aliases = TopicAliases(2)
    assert aliases.find("rare", 1) == (1, True)
    assert aliases.find("common", 5) == (2, True)
    assert aliases.find("new", 1) == (0, False), "used no more often than the one whose place it would take"
    assert aliases.find("new", 1) == (1, True)
    assert aliases.find("rare", 1) == (0, False)
    assert aliases.find("common", 1) == (2, False)


def test_candidates_are_bounded() -> None:
    aliases = TopicAliases(65_535)
    found = {aliases.find(f"topic/{i}", 1)[0] for i in range(ALIASES_SENT_MAX + 10)}
    assert max(found) == ALIASES_SENT_MAX
    for i in range(3 * HEADS_CACHED_MAX):
        aliases.find(f"other/{i}", 1)
    assert len(aliases._uses) <= HEADS_CACHED_MAX + 1
