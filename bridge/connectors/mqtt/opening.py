"""Open a connection to an MQTT broker: TCP, TLS, and a WebSocket where the endpoint has a path."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, Protocol

from bridge.connecting import socket_to, streams_over
from bridge.connectors.mqtt.service_terms import ServiceTerms
from bridge.dialer import PeerEndpoint

HTTP_PORT: Final = 80
HTTPS_PORT: Final = 443


class MqttReader(Protocol):
    """Received bytes of MQTT."""

    async def read(self, n: int = -1, /) -> bytes:
        """Return the next bytes; empty at the end."""
        ...


class MqttWriter(Protocol):
    """Sent bytes of MQTT."""

    @property
    def transport(self) -> asyncio.WriteTransport: ...
    def write(self, data: bytes, /) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


async def open_streams(
    endpoint: PeerEndpoint, tls: Callable[[], ssl.SSLContext] | None, interface: str | None, terms: ServiceTerms
) -> tuple[MqttReader, MqttWriter]:
    """Connect to an endpoint. `tls` creates the context; `interface` is the network interface to use.

    Raises ConnectorError when the peer refuses the WebSocket, and OSError.
    """
    context = tls() if endpoint.tls and tls is not None else None
    named = terms.application_protocol if endpoint.path is None and endpoint.port == HTTPS_PORT else None
    if context is not None and named is not None:
        context.set_alpn_protocols([named])
    opened = await socket_to(endpoint.host, endpoint.port, interface)
    streams = await streams_over(opened, context, endpoint.host)
    if endpoint.path is None:
        return streams
    from bridge.connectors.mqtt.websocket import WebSocketStream  # noqa: PLC0415 - its library takes 1 MiB

    usual = endpoint.port == (HTTPS_PORT if endpoint.tls else HTTP_PORT)
    host = endpoint.authority.removesuffix(f":{endpoint.port}") if usual else endpoint.authority
    path = endpoint.path if terms.sign_path is None else terms.sign_path(host, endpoint.path)
    stream = WebSocketStream(streams, host, path)
    try:
        await stream.open(terms.websocket_hint)
    except BaseException:
        streams.writer.close()
        raise
    return stream, stream
