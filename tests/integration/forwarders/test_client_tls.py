"""Connectors to MQTT brokers and HTTP endpoints over TLS: trusted authorities and client certificates."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from edge.broker.configuration import Connector, ConnectorType, EndpointHost, TlsFiles
from tests.integration.forwarders.gateways import Sender, eventually, gateways, out
from tests.support.certificates import Authority, Issued
from tests.support.mosquitto import Mosquitto, installed
from tests.support.web_peer import Reply, WebPeer


def connector(kind: ConnectorType, port: int, tls: TlsFiles) -> Connector:
    return Connector(name="peer", type=kind, hosts=(EndpointHost(host="127.0.0.1", port=port),), tls=tls)


async def outcome(peer: Connector) -> str | None:
    """Forward one message; return the error that keeps it here, or None after delivery."""
    async with gateways("gw1") as (near,):
        await near.configure(peer, out("f", "plant/#", "cloud/#"))
        Sender(near.broker).publish("plant/7", b"1")
        dialer, parts = near.connector().dialer, near.connector()
        await eventually(lambda: parts.figures.messages_accepted or (dialer.state.last_error and parts.backlog == 1))
        return None if parts.figures.messages_accepted else dialer.state.last_error


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Issued:
    return authority.issue("server")


def test_http_forwarder_shows_its_client_certificate(authority: Authority, server: Issued, tmp_path: Path) -> None:
    async def run() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server.certificate, server.key)
        async with WebPeer(lambda _: Reply()).serving(context) as peer:
            stranger = Authority(tmp_path / "stranger", "stranger")
            error = await outcome(connector(ConnectorType.HTTP, peer.port, TlsFiles(ca=stranger.certificate)))
            assert error is not None
            assert error.startswith(f"https://127.0.0.1:{peer.port}: ")
            assert "certificate verify failed" in error
            assert peer.requests == []
            assert await outcome(connector(ConnectorType.HTTP, peer.port, TlsFiles(ca=authority.certificate))) is None
            assert len(peer.requests) == 1

    asyncio.run(run())


@installed
def test_mqtt_forwarder_shows_its_client_certificate(authority: Authority, server: Issued, tmp_path: Path) -> None:
    own = authority.issue("gateway")
    for file in (server.key, server.certificate, authority.certificate):
        Path(file).chmod(0o644)
    tls = (f"cafile {authority.certificate}", f"certfile {server.certificate}", f"keyfile {server.key}")
    mosquitto = Mosquitto(tmp_path / "mosquitto", *tls, "require_certificate true")

    async def run() -> None:
        nobody = TlsFiles(ca=authority.certificate)
        assert await outcome(connector(ConnectorType.MQTT, mosquitto.port, nobody)) is not None
        ours = TlsFiles(ca=authority.certificate, certificate=own.certificate, key=own.key)
        assert await outcome(connector(ConnectorType.MQTT, mosquitto.port, ours)) is None

    with mosquitto.running():
        asyncio.run(run())
