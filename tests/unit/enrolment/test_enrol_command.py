"""`waypost enrol` says what is missing for a gateway that forwards nothing; `waypost init` there names `enrol`."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.appliance.identity.location import hub_tls, identity_file
from edge.appliance.main import run
from edge.configuration.repository import Repository
from edge.configuration.resources import GatewaySpec

HUB = "amqps://hub.example:5671"
NOTE = "nothing is forwarded to the hub yet"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return the data directory of a gateway without a hub; each enrolment succeeds."""
    data = tmp_path / "data"
    file = tmp_path / "hall.yaml"
    file.write_text(
        "{apiVersion: waypost/v1, kind: Gateway, metadata: {name: hall}, spec: {listeners: {mqtt: '127.0.0.1:0'}}}"
    )
    assert run(["apply", "--data", str(data), "-f", str(file)]) == 0
    monkeypatch.setattr("edge.appliance.identity.commands.enrolled_at", lambda *_: identity_file(data))
    monkeypatch.setenv("WAYPOST_TOKEN", "wpt1")
    capsys.readouterr()
    return data


def test_enrolled_gateway_that_forwards_nothing_is_told_how(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["enrol", "--data", str(data), "--hub", HUB]) == 0
    note = capsys.readouterr().err
    assert NOTE in note
    assert "bridge forward 'plant/#' --data" in note
    assert run(["bridge", "forward", "plant/#", "--data", str(data)]) == 0
    assert run(["enrol", "--data", str(data)]) == 0
    assert NOTE not in capsys.readouterr().err


def test_enrolment_keeps_the_pace_of_the_hub(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "paced.yaml"
    file.write_text(
        "{apiVersion: waypost/v1, kind: Gateway, metadata: {name: hall},"
        " spec: {hub: {url: 'amqp://hub.example', pace: {rate: 20Ki}}}}"
    )
    assert run(["apply", "--data", str(data), "-f", str(file)]) == 0
    assert run(["enrol", "--data", str(data), "--hub", HUB]) == 0
    [hub] = [one.spec.hub for one in Repository(data).load().resources if isinstance(one.spec, GatewaySpec)]
    assert hub is not None
    assert (hub.url, hub.pace and hub.pace.rate) == (HUB, 20 << 10)
    assert hub.tls is not None
    assert hub.tls.certificate == hub_tls(identity_file(data))["clientCert"]


def test_init_of_a_gateway_that_exists_names_the_way_to_its_hub(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--data", str(data), "--hub", HUB, "--forward", "plant/#"]) == 2
    error = capsys.readouterr().err
    assert "error[gateway-exists]" in error
    assert f"--hub {HUB} --token-file -" in error
    assert "bridge forward" in error
