"""Registration of simulated devices at a gateway, and the CSV of their passwords."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.broker.security.credentials import CredentialFile, verify
from edge.broker.security.rights import format_rights
from edge.output.errors import CommandError
from simulator.credentials_file import DeviceCredentials, read_credentials, write_credentials
from simulator.kinds import read_simulation
from simulator.planning import plan_devices
from simulator.registration import GatewayUsers, HubRegistry, UnregisteredDevice

FILE = "apiVersion: waypost/v1\nkind: Simulation\nmetadata: {name: x}\nspec:\n  gateways: [{mqtt: 'mqtt://h:1'}]\n"
DEVICES = [
    UnregisteredDevice("a-1", "plant/a-1/t", "north", "first-password"),
    UnregisteredDevice("a-2", "load/a-2/t", "north", "other-password"),
]


def test_users_of_a_gateway_have_least_rights_and_their_passwords(tmp_path: Path) -> None:
    done: list[str] = []
    GatewayUsers(tmp_path).add(DEVICES, lambda each: done.append(each.name))
    with CredentialFile.open(tmp_path) as file:
        users = file.load().users
    assert done == ["a-1", "a-2"]
    assert verify(users["a-1"], b"first-password", 0.0)
    assert not verify(users["a-1"], b"other-password", 0.0)
    assert "send:load/a-2/t" in format_rights(users["a-2"].rules)
    assert "send:load/a-2/t" not in format_rights(users["a-1"].rules)
    with pytest.raises(CommandError) as error:
        GatewayUsers(tmp_path).add(DEVICES[1:], lambda _: None)
    assert error.value.error == "user-exists"
    GatewayUsers(tmp_path).remove(["a-1", "a-2"], lambda _: None)
    with CredentialFile.open(tmp_path) as file:
        assert not file.load().users


@pytest.mark.parametrize("device", [DEVICES[0]._replace(gateway=""), DEVICES[1]])
def test_hub_is_asked_for_nothing_that_it_cannot_have(device: UnregisteredDevice) -> None:
    with pytest.raises(CommandError) as error:
        HubRegistry(None).add([device], lambda _: None)  # type: ignore[arg-type]
    assert error.value.error == "invalid-value"


def test_csv_is_private_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    given = {"a": DeviceCredentials("a", "user", 'p,"w'), "b": DeviceCredentials("b", "b", "x")}
    write_credentials(path, given)
    assert path.stat().st_mode & 0o077 == 0
    assert read_credentials(path) == given
    assert [each.name for each in tmp_path.iterdir()] == ["devices.csv"]


@pytest.mark.parametrize(("text", "line"), [
    ("device,user\n", 1),
    ("", 1),
    ("device,user,password\na,u,p\na,u,p\n", 3),
    ("device,user,password\na,u\n", 2),
    ("device,user,password\n\na,u,\n", 3),
])  # fmt: skip
def test_errors_of_a_csv_have_their_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "devices.csv"
    path.write_text(text)
    with pytest.raises(CommandError) as error:
        read_credentials(path)
    assert str(error.value.message).startswith(f"{path}:{line}: ")


def test_devices_without_credentials_are_named(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(f"{FILE}  devices: [{{name: a, count: 3}}]\n")
    known = {"a-00001": DeviceCredentials("a-00001", "u", "p")}
    with pytest.raises(CommandError) as error:
        plan_devices(read_simulation(str(path)), 1, known, tmp_path)
    assert "a-00002, a-00003" in str(error.value.message)


def test_seed_decides_about_each_device_whatever_the_others_are(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    group = "{name: a, count: 50, link: {share: 0.5}, failures: {share: 0.5}}"
    path.write_text(f"{FILE}  devices: [{group}]\n")
    spec = read_simulation(str(path))
    path.write_text(f"{FILE}  devices: [{{name: b, count: 3}}, {group}]\n")
    larger = read_simulation(str(path))
    plans = plan_devices(spec, 1, {}, tmp_path)
    assert 10 < sum(each.link_breaks for each in plans) < 40
    assert plans == plan_devices(larger, 1, {}, tmp_path)[3:]
    assert plans != plan_devices(spec, 2, {}, tmp_path)
