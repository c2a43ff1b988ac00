"""Rules for MQTT connectors to cloud services, so that `apply` reports what the service would refuse."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.connectors.limits import IOT_HUB_KEEP_ALIVE_S_MAX
from bridge.connectors.mqtt.iot_hub_names import identifier_fault, names_of
from bridge.connectors.settings import MqttService, MqttSettings
from bridge.forwarders.shared_access import device_key
from bridge.resources.errors import Path
from bridge.resources.resource import Errors, Resource, error_at, of_kind
from edge.broker.configuration import Connector, ConnectorType, Direction
from edge.broker.model.topics import is_filter
from edge.configuration.loops import remote_of
from edge.configuration.resources import AddressSpaceSpec, AddressSpec


def service_faults(resource: Resource, path: Path, connector: Connector, part: MqttSettings) -> Errors:
    """Yield the errors of a connector to a cloud service; `path` is that of the connector."""
    if part.service is MqttService.AZURE_IOT_HUB:
        yield from _iot_hub(resource, path, connector, part)


def service_addresses(resources: Sequence[Resource]) -> Errors:
    """Yield the errors of forwarders to and from topics that an IoT hub does not have."""
    connectors = {
        connector.name: connector
        for _, space in of_kind(resources, AddressSpaceSpec)
        for connector in space.connectors
        if connector.type is ConnectorType.MQTT
        and connector.mqtt is not None
        and connector.mqtt.service is MqttService.AZURE_IOT_HUB
        and connector.mqtt.device is not None
    }
    for resource, spec in of_kind(resources, AddressSpec):
        for i, forwarder in enumerate(spec.forwarders):
            name, remote = remote_of(forwarder, spec.address)
            connector = connectors.get(name)
            if connector is None or connector.mqtt is None:
                continue
            path: Path = ("spec", "forwarders", i, "remoteAddress")
            names = names_of(connector.mqtt, connector.hosts[0].host)
            if forwarder.direction is Direction.OUT:
                if remote.rstrip("/") != names.events:
                    message = f'an IoT hub takes messages of this device at one topic: write "{name}/{names.events}"'
                    yield error_at(resource, path, message)
            elif remote != names.inbound:
                message = f'an IoT hub sends messages to this device at one topic: write "{name}/{names.inbound}"'
                yield error_at(resource, path, message)
            elif is_filter(spec.address):
                message = (
                    "messages of an IoT hub have no address of their own: put this forwarder at an address without "
                    "wildcards"
                )
                yield error_at(resource, path, message)


def _iot_hub(resource: Resource, path: Path, connector: Connector, part: MqttSettings) -> Errors:
    inner = (*path, "mqtt")
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
