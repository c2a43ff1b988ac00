"""Wrong input of a person or a peer ends in one clear line and leaves everything else running."""

from __future__ import annotations

import os
import random
import socket
import sqlite3
from pathlib import Path

import pytest

from tests.support.command import error_of, output_of
from tests.support.http_client import ask, status
from tests.support.paho_client import mqtt_client
from tests.support.processes import Waypost, edge, hub, wait_until

GATEWAY = """\
apiVersion: waypost/v1
kind: Gateway
metadata:
  name: gw7
spec:
  listners:
    mqtt: 127.0.0.1:0
"""


QUEUE = """\
apiVersion: enmasse.io/v1beta1
kind: Address
metadata: {name: default.jobs}
spec: {address: jobs, type: queue}
"""


def error_line(*words: str, code: int) -> str:
    """Run a command that fails with this exit code; return its one error, and the hint."""
    error = error_of(*words, code=code)
    assert len([line for line in error.splitlines() if line.startswith("error[")]) == 1, error
    return error


def test_unknown_key_names_file_line_and_path(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(GATEWAY)
    for command in (
        ("apply", "--data", str(tmp_path / "gw"), "-f", str(file)),
        ("run", "--data", str(tmp_path / "gw"), "--config", str(file)),
    ):
        error = error_line(*command, code=2)
        assert f"{file}:6: spec.listners: " in error
        assert 'did you mean "listeners"' in error
    assert not (tmp_path / "gw" / "config").exists(), "nothing is half-applied"


def test_applied_configuration_is_listed_and_served(tmp_path: Path) -> None:
    """A configuration is applied, listed and served."""
    data = str(tmp_path / "gw")
    file = tmp_path / "gateway.yaml"
    file.write_text(GATEWAY.replace("listners", "listeners"))
    output_of("apply", "--data", data, "-f", str(file))
    assert "gw7" in output_of("get", "--data", data)
    with Waypost(tmp_path / "log", "run", "--data", data) as gateway:
        assert set(gateway.endpoints) == {"mqtt"}
        with mqtt_client(gateway, "c") as client:
            client.publish("a/b", b"x", 1)


def test_queue_applied_to_a_running_gateway_is_served(tmp_path: Path) -> None:
    """A queue applied to a running gateway stores the next message."""
    file = tmp_path / "queue.yaml"
    file.write_text(QUEUE)
    with edge(tmp_path, "gw") as gateway:
        output_of("apply", "--data", str(tmp_path / "gw"), "-f", str(file))

        def queued() -> bool:
            with mqtt_client(gateway, "p") as client:
                client.publish("jobs", b"work", 1)
            return ("jobs", "queue") in [(each["address"], each["type"]) for each in status(gateway)["addresses"]]

        wait_until(queued, timeout_s=20, what="the new queue is served")


@pytest.mark.parametrize("protocol", ["mqtt", "amqp", "http"])
def test_port_in_use_is_refused(tmp_path: Path, protocol: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = error_line("run", "--data", str(tmp_path / "a"), "--dev", f"--{protocol}=127.0.0.1:{port}", code=2)
        assert f"127.0.0.1:{port}" in error
        assert "in use" in error
        if protocol != "mqtt":
            error = error_line(
                "hub", "run", "--data", str(tmp_path / "b"), "--dev", f"--{protocol}=127.0.0.1:{port}", code=2
            )
            assert f"127.0.0.1:{port}" in error


def test_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    for program in ((), ("hub",)):
        error = error_line(*program, "run", "--data", str(tmp_path / "file"), "--dev", code=2)
        assert str(tmp_path / "file") in error


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_data_directory_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0)
    error = error_line("run", "--data", str(tmp_path / "data"), "--dev", code=1)
    assert str(tmp_path / "data") in error


def test_store_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    output_of("init", "--data", str(tmp_path / "gw"))
    with sqlite3.connect(tmp_path / "gw" / "store.sqlite") as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute(f"PRAGMA user_version = {version + 1}")
    connection.close()
    error = error_line("run", "--data", str(tmp_path / "gw"), "--dev", code=1)
    assert "newer" in error


def test_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gw").mkdir()
    (tmp_path / "gw" / "store.sqlite").write_bytes(random.Random(7).randbytes(20_000))
    error = error_line("run", "--data", str(tmp_path / "gw"), "--dev", code=1)
    assert "store.sqlite" in error


def test_second_gateway_of_a_directory_is_refused(tmp_path: Path) -> None:
    with edge(tmp_path, "gw") as first:
        error = error_line("run", "--data", str(tmp_path / "gw"), "--dev", code=2)
        assert f"process {first.pid}" in error


def test_dev_listens_on_loopback_only(tmp_path: Path) -> None:
    for program in ((), ("hub",)):
        error = error_line(*program, "run", "--data", str(tmp_path / "data"), "--dev", "--amqp", "0.0.0.0:0", code=2)
        assert "loopback" in error


def garbage(port: int, data: bytes) -> None:
    """Send the data and read until the server closes, or until a pause shows that it waits for more."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
        except (ConnectionError, TimeoutError):
            pass


def test_garbage_on_every_port_harms_no_other_client(tmp_path: Path) -> None:
    chance = random.Random(11)
    beginnings = [
        b"",
        b"\x10",
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00",
        b"AMQP\x00\x01\x00\x00",
        b"AMQP\x03\x01\x00\x00",
        b"GET ",
    ]
    with hub(tmp_path) as the_hub, edge(tmp_path, "gw") as gateway, mqtt_client(gateway, "witness") as witness:
        witness.subscribe("topic/witness", 1)
        ports = [
            *(gateway.port(name) for name in gateway.endpoints),
            *(the_hub.port(name) for name in the_hub.endpoints),
        ]
        for port in ports:
            for beginning in beginnings:
                garbage(port, beginning + chance.randbytes(chance.randrange(1, 3000)))
        witness.publish("topic/witness", b"unharmed", 1)
        assert witness.get()[1] == b"unharmed"
        for program, name in ((gateway, "gw"), (the_hub, "hub")):
            assert ask(program, "GET", "/healthz").status == 200, name
            assert "Traceback" not in program.log.read_text(), name
            assert program.stop() == 0
