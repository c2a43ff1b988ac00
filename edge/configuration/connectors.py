"""Rules for connectors by their type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from bridge.connectors.http.signing import secret_of
from bridge.connectors.kafka.record import topic_of
from bridge.connectors.limits import ROUTER_HELLO_S, ROUTER_HELLO_S_MAX, ROUTER_HELLO_S_MIN, TOKEN_LIFETIME_S_MIN
from bridge.connectors.settings import (
    AmqpSettings,
    HttpSettings,
    KafkaSettings,
    Mechanism,
    MqttService,
    MqttSettings,
    TopicSchema,
)
from bridge.resources.errors import Path
from bridge.resources.resource import Errors, Resource, error_at, of_kind
from edge.broker.configuration import Connector, ConnectorType, Direction
from edge.broker.model.topics import is_filter
from edge.configuration.issuer import token_url_fault
from edge.configuration.resources import AddressSpaceSpec, AddressSpec

KEEP_ALIVE_S: Final = (1, 65_535)
"""Range of Keep Alive in CONNECT, in seconds (MQTT 3.1.1 section 3.1.2.10)."""
RECORD_BYTES_MIN: Final = 1_024
"""Smallest limit of a record: headers with a message's name take some hundred bytes."""
SERVICE_FIELDS: Final = {
    "device": ("device", MqttService.AZURE_IOT_HUB),
    "module": ("module", MqttService.AZURE_IOT_HUB),
    "shared_access_key": ("sharedAccessKey", MqttService.AZURE_IOT_HUB),
    "hub_host": ("hubHost", MqttService.AZURE_IOT_HUB),
    "region": ("region", MqttService.AWS_IOT_CORE),
    "downlink": ("downlink", MqttService.CHIRPSTACK),
}
"""Settings of a connector to a cloud service, by attribute, each with its service."""
PROXIED: Final = frozenset((ConnectorType.WAYPOST, ConnectorType.AMQP, ConnectorType.ROUTER))
"""Types that support proxies."""
FRAMED: Final = PROXIED | {ConnectorType.MQTT}
"""Types that support WebSocket."""
UNBOUND: Final = frozenset((ConnectorType.HTTP, ConnectorType.KAFKA))
"""Types without `interface`: their libraries choose it."""
HTTP_IN: Final = (
    "over a connector of type http nothing comes in: who has messages for this gateway sends them to its own listener, "
    "POST /t/<address> (listeners.http of the Gateway)"
)
TO_ROUTER: Final = (
    "is of type router, which passes on the messages of all anycast and multicast addresses and has no forwarders: "
    "forward stored messages over a connector of type waypost or amqp"
)
_PATH: Final = re.compile(r"/[!-~]*")


def connector_faults(resource: Resource, path: Path, connector: Connector) -> Errors:
    """Yield the errors of the part for the connector's type."""
    for kind, part in (
        (ConnectorType.AMQP, connector.amqp),
        (ConnectorType.MQTT, connector.mqtt),
        (ConnectorType.HTTP, connector.http),
        (ConnectorType.KAFKA, connector.kafka),
        (ConnectorType.ROUTER, connector.router),
    ):
        if part is not None and connector.type is not kind:
            message = f"is of connectors of type {kind.value}; this one is of type {connector.type.value}"
            yield error_at(resource, (*path, kind.value), message)
    yield from _ways(resource, path, connector)
    if connector.type is ConnectorType.ROUTER:
        yield from _router(resource, path, connector)
    if connector.amqp is not None:
        yield from _amqp(resource, (*path, "amqp"), connector, connector.amqp)
    if connector.mqtt is not None:
        yield from _mqtt(resource, (*path, "mqtt"), connector.mqtt)
        if connector.mqtt.service is not None:
            from edge.configuration.cloud_services import service_faults  # noqa: PLC0415 - few gateways have one

            yield from service_faults(resource, path, connector, connector.mqtt)
    if connector.http is not None:
        yield from _http(resource, (*path, "http"), connector.http)
    if connector.kafka is not None:
        yield from _kafka(resource, path, connector, connector.kafka)


def _ways(resource: Resource, path: Path, connector: Connector) -> Errors:
    """Check interface, proxy and WebSocket."""
    if connector.interface is not None and connector.type in UNBOUND:
        yield error_at(
            resource, (*path, "interface"), f"connectors of type {connector.type.value} cannot be bound to one"
        )
    if connector.type not in PROXIED and connector.proxy is not None:
        message = f"connectors of type {connector.type.value} go through no proxy"
        yield error_at(resource, (*path, "proxy"), message)
    if connector.type not in FRAMED:
        for i, host in enumerate(connector.hosts):
            if host.websocket is not None:
                message = f"connectors of type {connector.type.value} use no WebSocket"
                yield error_at(resource, (*path, "endpointHosts", i, "websocket"), message)


def connector_directions(resources: Sequence[Resource]) -> Errors:
    """Yield the errors of forwarders over routers, of incoming ones over HTTP and Kafka, and of those to and from cloud
    services."""
    spaces = [space for _, space in of_kind(resources, AddressSpaceSpec)]
    types = {connector.name: connector.type for space in spaces for connector in space.connectors}
    topics: set[tuple[str, str]] = set()
    for resource, spec in of_kind(resources, AddressSpec):
        for i, forwarder in enumerate(spec.forwarders):
            connector, _, remote = forwarder.remote_address.partition("/")
            path = ("spec", "forwarders", i)
            if types.get(connector) is ConnectorType.ROUTER:
                yield error_at(resource, (*path, "remoteAddress"), f'"{connector}" {TO_ROUTER}')
            if forwarder.direction is not Direction.IN:
                continue
            if types.get(connector) is ConnectorType.HTTP:
                yield error_at(resource, (*path, "direction"), HTTP_IN)
            if types.get(connector) is ConnectorType.KAFKA:
                yield from _topic(resource, (*path, "remoteAddress"), connector, remote or spec.address, topics)
    yield from _at_services(resources)


def _at_services(resources: Sequence[Resource]) -> Errors:
    spaces = [space for _, space in of_kind(resources, AddressSpaceSpec)]
    parts = [connector.mqtt for space in spaces for connector in space.connectors]
    if any(part is not None and part.service is not None for part in parts):
        from edge.configuration.cloud_services import service_addresses  # noqa: PLC0415 - few gateways have one

        yield from service_addresses(resources)


def _topic(resource: Resource, path: Path, connector: str, remote: str, topics: set[tuple[str, str]]) -> Errors:
    """Check that an incoming forwarder reads one Kafka topic that no other forwarder of the connector reads. `topics`:
    those of earlier forwarders; this one is added."""
    if is_filter(remote):
        yield error_at(resource, path, f'"{remote}" is a pattern: from Kafka each forwarder takes one topic')
        return
    try:
        topic = topic_of(remote)
    except ValueError as why:
        yield error_at(resource, path, str(why))
        return
    if (connector, topic) in topics:
        yield error_at(resource, path, f'another forwarder takes from the topic "{topic}" over "{connector}" already')
    topics.add((connector, topic))


def _router(resource: Resource, path: Path, connector: Connector) -> Errors:
    if connector.container:
        message = "routers of a network know each other by the names of their gateways: remove it"
        yield error_at(resource, (*path, "container"), message)
    interval_s = ROUTER_HELLO_S if connector.router is None else connector.router.hello_interval_s
    if not ROUTER_HELLO_S_MIN <= interval_s <= ROUTER_HELLO_S_MAX:
        message = f"must be {ROUTER_HELLO_S_MIN} to {ROUTER_HELLO_S_MAX:g} seconds"
        yield error_at(resource, (*path, "router", "helloInterval"), message)


def _amqp(resource: Resource, path: Path, connector: Connector, part: AmqpSettings) -> Errors:
    if part.token is not None and connector.credentials is None:
        message = "needs credentials: the name of a shared access policy as username, and its key as password"
        yield error_at(resource, (*path, "token"), message)
    if part.token_lifetime_s < TOKEN_LIFETIME_S_MIN:
        yield error_at(resource, (*path, "tokenLifetime"), f"must be {TOKEN_LIFETIME_S_MIN} seconds at least")


def _mqtt(resource: Resource, path: Path, part: MqttSettings) -> Errors:
    low, high = KEEP_ALIVE_S
    if not low <= part.keep_alive_s <= high:
        yield error_at(resource, (*path, "keepAlive"), f"must be {low} to {high} seconds")
    if part.token_lifetime_s < TOKEN_LIFETIME_S_MIN:
        yield error_at(resource, (*path, "tokenLifetime"), f"must be {TOKEN_LIFETIME_S_MIN} seconds at least")
    for attribute, (field, service) in SERVICE_FIELDS.items():
        if part.service is not service and getattr(part, attribute) is not None:
            yield error_at(
                resource, (*path, field), f"is of another service: set service: {service.value}, or remove it"
            )


def _http(resource: Resource, path: Path, part: HttpSettings) -> Errors:
    if not _PATH.fullmatch(part.path):
        message = f'"{part.path}" is no path: it begins with / and has no spaces; what is not ASCII is percent-encoded'
        yield error_at(resource, (*path, "path"), message)
    if part.signing_secret is not None:
        try:
            secret_of(part.signing_secret)
        except ValueError as why:
            yield error_at(resource, (*path, "signingSecret"), str(why))
    if part.batch_bytes < 1:
        yield error_at(resource, (*path, "maxBytes"), "must be 1 at least")


def _kafka(resource: Resource, path: Path, connector: Connector, part: KafkaSettings) -> Errors:
    inner = (*path, "kafka")
    if part.message_bytes_max < RECORD_BYTES_MIN:
        yield error_at(resource, (*inner, "maxMessageBytes"), f"must be {RECORD_BYTES_MIN} at least")
    bearer = part.mechanism is Mechanism.OAUTHBEARER
    if bearer and connector.credentials is None:
        message = "needs credentials: the id of a client at tokenUrl as username, and its secret as password"
        yield error_at(resource, path, message)
    if bearer and part.token_url is None:
        yield error_at(resource, inner, "needs tokenUrl: the token endpoint of the issuer")
    if part.token_url is not None and (fault := token_url_fault(part.token_url)):
        yield error_at(resource, (*inner, "tokenUrl"), fault)
    for field, value in (("tokenUrl", part.token_url), ("scope", part.scope), ("tokenCaCert", part.token_authority)):
        if value is not None and not bearer:
            yield error_at(resource, (*inner, field), "is for mechanism: OAUTHBEARER; set it, or remove this")
    if part.schemas:
        yield from _schemas(resource, (*inner, "schemas"), part.schemas)


def _schemas(resource: Resource, path: Path, schemas: Sequence[TopicSchema]) -> Errors:
    from bridge.connectors.kafka.schema_headers import schema_header  # noqa: PLC0415 - few gateways have one

    topics: set[str] = set()
    for i, schema in enumerate(schemas):
        if schema.topic in topics:
            yield error_at(resource, (*path, i, "topic"), f'the topic "{schema.topic}" has a schema already')
        topics.add(schema.topic)
        try:
            schema_header(schema)
        except ValueError as why:
            yield error_at(resource, (*path, i, "id"), str(why))
