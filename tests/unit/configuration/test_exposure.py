"""Clients beyond loopback need credentials unless the resources say otherwise, and open listeners are reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.resources.parse import parse
from edge.appliance.resource_commands import apply
from edge.broker.configuration import AuthenticationMode
from edge.configuration.effective import build_configuration, exposure
from edge.configuration.kinds import KINDS
from edge.configuration.options import RunOptions, configuration_of

GATEWAY = """
apiVersion: waypost/v1
kind: Gateway
metadata: {{name: north-hall}}
spec: {{listeners: {{mqtt: "{host}:1883"}}}}
"""
SPACE = """
---
apiVersion: enmasse.io/v1beta1
kind: AddressSpace
metadata: {{name: default}}
spec: {{type: standard, authenticationService: {{name: {service}}}}}
"""


@pytest.mark.parametrize(
    ("host", "service", "authentication", "said"),
    [
        ("127.0.0.1", None, AuthenticationMode.NONE, ()),
        ("[::1]", None, AuthenticationMode.NONE, ()),
        (
            "0.0.0.0",
            None,
            AuthenticationMode.STANDARD,
            ("clients need credentials", "unencrypted on mqtt 0.0.0.0:1883"),
        ),
        ("192.0.2.1", None, AuthenticationMode.STANDARD, ("clients need credentials", "unencrypted")),
        ("0.0.0.0", "none", AuthenticationMode.NONE, ("mqtt 0.0.0.0:1883: any client may connect",)),
        ("0.0.0.0", "standard", AuthenticationMode.STANDARD, ("unencrypted",)),
        ("127.0.0.1", "standard", AuthenticationMode.STANDARD, ()),
    ],
)
def test_access_follows_resources_and_exposure(
    host: str, service: str | None, authentication: AuthenticationMode, said: tuple[str, ...]
) -> None:
    text = GATEWAY.format(host=host) + ("" if service is None else SPACE.format(service=service))
    resources = parse(KINDS, text, "gateway.yaml")
    assert build_configuration(resources).authentication is authentication
    notices = exposure(resources)
    assert len(notices) == len(said)
    assert all(words in notice for words, notice in zip(said, notices, strict=True))


def test_listener_of_the_command_line_counts(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text(GATEWAY.format(host="127.0.0.1"))
    local = configuration_of(RunOptions(data=tmp_path, config=config))
    opened = configuration_of(RunOptions(data=tmp_path, config=config, amqp="0.0.0.0:5672"))
    assert local.authentication is AuthenticationMode.NONE
    assert opened.authentication is AuthenticationMode.STANDARD


def test_apply_reports_open_listeners_of_the_whole_configuration(tmp_path: Path) -> None:
    def applied(text: str) -> str:
        return CliRunner().invoke(apply, ["--data", str(tmp_path / "gw"), "-f", "-"], input=text).output

    assert "clients need credentials" in applied(GATEWAY.format(host="0.0.0.0"))
    assert "mqtt 0.0.0.0:1883: any client may connect" in applied(SPACE.format(service="none").lstrip("-\n"))
