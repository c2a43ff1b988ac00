"""`waypost client trace` on a running gateway, with clients of other projects: Mosquitto, Proton, plain HTTP."""

from __future__ import annotations

import itertools
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from proton import Message
from proton.utils import BlockingConnection, LinkDetached

from edge.broker.message.mqtt_wire import read_fixed_header
from edge.broker.mqtt import packets
from edge.broker.tracing.limits import TRACE_EVENTS_WAITING_MAX
from tests.support import configured_gateway as gateways
from tests.support.command import PROGRAM, item_in, run_waypost
from tests.support.http_client import ask
from tests.support.processes import Waypost, wait_until
from tests.support.programs import mosquitto_clients

WAIT_S = 20.0
SECRET, PAYLOAD = "wonderland-secret", "payload-secret"
RESOURCES = gateways.resources(
    gateways.address("jobs", "jobs", "queue"),
    gateways.address("order", "order/#", "queue"),
    gateways.user("alice", "send, recv", '"plant/#", jobs, "order/#"', password=SECRET),
    gateways.user("boss", "manage", password=SECRET),
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    with gateways.gateway_with(tmp_path_factory.mktemp("trace"), RESOURCES) as running:
        yield running


def within(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, timeout_s=WAIT_S, what=what)


class Trace:
    """`waypost client trace` with its events in order."""

    def __init__(self, gateway: Waypost, *arguments: str) -> None:
        call = ["client", "trace", "--data", str(gateway.data), *arguments]
        self.process = subprocess.Popen(
            [*PROGRAM, *call],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.lines)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors)),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, source: Any, into: list[str]) -> None:
        into.extend(iter(source.readline, ""))

    @property
    def events(self) -> list[dict[str, Any]]:
        """Return the shown events, without the first one."""
        return [item_in(line) for line in self.lines[1:]]

    def named(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        found = [event for event in self.events if event["name"] == name]
        return [event for event in found if all(event.get(key) == value for key, value in fields.items())]

    def wait_for(self, name: str, **fields: Any) -> dict[str, Any]:
        wait = time.monotonic() + WAIT_S
        while not self.named(name, **fields) and self.process.poll() is None and time.monotonic() < wait:
            time.sleep(0.02)
        found = self.named(name, **fields)
        assert found, (name, fields, self.lines, self.errors)
        return found[0]

    def end(self) -> int:
        self.process.terminate()
        code = self.process.wait(WAIT_S)
        for reader in self._readers:
            reader.join(WAIT_S)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


@pytest.fixture
def trace(gateway: Waypost) -> Iterator[Callable[..., Trace]]:
    """Return a function that starts a trace and waits until it runs."""
    begun: list[Trace] = []

    def begin(*arguments: str) -> Trace:
        begun.append(made := Trace(gateway, *arguments))
        within(lambda: bool(made.lines or made.errors), "the trace runs")
        return made

    yield begin
    for each in begun:
        each.end()


def publish(gateway: Waypost, client: str, topic: str, *more: str, user: str = "alice", password: str = SECRET) -> None:
    call = [
        "mosquitto_pub",
        "-h",
        "127.0.0.1",
        "-p",
        str(gateway.port("mqtt")),
        "-i",
        client,
        "-t",
        topic,
        "-m",
        PAYLOAD,
    ]
    subprocess.run([*call, "-u", user, "-P", password, *more], check=False, capture_output=True, timeout=WAIT_S)


@mosquitto_clients
class TestMqtt:
    def test_stored_message_is_shown(self, gateway: Waypost, trace: Callable[..., Trace]) -> None:
        shown = trace("--client", "stores", "--json")
        publish(gateway, "stores", "jobs", "-q", "1")
        shown.wait_for("closed by the client")
        kinds = [(event["kind"], event["name"]) for event in shown.events]
        assert kinds == [
            ("connection", "accepted"), ("packet", "CONNECT MQTT"), ("packet", "CONNACK"),
            ("packet", "PUBLISH"), ("outcome", "PUBLISH"), ("packet", "PUBACK"),
            ("packet", "DISCONNECT"), ("connection", "closed by the client"),
        ]  # fmt: skip
        outcome = shown.named("PUBLISH", kind="outcome")[0]
        assert (outcome["outcome"], outcome["address"], outcome["id"]) == ("stored", "jobs", 1)
        assert len(outcome["epoch"]) == 32
        assert outcome["sequence"] == outcome["last_sequence"]
        assert shown.named("PUBACK")[0]["address"] == "jobs"

    def test_message_without_a_subscriber_is_shown(self, gateway: Waypost, trace: Callable[..., Trace]) -> None:
        shown = trace("--client", "alone", "--json")
        publish(gateway, "alone", "plant/1/temp", "-q", "1", "-V", "5")
        shown.wait_for("closed by the client")
        assert shown.named("PUBLISH", kind="outcome")[0]["outcome"] == "no subscriber: discarded"
        assert shown.named("PUBACK")[0]["code"] == 0x10

    @pytest.mark.parametrize(("version", "qos"), [("5", "1"), ("5", "0"), ("5", "2"), ("311", "0")])
    def test_refused_message_is_shown(
        self, gateway: Waypost, trace: Callable[..., Trace], version: str, qos: str
    ) -> None:
        shown = trace("--client", f"denied{version}{qos}", "--json")
        publish(gateway, f"denied{version}{qos}", "other", "-q", qos, "-V", version)
        outcome = shown.wait_for("PUBLISH", kind="outcome")
        assert (outcome["outcome"], outcome["code"], outcome["address"]) == (
            "refused because not authorized", 0x87, "other",
        )  # fmt: skip
        assert "alice has no right" in outcome["text"]

    def test_refusal_that_the_client_does_not_get_is_shown(self, gateway: Waypost, trace: Callable[..., Trace]) -> None:
        shown = trace("--client", "old", "--json")
        publish(gateway, "old", "other", "-q", "1", "-V", "311")
        assert "MQTT 3.1.1 cannot report a refusal" in shown.wait_for("PUBLISH", kind="outcome")["text"]
        assert shown.wait_for("closed by the gateway")

    def test_bad_password_is_shown(self, gateway: Waypost, trace: Callable[..., Trace]) -> None:
        shown = trace("--client", "alice", "--json")  # found by its user
        publish(gateway, "liar", "jobs", password="wrong-secret")
        assert "wrong password" in shown.wait_for("login refused")["text"]
        assert shown.wait_for("CONNACK")["code"] == 4
        assert "wrong-secret" not in "".join(shown.lines)

    def test_delivery_to_a_subscriber_is_shown(self, gateway: Waypost, trace: Callable[..., Trace]) -> None:
        call = ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(gateway.port("mqtt")), "-i", "listens", "-t", "plant/2/#"]
        shown = trace("--address", "plant/2/#", "--json")
        with subprocess.Popen(
            [*call, "-q", "1", "-C", "1", "-u", "alice", "-P", SECRET, "-V", "5"], stdout=subprocess.PIPE
        ):
            assert shown.wait_for("SUBSCRIBE")["address"] == "plant/2/# q1"
            shown.wait_for("SUBACK")
            publish(gateway, "talks", "plant/2/temp", "-q", "1")
        shown.wait_for("PUBLISH", direction="out")
        assert shown.wait_for("PUBLISH", kind="outcome")["offered"] == 1
        assert shown.wait_for("PUBACK", direction="in")["client"] == "listens"
        publish(gateway, "talks", "plant/3/temp")
        publish(gateway, "talks", "plant/2/last")
        shown.wait_for("PUBLISH", address="plant/2/last")
        assert not shown.named("PUBLISH", address="plant/3/temp")


class TestAmqp:
    def test_stored_delivered_and_refused_messages_are_shown(
        self, gateway: Waypost, trace: Callable[..., Trace]
    ) -> None:
        shown = trace("--client", "alice", "--json")
        url = f"amqp://alice:{SECRET}@127.0.0.1:{gateway.port('amqp')}"
        connection = BlockingConnection(url, allowed_mechs="PLAIN")
        connection.create_sender("order/amqp").send(Message(body=PAYLOAD))
        receiver = connection.create_receiver("order/amqp")
        receiver.receive(timeout=WAIT_S)
        receiver.accept()
        with pytest.raises(LinkDetached):
            connection.create_sender("other")
        connection.close()
        shown.wait_for("closed by the client")
        assert shown.named("sasl-outcome")[0]["reason"] == "ok"
        assert shown.wait_for("transfer", kind="outcome")["outcome"] == "stored"
        assert [event["direction"] for event in shown.named("transfer", kind="packet")] == ["in", "out"]
        dispositions = shown.named("disposition", address="order/amqp")
        assert {(event["direction"], event["flags"][0]) for event in dispositions} == {
            ("out", "accepted"), ("in", "accepted"),
        }  # fmt: skip
        detach = shown.named("detach", direction="out", address="other")[0]
        assert detach["reason"] == "amqp:unauthorized-access"
        names = [event["name"] for event in shown.events if event["kind"] == "packet" and event["direction"] == "in"]
        assert [name for name, _ in itertools.groupby(names)][:5] == ["header", "sasl-init", "header", "open", "begin"]

    def test_earlier_connection_is_traced(self, gateway: Waypost, trace: Callable[..., Trace]) -> None:
        url = f"amqp://alice:{SECRET}@127.0.0.1:{gateway.port('amqp')}"
        connection = BlockingConnection(url, allowed_mechs="PLAIN")
        sender = connection.create_sender("order/joined")
        for number in range(20):
            sender.send(Message(body=f"{PAYLOAD} {number}"))
        shown = trace("--client", "alice", "--json")
        shown.wait_for("connected before the trace")
        for number in range(20, 40):
            sender.send(Message(body=f"{PAYLOAD} {number}"))
        shown.wait_for("disposition", id=39)
        assert shown.named("transfer", kind="outcome", sequence=39)
        assert {event["address"] for event in shown.named("transfer")} == {"order/joined"}
        assert len(shown.named("transfer", kind="packet")) == len(shown.named("disposition")) == 20
        shown.end()
        for number in range(40, 60):
            sender.send(Message(body=f"{PAYLOAD} {number}"))
        receiver = connection.create_receiver("order/joined", credit=60)
        bodies = [receiver.receive(timeout=WAIT_S).body for _ in range(60)]
        assert bodies == [f"{PAYLOAD} {number}" for number in range(60)]
        connection.close()


class Publisher:
    """MQTT 3.1.1 client that publishes numbers at QoS 1 and records the packet identifiers of its PUBACKs."""

    def __init__(self, gateway: Waypost, client: str, topic: str) -> None:
        self.sent = 0
        self.acknowledged: list[int] = []
        self._topic = topic
        self._rest = b""
        self._socket = socket.create_connection(("127.0.0.1", gateway.port("mqtt")), WAIT_S)
        self._socket.sendall(packets.Connect(client, 4, username="alice", password=SECRET.encode()).encode())
        assert self._socket.recv(4)[3] == 0
        self._taking = threading.Thread(target=self._take)
        self._taking.start()

    def send(self, count: int, *, cut: int = 0) -> None:
        """Publish `count` numbers; leave `cut` bytes of the last one for the next call."""
        encoded = [
            packets.Publish(self._topic, str(self.sent + i).encode(), 1, packet_id=(self.sent + i) % 60_000 + 1).encode(
                4
            )
            for i in range(count)
        ]
        data = self._rest + b"".join(encoded)
        self._rest = data[len(data) - cut :] if cut else b""
        self._socket.sendall(data[: len(data) - cut])
        self.sent += count

    def _take(self) -> None:
        data = b""
        while part := self._socket.recv(65536):
            data += part
            while (header := read_fixed_header(data, 0) if data else None) and len(data) >= header[0] + header[1]:
                assert data[0] == 0x40
                self.acknowledged.append(int.from_bytes(data[2:4], "big"))
                data = data[header[0] + header[1] :]

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._taking.join(WAIT_S)
        self._socket.close()


def test_order_is_the_same_with_and_without_the_fast_path(gateway: Waypost, trace: Callable[..., Trace]) -> None:
    publisher = Publisher(gateway, "steady", "order/steady")
    for _ in range(4):
        publisher.send(300, cut=5)
        shown = trace("--client", "steady", "--json")
        shown.wait_for("connected before the trace")
        publisher.send(300, cut=3)
        shown.wait_for("PUBLISH", kind="outcome")
        publisher.send(300, cut=7)
        shown.end()
        publisher.send(300, cut=1)
    publisher.send(300)
    within(lambda: len(publisher.acknowledged) >= publisher.sent, "what is traced was shown")
    publisher.close()
    assert publisher.acknowledged == [number % 60_000 + 1 for number in range(publisher.sent)]
    url = f"amqp://alice:{SECRET}@127.0.0.1:{gateway.port('amqp')}"
    connection = BlockingConnection(url, allowed_mechs="PLAIN")
    receiver = connection.create_receiver("order/steady", credit=publisher.sent)
    messages = [receiver.receive(timeout=WAIT_S) for _ in range(publisher.sent)]
    bodies = [bytes(message.body) for message in messages]
    connection.close()
    assert bodies == [str(number).encode() for number in range(publisher.sent)]


def test_events_above_the_limit_are_counted(gateway: Waypost, trace: Callable[..., Trace]) -> None:
    publisher = Publisher(gateway, "floods", "order/flood")
    shown = trace("--client", "floods", "--json")
    shown.wait_for("connected before the trace")
    count = 6 * TRACE_EVENTS_WAITING_MAX
    publisher.send(count)
    within(lambda: len(publisher.acknowledged) == count, "what is traced was shown")
    shown.wait_for("dropped")
    publisher.close()
    shown.wait_for("closed by the client, without a goodbye")
    shown.end()
    dropped = sum(event["count"] for event in shown.named("dropped"))
    seen = len(shown.named("PUBLISH", kind="packet")) + len(shown.named("PUBACK"))
    assert dropped > 0
    assert seen + dropped >= 2 * count
    assert f"{dropped:,} not shown" in shown.errors[-1]


@mosquitto_clients
def test_no_secret_and_no_payload_appear(gateway: Waypost, trace: Callable[..., Trace]) -> None:
    lines, objects = trace("--address", "#"), trace("--address", "#", "--json")
    publish(gateway, "quiet", "jobs", "-q", "1", "--will-topic", "plant/gone", "--will-payload", PAYLOAD)
    publish(
        gateway, "quiet", "jobs", "-V", "5", "-D", "publish", "user-property", "key", PAYLOAD, password=SECRET + "x"
    )
    connection = BlockingConnection(f"amqp://alice:{SECRET}@127.0.0.1:{gateway.port('amqp')}", allowed_mechs="PLAIN")
    connection.create_sender("jobs").send(Message(body=PAYLOAD, properties={"key": PAYLOAD}))
    connection.close()
    host, port = gateway.endpoints["http"]
    post = f"POST /t/jobs HTTP/1.1\r\nHost: {host}\r\nAuthorization: Basic {gateways.encoded(f'alice:{SECRET}')}\r\n"
    with socket.create_connection((host, port), WAIT_S) as client:
        client.sendall(f"{post}Content-Length: {len(PAYLOAD)}\r\n\r\n{PAYLOAD}".encode())
        assert client.recv(4096).startswith(b"HTTP/1.1 202")
    objects.wait_for("POST /t/jobs", code=202, user="alice")
    within(lambda: any("POST /t/jobs" in line for line in lines.lines), "what is traced was shown")
    assert objects.named("sasl-init")
    assert "with a password" in objects.wait_for("CONNECT MQTT")["text"]
    token = (Path(str(gateway.data)) / "operator.token").read_text().strip()
    for shown in (lines, objects):
        assert len(shown.lines) > 10
        text = "".join(shown.lines + shown.errors)
        assert not [secret for secret in (SECRET, PAYLOAD, token, gateways.encoded(SECRET)) if secret in text]


class TestRights:
    def test_trace_needs_the_right_to_manage(self, gateway: Waypost) -> None:
        path = "/api/v1/trace?client=x"
        assert ask(gateway, "GET", path).status == 401
        assert ask(gateway, "GET", path, headers=gateways.basic("alice", SECRET)).status == 403

    def test_user_with_the_right_to_manage_traces(self, gateway: Waypost) -> None:
        host, port = gateway.endpoints["http"]
        with socket.create_connection((host, port), WAIT_S) as client:
            login = gateways.encoded(f"boss:{SECRET}")
            client.sendall(
                f"GET /api/v1/trace?client=x HTTP/1.1\r\nHost: {host}\r\nAuthorization: Basic {login}\r\n\r\n".encode()
            )
            received = b""
            while b"started" not in received:
                received += client.recv(4096)
            assert received.startswith(b"HTTP/1.1 200")


class TestCommand:
    def test_trace_ends_after_a_time(self, gateway: Waypost) -> None:
        begun = time.monotonic()
        done = run_waypost("client", "trace", "--data", str(gateway.data), "--client", "nobody", "--for", "500ms")
        assert (done.returncode, done.stdout) == (0, "")
        assert "nobody is not connected: waiting" in done.stderr
        assert done.stderr.endswith("0 events shown\n")
        assert time.monotonic() - begun < WAIT_S

    @mosquitto_clients
    def test_trace_ends_after_a_number_of_events(self, gateway: Waypost, trace: Callable[..., Trace]) -> None:
        shown = trace("--client", "counted", "--count", "3")
        publish(gateway, "counted", "jobs")
        assert shown.process.wait(WAIT_S) == 0
        shown.end()
        assert len(shown.lines) == 3
        assert shown.errors[-1] == "3 events shown\n"

    def test_nothing_to_trace_is_wrong_usage(self, gateway: Waypost) -> None:
        for arguments in (("--data", str(gateway.data)), ("--address", "a/#/b"), ("--client", "x", "--for", "soon")):
            done = run_waypost("client", "trace", *arguments)
            assert done.returncode == 2
            assert done.stderr.startswith("error[")

    def test_no_gateway_runs(self, tmp_path: Path) -> None:
        done = run_waypost("client", "trace", "--data", str(tmp_path), "--client", "x")
        assert done.returncode == 3
        assert "no gateway runs on" in done.stderr
        assert "waypost run" in done.stderr

    def test_trace_ends_with_the_gateway(self, tmp_path: Path) -> None:
        with gateways.gateway_with(tmp_path, RESOURCES) as gateway:
            shown = Trace(gateway, "--client", "x")
            within(lambda: bool(shown.errors), "what is traced was shown")
            gateway.stop()
            assert shown.process.wait(WAIT_S) == 3
            shown.end()
            assert any("the gateway has ended the trace" in line for line in shown.errors)


@mosquitto_clients
def test_log_has_the_lines_of_the_trace(tmp_path: Path) -> None:
    gateway = gateways.gateway_with(tmp_path, RESOURCES)
    gateway.arguments[3:3] = ["-vv"]
    with gateway:
        publish(gateway, "logged", "jobs", "-q", "1")
        within(lambda: "closed by the client" in gateway.log.read_text(), "what is traced was shown")
        text = gateway.log.read_text()
    for words in ("<- logged@", "CONNECT MQTT", "== logged@", "stored as sequence 0", "PUBACK #1 jobs"):
        assert words in text
    assert SECRET not in text
    assert PAYLOAD not in text
