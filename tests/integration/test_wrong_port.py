"""A client with the wrong protocol for a listener leads to a log line with the right port; a flood leads to few."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.output.limits import REPETITION_OF_ONE_MAX, REPETITION_S
from tests.support.certificates import Authority
from tests.support.configured_gateway import gateway_with
from tests.support.processes import Waypost, hub, wait_until

WAIT_S = 20
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
TLS = b"\x16\x03\x01\0\5abcde"
AMQP = b"AMQP\0\1\0\0"
RABBIT = b"AMQP\0\0\x09\x01"
LISTENERS = ("mqtt", "amqp", "http", "mqtt-ws", "mqtts", "https")
MQTT = b"\x10\x0f\0\4MQTT\4\2\0\x3c\0\3abc"

RESOURCES = """
apiVersion: waypost/v1
kind: Gateway
metadata: {{name: hall}}
spec:
  listeners:
    mqtt: 127.0.0.1:0
    amqp: 127.0.0.1:0
    http: 127.0.0.1:0
    mqttWs: 127.0.0.1:0
    mqtts: 127.0.0.1:0
    https: 127.0.0.1:0
    tls: {{certificate: {certificate}, key: {key}}}
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder: Path = tmp_path_factory.mktemp("hall")
    server = Authority(folder).issue("localhost", file="server")
    with gateway_with(folder, RESOURCES.format(certificate=server.certificate, key=server.key)) as running:
        yield running


def say(port: int, first: bytes, source: str = "127.0.0.1") -> None:
    """Send the first bytes of a client and read until the server closes."""
    address = ("127.0.0.1", port)
    with (
        socket.create_connection(address, WAIT_S, (source, 0)) as client,
        contextlib.suppress(ConnectionError),
    ):
        client.sendall(first)
        while client.recv(4_096):
            pass


@pytest.mark.parametrize(
    ("listener", "first", "spoken", "right"),
    [
        ("mqtt", GET, "HTTP", ("http",)),
        ("mqtt", TLS, "TLS", ("mqtts", "https")),
        ("mqtt", AMQP, "AMQP", ("amqp",)),
        ("amqp", MQTT, "MQTT", ("mqtt",)),
        ("amqp", TLS, "TLS", ("mqtts", "https")),
        ("amqp", GET, "HTTP", ("http",)),
        ("amqp", RABBIT, "AMQP 0-9-1", ()),
        ("http", MQTT, "MQTT", ("mqtt",)),
        ("http", AMQP, "AMQP", ("amqp",)),
        ("http", TLS, "TLS", ("mqtts", "https")),
        ("mqtt-ws", MQTT, "MQTT", ("mqtt",)),
        ("mqtts", MQTT, "MQTT", ("mqtt",)),
        ("mqtts", GET, "HTTP", ("http",)),
        ("https", AMQP, "AMQP", ("amqp",)),
        ("https", GET, "HTTP", ("http",)),
    ],
)
def test_log_names_the_client_the_listener_and_the_right_port(
    gateway: Waypost, listener: str, first: bytes, spoken: str, right: tuple[str, ...]
) -> None:
    source = f"127.0.0.{LISTENERS.index(listener) + 1}"  # one client has few lines in the log for all its connections
    say(gateway.port(listener), first, source)
    wanted = f"{source}: wrong port: the client speaks {spoken} to listener {listener}; "
    lines: list[str] = []

    def logged() -> bool:
        lines[:] = [line for line in gateway.log.read_text().splitlines() if wanted in line]
        return bool(lines)

    wait_until(logged, timeout_s=WAIT_S, what=wanted)
    assert len(lines) == 1
    assert all(f"{gateway.port(name)} ({name})" in lines[0] for name in right), lines
    assert bool(right) != ("there is no listener for" in lines[0]), lines


def test_flood_leaves_few_log_lines_and_a_count(tmp_path: Path) -> None:
    """A hub is flooded at each of its listeners; both summaries are awaited at the same time."""
    flood = 40 * REPETITION_OF_ONE_MAX
    with contextlib.ExitStack() as stack:
        flooded = []
        for listener, first, spoken in (("amqp", GET, "http"), ("http", AMQP, "amqp")):
            folder = tmp_path / listener
            folder.mkdir()
            running = stack.enter_context(hub(folder))
            for _ in range(flood):
                say(running.port(listener), first)
            flooded.append((running, f"{running.port(spoken)} ({spoken})"))
        for running, counted in flooded:
            wait_until(
                lambda log=running.log: " more in " in log.read_text(),  # type: ignore[misc]
                timeout_s=3 * REPETITION_S + WAIT_S,
                what="the summary",
            )
            lines = [line for line in running.log.read_text().splitlines() if "wrong port" in line]
            assert all(counted in line for line in lines), lines
            assert REPETITION_OF_ONE_MAX <= len(lines) <= flood // 4, len(lines)
