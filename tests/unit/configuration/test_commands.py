"""The commands `waypost apply | get | describe | diff | delete`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from edge.appliance.main import run
from tests.support.command import items_in

GOOD = """\
apiVersion: waypost/v1
kind: Gateway
metadata: {name: gw1}
spec:
  listeners: {mqtt: "127.0.0.1:1883"}
  hub: {url: "amqp://hub.example"}
---
apiVersion: waypost/v1
kind: AddressSpace
metadata: {name: default}
spec:
  connectors:
  - name: broker
    endpointHosts: [{host: b}]
---
apiVersion: user.enmasse.io/v1beta1
kind: MessagingUser
metadata: {name: default.alice}
spec:
  username: alice
  authentication: {type: password, password: Zmlyc3Qtc2VjcmV0}
---
apiVersion: waypost/v1
kind: Address
metadata: {name: load}
spec:
  address: load/#
  type: topic
  messageTtl: {maximum: 7d}
  durability: memory
  forwarders: [{name: up, remoteAddress: hub}]
"""


LOSS = (
    "Address load: durability memory: messages are acknowledged at once and kept in memory only, the newest 24 MiB of "
    "each log; a stop of the gateway, a crash or a power cut loses them, and the loss ledger lists them"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def data(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return a data directory with GOOD applied."""
    assert run(["apply", "-f", str(file), "--data", str(tmp_path / "data")]) == 0
    capsys.readouterr()
    return tmp_path / "data"


def test_apply_lists_its_changes(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["apply", "-f", str(file), "--data", str(tmp_path / "data")]
    assert run(arguments) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "Gateway/gw1 created",
        "AddressSpace/default created",
        "MessagingUser/default.alice created",
        "Address/load created",
        "configuration version 1",
    ]
    assert err.splitlines() == [
        "note: " + LOSS,
        "note: MessagingUser default.alice: clients are not authenticated: authenticationService is none",
    ]
    assert run([*arguments, "--json"]) == 0
    assert {change["change"] for change in items_in(capsys.readouterr().out)} == {"unchanged"}


def test_errors_have_a_line_each_and_nothing_is_applied(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(GOOD.replace("listeners", "listners").replace("7d", "7 days"))
    assert run(["apply", "-f", str(file), "--data", str(tmp_path / "data")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == f'error[configuration-rejected]: {file}:5: spec.listners: unknown field "listners"; ' + (
        'did you mean "listeners"?'
    )
    assert lines[1].startswith(f'{file}:29: spec.messageTtl.maximum: "7 days" is not a duration')
    assert lines[2:] == ["  2 problems; nothing was applied"]
    assert not (tmp_path / "data").exists()


def test_dry_run_writes_nothing(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["apply", "--dry-run", "-f", str(file), "--data", str(tmp_path / "data")]) == 0
    assert "Gateway/gw1 created (dry run)" in capsys.readouterr().out
    assert not (tmp_path / "data").exists()


def test_get_prints_tables_json_and_yaml_that_can_be_applied(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["get", "--data", str(data)]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["GATEWAY", "MQTT", "AMQP", "HTTP", "HUB"],
        ["gw1", "127.0.0.1:1883", "-", "-", "amqp://hub.example"],
        ["ADDRESSSPACE", "TYPE", "DEFAULT", "CONNECTORS"],
        ["default", "standard", "topic", "broker"],
        ["ADDRESS", "ADDRESS", "TYPE", "FORWARDERS"],
        ["load", "load/#", "topic", "out", "hub"],
        ["MESSAGINGUSER", "USERNAME", "AUTHENTICATION"],
        ["default.alice", "alice", "password"],
    ]
    assert run(["get", "addresses", "load", "--json", "--data", str(data)]) == 0
    [document] = items_in(capsys.readouterr().out)
    assert document["spec"]["address"] == "load/#"
    assert run(["get", "-o", "yaml", "--data", str(data)]) == 0
    exported = capsys.readouterr().out
    exported_kinds = [document["kind"] for document in yaml.safe_load_all(exported)]
    assert exported_kinds == ["Gateway", "AddressSpace", "Address", "MessagingUser"]
    assert sorted(map(str, yaml.safe_load_all(exported))) == sorted(map(str, yaml.safe_load_all(GOOD)))
    (tmp_path / "export.yaml").write_text(exported)
    assert run(["apply", "-f", str(tmp_path / "export.yaml"), "--data", str(data)]) == 0
    assert "configuration version 1" in capsys.readouterr().out


def test_describe_hides_secrets_and_names_fields_without_effect(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["describe", "mu", "default.alice", "--data", str(data)]) == 0
    out = capsys.readouterr().out
    assert "Zmlyc3Qtc2VjcmV0" not in out
    assert "********" in out
    assert run(["describe", "addr", "load", "--json", "--data", str(data)]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["notes"] == [LOSS]


def test_diff_shows_changes_without_secrets(data: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["diff", "-f", str(file), "--data", str(data), "--exit-code"]
    assert run(arguments) == 0
    assert capsys.readouterr().out == ""
    file.write_text(GOOD.replace("7d", "8d").replace("Zmlyc3Qtc2VjcmV0", "c2Vjb25k"))
    assert run(arguments) == 1
    out = capsys.readouterr().out
    assert "MessagingUser/default.alice: only a secret changes" in out
    assert "-    maximum: 7d" in out
    assert "+    maximum: 8d" in out
    assert "c2Vjb25k" not in out
    assert "Zmlyc3Qtc2VjcmV0" not in out
    assert run(["get", "addr", "-o", "json", "--data", str(data)]) == 0
    assert "7d" in capsys.readouterr().out


@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["applied", "dry run"])
def test_apply_names_forwarders_that_end(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], dry: tuple[str, ...]
) -> None:
    """A replaced Address without its forwarder to the hub, and a replaced space without its connector."""
    path = tmp_path / "other.yaml"
    _, space, _, address = GOOD.split("---\n")
    path.write_text(
        space.replace("broker", "other") + "---\n" + address.replace("{name: up, remoteAddress: hub}", "").strip()
    )
    assert run(["apply", "-f", str(path), "--data", str(data), *dry]) == 0
    removed = [line for line in capsys.readouterr().err.splitlines() if " removed: " in line]
    assert [line.partition(" removed: ")[0] for line in removed] == [
        "note: connector broker",
        "note: forwarder hub/load/up",
    ]
    assert "store purge --cursor forwarder/hub/load/up" in removed[1]


def test_apply_counts_the_messages_of_forwarders_that_end(
    data: Path, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(GOOD.replace("{name: up,", "{name: renamed,"))
    monkeypatch.setattr("edge.appliance.crossing.plan.waiting_in", lambda _: {"hub/load/up": 7})
    assert run(["apply", "-f", str(file), "--data", str(data)]) == 0
    assert "hub/load/up removed: 7 messages" in capsys.readouterr().err


def test_apply_succeeds_with_a_damaged_store(data: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "store.sqlite").write_bytes(b"damaged" * 1_000)
    file.write_text(GOOD.replace("{name: up,", "{name: renamed,"))
    assert run(["apply", "-f", str(file), "--data", str(data)]) == 0
    assert "hub/load/up removed" in capsys.readouterr().err


def test_delete_removes_resources(data: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["delete", "gateway", "gw1", "--data", str(data)]) == 2
    assert 'connector "hub"' in capsys.readouterr().err
    assert run(["delete", "address", "laod", "--data", str(data)]) == 1
    assert capsys.readouterr().err == 'error[resource-not-found]: Address "laod" not found; did you mean "load"?\n'
    assert run(["delete", "address", "load", "--data", str(data)]) == 0
    assert capsys.readouterr().out.splitlines() == ["Address/load deleted", "configuration version 2"]
    assert run(["delete", "gw", "gw1", "--data", str(data), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["apply"], "nothing to apply"),
        (["diff"], "nothing to compare"),
        (["delete"], "name what to delete"),
        (["delete", "address"], "name what to delete"),
        (["get", "adress"], '"adress" is not a kind; did you mean "address"?'),
        (["describe", "address"], "Missing argument 'NAME'"),
    ],
)
def test_usage_errors_are_reported(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "--data", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_data_directory_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["get"]) == 2
    assert "--data" in capsys.readouterr().err


def test_damaged_repository_is_an_error_of_one_line(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "config" / "resources.json").write_text("{")
    assert run(["get", "--data", str(data)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "is damaged" in line


def test_empty_input_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("---\n# nothing\n")
    assert run(["apply", "--data", str(tmp_path / "gw"), "-f", str(empty)]) == 2
    assert "no resource found" in capsys.readouterr().err


def test_missing_data_directory_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["get"], ["describe", "Address", "a"], ["delete", "Address", "a"]):
        assert run([*words, "--data", str(tmp_path / "typo")]) == 2
        assert "data directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
