"""Uplinks with TLS: mutual certificates with the hub, a peer of an unknown authority, and a password."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bridge.engine import Engine
from bridge.sasl import SaslServer
from bridge.transport.driver import ConnectionDriver
from edge.broker.configuration import TlsListener
from edge.broker.listeners.tcp import Gone, TcpListener
from edge.broker.listeners.tls import Certificates
from tests.support.certificates import Authority, Issued
from tests.support.paho_client import mqtt_client
from tests.support.processes import Waypost, hub, wait_until
from tests.support.programs import openssl
from tests.support.uplink import uplink

WAIT_S = 20.0
pytestmark = openssl


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


UPLINK = """
apiVersion: waypost/v1
kind: Gateway
metadata: {{name: gw-tls}}
spec:
  listeners: {{mqtt: 127.0.0.1:0, http: 127.0.0.1:0}}
{gateway}
---
apiVersion: waypost/v1
kind: AddressSpace
metadata: {{name: default}}
spec: {space}
---
apiVersion: waypost/v1
kind: Address
metadata: {{name: plant}}
spec: {{address: "plant/#", type: topic, forwarders: [{{name: up, remoteAddress: {connector}}}]}}
"""


def uplinked(folder: Path, *, gateway: str = "", space: str = "{}", connector: str = "hub") -> Waypost:
    """Start a gateway that forwards `plant/#` over a connector."""
    config = folder / "uplinked.yaml"
    config.write_text(UPLINK.format(gateway=gateway, space=space, connector=connector))
    return Waypost(folder / "uplinked.log", "run", "--data", str(folder / "uplinked"), "--config", str(config))


class TestUplink:
    """The dialing side of TLS."""

    def test_gateway_and_hub_show_certificates(self, tmp_path: Path, authority: Authority) -> None:
        ours, theirs = authority.issue("gw-tls"), authority.issue("hub")
        settings = tmp_path / "hub.yaml"
        settings.write_text(
            "{apiVersion: waypost/v1, kind: Hub, spec: {gatherMilliseconds: 50, tls: {certificate: "
            f"{theirs.certificate}, key: {theirs.key}, clientCa: {authority.certificate}, clientRequired: true}}}}}}"
        )
        with hub(tmp_path, "--config", str(settings)) as far:
            link = (
                f"  hub: {{url: 'amqps://localhost:{far.port('amqp')}', tls: {{caCert: {authority.certificate}, "
                f"clientCert: {ours.certificate}, clientKey: {ours.key}}}}}"
            )
            with uplinked(tmp_path, gateway=link) as near, mqtt_client(near, "device", version=5) as client:
                for i in range(20):
                    client.publish("plant/1", b"%d" % i)
                wait_until(lambda: uplink(near)["acked"] == 20, timeout_s=WAIT_S, what="20 at the hub")
                assert uplink(near)["state"] == "connected"
                assert uplink(near)["endpoint"].startswith("amqps://")

    def test_hub_of_an_unknown_authority_is_refused(self, tmp_path: Path, authority: Authority) -> None:
        theirs = Authority(tmp_path / "other", "somebody else").issue("hub")
        settings = tmp_path / "hub.yaml"
        settings.write_text(
            "{apiVersion: waypost/v1, kind: Hub, spec: {tls: {certificate: "
            f"{theirs.certificate}, key: {theirs.key}}}}}}}"
        )
        with hub(tmp_path, "--config", str(settings)) as far:
            link = f"  hub: {{url: 'amqps://localhost:{far.port('amqp')}', tls: {{caCert: {authority.certificate}}}}}"
            with uplinked(tmp_path, gateway=link) as near:
                wait_until(
                    lambda: "certificate verify failed" in (uplink(near)["last_error"] or ""),
                    timeout_s=WAIT_S,
                    what="the reason in the status",
                )
                assert uplink(near)["state"] == "connecting"

    def test_hub_that_refuses_the_certificate_is_reported(self, tmp_path: Path, authority: Authority) -> None:
        """With TLS 1.3 the refusal arrives after the handshake; the status has its reason and the next step."""
        ours, theirs = Authority(tmp_path / "other", "somebody else").issue("gw-tls"), authority.issue("hub")
        settings = tmp_path / "hub.yaml"
        settings.write_text(
            "{apiVersion: waypost/v1, kind: Hub, spec: {tls: {certificate: "
            f"{theirs.certificate}, key: {theirs.key}, clientCa: {authority.certificate}}}}}}}"
        )
        with hub(tmp_path, "--config", str(settings)) as far:
            link = (
                f"  hub: {{url: 'amqps://localhost:{far.port('amqp')}', tls: {{caCert: {authority.certificate}, "
                f"clientCert: {ours.certificate}, clientKey: {ours.key}}}}}"
            )
            with uplinked(tmp_path, gateway=link) as near:
                reason = "the peer refuses TLS with us (unknown ca): it does not know the authority of our certificate"
                wait_until(
                    lambda: reason in (error := uplink(near)["last_error"] or "") and "waypost enrol" in error,
                    timeout_s=WAIT_S,
                    what="the reason and the next step in the status",
                )
                assert uplink(near)["state"] == "connecting"
        assert "the peer refuses TLS with us (unknown ca)" in (tmp_path / "uplinked.log").read_text()

    def test_refused_password_over_tls_is_reported(self, tmp_path: Path, authority: Authority) -> None:
        asked: queue.Queue[tuple[str, str, bytes]] = queue.Queue()
        theirs = authority.issue("localhost", file="peer")
        with PasswordPeer(theirs, lambda *claim: asked.put(claim)) as peer:
            space = (
                f"{{connectors: [{{name: peer, endpointHosts: [{{host: localhost, port: {peer.port}}}], tls: {{caCert: "
                f"{authority.certificate}}}, credentials: {{username: alice, password: opensesame}}}}]}}"
            )
            with uplinked(tmp_path, space=space, connector="peer"):
                assert asked.get(timeout=WAIT_S) == ("PLAIN", "alice", b"opensesame")


class PasswordPeer:
    """AMQP server with TLS in its own thread; records the client's SASL response and refuses it."""

    def __init__(self, issued: Issued, heard: Callable[[str, str, bytes], None]) -> None:
        self.port = 0
        self._issued = issued
        self._heard = heard
        self._stop: Callable[[], object] = lambda: None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> PasswordPeer:
        self._thread.start()
        assert self._ready.wait(WAIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._thread.join()

    async def _run(self) -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stopped.set)
        files = TlsListener(certificate=self._issued.certificate, key=self._issued.key)
        listener = TcpListener("peer", self._driver)
        _, self.port = await listener.start("127.0.0.1", 0, Certificates(files))
        self._ready.set()
        await stopped.wait()
        await listener.stop()

    def _driver(self, gone: Gone, identity: str | None) -> ConnectionDriver:
        engine = Engine(container_id="peer", server=True, sasl=SaslServer(self._refuse))
        return ConnectionDriver(engine, lambda _driver: Nobody(), write_bytes_max=65_536, gone=gone)

    def _refuse(self, mechanism: str, username: str, password: bytes) -> None:
        self._heard(mechanism, username, password)


class Nobody:
    """Owner that ignores every event."""

    def handle(self, events: Sequence[object]) -> None:
        pass

    def writable(self) -> None:
        pass
