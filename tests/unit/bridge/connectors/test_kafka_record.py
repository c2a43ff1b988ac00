"""Messages as Kafka records."""

from __future__ import annotations

import pytest

from bridge.connectors.kafka.record import TOPIC_CHARACTERS_MAX, record, topic_of
from bridge.connectors.messages import Message, Name
from bridge.connectors.settings import Key
from bridge.plain import Hop
from bridge.publish_properties import PublishProperties

MESSAGE = Message(
    0,
    Name(Hop("gw", "e1"), "plant/7", 42),
    "cloud/plant",
    "dev",
    1_790_000_000_123_456_789,
    False,
    ("far", "gw"),
    PublishProperties(content_type="text/plain", users=(("k", "v"), ("k", "w"))),
    b"hi",
)


def test_a_record_bears_the_name() -> None:
    made = record(MESSAGE, Key.DEVICE)
    assert (made.topic, made.key, made.value, made.timestamp_ms) == ("cloud.plant", b"dev", b"hi", 1_790_000_000_123)
    assert made.headers == [
        ("waypost-gateway", b"gw"),
        ("waypost-epoch", b"e1"),
        ("waypost-address", b"plant/7"),
        ("waypost-sequence", b"42"),
        ("waypost-device", b"dev"),
        ("content-type", b"text/plain"),
        ("waypost-hops", b"far gw"),
        ("k", b"v"),
        ("k", b"w"),
    ]
    assert record(MESSAGE, Key.ADDRESS).key == b"plant/7"


@pytest.mark.parametrize(
    ("address", "topic"), [("a", "a"), ("a/b/c", "a.b.c"), ("a b/ü", "a_b._"), ("x" * TOPIC_CHARACTERS_MAX, None)]
)
def test_topics(address: str, topic: str | None) -> None:
    assert topic_of(address) == (topic or address)


@pytest.mark.parametrize("address", ["", ".", "..", "/", "x" * (TOPIC_CHARACTERS_MAX + 1)])
def test_what_makes_no_topic(address: str) -> None:
    with pytest.raises(ValueError, match="Kafka topic"):
        topic_of(address)
