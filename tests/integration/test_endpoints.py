"""Commands find the endpoints of a data directory's gateway, and report a missing one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from edge.appliance.endpoints import FILE_NAME
from edge.appliance.errors import Exit
from tests.support.processes import edge


def waypost(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edge.appliance.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_commands_ask_the_gateway_of_their_data_directory_whatever_its_ports(tmp_path: Path) -> None:
    with edge(tmp_path, "one") as one, edge(tmp_path, "two"):
        data = tmp_path / "one"
        for command in ("edge status", "bridge status"):
            done = waypost(*command.split(), "--data", str(data), "--json")
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["epoch"] in waypost("store", "info", "--data", str(data)).stdout
        assert one.stop() == 0
        assert not (data / FILE_NAME).exists()
        done = waypost("edge", "status", "--data", str(data))
        assert (done.returncode, f"no gateway runs on {data}" in done.stderr) == (Exit.UNREACHABLE, True)


def test_what_a_killed_gateway_left_is_passed_over(tmp_path: Path) -> None:
    with edge(tmp_path, "gw") as gateway:
        gateway.kill()
        assert (tmp_path / "gw" / FILE_NAME).exists()
        done = waypost("bridge", "status", "--data", str(tmp_path / "gw"))
        assert (done.returncode, "no gateway runs on" in done.stderr) == (Exit.UNREACHABLE, True)


def test_a_gateway_without_a_console_says_so(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(
        "apiVersion: waypost/v1\nkind: Gateway\nmetadata: {name: gw}\nspec: {listeners: {mqtt: '127.0.0.1:0'}}\n"
        "---\napiVersion: enmasse.io/v1beta1\nkind: AddressSpace\nmetadata: {name: default}\n"
        "spec: {authenticationService: {name: none}}\n"
    )
    gateway = edge(tmp_path, "gw")
    gateway.arguments = [*gateway.arguments[:3], "edge", "run", "--data", str(tmp_path / "gw"), "--config", str(file)]
    with gateway:
        done = waypost("edge", "status", "--data", str(tmp_path / "gw"))
        assert (done.returncode, "has no HTTP listener" in done.stderr) == (Exit.FAILED, True)
