"""`apply` and `delete` on a running gateway name the changes that wait for its next start."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import run_waypost
from tests.support.processes import gateway_at

RESOURCES = """
{{apiVersion: waypost/v1, kind: Gateway, metadata: {{name: gw1}},
  spec: {{listeners: {{mqtt: "127.0.0.1:0", amqpWs: "127.0.0.1:{port}"}}}}}}
---
{{apiVersion: waypost/v1, kind: AddressSpace, metadata: {{name: default}},
  spec: {{authenticationService: {{name: none}}, quota: {{bytes: {quota}}}}}}}
"""


def applied(folder: Path, port: int, quota: str, *options: str) -> str:
    (folder / "gateway.yaml").write_text(RESOURCES.format(port=port, quota=quota))
    arguments = ("apply", "--data", str(folder / "gw"), "-f", str(folder / "gateway.yaml"), *options)
    return notes_of(*arguments)


def notes_of(*words: str) -> str:
    """Run a command that succeeds; return what it writes to stderr."""
    done = run_waypost(*words)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_apply_names_changes_that_need_a_restart(tmp_path: Path) -> None:
    assert "restart" not in applied(tmp_path, 0, "1Mi")
    with gateway_at(tmp_path / "gw") as gateway:
        said = "Gateway spec.listeners.amqpWs changed: takes effect after a restart"
        assert said in applied(tmp_path, 1, "1Mi", "--dry-run")
        assert said in applied(tmp_path, 1, "1Mi")
        assert "restart" not in applied(tmp_path, 1, "2Mi"), "a quota is followed while it runs"
        gone = notes_of("delete", "--data", str(tmp_path / "gw"), "Gateway", "gw1")
        assert said in gone
        gateway.stop()
    assert "restart" not in applied(tmp_path, 2, "1Mi"), "nothing runs"
