"""Commands find the endpoints of a data directory's gateway, and report a missing one."""

from __future__ import annotations

from pathlib import Path

from edge.broker.listeners.endpoints import FILE_NAME
from edge.output.errors import Exit
from tests.support.command import document_of, error_of, output_of
from tests.support.configured_gateway import gateway_with
from tests.support.processes import edge


def test_commands_find_the_gateway_of_a_data_directory_at_any_port(tmp_path: Path) -> None:
    with edge(tmp_path, "one") as one, edge(tmp_path, "two"):
        data = tmp_path / "one"
        for command in ("status", "bridge status"):
            found = document_of(*command.split(), "--data", str(data))
            assert found["epoch"] in output_of("store", "info", "--data", str(data))
        assert one.stop() == 0
        assert not (data / FILE_NAME).exists()
        error = error_of("status", "--data", str(data), code=Exit.UNREACHABLE)
        assert f"no gateway runs on {data}" in error


def test_endpoints_of_a_killed_gateway_are_ignored(tmp_path: Path) -> None:
    with edge(tmp_path, "gw") as gateway:
        gateway.kill()
        assert (tmp_path / "gw" / FILE_NAME).exists()
        error = error_of("bridge", "status", "--data", str(tmp_path / "gw"), code=Exit.UNREACHABLE)
        assert "no gateway runs on" in error


def test_gateway_without_an_http_listener_is_reported(tmp_path: Path) -> None:
    text = (
        "apiVersion: waypost/v1\nkind: Gateway\nmetadata: {name: gw}\nspec: {listeners: {mqtt: '127.0.0.1:0'}}\n"
        "---\napiVersion: enmasse.io/v1beta1\nkind: AddressSpace\nmetadata: {name: default}\n"
        "spec: {authenticationService: {name: none}}\n"
    )
    with gateway_with(tmp_path, text):
        error = error_of("status", "--data", str(tmp_path / "gw"), code=Exit.FAILED)
        assert "has no HTTP listener" in error
