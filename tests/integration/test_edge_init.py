"""Set-up of a first gateway, by questions on a terminal or by options; then the commands that it names."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import ssl
import subprocess
from pathlib import Path

import paho.mqtt.client as paho
import pytest

from edge.appliance.identity.own_certificate import fingerprint, fingerprint_of
from tests.support.command import PROGRAM, error_of, output_of, run_program, run_waypost
from tests.support.medium import Medium
from tests.support.paho_client import PahoClient
from tests.support.processes import Waypost, free_port

WAIT_S = 60.0


def on_a_terminal(answers: list[str], *arguments: str) -> tuple[int, str]:
    """Run on a terminal and answer each question; return the exit code and the output."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*PROGRAM, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
    os.close(theirs)
    shown, asked = "", 0
    while select.select([ours], [], [], WAIT_S)[0]:
        try:
            shown += os.read(ours, 4096).decode()
        except OSError:  # the process has ended and closed the terminal
            break
        if asked < len(answers) and len(re.findall(r"\]: ", shown)) > asked:
            os.write(ours, f"{answers[asked]}\n".encode())
            asked += 1
    os.close(ours)
    return process.wait(WAIT_S), shown


def connects(port: int, user: str, password: str) -> bool:
    """Return True when the broker accepts these credentials, False when it refuses them."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, f"{user}-1", protocol=paho.MQTTv5)
    client.username_pw_set(user, password)
    with PahoClient(client).connect(port) as connecting:
        return connecting.code == 0


def test_questions_on_a_terminal_then_the_commands_it_prints(tmp_path: Path) -> None:
    data, mqtt = str(tmp_path / "gw"), free_port()
    assert f"waypost init --data {data}" in error_of("run", "--data", data, code=2)
    assert not Path(data).exists()
    answers = ["hall", "nowhere", f"127.0.0.1:{mqtt}", "none", "127.0.0.1:0", "127.0.0.1:0", "none"]
    code, shown = on_a_terminal(answers, "init", "--data", data)
    assert code == 0, shown
    assert 'expected "host:port"' in shown or "nowhere" in shown
    assert f"waypost run --data {data}" in shown
    added = output_of("user", "add", "pump7", "--data", data, "--profile", "sensor")
    password = re.findall(r"password: (\S+)", added)[0]
    with Waypost(tmp_path / "gw.log", "run", "--data", data) as gateway:
        assert gateway.endpoints.keys() == {"mqtt", "http", "https"}
        served = ssl.get_server_certificate(("127.0.0.1", gateway.port("https")))
        [shown_fingerprint] = re.findall(r"SHA-256 fingerprint ([0-9A-F:]+)", shown)
        assert shown_fingerprint == fingerprint(ssl.PEM_cert_to_DER_cert(served))
        assert connects(mqtt, "pump7", password)
        assert not connects(mqtt, "pump7", "guessed")


def test_options_configure_a_hub(tmp_path: Path) -> None:
    data = str(tmp_path / "gw")
    options = ["--name", "gw1", "--amqp", "none", "--hub", "amqp://hub.example", "--forward", "plant/#"]
    made = run_waypost("init", "--data", data, *options, "--forward", "#")
    assert made.returncode == 0, made.stderr
    assert "passwords cross the network unencrypted" in made.stderr
    shown = output_of("get", "--data", data)
    assert "amqp://hub.example" in shown
    assert "default.plant" in shown
    assert "default.all" in shown
    assert (tmp_path / "gw" / "gateway.yaml").stat().st_mode & 0o077 == 0
    own = tmp_path / "gw" / "identity" / "self-signed.pem"
    assert (own.stat().st_mode & 0o077, own.parent.stat().st_mode & 0o077) == (0, 0)
    assert re.search(r"^console for other machines: https://\S+:8444$", made.stdout, re.MULTILINE)
    assert f"SHA-256 fingerprint {fingerprint_of(own)}\n" in made.stdout
    assert f"waypost open --data {data} --qr" in made.stdout
    again = output_of("apply", "--data", data, "-f", str(tmp_path / "gw" / "gateway.yaml"))
    assert again.count(" unchanged\n") == 4, "the file says what is applied"
    assert "applied already" in error_of("init", "--data", data, "--name", "other", code=2)


def test_gateway_for_this_machine_alone_opens_no_listener_for_others(tmp_path: Path) -> None:
    listeners = ["--mqtt", "127.0.0.1:1883", "--amqp", "none"]
    made = output_of("init", "--data", str(tmp_path / "gw"), *listeners)
    assert "https" not in output_of("get", "--data", str(tmp_path / "gw"), "-o", "yaml")
    assert "console for other machines" not in made
    output_of("init", "--data", str(tmp_path / "other"), *listeners, "--https", "0.0.0.0:8444")
    assert "0.0.0.0:8444" in output_of("get", "--data", str(tmp_path / "other"), "-o", "yaml")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--mqtt", "nowhere"], "--mqtt nowhere"),
        (["--hub", "amqp://hub.example"], "--forward"),
        (["--forward", "plant/#"], "--hub"),
        (["--token", "wpt1.abcd.abcd.abcd"], "--hub"),
        (["--hub", "hub.example", "--forward", "plant/#"], "hub.example"),
        (["--name", "two words"], "two words"),
        (["--hub", "amqp://hub.example", "--forward", "plant/#/x"], "plant/#/x"),
    ],
)
def test_wrong_options_create_nothing(tmp_path: Path, options: list[str], expected: str) -> None:
    assert expected in error_of("init", "--data", str(tmp_path / "gw"), *options, code=2)
    assert not (tmp_path / "gw").exists()


def test_without_options_and_terminal_only_the_store_is_created(tmp_path: Path) -> None:
    assert "store ready" in output_of("init", "--data", str(tmp_path / "gw"))
    assert run_waypost("get", "--data", str(tmp_path / "gw")).stderr == "nothing applied\n"


@pytest.mark.parametrize("folder", ["gw", 'odd % "name"'])
def test_systemd_accepts_the_unit(tmp_path: Path, folder: str) -> None:
    data = tmp_path / folder
    options = ["--name", "gw1", "--mqtt", "0.0.0.0:883", "--systemd"]
    printed = output_of("init", "--data", str(data), *options)
    assert "sudo systemctl daemon-reload && sudo systemctl enable --now waypost.service" in printed
    text = (data / "waypost.service").read_text()
    for line in (
        "User=waypost",
        "Restart=always",
        "Type=notify",
        "WatchdogSec=60",
        "ProtectSystem=strict",
        "AmbientCapabilities=CAP_NET_BIND_SERVICE",
    ):
        assert f"{line}\n" in text
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian package systemd)")
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(data / "waypost.service")],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    complaints = [line for line in checked.stderr.splitlines() if "waypost.service" in line]
    assert not complaints, checked.stderr


@pytest.mark.parametrize("room", [0, 1_000, 4_000, 40_000])
def test_full_disk_leaves_nothing_and_a_repetition_succeeds(tmp_path: Path, room: int) -> None:
    root = tmp_path / "medium"
    root.mkdir()
    options = ("--data", str(root / "site" / "gw"), "--name", "hall", "--http", "none", "--systemd")
    with Medium(root, folder=tmp_path) as medium:
        medium.limit(room)
        done = run_program("init", *options, environment=medium.environment)
        assert medium.count("failures") > 0
    assert (done.returncode, "nothing was created" in done.stderr) == (1, True), done.stderr
    assert "Traceback" not in done.stderr
    assert list(root.iterdir()) == []
    output_of("init", *options)
