"""Access to a Kafka cluster: its brokers, TLS, and credentials."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError

from bridge.client_attempt import ConnectorError
from bridge.connectors.kafka.reasons import describe_error
from bridge.connectors.limits import CONNECT_TIMEOUT_S, KAFKA_CLOSE_TIMEOUT_S
from bridge.connectors.settings import ClientIdentity, KafkaSettings
from bridge.dialer import PeerEndpoint


class Cluster:
    """One cluster of the configuration."""

    def __init__(
        self,
        identity: ClientIdentity,
        settings: KafkaSettings,
        endpoints: Sequence[PeerEndpoint],
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        """`endpoints`: bootstrap brokers. `tls` creates the context for one connection."""
        self.identity = identity
        self.settings = settings
        self._endpoints = list(endpoints)
        self._tls = tls

    async def connect(self, endpoint: PeerEndpoint) -> dict[str, Any]:
        """Connect to the broker at `endpoint`; return the arguments for the library's producers and consumers.

        Raises `ConnectorError` or OSError with the reason of a failure, which the library would hide in its retries.
        """
        reached = self._security()
        try:
            connection = await create_conn(endpoint.host, endpoint.port, **reached)
        except KafkaError as error:
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from None
            raise ConnectorError(describe_error(error)) from None
        await asyncio.wait((connection.close(),), timeout=KAFKA_CLOSE_TIMEOUT_S)
        others = (each for each in self._endpoints if each != endpoint)
        return {"bootstrap_servers": [f"{each.host}:{each.port}" for each in (endpoint, *others)], **reached}

    def _security(self) -> dict[str, Any]:
        identity = self.identity
        tls = self._tls() if self._tls is not None else None
        protocol = ("SASL_" if identity.username is not None else "") + ("SSL" if tls is not None else "PLAINTEXT")
        return {
            "client_id": identity.client_id,
            "request_timeout_ms": int(CONNECT_TIMEOUT_S * 1000),
            "security_protocol": protocol,
            "ssl_context": tls,
            "sasl_mechanism": self.settings.mechanism.value,
            "sasl_plain_username": identity.username,
            "sasl_plain_password": identity.password,
        }
