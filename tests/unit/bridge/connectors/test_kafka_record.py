"""Messages as Kafka records."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from bridge.connectors.kafka.record import TOPIC_CHARACTERS_MAX, arrival, record, topic_of
from bridge.connectors.kafka.schema_headers import schema_headers
from bridge.connectors.limits import KAFKA_HEADER_BYTES_MAX
from bridge.connectors.messages import ConnectorMessage, MessageName
from bridge.connectors.settings import PartitionKey, SchemaRegistry, TopicSchema
from bridge.message_origin import MessageOrigin, find_origin
from bridge.plain import HOPS_PROPERTY, Hop
from bridge.publish_properties import PublishProperties, read

MESSAGE = ConnectorMessage(
    0,
    MessageName(Hop("gw", "e1"), "plant/7", 42),
    "cloud/plant",
    "dev",
    1_790_000_000_123_456_789,
    False,
    ("far", "gw"),
    PublishProperties(content_type="text/plain", users=(("k", "v"), ("k", "w"))),
    b"hi",
)


def test_record_carries_the_message_name() -> None:
    made = record(MESSAGE, PartitionKey.DEVICE)
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
    assert record(MESSAGE, PartitionKey.ADDRESS).key == b"plant/7"


@pytest.mark.parametrize(
    ("registry", "identifier", "header"),
    [
        (
            SchemaRegistry.CONFLUENT,
            "89791762-2336-4186-9674-299b90a802e2",
            ("__value_schema_id", bytes.fromhex("0189791762233641869674299b90a802e2")),
        ),
        (SchemaRegistry.APICURIO, "7", ("apicurio.value.contentId", bytes(7) + b"\x07")),
    ],
)
def test_header_names_the_schema_of_the_topic(
    registry: SchemaRegistry, identifier: str, header: tuple[str, bytes]
) -> None:
    schemas = schema_headers([TopicSchema(topic="cloud.plant", registry=registry, id=identifier)])
    forged = MESSAGE._replace(properties=PublishProperties(users=((header[0], "forged"), ("k", "v"))))
    made = record(forged, PartitionKey.DEVICE, schemas)
    assert made.headers[-2:] == [("k", b"v"), header]
    assert [name for name, _ in made.headers].count(header[0]) == 1
    assert made.value == b"hi"
    elsewhere = record(forged._replace(target="cloud/other"), PartitionKey.DEVICE, schemas)
    assert header not in elsewhere.headers


@pytest.mark.parametrize(
    ("registry", "identifier"),
    [
        (SchemaRegistry.CONFLUENT, "7"),
        (SchemaRegistry.APICURIO, "-1"),
        (SchemaRegistry.APICURIO, "89791762-2336-4186-9674-299b90a802e2"),
        (SchemaRegistry.APICURIO, str(1 << 63)),
    ],
)
def test_identifier_of_another_registry_is_refused(registry: SchemaRegistry, identifier: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        schema_headers([TopicSchema(topic="t", registry=registry, id=identifier)])


@pytest.mark.parametrize(
    ("address", "topic"), [("a", "a"), ("a/b/c", "a.b.c"), ("a b/ü", "a_b._"), ("x" * TOPIC_CHARACTERS_MAX, None)]
)
def test_topics_are_derived(address: str, topic: str | None) -> None:
    assert topic_of(address) == (topic or address)


@pytest.mark.parametrize("address", ["", ".", "..", "/", "x" * (TOPIC_CHARACTERS_MAX + 1)])
def test_addresses_that_cannot_be_topics_raise(address: str) -> None:
    with pytest.raises(ValueError, match="Kafka topic"):
        topic_of(address)


class Fetched(NamedTuple):
    """Record as the library returns it."""

    topic: str = "a.b"
    partition: int = 3
    offset: int = 41
    timestamp: int = 1_790_000_000_123
    key: bytes | None = None
    value: bytes | None = b"hi"
    headers: tuple[tuple[str, bytes | None], ...] = ()


def test_record_of_a_gateway_restores_its_message() -> None:
    made = record(MESSAGE, PartitionKey.DEVICE)
    came = arrival(5, Fetched(made.topic, 0, 1, made.timestamp_ms, made.key, made.value, tuple(made.headers)))
    assert (came.token, came.name, came.unique, came.hops) == (5, b"e1/42/plant/7", True, ("far", "gw"))
    assert came.addresses[0] == "plant/7"
    assert (came.run.device, came.run.bodies, came.run.received_at) == ("dev", [b"hi"], 1_790_000_000_123_000_000)
    properties = read(came.run.properties)
    assert properties.content_type == "text/plain"
    assert properties.users[:2] == (("k", "v"), ("k", "w"))
    assert properties.users[-1] == (HOPS_PROPERTY, "far gw")
    assert find_origin(came.run.flags, came.run.properties, b"hi") == MessageOrigin(
        "gw", "e1", "plant/7", 42, "dev", None, 1_790_000_000_123_000_000
    )


def test_foreign_record_is_named_by_position_and_content() -> None:
    came = arrival(0, Fetched())
    assert (came.addresses, came.hops, came.run.received_at) == (("a.b", "a/b"), (), 0)
    assert came.name == arrival(1, Fetched()).name
    others = (Fetched(offset=42), Fetched(partition=4), Fetched(timestamp=-1), Fetched(value=None), Fetched(key=b"k"))
    assert len({came.name, *(arrival(0, other).name for other in others)}) == 6
    assert arrival(0, Fetched(value=None)).run.bodies == [b""]


@pytest.mark.parametrize("raw", [None, b"\xff", b"a\x00b", b"x" * (KAFKA_HEADER_BYTES_MAX + 1)])
def test_headers_without_an_mqtt_equivalent_are_dropped(raw: bytes | None) -> None:
    came = arrival(0, Fetched(headers=(("first", b"1"), ("bad\n", b"1"), ("odd", raw), ("waypost-sequence", b"-"))))
    assert read(came.run.properties).users in ((("first", "1"),), (("first", "1"), ("odd", "")))
    assert came.run.bodies == [b"hi"]
