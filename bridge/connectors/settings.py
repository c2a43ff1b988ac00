"""Settings of a peer by the type of its connector, in addition to its address."""

from __future__ import annotations

import enum
from typing import Annotated, Final, NamedTuple

import msgspec

from bridge.connectors.limits import (
    HTTP_BATCH_AGE_S,
    HTTP_BATCH_BYTES_MAX,
    HTTP_BATCH_MESSAGES_MAX,
    KAFKA_MESSAGE_BYTES_MAX,
    LORAWAN_WINDOW_S,
    MQTT_IN_FLIGHT_MAX,
    MQTT_KEEP_ALIVE_S,
    ROUTER_COST_MAX,
    ROUTER_HELLO_S,
    TOKEN_LIFETIME_S,
)
from bridge.hidden import hides
from bridge.resources.fields import Bytes, Live, ResourcePart, Seconds, Text

PACKET_IDS: Final = 65_534
"""Packet identifiers for PUBLISH; the last identifier is for our SUBSCRIBE."""


@hides("password")
class ClientIdentity(NamedTuple):
    """Our client id and credentials at the peer."""

    client_id: str
    username: str | None = None
    password: str | None = None


class PartitionKey(enum.Enum):
    """Source of the partition key: messages or records with the same key keep their order."""

    DEVICE = "device"
    ADDRESS = "address"


class TokenKind(enum.Enum):
    """Kind of token for `$cbs`, used instead of a password."""

    SHARED_ACCESS = "sharedAccess"


class AmqpSettings(ResourcePart, frozen=True, kw_only=True):
    """Settings of an AMQP 1.0 peer."""

    token: Live[TokenKind | None] = None
    """``sharedAccess``: the connector's credentials are the name and the key of a shared access policy of Azure Service
    Bus or Event Hubs, and sign tokens; the key is not sent. Without it the credentials are for SASL."""
    token_lifetime_s: Live[Seconds] = msgspec.field(default=TOKEN_LIFETIME_S, name="tokenLifetime")
    """Lifetime of a token, which is renewed at three quarters of it."""
    partition_key: Live[PartitionKey | None] = None
    """Source of the key (``x-opt-partition-key``) by which Azure Service Bus and Event Hubs keep messages in order."""


class RouterSettings(ResourcePart, frozen=True, kw_only=True):
    """Settings of a link to a neighbour in a network of routers."""

    cost: Live[Annotated[int, msgspec.Meta(ge=1, le=ROUTER_COST_MAX)]] = 1
    """Cost of the link, in both directions. A message takes the path with the lowest sum of costs."""
    hello_interval_s: Live[Seconds] = msgspec.field(default=ROUTER_HELLO_S, name="helloInterval")
    """Interval of greetings, in both directions. A neighbour that misses three of them is lost, and messages take
    another path. A connection that breaks is noticed at once."""


class MqttService(enum.Enum):
    """Cloud service that has rules of its own for MQTT clients."""

    AZURE_IOT_HUB = "azureIotHub"
    AWS_IOT_CORE = "awsIotCore"
    CHIRPSTACK = "chirpstack"


class DownlinkSettings(ResourcePart, frozen=True, kw_only=True):
    """Commands to LoRaWAN devices behind a ChirpStack server."""

    port: Live[Annotated[int, msgspec.Meta(ge=1, le=223)]] = msgspec.field(default=1, name="fPort")
    """FPort of a command that names none."""
    confirmed: Live[bool] = False
    """The device has to acknowledge a command that does not say so itself."""
    newest_wins: Live[bool] = msgspec.field(default=False, name="newestWins")
    """A command replaces those of its device that have not left; otherwise they leave in their order."""
    window_s: Live[Seconds] = msgspec.field(default=LORAWAN_WINDOW_S, name="receiveWindow")
    """Time after an uplink of a class A device in which ChirpStack still takes a downlink for its receive window
    (`get_downlink_data_delay` there)."""


@hides("shared_access_key")
class MqttSettings(ResourcePart, frozen=True, kw_only=True):
    """Settings of an MQTT broker, or of a cloud service that speaks MQTT."""

    keep_alive_s: Live[Seconds] = msgspec.field(default=MQTT_KEEP_ALIVE_S, name="keepAlive")
    """Keep Alive, in whole seconds; the connection ends when the broker is silent for as long."""
    in_flight_max: Live[Annotated[int, msgspec.Meta(ge=1, le=PACKET_IDS)]] = msgspec.field(
        default=MQTT_IN_FLIGHT_MAX, name="maxInFlight"
    )
    """Most PUBLISH packets without a PUBACK."""
    service: Live[MqttService | None] = None
    """Cloud service with rules of its own. ``azureIotHub``: the gateway connects as one device or module of an IoT hub.
    ``awsIotCore``: with a client certificate, or over a WebSocket with an access key as `credentials`.
    ``chirpstack``: the broker of a ChirpStack server, with the events of LoRaWAN devices."""
    device: Live[str | None] = None
    """Identifier of the device at the IoT hub."""
    module: Live[str | None] = None
    """Identifier of a module of the device; without it the gateway connects as the device."""
    shared_access_key: Live[str | None] = msgspec.field(default=None, name="sharedAccessKey")
    """Key of the device or module, as the portal shows it. It signs tokens, and is not sent. Without it the device
    authenticates with the certificate in `tls`."""
    token_lifetime_s: Live[Seconds] = msgspec.field(default=TOKEN_LIFETIME_S, name="tokenLifetime")
    """Lifetime of a token; at three quarters of it a connection with a new token replaces the old one."""
    hub_host: Live[str | None] = msgspec.field(default=None, name="hubHost")
    """Host name of the IoT hub where the endpoint is a gateway in front of it, such as IoT Edge; without it the host of
    the first endpoint."""
    region: Live[str | None] = None
    """Region for signatures of AWS; without it the one in the host name of the first endpoint."""
    downlink: Live[DownlinkSettings | None] = None
    """Commands to devices, with ``service: chirpstack``."""


class Format(enum.Enum):
    """Format of the messages in an HTTP request."""

    JSON = "json"
    NDJSON = "ndjson"
    CLOUDEVENTS = "cloudevents"


@hides("signing_secret")
class HttpSettings(ResourcePart, frozen=True, kw_only=True):
    """Settings of an HTTP endpoint."""

    path: Live[str] = "/"
    """Path and query of the request."""
    format: Live[Format] = Format.JSON
    """Format of the messages in a request."""
    signing_secret: Live[str | None] = None
    """Secret shared with the server, ``whsec_`` and Base64; without it requests are not signed."""
    batch_messages: Live[Annotated[int, msgspec.Meta(ge=1, le=100_000)]] = msgspec.field(
        default=HTTP_BATCH_MESSAGES_MAX, name="maxMessages"
    )
    """Most messages in one request."""
    batch_bytes: Live[Bytes] = msgspec.field(default=HTTP_BATCH_BYTES_MAX, name="maxBytes")
    """Most bytes of bodies and addresses in one request; a larger message has its own request."""
    batch_age_s: Live[Seconds] = msgspec.field(default=HTTP_BATCH_AGE_S, name="maxAge")
    """Longest time that the first message of a request waits for others."""


class Mechanism(enum.Enum):
    """SASL mechanism for Kafka."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


class SchemaRegistry(enum.Enum):
    """Registry that the header of a record names a schema for."""

    CONFLUENT = "confluent"
    APICURIO = "apicurio"


class TopicSchema(ResourcePart, frozen=True, kw_only=True):
    """Schema of the payloads of one topic, which a header of each record names. Payloads are not checked."""

    topic: Live[Text]
    """Kafka topic that forwarders send to."""
    registry: Live[SchemaRegistry]
    """``confluent``: header ``__value_schema_id``; ``apicurio``: header ``apicurio.value.contentId``."""
    id: Live[Text]
    """Identifier of the schema there: a GUID at Confluent, a content id (a number) at Apicurio."""


class KafkaSettings(ResourcePart, frozen=True, kw_only=True):
    """Settings of a Kafka cluster."""

    key: Live[PartitionKey] = PartitionKey.DEVICE
    """Source of the key by which records are partitioned."""
    mechanism: Live[Mechanism] = Mechanism.PLAIN
    """SASL mechanism for the credentials. With ``OAUTHBEARER`` they are the id and the secret of a client at
    `tokenUrl`."""
    token_url: Live[str | None] = None
    """Token endpoint of an OAuth 2.0 issuer, for ``OAUTHBEARER`` by the client credentials grant. At Keycloak:
    ``https://HOST/realms/REALM/protocol/openid-connect/token``."""
    scope: Live[str | None] = None
    """Scopes in a token request, separated by spaces."""
    token_authority: Live[str | None] = msgspec.field(default=None, name="tokenCaCert")
    """Authority of the token endpoint's certificate; without it the authorities of the system."""
    schemas: Live[tuple[TopicSchema, ...]] = ()
    """Schemas to name in the headers of records, by topic."""
    group: Live[str | None] = None
    """Consumer group of incoming forwarders, shared with every gateway that uses the same name; the default is a
    separate group for each topic, ``<container>.<topic>``."""
    message_bytes_max: Live[Bytes] = msgspec.field(default=KAFKA_MESSAGE_BYTES_MAX, name="maxMessageBytes")
    """Largest record with its headers."""
