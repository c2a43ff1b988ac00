"""Access to a Kafka cluster: its brokers, TLS, and credentials."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from aiokafka.conn import create_conn
from aiokafka.errors import AuthenticationFailedError, IllegalSaslStateError, KafkaError, SaslAuthenticationFailed
from aiokafka.protocol.admin import ApiVersionRequest

from bridge.client_attempt import ConnectorError
from bridge.connectors.kafka.reasons import describe_error
from bridge.connectors.kafka.tokens import tokens_of
from bridge.connectors.limits import CONNECT_TIMEOUT_S, KAFKA_CLOSE_TIMEOUT_S
from bridge.connectors.settings import ClientIdentity, KafkaSettings, Mechanism
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
        self._tokens = tokens_of(identity, settings) if settings.mechanism is Mechanism.OAUTHBEARER else None

    async def connect(self, endpoint: PeerEndpoint) -> dict[str, Any]:
        """Connect to the broker at `endpoint`; return the arguments for the library's producers and consumers.

        Raises `ConnectorError` or OSError with the reason of a failure, which the library would hide in its retries.
        """
        reached = self._security()
        try:
            connection = await create_conn(endpoint.host, endpoint.port, **reached)
            await self._check_token(connection)
        except KafkaError as error:
            if self._tokens is not None and isinstance(error, AuthenticationFailedError | SaslAuthenticationFailed):
                self._tokens.forget()
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from None
            raise ConnectorError(describe_error(error)) from None
        await asyncio.wait((connection.close(),), timeout=KAFKA_CLOSE_TIMEOUT_S)
        others = (each for each in self._endpoints if each != endpoint)
        return {"bootstrap_servers": [f"{each.host}:{each.port}" for each in (endpoint, *others)], **reached}

    async def _check_token(self, connection: Any) -> None:
        """Check that the broker has accepted our token. Raises SaslAuthenticationFailed, and closes the connection.

        A broker answers an invalid token with a challenge (RFC 7628 section 3.2.3), which the library takes for a
        success. The broker then accepts no other request.
        """
        if self._tokens is None:
            return
        try:
            answer = await connection.send(ApiVersionRequest())
        except KafkaError:
            answer = None
        if answer is None or answer.error_code == IllegalSaslStateError.errno:
            connection.close()
            raise SaslAuthenticationFailed

    def _security(self) -> dict[str, Any]:
        identity = self.identity
        tls = self._tls() if self._tls is not None else None
        protocol = ("SASL_" if identity.username is not None else "") + ("SSL" if tls is not None else "PLAINTEXT")
        reached = {
            "client_id": identity.client_id,
            "request_timeout_ms": int(CONNECT_TIMEOUT_S * 1000),
            "security_protocol": protocol,
            "ssl_context": tls,
            "sasl_mechanism": self.settings.mechanism.value,
        }
        if self._tokens is not None:
            return {**reached, "sasl_oauth_token_provider": self._tokens}
        return {**reached, "sasl_plain_username": identity.username, "sasl_plain_password": identity.password}
