"""Types of connectors: how each makes a connection attempt to an endpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from bridge.amqp_connection import AmqpConnection
from bridge.connectors.settings import PartitionKey, RouterSettings
from bridge.dialer import Attempt, Dialer, PeerEndpoint
from bridge.engine import Engine
from bridge.forwarders.claims import Claims, NoClaims, SharedAccess
from bridge.forwarders.receivers import Receivers
from bridge.forwarders.senders import Senders
from bridge.forwarders.shared_access import Policy
from bridge.message import Run
from bridge.peer_links import PeerLinks
from bridge.publisher import device_of
from bridge.sasl import SaslClient
from bridge.socket_attempt import SocketAttempt
from edge.broker.configuration import Connector, ConnectorType
from edge.broker.router.connector_clients import client_attempts
from edge.broker.router.peer_connector import AttemptAt, MakeAttempts, PeerConnector
from edge.broker.security.peer_tls import peer_context

IDLE_TIMEOUT_S: Final = 30.0
"""Seconds after which a dead uplink is noticed (no RST, as behind a cellular NAT). A live one costs a frame every 15
s."""


FRAME_BYTES_MAX: Final = 65_536
"""AMQP max-frame-size that we announce, unless the connector sets another."""


def engine_of(connector: Connector, container: str, host: str, properties: Mapping[str, str] | None = None) -> Engine:
    """Make the engine of one connection. `properties` are those of our open."""
    return Engine(
        container_id=container,
        server=False,
        hostname=host,
        sasl=credentials_of(connector),
        idle_timeout_s=connector.idle_timeout_s or IDLE_TIMEOUT_S,
        max_frame_size=connector.frame_bytes_max or FRAME_BYTES_MAX,
        properties=properties,
    )


def credentials_of(connector: Connector) -> SaslClient | None:
    """Return how to authenticate at the peer: by certificate, by password, or anonymously."""
    certified = connector.tls is not None and connector.tls.certificate is not None
    if connector.amqp is not None and connector.amqp.token is not None:
        return SaslClient()  # ANONYMOUS: tokens carry our rights
    if connector.credentials is not None:
        known = connector.credentials
        plain = connector.tls is not None or known.plain_without_tls
        return SaslClient(known.username, known.password, external=certified, plain=plain)
    return SaslClient(external=True) if certified else None


def claims_of(connector: Connector, host: str) -> Claims:
    """Return how to request the rights to the peer's addresses, for one connection."""
    settings, credentials = connector.amqp, connector.credentials
    if settings is None or settings.token is None or credentials is None:
        return NoClaims()
    policy = Policy(credentials.username, credentials.password)
    return SharedAccess(host, policy, settings.token_lifetime_s, time.time)


def partition_key_of(connector: Connector) -> Callable[[Run], str] | None:
    """Return the function for the key of messages that the peer keeps in order; None: no key."""
    chosen = connector.amqp.partition_key if connector.amqp is not None else None
    return None if chosen is None else _PARTITION_KEYS[chosen]


_PARTITION_KEYS: Final[Mapping[PartitionKey, Callable[[Run], str]]] = {
    PartitionKey.DEVICE: lambda run: device_of(run.device),
    PartitionKey.ADDRESS: lambda run: run.address,
}


def amqp_attempts(parts: PeerConnector) -> AttemptAt:
    """Return the function that makes attempts at a peer that speaks AMQP 1.0."""
    connector = parts.connector

    def attempt(dialer: Dialer, endpoint: PeerEndpoint) -> Attempt:
        engine = engine_of(connector, parts.gateway or "waypost", endpoint.host)
        claims, partition_key = claims_of(connector, endpoint.host), partition_key_of(connector)
        senders, receivers = Senders(parts.outbox, claims, partition_key), Receivers(parts.inboxes, claims)
        connection = AmqpConnection(engine, PeerLinks(senders, receivers, claims))
        return SocketAttempt(
            dialer,
            endpoint,
            connection,
            tls=partial(peer_context, connector.tls) if connector.tls is not None else None,
            interface=connector.interface,
            proxy=connector.proxy,
        )

    return attempt


def router_attempts(parts: PeerConnector) -> AttemptAt:
    """Return the function that makes attempts at a neighbour in a network of routers."""
    from edge.broker.router.networking.network_links import NetworkLinks  # noqa: PLC0415 - few gateways have one

    connector = parts.connector

    def attempt(dialer: Dialer, endpoint: PeerEndpoint) -> Attempt:
        name = parts.gateway or "waypost"
        network = parts.router.join_network(name)
        links = NetworkLinks(network, connector.router or RouterSettings(), parts.traffic)
        return SocketAttempt(
            dialer,
            endpoint,
            AmqpConnection(engine_of(connector, name, endpoint.host), links),
            tls=partial(peer_context, connector.tls) if connector.tls is not None else None,
            interface=connector.interface,
            proxy=connector.proxy,
        )

    return attempt


ATTEMPTS: Final[Mapping[ConnectorType, MakeAttempts]] = {
    ConnectorType.AMQP: amqp_attempts,
    ConnectorType.MQTT: client_attempts,
    ConnectorType.HTTP: client_attempts,
    ConnectorType.KAFKA: client_attempts,
    ConnectorType.ROUTER: router_attempts,
}
"""Attempts by type; `uplinks` handles `waypost`."""
