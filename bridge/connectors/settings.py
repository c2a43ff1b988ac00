"""What the configuration says of a peer beside where it is, by the type of the connector."""

from __future__ import annotations

import enum
from typing import Annotated, Final, NamedTuple

import msgspec

from bridge.connectors.limits import (
    AMQP_TOKEN_LIFETIME_S,
    HTTP_BATCH_AGE_S,
    HTTP_BATCH_BYTES_MAX,
    HTTP_BATCH_MESSAGES_MAX,
    KAFKA_MESSAGE_BYTES_MAX,
    MQTT_IN_FLIGHT_MAX,
    MQTT_KEEP_ALIVE_S,
)
from bridge.hidden import hides
from bridge.resources.fields import Bytes, Live, ResourcePart, Seconds

PACKET_IDS: Final = 65_534
"""Identifiers of MQTT packets under way; one more is that of our SUBSCRIBE."""


@hides("password")
class ClientIdentity(NamedTuple):
    """Who we are to the peer."""

    client_id: str
    username: str | None = None
    password: str | None = None


class PartitionKey(enum.Enum):
    """What messages and records are partitioned by: those of one key stay in order."""

    DEVICE = "device"
    ADDRESS = "address"


class TokenKind(enum.Enum):
    """What a peer is shown at `$cbs` in place of a password."""

    SHARED_ACCESS = "sharedAccess"


class AmqpSettings(ResourcePart, frozen=True, kw_only=True):
    """Of an AMQP 1.0 peer."""

    token: Live[TokenKind | None] = None
    """``sharedAccess``: the connector's credentials are the name and the key of a shared access policy of Azure Service
    Bus or Event Hubs, with which tokens are signed; the key itself is not sent. Without it they are for SASL."""
    token_lifetime_s: Live[Seconds] = msgspec.field(default=AMQP_TOKEN_LIFETIME_S, name="tokenLifetime")
    """A token is put anew at three quarters of it."""
    partition_key: Live[PartitionKey | None] = None
    """What Azure Service Bus and Event Hubs are told to keep in order (``x-opt-partition-key``)."""


class MqttSettings(ResourcePart, frozen=True, kw_only=True):
    """Of an MQTT broker."""

    keep_alive_s: Live[Seconds] = msgspec.field(default=MQTT_KEEP_ALIVE_S, name="keepAlive")
    """A broker that is silent for as long is gone; whole seconds count."""
    in_flight_max: Live[Annotated[int, msgspec.Meta(ge=1, le=PACKET_IDS)]] = msgspec.field(
        default=MQTT_IN_FLIGHT_MAX, name="maxInFlight"
    )
    """PUBLISH packets without a PUBACK."""


class Format(enum.Enum):
    """How messages are written into an HTTP request."""

    JSON = "json"
    NDJSON = "ndjson"
    CLOUDEVENTS = "cloudevents"


@hides("signing_secret")
class HttpSettings(ResourcePart, frozen=True, kw_only=True):
    """Of an HTTP endpoint."""

    path: Live[str] = "/"
    """With the query, as it stands in the request."""
    format: Live[Format] = Format.JSON
    """How messages are written into a request."""
    signing_secret: Live[str | None] = None
    """``whsec_`` and Base64, shared with the server; without it requests are not signed."""
    batch_messages: Live[Annotated[int, msgspec.Meta(ge=1, le=100_000)]] = msgspec.field(
        default=HTTP_BATCH_MESSAGES_MAX, name="maxMessages"
    )
    """In one request."""
    batch_bytes: Live[Bytes] = msgspec.field(default=HTTP_BATCH_BYTES_MAX, name="maxBytes")
    """Of bodies and addresses in one request; one larger message is a request of its own."""
    batch_age_s: Live[Seconds] = msgspec.field(default=HTTP_BATCH_AGE_S, name="maxAge")
    """How long the first message of a request waits for others."""


class Mechanism(enum.Enum):
    """SASL towards Kafka."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


class KafkaSettings(ResourcePart, frozen=True, kw_only=True):
    """Of a Kafka cluster."""

    key: Live[PartitionKey] = PartitionKey.DEVICE
    """What records are partitioned by."""
    mechanism: Live[Mechanism] = Mechanism.PLAIN
    """How the credentials are shown."""
    group: Live[str | None] = None
    """Consumer group of what comes in, shared with every gateway that says the same; without it one of our own for each
    topic, ``<container>.<topic>``."""
    message_bytes_max: Live[Bytes] = msgspec.field(default=KAFKA_MESSAGE_BYTES_MAX, name="maxMessageBytes")
    """One record with its headers."""
