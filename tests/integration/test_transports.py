"""TLS and WebSocket for MQTT and AMQP, with independent clients."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from proton import Message, SSLDomain
from proton.utils import BlockingConnection
from wsproto import ConnectionType, WSConnection, events

from tests.support.certificates import Authority, Issued
from tests.support.configured_gateway import gateway_with
from tests.support.node import mqtt_js, rhea
from tests.support.paho_client import PahoClient
from tests.support.processes import Waypost, wait_until
from tests.support.programs import mosquitto_clients, openssl

WAIT_S = 20.0
pytestmark = openssl

RESOURCES = """
apiVersion: waypost/v1
kind: Gateway
metadata: {{name: gw}}
spec:
  listeners:
    mqtt: 127.0.0.1:0
    mqtts: 127.0.0.1:0
    amqps: 127.0.0.1:0
    mqttWs: 127.0.0.1:0
    amqpWs: 127.0.0.1:0
    mqttWss: 127.0.0.1:0
    amqpWss: 127.0.0.1:0
    tls: {{certificate: {certificate}, key: {key}, clientCa: {ca}}}
  limits: {{handshakeS: 8}}
---
apiVersion: waypost/v1
kind: Address
metadata: {{name: jobs}}
spec: {{address: "queue/#", type: queue}}
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Waypost]:
    folder = tmp_path_factory.mktemp("gateway")
    server = authority.issue("localhost", file="server")
    text = RESOURCES.format(certificate=server.certificate, key=server.key, ca=authority.certificate)
    with gateway_with(folder, text) as running:
        yield running


@pytest.fixture(scope="module")
def device(authority: Authority) -> Issued:
    return authority.issue("device-7")


def device_of(
    port: int, client_id: str, *, transport: str = "tcp", context: ssl.SSLContext | None = None, path: str = ""
) -> PahoClient:
    """Connect a client over any transport."""
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5, transport=transport)  # type: ignore[arg-type]
    if context is not None:
        client.tls_set_context(context)
    if path:
        client.ws_set_options(path=path)
    return PahoClient(client).connect(port, host="localhost" if context is not None else "127.0.0.1")


class TestPaho:
    """MQTT: each transport delivers to all others."""

    @pytest.mark.parametrize("listener", ["mqtts", "mqtt-ws", "mqtt-wss"])
    def test_publish_and_subscribe(self, gateway: Waypost, authority: Authority, listener: str) -> None:
        secure = authority.context() if listener != "mqtt-ws" else None
        transport = "websockets" if "ws" in listener else "tcp"
        with (
            device_of(gateway.port(listener), f"in-{listener}", transport=transport, context=secure) as client,
            device_of(gateway.port("mqtt"), f"plain-{listener}") as plain,
        ):
            client.subscribe(f"up/{listener}")
            plain.subscribe(f"down/{listener}")
            for i in range(50):
                client.publish(f"down/{listener}", b"%d" % i, i % 3)
                plain.publish(f"up/{listener}", b"%d" % i, i % 3)
            assert plain.bodies(50) == [b"%d" % i for i in range(50)]
            assert client.bodies(50) == [b"%d" % i for i in range(50)]

    @pytest.mark.parametrize("listener", ["mqtts", "mqtt-ws", "mqtt-wss"])
    def test_large_message(self, gateway: Waypost, authority: Authority, listener: str) -> None:
        secure = authority.context() if listener != "mqtt-ws" else None
        transport = "websockets" if "ws" in listener else "tcp"
        body = bytes(range(256)) * 12_000  # 3 MB: many frames each way
        with device_of(gateway.port(listener), f"big-{listener}", transport=transport, context=secure) as client:
            client.subscribe(f"big/{listener}")
            client.publish(f"big/{listener}", body)
            assert client.get()[:2] == (f"big/{listener}", body)

    def test_client_certificate_is_accepted(self, gateway: Waypost, authority: Authority, device: Issued) -> None:
        with device_of(gateway.port("mqtts"), "with-certificate", context=authority.context(device)) as client:
            client.publish("certified", b"x")

    def test_certificate_of_an_unknown_authority_is_refused(
        self, gateway: Waypost, authority: Authority, tmp_path: Path
    ) -> None:
        stranger = Authority(tmp_path, "somebody else").issue("device-7")
        context = authority.context(stranger)
        connect = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x1e\x00\x01s"

        def answer() -> bytes:
            with (
                socket.create_connection(("127.0.0.1", gateway.port("mqtts")), WAIT_S) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as secure,
            ):
                secure.sendall(connect)
                return secure.recv(100)

        said = b""
        with contextlib.suppress(ssl.SSLError):  # an alert, if it arrives before the end of the connection
            said = answer()
        assert said == b""


@mosquitto_clients
def test_mosquitto_publishes_over_tls(gateway: Waypost, authority: Authority, device: Issued) -> None:
    done = subprocess.run(
        ["mosquitto_pub", "-h", "localhost", "-p", str(gateway.port("mqtts")), "--cafile", authority.certificate,
         "--cert", device.certificate, "--key", device.key, "-t", "mosquitto", "-m", "hello", "-q", "2"],
        check=False, capture_output=True, text=True, timeout=WAIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def proton_domain(authority: Authority, issued: Issued | None = None) -> SSLDomain:
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(authority.certificate)
    domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME, authority.certificate)
    if issued is not None:
        domain.set_credentials(issued.certificate, issued.key, None)
    return domain


class TestProton:
    """AMQP over TLS with Proton's own client."""

    @pytest.mark.parametrize("mechanisms", ["ANONYMOUS", "EXTERNAL"])
    def test_send_and_receive(self, gateway: Waypost, authority: Authority, device: Issued, mechanisms: str) -> None:
        url = f"amqps://localhost:{gateway.port('amqps')}"
        domain = proton_domain(authority, device if mechanisms == "EXTERNAL" else None)
        connection = BlockingConnection(url, ssl_domain=domain, allowed_mechs=mechanisms, timeout=WAIT_S)
        sender = connection.create_sender(f"queue/{mechanisms}")
        for i in range(20):
            sender.send(Message(body=f"{i}"))
        receiver = connection.create_receiver(f"queue/{mechanisms}")
        bodies = []
        for _ in range(20):
            bodies.append(receiver.receive(WAIT_S).body)
            receiver.accept()
        assert bodies == [f"{i}" for i in range(20)]
        connection.close()


class WebSocketClient:
    """RFC 6455 by wsproto on a socket; `received` has the messages with their frames joined."""

    def __init__(self, port: int, subprotocol: str, path: str = "/") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self.machine = WSConnection(ConnectionType.CLIENT)
        self.received = b""
        self.closed: int | None = None
        self.rejected: int | None = None
        self.accepted: str | None = None
        self.pongs: list[bytes] = []
        self.send(events.Request(host="localhost", target=path, subprotocols=[subprotocol]))
        self.until(lambda: self.accepted is not None or self.rejected is not None)

    def send(self, event: events.Event) -> None:
        self.socket.sendall(self.machine.send(event))

    def until(self, condition: object) -> None:
        assert callable(condition)
        while not condition():
            data = self.socket.recv(65_536)
            if not data:
                assert condition(), "the gateway closed"
                return
            self.machine.receive_data(data)
            for event in self.machine.events():
                if isinstance(event, events.BytesMessage):
                    self.received += event.data
                elif isinstance(event, events.AcceptConnection):
                    self.accepted = event.subprotocol
                elif isinstance(event, events.RejectConnection):
                    self.rejected = event.status_code
                elif isinstance(event, events.CloseConnection):
                    self.closed = event.code
                elif isinstance(event, events.Pong):
                    self.pongs.append(bytes(event.payload))

    def __enter__(self) -> WebSocketClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


CONNECT = b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x1e\x00\x02ws"


class TestWebSocket:
    """RFC 6455 and MQTT 5 section 6, frame by frame."""

    def test_fragments_and_ping(self, gateway: Waypost) -> None:
        with WebSocketClient(gateway.port("mqtt-ws"), "mqtt", "/mqtt") as client:
            assert client.accepted == "mqtt"
            for byte in CONNECT[:-1]:  # one fragmented message with a ping inside
                client.send(events.BytesMessage(bytes((byte,)), message_finished=False))
            client.send(events.Ping(b"there?"))
            client.send(events.BytesMessage(CONNECT[-1:]))
            client.until(lambda: client.received == b"\x20\x02\x00\x00" and client.pongs == [b"there?"])
            client.send(events.BytesMessage(b"\xc0\x00" * 3))  # three packets in a message
            client.until(lambda: client.received[4:] == b"\xd0\x00" * 3)
            client.send(events.CloseConnection(1000))
            client.until(lambda: client.closed == 1000)

    def test_disconnect_closes_normally(self, gateway: Waypost) -> None:
        with WebSocketClient(gateway.port("mqtt-ws"), "mqtt") as client:
            client.send(events.BytesMessage(CONNECT + b"\xe0\x00"))
            client.until(lambda: client.closed == 1000)

    def test_text_is_refused(self, gateway: Waypost) -> None:
        with WebSocketClient(gateway.port("mqtt-ws"), "mqtt") as client:
            client.send(events.TextMessage("hello"))
            client.until(lambda: client.closed == 1003)

    def test_wrong_subprotocol_is_refused(self, gateway: Waypost) -> None:
        with WebSocketClient(gateway.port("mqtt-ws"), "amqp") as client:
            assert client.rejected == 400
        with WebSocketClient(gateway.port("amqp-ws"), "mqtt") as client:
            assert client.rejected == 400

    def test_plain_get_needs_an_upgrade(self, gateway: Waypost) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port("mqtt-ws"), timeout=WAIT_S)
        connection.request("GET", "/mqtt")
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("Upgrade")) == (426, "websocket")
        assert b"subprotocol mqtt" in answer.read()
        connection.close()

    def test_amqp(self, gateway: Waypost) -> None:
        with WebSocketClient(gateway.port("amqp-ws"), "amqp", "/amqp") as client:
            client.send(events.BytesMessage(b"AMQP\x00\x01\x00\x00"))
            client.until(lambda: client.received.startswith(b"AMQP\x00\x01\x00\x00"))

    def test_silent_client_is_disconnected(self, gateway: Waypost) -> None:
        """`handshakeS` bounds the silence of a client at every stage."""
        with contextlib.ExitStack() as stack:
            for silent in [
                stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port(name)), WAIT_S))
                for name in ("mqtt-ws", "mqtts")
            ]:
                while silent.recv(1000):
                    pass


class TestRenewal:
    """Changed certificate files apply to the next client."""

    def test_new_certificate_applies_and_a_bad_file_is_ignored(self, gateway: Waypost, authority: Authority) -> None:
        def presented() -> str:
            context = authority.context()
            with (
                socket.create_connection(("127.0.0.1", gateway.port("mqtts")), WAIT_S) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as secure,
            ):
                return str(dict(pair for (pair,) in secure.getpeercert()["subject"])["commonName"])  # type: ignore[index,misc]

        assert presented() == "localhost"
        with device_of(gateway.port("mqtts"), "stays", context=authority.context()) as before:
            authority.issue("renewed", file="server")
            wait_until(lambda: presented() == "renewed", timeout_s=WAIT_S, what="the new certificate")
            Path(authority.folder / "server.pem").write_text("nonsense")
            wait_until(
                lambda: "the current certificate stays in use" in gateway.log.read_text(),
                timeout_s=WAIT_S,
                what="a warning",
            )
            assert presented() == "renewed"
            before.publish("still", b"here")


MQTT_JS = """
const mqtt = require('mqtt');
const client = mqtt.connect(process.argv[1], {protocolVersion: Number(process.argv[2]), connectTimeout: 10000});
let seen = 0;
client.on('error', (error) => { console.error(error.message); process.exit(1); });
client.on('connect', () => client.subscribe('js/#', {qos: 1}, () => {
  for (let i = 0; i < 100; i++) client.publish('js/' + i, 'x'.repeat(1000 * i), {qos: i % 3});
}));
client.on('message', (topic, body) => {
  if (body.length === 1000 * Number(topic.slice(3)) && ++seen === 100) client.end(false, () => console.log('done'));
});
"""


@mqtt_js
@pytest.mark.parametrize("version", ["4", "5"])
def test_mqtt_js_publishes_and_subscribes(gateway: Waypost, version: str) -> None:
    url = f"ws://127.0.0.1:{gateway.port('mqtt-ws')}/mqtt"
    done = subprocess.run(
        ["node", "-e", MQTT_JS, url, version], check=False, capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.stdout == "done\n", done.stderr


RHEA = """
const rhea = require('rhea');
const connect = rhea.websocket_connect(require('ws'));
const connection = rhea.connect({connection_details: connect(process.argv[1], ['amqp'], {}), reconnect: false});
let seen = 0, accepted = 0;
const done = () => { if (seen === 50 && accepted === 50) { console.log('done'); connection.close(); } };
connection.on('connection_error', (context) => { console.error(context.connection.error); process.exit(1); });
connection.open_receiver('queue/rhea');
const sender = connection.open_sender('queue/rhea');
let sent = 0;
sender.on('sendable', () => { while (sender.sendable() && sent < 50) sender.send({body: 'x'.repeat(1000 * sent++)}); });
sender.on('accepted', () => { accepted++; done(); });
connection.on('message', (context) => { if (context.message.body.length === 1000 * seen) seen++; done(); });
"""


@rhea
def test_rhea_sends_and_receives(gateway: Waypost) -> None:
    done = subprocess.run(
        ["node", "-e", RHEA, f"ws://127.0.0.1:{gateway.port('amqp-ws')}/amqp"],
        check=False,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.stdout == "done\n", done.stderr
