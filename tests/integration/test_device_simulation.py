"""`waypost device simulate` at real gateways: passwords, progress, Ctrl-C, errors, and the registry of a hub."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import item_in, items_of, run_waypost
from tests.support.device_fleet import DeviceFleet
from tests.support.operator import HubOperator
from tests.support.processes import Waypost, edge, free_port, gateway_at, wait_until

FILE = """\
apiVersion: waypost/v1
kind: Simulation
metadata: {name: hall}
spec:
  connect: 200ms
  gateways: [{name: hall, mqtt: "mqtt://127.0.0.1:1"}]
  devices:
    - name: press
      count: 12
      interval: 200ms
      sensors: [{name: celsius, base: 21, noise: 1}]
    - {name: bad-link, count: 3, interval: 200ms, link: {share: 1, up: 500ms, down: 100ms}}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "hall.yaml"
    path.write_text(FILE)
    return str(path)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Waypost]:
    """Gateway that lets in only its users."""
    places = ("--mqtt", "127.0.0.1:0", "--amqp", "none", "--http", "127.0.0.1:0", "--https", "none")
    assert run_waypost("init", "--data", str(tmp_path / "gw"), "--name", "hall", *places).returncode == 0
    with gateway_at(tmp_path / "gw") as gateway:
        yield gateway


def url(gateway: Waypost) -> tuple[str, str]:
    return "--url", f"mqtt://127.0.0.1:{gateway.port('mqtt')}"


def test_devices_are_registered_run_and_removed(tmp_path: Path, file: str, guarded: Waypost) -> None:
    csv = tmp_path / "hall.csv"
    data = ("--data", str(guarded.data))
    options = (*url(guarded), "--credentials", str(csv), "--json")
    registers = ("--register-gateway", str(guarded.data))
    done = run_waypost("device", "simulate", file, *options, *registers, "--duration", "2s")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    rows = {row["group"]: row for row in document["items"]}
    assert rows["press"]["connected"] == 12
    assert rows["press"]["acknowledged"] == rows["press"]["readings"] > 12
    assert rows["bad-link"]["link_breaks"] > 0
    assert document["summary"]["errors"] == {}
    assert len(items_of("device", "list", "--json", *data)) == 15
    again = run_waypost("device", "simulate", file, *options, *registers, "--remove", "--duration", "500ms")
    assert again.returncode == 0, again.stderr
    assert items_of("device", "list", "--json", *data) == []
    assert csv.read_text() == "device,user,password\n"


def test_errors_say_the_reason_and_the_next_step(tmp_path: Path, file: str, guarded: Waypost) -> None:
    wanted = ("device", "simulate", file, "--duration", "300ms", "--drain", "0", "--json")
    refused = run_waypost(*wanted, *url(guarded))
    assert refused.returncode == 1
    assert set(json.loads(refused.stdout)["summary"]["errors"]) == {"login-refused"}
    assert "--credentials" in item_in(refused.stderr)["next"]
    closed = run_waypost(*wanted, "--url", f"mqtt://127.0.0.1:{free_port()}")
    assert (closed.returncode, item_in(closed.stderr)["code"]) == (3, "unreachable")
    bad = tmp_path / "bad.yaml"
    bad.write_text(FILE.replace("count: 12", "count: many"))
    found = run_waypost("device", "simulate", str(bad), "--json")
    assert found.returncode == 2
    assert item_in(found.stderr)["message"].startswith(f"{bad}:9: spec.devices[0].count: ")


def test_interrupt_ends_in_order(tmp_path: Path, file: str) -> None:
    with edge(tmp_path, "gateway") as gateway:
        command = [sys.executable, "-m", "edge.appliance.main", "device", "simulate", file, *url(gateway), "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        data = ("--data", str(gateway.data))

        def received() -> int:
            found: dict[str, Any] = json.loads(run_waypost("status", "--json", *data).stdout)["items"][0]
            return int(found["messages"]["received"])

        wait_until(lambda: received() > 30, timeout_s=60, what="the devices send readings", every_s=0.2)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    total = json.loads(output)["summary"]
    assert total["acknowledged"] > 30
    assert (total["waiting"], total["connected"]) == (0, 15)


@pytest.mark.slow
def test_devices_are_registered_at_a_hub(tmp_path: Path, file: str) -> None:
    """The gateway gets them from the hub, and lets them in."""
    with DeviceFleet(tmp_path) as fleet:
        hall = fleet.enrol("hall")
        hall.start()
        csv = tmp_path / "hall.csv"
        options = (*url(hall), "--credentials", str(csv), "--register-hub", str(tmp_path / "hub"), "--json")
        done = run_waypost("device", "simulate", file, *options, "--duration", "2s")
        assert done.returncode == 0, done.stderr
        total = json.loads(done.stdout)["summary"]
        assert (total["connected"], total["waiting"], total["errors"]) == (15, 0, {})
        known = HubOperator(fleet.hub).ask("GET", "/v1/devices/default?pageSize=100").document
        assert known["total"] == 15
        removed = run_waypost("device", "simulate", file, *options, "--remove", "--duration", "100ms")
        assert removed.returncode == 0, removed.stderr
        assert HubOperator(fleet.hub).ask("GET", "/v1/devices/default?pageSize=100").status == 404
