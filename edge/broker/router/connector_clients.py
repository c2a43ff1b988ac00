"""Connectors with a client from a library, by type.

A library is imported only when a connector of its type is configured: the memory of an idle gateway counts.
"""

from __future__ import annotations

import importlib
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from bridge.client_attempt import ClientAttempt, ConnectorClient, ConnectorError, ConnectorTraffic
from bridge.connectors.settings import (
    ClientIdentity,
    DownlinkSettings,
    HttpSettings,
    KafkaSettings,
    MqttService,
    MqttSettings,
)
from bridge.dialer import Attempt, Dialer, PeerEndpoint
from edge.broker.configuration import ConnectorType
from edge.broker.message.translation import mqtt_runs
from edge.broker.model.topics import matches
from edge.broker.router.peer_connector import AttemptAt, PeerConnector
from edge.broker.security.peer_tls import peer_context

_EXTRA: Final = {"aiokafka": "kafka"}
"""Optional dependency that installs a library."""


class _Missing:
    """Client of a library that is not installed."""

    def __init__(self, library: str) -> None:
        extra = _EXTRA.get(library, "edge")
        self._why = f"library {library} is not installed: pip install 'waypost[{extra}]'"

    async def run(self, endpoint: PeerEndpoint, carriage: ConnectorTraffic) -> None:
        raise ConnectorError(self._why)


def client_attempts(parts: PeerConnector) -> AttemptAt:
    """Return the function that makes the attempts of one connector; they share a client."""
    client = _client(parts)

    def attempt(dialer: Dialer, endpoint: PeerEndpoint) -> Attempt:
        return ClientAttempt(dialer, endpoint, client, parts.outbox, parts.inboxes)

    return attempt


def _client(parts: PeerConnector) -> ConnectorClient:
    connector, credentials = parts.connector, parts.connector.credentials
    identity = ClientIdentity(
        connector.container or f"{parts.gateway or 'waypost'}-{connector.name}",
        credentials.username if credentials is not None else None,
        credentials.password if credentials is not None else None,
    )
    tls = partial(peer_context, connector.tls) if connector.tls is not None else None
    try:
        return _MAKE[connector.type](parts, identity, tls)
    except ModuleNotFoundError as error:
        return _Missing((error.name or "a library").partition(".")[0])


_Tls = Callable[[], ssl.SSLContext] | None


def _mqtt(parts: PeerConnector, identity: ClientIdentity, tls: _Tls) -> ConnectorClient:
    made: Any = importlib.import_module("bridge.connectors.mqtt.client")
    settings, interface = parts.connector.mqtt or MqttSettings(), parts.connector.interface
    service: dict[str, Any] = {}
    if settings.service is not None:
        first = parts.connector.hosts[0]
        if settings.service is MqttService.AZURE_IOT_HUB:
            hub: Any = importlib.import_module("bridge.connectors.mqtt.iot_hub")
            identity, dialects, terms = hub.service_of(settings, first.host, parts.now_ns)
            service = {"dialects": dialects, "terms": terms}
        elif settings.service is MqttService.AWS_IOT_CORE:
            core: Any = importlib.import_module("bridge.connectors.mqtt.aws_iot")
            identity, dialects, terms = core.service_of(
                identity, settings, first.host, parts.now_ns, websocket=first.websocket is not None
            )
            service = {"dialects": dialects, "terms": terms}
    client: ConnectorClient = made.MqttClient(
        identity,
        settings,
        translate=mqtt_runs,
        matches=matches,
        now_ns=parts.now_ns,
        tls=tls,
        interface=interface,
        **service,
    )
    return _chirpstack(parts, settings, client) if settings.service is MqttService.CHIRPSTACK else client


def _chirpstack(parts: PeerConnector, settings: MqttSettings, client: ConnectorClient) -> ConnectorClient:
    made: Any = importlib.import_module("bridge.connectors.chirpstack.client")
    queue: Any = importlib.import_module("bridge.connectors.chirpstack.downlinks")
    clock = parts.router.clock
    downlinks = queue.DownlinkQueue(
        settings.downlink or DownlinkSettings(),
        mqtt_runs,
        left_ns=parts.router.left_ns,
        utc_ns=lambda: clock.now_ns if clock.good else None,
        monotonic_s=time.monotonic,
    )
    found: ConnectorClient = made.ChirpStackClient(client, downlinks)
    return found


def _http(parts: PeerConnector, identity: ClientIdentity, tls: _Tls) -> ConnectorClient:
    made: Any = importlib.import_module("bridge.connectors.http.client")
    client: ConnectorClient = made.HttpClient(
        identity, parts.connector.http or HttpSettings(), translate=mqtt_runs, tls=tls
    )
    return client


def _kafka(parts: PeerConnector, identity: ClientIdentity, tls: _Tls) -> ConnectorClient:
    made: Any = importlib.import_module("bridge.connectors.kafka.client")
    settings = parts.connector.kafka or KafkaSettings()
    client: ConnectorClient = made.KafkaClient(identity, settings, parts.endpoints, translate=mqtt_runs, tls=tls)
    return client


_MAKE: Final = {ConnectorType.MQTT: _mqtt, ConnectorType.HTTP: _http, ConnectorType.KAFKA: _kafka}
