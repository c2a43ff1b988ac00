"""`waypost device`: every example it prints works with the gateway, with the rights of its device and no others."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from edge.appliance.accounts.cli import user
from edge.appliance.devices.cli import device
from edge.appliance.devices.examples import CA_FILE, EXAMPLES, DeviceLogin
from edge.broker.security.credentials import CredentialFile, verify
from edge.broker.security.limits import SECRETS_PER_USER_MAX
from tests.support.command import item_in, items_in
from tests.support.processes import Waypost
from tests.support.programs import mosquitto_clients

FIRMWARE = Path(__file__).parents[2] / "firmware_examples" / "raspberry_pi_pico_w_mqtt"
RESOURCES = """
apiVersion: waypost/v1
kind: Gateway
metadata: {name: gw1}
spec:
  listeners: {mqtt: "127.0.0.1:0", http: "127.0.0.1:0"}
---
apiVersion: enmasse.io/v1beta1
kind: AddressSpace
metadata: {name: default}
spec: {authenticationService: {name: standard}}
"""
SECONDS = 90.0


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    folder = tmp_path_factory.mktemp("devices")
    (folder / "gateway.yaml").write_text(RESOURCES)
    arguments = ("run", "--data", str(folder / "gw"), "--config", str(folder / "gateway.yaml"))
    running = Waypost(folder / "gateway.log", *arguments).start()
    yield running
    running.stop()


def called(data: Path, *words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(device, [*words, "--data", str(data)], input=stdin)


def done(data: Path, *words: str) -> Result:
    answer = called(data, *words)
    assert answer.exit_code == 0, answer.output
    return answer


def run_example(kind: str, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run an example as its reader would."""
    command: Any = text
    if kind == "python":
        command = [sys.executable, "-c", text]
    elif kind == "micropython":
        shutil.copytree(FIRMWARE, folder / "board")
        with (folder / "board" / "config.py").open("a") as config:
            config.write(f"\n{text}\n")  # the last line with a name counts
        command = [sys.executable, "main.py", "COUNT=3", "INTERVAL_MS=10"]
    where = folder / "board" if kind == "micropython" else folder
    shell = isinstance(command, str)
    return subprocess.run(command, shell=shell, cwd=where, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_an_example_works_as_it_is_printed(gateway: Waypost, tmp_path: Path, kind: str) -> None:
    if kind == "mosquitto" and not mosquitto_clients():
        pytest.skip("mosquitto_pub is not installed")
    if kind == "curl" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    made = item_in(done(gateway.data, "add", f"pump-{kind}", "--example", kind, "--json").stdout)
    deadline = time.monotonic() + SECONDS
    ran = run_example(kind, made["example"], tmp_path)
    while (
        ran.returncode or "not acknowledged" in ran.stdout
    ) and time.monotonic() < deadline:  # the gateway takes a second to read its users
        shutil.rmtree(tmp_path / "board", ignore_errors=True)
        ran = run_example(kind, made["example"], tmp_path)
    assert ran.returncode == 0, ran
    if kind == "curl":
        assert "202" in ran.stdout.splitlines()[0]
    if kind == "python":
        assert "disk" in ran.stdout
    if kind in ("mosquitto", "curl"):  # programs try again
        wrong = run_example(kind, made["example"].replace(made["password"], "wrong"), tmp_path)
        assert wrong.returncode or "401" in wrong.stdout


def test_a_device_has_the_least_rights(gateway: Waypost) -> None:
    added = done(gateway.data, "add", "least", "--allow", "send:alarm/%u")
    password = added.stdout.splitlines()[1].removeprefix("password: ")
    shown = done(gateway.data, "show", "least").stdout
    assert "plant/least" in shown
    assert "alarm/least" in shown
    assert password not in shown
    rows = items_in(done(gateway.data, "list", "--json").stdout)
    assert [(each["name"], each["secrets"]) for each in rows if each["name"] == "least"] == [("least", 1)]
    assert not any("view" in right or "manage" in right for each in rows for right in each["allow"])


def test_a_password_is_replaced_with_an_overlap(gateway: Waypost) -> None:
    old = item_in(done(gateway.data, "add", "rotated", "--json").stdout)["password"]
    rotated = done(gateway.data, "credentials", "rotate", "rotated", "--overlap", "7d", "--json")
    new = item_in(rotated.stdout)["password"]
    with CredentialFile.open(gateway.data) as file:
        user = file.load().users["rotated"]
    now = time.time()
    assert verify(user, old.encode(), now)
    assert not verify(user, old.encode(), now + 8 * 86_400)
    assert verify(user, new.encode(), now + 8 * 86_400)
    for _ in range(SECRETS_PER_USER_MAX - 2):
        done(gateway.data, "credentials", "rotate", "rotated")
    assert called(gateway.data, "credentials", "rotate", "rotated").exit_code == 1, "too many at once"
    done(gateway.data, "remove", "rotated")
    assert called(gateway.data, "show", "rotated").exit_code == 1


def test_an_example_with_tls_names_the_certificate(tmp_path: Path) -> None:
    for number, (kind, example) in enumerate(EXAMPLES.items()):
        url = f"{example.listeners[0]}://gateway.local:8883"
        text = done(tmp_path, "add", f"d{number}", "--example", kind, "--url", url).stdout
        assert CA_FILE in text, kind
        assert "gateway.local" in text
    drawn = done(tmp_path, "credentials", "rotate", "d0", "--qr", "--url", "mqtts://gateway.local:8883").stdout
    assert "█" in drawn or "▀" in drawn


@pytest.mark.parametrize(
    "words",
    [
        ("add", "a/b"),
        ("add", "a b"),
        ("add", "x" * 65),
        ("add", "x", "--allow", "read:#"),
        ("add", "x", "--example", "curl"),
        ("add", "x", "--example", "curl", "--url", "mqtt://gateway:1883"),
        ("add", "x", "--example", "python", "--url", "mqtt://gateway"),
        ("add", "x", "--example", "python", "--url", "mqtt://gateway:port"),
        ("add", "x", "--example", "python", "--url", "mqtt://gateway:1883/path"),
        ("add", "x", "--password-stdin"),
        ("add", "there"),
        ("show", "unknown"),
        ("remove", "unknown"),
        ("credentials", "rotate", "unknown"),
        ("credentials", "rotate", "there", "--overlap", "soon"),
    ],
)
def test_mistakes_change_nothing(tmp_path: Path, words: tuple[str, ...]) -> None:
    done(tmp_path, "add", "there")
    with CredentialFile.open(tmp_path) as file:
        before = file.load().users
    assert called(tmp_path, *words).exit_code in (1, 2, 3)
    with CredentialFile.open(tmp_path) as file:
        assert file.load().users == before


def test_person_is_no_device(gateway: Waypost) -> None:
    """A slip must not lock the operators out."""
    added = CliRunner().invoke(user, ["add", "boss", "--data", str(gateway.data), "--generate", "--allow", "manage:#"])
    assert added.exit_code == 0, added.output
    for words in (("remove", "boss"), ("credentials", "rotate", "boss")):
        assert called(gateway.data, *words).exit_code == 1
    with CredentialFile.open(gateway.data) as file:
        assert len(file.load().users["boss"].secrets) == 1


def test_board_gets_every_name_of_its_own() -> None:
    """Each setting of the example with the device's name in it is in the block to paste, with the other name."""
    login = DeviceLogin("mqtt", "gw.example", 1883, "pump-7", "secret")
    pasted = settings_in(EXAMPLES["micropython"].text(login))
    shown = settings_in((FIRMWARE / "config.py").read_text())
    named = {name: value.replace("pico-1", "pump-7") for name, value in shown.items() if "pico-1" in value}
    assert named.items() <= pasted.items()


def settings_in(text: str) -> dict[str, str]:
    """Return the texts that a configuration sets."""
    tree = ast.parse(text)
    found = (node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant))
    return {
        ast.unparse(node.targets[0]): str(node.value.value) for node in found if isinstance(node.value, ast.Constant)
    }
