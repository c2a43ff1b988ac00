"""Rules for MQTT connectors to cloud services, so that `apply` reports what the service would refuse."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from bridge.connectors.limits import (
    AWS_CLIENT_ID_BYTES_MAX,
    AWS_KEEP_ALIVE_S_MAX,
    AWS_SUBSCRIPTIONS_MAX,
    IOT_HUB_KEEP_ALIVE_S_MAX,
)
from bridge.connectors.mqtt.aws_names import region_of, topic_fault
from bridge.connectors.mqtt.iot_hub_names import IotHubNames, identifier_fault, names_of
from bridge.connectors.settings import MqttService, MqttSettings
from bridge.forwarders.mapping import is_template
from bridge.forwarders.shared_access import device_key
from bridge.resources.errors import Path
from bridge.resources.resource import Errors, Resource, error_at, of_kind
from edge.broker.configuration import Connector, ConnectorType, Direction
from edge.broker.model.addresses import AddressType
from edge.broker.model.topics import is_filter
from edge.configuration.loops import remote_of
from edge.configuration.resources import AddressSpaceSpec, AddressSpec

AWS_WEBSOCKET_PATH: Final = "/mqtt"
"""Path of MQTT over WebSocket at AWS IoT Core."""
COMMANDS: Final = re.compile(r"application/[^/+#{}]+/device/(\+|[0-9a-f]{16})/command/down")
"""Topics of ChirpStack for commands: of all devices of an application, or of one."""
EVENTS: Final = re.compile(r"application/(\+|[^/+#]+)/device/(\+|[0-9a-f]{16})/(event/\+|event/#|#)")
"""Filters of ChirpStack's events with all their kinds."""
TEMPORARY_KEY: Final = "ASIA"
"""Beginning of the access key id of temporary credentials."""


def service_faults(resource: Resource, path: Path, connector: Connector, part: MqttSettings) -> Errors:
    """Yield the errors of a connector to a cloud service; `path` is that of the connector."""
    if part.service is MqttService.AZURE_IOT_HUB:
        yield from _iot_hub(resource, path, connector, part)
    elif part.service is MqttService.AWS_IOT_CORE:
        yield from _aws(resource, path, connector, part)


def service_addresses(resources: Sequence[Resource]) -> Errors:
    """Yield the errors of forwarders to and from topics that a cloud service does not have."""
    connectors = {
        connector.name: (connector, connector.mqtt)
        for _, space in of_kind(resources, AddressSpaceSpec)
        for connector in space.connectors
        if connector.type is ConnectorType.MQTT and connector.mqtt is not None and connector.mqtt.service is not None
    }
    yield from _same_devices(resources)
    chirpstacks = {name for name, (_, part) in connectors.items() if part.service is MqttService.CHIRPSTACK}
    yield from _chirpstack_topics(resources, chirpstacks)
    incoming: dict[str, int] = {}
    for resource, spec in of_kind(resources, AddressSpec):
        for i, forwarder in enumerate(spec.forwarders):
            name, remote = remote_of(forwarder, spec.address)
            if name not in connectors:
                continue
            connector, part = connectors[name]
            path: Path = ("spec", "forwarders", i, "remoteAddress")
            inbound = forwarder.direction is Direction.IN
            if part.service is MqttService.AWS_IOT_CORE:
                fault = "" if is_template(remote) else topic_fault(remote)
                if fault:
                    yield error_at(resource, path, f'"{remote}" {fault}')
                incoming[name] = incoming.get(name, 0) + inbound
                if inbound and incoming[name] == AWS_SUBSCRIPTIONS_MAX + 1:
                    message = (
                        f"AWS IoT Core accepts {AWS_SUBSCRIPTIONS_MAX} incoming forwarders of one connector; use a "
                        "pattern, or another connector"
                    )
                    yield error_at(resource, path, message)
            elif part.device is not None:
                names = names_of(part, connector.hosts[0].host)
                yield from _iot_hub_topic(resource, path, f"{name}/", names, remote, spec.address, inbound=inbound)


def _chirpstack_topics(resources: Sequence[Resource], connectors: set[str]) -> Errors:
    """Check that commands go to a topic of ChirpStack, and that its answers come in."""
    found = [
        (resource, i, forwarder.direction, spec, *remote_of(forwarder, spec.address))
        for resource, spec in of_kind(resources, AddressSpec)
        for i, forwarder in enumerate(spec.forwarders)
    ]
    answering = {
        name for _, _, direction, _, name, remote in found if direction is Direction.IN and EVENTS.fullmatch(remote)
    }
    for resource, i, direction, spec, name, remote in found:
        if name not in connectors or direction is Direction.IN:
            continue
        path: Path = ("spec", "forwarders", i, "remoteAddress")
        if not COMMANDS.fullmatch(remote):
            example = f"{name}/application/APPLICATION/device/+/command/down"
            message = (
                f'ChirpStack takes commands at one topic of a device: write "{example}", at an address like command/+'
            )
            yield error_at(resource, path, message)
        elif spec.type is not AddressType.QUEUE:
            message = "must be queue for commands to ChirpStack: a command waits for its device, and may expire"
            yield error_at(resource, ("spec", "type"), message)
        elif name not in answering:
            message = (
                f'needs an incoming forwarder from "{name}/application/+/device/+/event/+": an uplink opens the '
                f"receive window of a command to {spec.address}, and txack or ack ends it"
            )
            yield error_at(resource, path, message)


def _same_devices(resources: Sequence[Resource]) -> Errors:
    """Report connectors that are the same device of an IoT hub: the hub would end the connection of the other."""
    first: dict[tuple[str, str], str] = {}
    for resource, space in of_kind(resources, AddressSpaceSpec):
        for i, connector in enumerate(space.connectors):
            part = connector.mqtt
            if part is None or part.service is not MqttService.AZURE_IOT_HUB or part.device is None:
                continue
            names = names_of(part, connector.hosts[0].host)
            other = first.setdefault((names.host, names.client_id), connector.name)
            if other != connector.name:
                message = f'"{names.client_id}" is the device of the connector "{other}" already'
                yield error_at(resource, ("spec", "connectors", i, "mqtt", "device"), message)


def _iot_hub_topic(
    resource: Resource, path: Path, connector: str, names: IotHubNames, remote: str, address: str, *, inbound: bool
) -> Errors:
    """Check that a forwarder uses a topic that an IoT hub has. `connector`: prefix of a remote address."""
    if not inbound:
        if remote.removesuffix("/") != names.events:
            message = f'an IoT hub takes messages of this device at one topic: write "{connector}{names.events}"'
            yield error_at(resource, path, message)
    elif remote != names.inbound:
        message = f'an IoT hub sends messages to this device at one topic: write "{connector}{names.inbound}"'
        yield error_at(resource, path, message)
    elif is_filter(address):
        message = (
            "messages of an IoT hub have no address of their own: put this forwarder at an address without wildcards"
        )
        yield error_at(resource, path, message)


def _iot_hub(resource: Resource, path: Path, connector: Connector, part: MqttSettings) -> Errors:
    inner = (*path, "mqtt")
    if len(connector.hosts) > 1 and part.hub_host is None:
        message = "needs hubHost with several endpointHosts: they lead to one IoT hub, which the token names"
        yield error_at(resource, inner, message)
    if part.device is None:
        yield error_at(resource, inner, "needs device: the identifier of this gateway's device at the IoT hub")
    for field, text in (("device", part.device), ("module", part.module)):
        if text is not None and (fault := identifier_fault(text)):
            yield error_at(resource, (*inner, field), f'"{text}" {fault}')
    if connector.tls is None:
        yield error_at(resource, path, "needs tls: an IoT hub accepts nothing else (tls: {} is enough)")
    if connector.credentials is not None:
        message = "are not for an IoT hub: it knows the device by mqtt.device and mqtt.sharedAccessKey"
        yield error_at(resource, (*path, "credentials"), message)
    if connector.container:
        yield error_at(resource, (*path, "container"), "is not for an IoT hub: mqtt.device is our name there")
    if part.shared_access_key is not None:
        try:
            device_key(part.shared_access_key)
        except ValueError as why:
            yield error_at(resource, (*inner, "sharedAccessKey"), str(why))
    elif connector.tls is not None and connector.tls.certificate is None:
        message = "needs sharedAccessKey, the key of the device; or clientCert and clientKey in tls of the connector"
        yield error_at(resource, inner, message)
    if part.keep_alive_s > IOT_HUB_KEEP_ALIVE_S_MAX:
        message = f"must be {IOT_HUB_KEEP_ALIVE_S_MAX:g} seconds at most for an IoT hub"
        yield error_at(resource, (*inner, "keepAlive"), message)


def _aws(resource: Resource, path: Path, connector: Connector, part: MqttSettings) -> Errors:
    inner = (*path, "mqtt")
    framed = [host.websocket for host in connector.hosts if host.websocket is not None]
    if connector.tls is None:
        yield error_at(resource, path, "needs tls: AWS IoT Core accepts nothing else (tls: {} is enough)")
    if framed and len(framed) < len(connector.hosts):
        message = "must all have websocket, or none: the credentials are an access key only with it"
        yield error_at(resource, (*path, "endpointHosts"), message)
    for i, host in enumerate(connector.hosts):
        if host.websocket not in (None, AWS_WEBSOCKET_PATH):
            message = f"must be {AWS_WEBSOCKET_PATH} at AWS IoT Core"
            yield error_at(resource, (*path, "endpointHosts", i, "websocket"), message)
    if framed and connector.credentials is None:
        message = "needs credentials for a WebSocket: the access key id as username, the secret access key as password"
        yield error_at(resource, path, message)
    elif (
        framed
        and part.region is None
        and (len({region_of(host.host) for host in connector.hosts}) > 1 or region_of(connector.hosts[0].host) is None)
    ):
        message = "needs region: the names of the endpoints do not have one and the same"
        yield error_at(resource, inner, message)
    elif framed and connector.credentials is not None and connector.credentials.username.startswith(TEMPORARY_KEY):
        message = "are temporary, which are not supported: use the access key of an IAM user, or a certificate"
        yield error_at(resource, (*path, "credentials"), message)
    elif not framed and connector.credentials is None and connector.tls is not None and not connector.tls.certificate:
        message = (
            "needs clientCert and clientKey in tls, the certificate of the thing; or websocket: /mqtt at its endpoint "
            "with an access key as credentials"
        )
        yield error_at(resource, path, message)
    if len(connector.container.encode()) > AWS_CLIENT_ID_BYTES_MAX:
        message = f"must have {AWS_CLIENT_ID_BYTES_MAX} bytes at most for AWS IoT Core"
        yield error_at(resource, (*path, "container"), message)
    if part.keep_alive_s > AWS_KEEP_ALIVE_S_MAX:
        message = f"must be {AWS_KEEP_ALIVE_S_MAX:g} seconds at most for AWS IoT Core"
        yield error_at(resource, (*inner, "keepAlive"), message)
