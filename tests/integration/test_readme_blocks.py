"""The README's blocks show what their commands print: each is run here, in the order of the README.

Left out are commands that serve until Ctrl-C (their `ready` line is compared) and other programs outside the block that
enrols a gateway. That block runs with all that serves, and is timed; the analytics of its lake follow. Numbers, random
names and the space between words may differ.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.conftest import ROOT
from tests.support import forked
from tests.support.lake import rows
from tests.support.processes import Waypost, free_port, wait_until

BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
ANALYSES = ("analytics",)
FOLLOWS = ("edge trace",)
"""Shows what a client does meanwhile: `test_packet_trace` has one."""
LEFT_OUT = ("demo", "test", "bench", "docs", "lock", *FOLLOWS, *ANALYSES)
SERVES = ("edge run", "hub run")
NEEDS_A_GATEWAY = ("device simulate",)
ENROLS = "fleet token create"
PASSWORD = r"^password: (\S+)"
FIRST_READING_S_MAX = 60.0
"""Most time the README may need for its readings to be in the lake; some 15 s on an idle machine."""
READINGS = 5
"""Readings of the block that enrols a gateway: three simulated, one of mosquitto_pub, one of curl."""

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "WAYPOST_PROGRAM": "./waypost", "COLUMNS": "200"}


class Shown(NamedTuple):
    """A command, and the lines the README says it prints."""

    program: str
    words: list[str]
    lines: list[str]

    def starts(self, *beginnings: str) -> bool:
        return " ".join(self.words).startswith(beginnings)


def shown(*, enrolling: bool) -> Iterator[Shown]:
    """Those of the block that enrols a gateway, or of all others."""
    for language, block in BLOCKS:
        if (ENROLS in block) is not enrolling:
            continue
        commands: list[Shown] = []
        for line in block.splitlines() if language == "sh" else ():
            if line.startswith("# ") and commands:
                commands[-1].lines.append(line.removeprefix("# "))
            elif line.startswith("#"):
                continue
            else:
                program, *words = shlex.split(line, comments=True)
                commands.append(Shown(program, words, []))
        yield from (command for command in commands if enrolling or command.program == "./waypost")


COMMANDS = [command for command in shown(enrolling=False) if not command.starts(*LEFT_OUT)]


def masked(text: str) -> str:
    text = re.sub(r"(?<=password: )\S+", "PASSWORD", text)
    text = re.sub(r"\bwpt1\.\S+", "TOKEN", text)
    text = re.sub(r"\b[0-9a-f]{8}(?:[0-9a-f]{24})?\b", "EPOCH", text)
    return " ".join(re.sub(r"\d[\d.,]*", "0", text).split())


def holds(printed: str, lines: list[str]) -> None:
    """Every line is printed, in this order; nothing is printed between two without a `…` there."""
    left = [masked(line) for line in printed.splitlines() if line.strip()]
    skipping = False
    for line in lines:
        if line == "…":
            skipping = True
            continue
        wanted = masked(line)
        while skipping and left and not left[0].startswith(wanted):
            left.pop(0)
        assert left, f"not printed: {line!r}"
        assert left.pop(0).startswith(wanted), f"{line!r} in:\n{printed}"
        skipping = False
    assert skipping or not left, f"the README leaves out {left}"


def free(words: list[str]) -> list[str]:
    """The same command on ports that are free."""
    return [re.sub(r"^(127\.0\.0\.1|0\.0\.0\.0):\d+$", r"\1:0", word) for word in words]


class Reader:
    """Somebody who goes through the block that enrols a gateway, command by command."""

    def __init__(self, here: Path) -> None:
        self.serving: list[Waypost] = []
        self._here = here
        self._said: dict[str, str] = {}
        """Printed secrets to type, by the option that reads them."""
        self.passwords: dict[str, str] = {}
        """Printed passwords by those of the README."""
        self._ports: dict[str, str] = {}

    def translate(self, word: str) -> str:
        """Return a word of the README with the ports and passwords of this run."""
        for shown_password, password in self.passwords.items():
            word = word.replace(shown_password, password)
        return re.sub(r"(?<=:)\d{4}(?=$|/)", lambda port: self._ports.get(port[0], port[0]), word)

    def types(self, command: Shown) -> None:
        words = [self.translate(word) for word in command.words]
        if command.program != "./waypost":
            self._runs_other_program(command, words)
            return
        if command.starts(*SERVES):
            self._serves(command, words)
            return
        if command.starts("edge init"):
            words += ["--mqtt", "0.0.0.0:0", "--amqp", "0.0.0.0:0", "--http", f"127.0.0.1:{free_port()}"]
        typed = [said for option, said in self._said.items() if option in words]
        done = forked.waypost(*words, environment=ENVIRONMENT, stdin="".join(typed))
        assert done.returncode == 0, done.stderr
        holds(done.stdout, command.lines)
        if command.starts("edge status"):
            (messages,) = (line for line in command.lines if line.startswith("messages "))
            assert messages in done.stdout, done.stdout
        shown_passwords = re.findall(PASSWORD, "\n".join(command.lines), re.MULTILINE)
        self.passwords.update(zip(shown_passwords, re.findall(PASSWORD, done.stdout, re.MULTILINE), strict=True))
        for name, text in re.findall(r"^(wpt1(?=\.)|password(?=: ))[.:] ?(\S+)", done.stdout, re.MULTILINE):
            if name == "wpt1":
                self._said["--token-file"] = f"wpt1.{text}"
            else:
                self._said["--password-stdin"] = text

    def _runs_other_program(self, command: Shown, words: list[str]) -> None:
        port = ["-p", self._ports["1883"]] if command.program == "mosquitto_pub" else []
        done = subprocess.run(
            [command.program, *port, *words], capture_output=True, text=True, timeout=forked.SECONDS_MAX, check=True
        )
        holds(done.stdout, command.lines)

    def _serves(self, command: Shown, words: list[str]) -> None:
        places = ["--amqp", "0.0.0.0:0", "--http", "127.0.0.1:0"] if command.starts("hub run") else []
        running = Waypost(self._here / f"{len(self.serving)}.log", *words, *places)
        self.serving.append(running.start())
        for name, port in re.findall(r"(\w+)=\S+:(\d+)", command.lines[0]):
            self._ports[port] = str(running.port(name))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to type in."""
    monkeypatch.chdir(tmp_path)
    (block,) = (block for language, block in BLOCKS if language == "yaml")
    (tmp_path / "gateway.yaml").write_text(block)
    return tmp_path


def test_every_command_shows_what_it_prints() -> None:
    without = [" ".join(each.words) for each in COMMANDS if not each.lines and "--help" not in each.words]
    assert not without


def test_no_secret_is_on_a_command_line() -> None:
    """`ps` shows command lines to every user."""
    every = [*shown(enrolling=True), *shown(enrolling=False)]
    assert not [each.words for each in every if {"--token", "--password"} & set(each.words)]


@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto-clients is not installed")
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_from_nothing_to_the_first_reading_in_the_lake(here: Path) -> None:
    reader, begun = Reader(here), time.monotonic()
    lake = here / "data/fleet/lake"
    try:
        for command in shown(enrolling=True):
            if command.starts("edge status"):
                wait_until(lambda: len(rows(lake, "telemetry")) == READINGS, timeout_s=60, what="the readings")
                took_s = time.monotonic() - begun
            reader.types(command)
        assert {(row["gateway"], row["device"]) for row in rows(lake, "telemetry")} == {("hall", "pump7")}
        assert took_s < FIRST_READING_S_MAX
        assert_consoles_open(reader, here / "data/fleet/authority/ca.pem")
        for command in shown(enrolling=False):
            if command.starts(*ANALYSES):
                done = forked.waypost(*command.words, environment=ENVIRONMENT)
                assert done.returncode == 0, done.stderr
                holds(f"{done.stderr}\n{done.stdout}", command.lines)
    finally:
        for running in reversed(reader.serving):
            running.__exit__()


def assert_consoles_open(reader: Reader, authority: Path) -> None:
    """Both consoles are where the README says, for the users it adds, and for no one else."""
    (block,) = (block for _, block in BLOCKS if ENROLS in block)
    users = re.findall(rf"^# (\S+): added\n# {PASSWORD[1:]}", block, re.MULTILINE)[-2:]
    consoles = re.findall(r"console: (http\S+)", block)
    context = ssl.create_default_context(cafile=authority)
    assert len(consoles) == len(users) == 2
    for place, (name, password) in zip(consoles, users, strict=True):
        url = reader.translate(place)
        assert httpx.get(url, verify=context).status_code == 401
        page = httpx.get(url, verify=context, auth=(name, reader.passwords[password]))
        assert (page.status_code, "<title>Waypost" in page.text) == (200, True)


def test_it_is_what_they_print(here: Path) -> None:
    environment = ENVIRONMENT
    gateway: Waypost | None = None
    try:
        for command in COMMANDS:
            if command.starts("edge run --dev --data ./data/gateway"):
                gateway = Waypost(here / "gateway.log", *free(command.words)).start()
                printed = " ".join(f"{name}={host}:{port}" for name, (host, port) in gateway.endpoints.items())
                holds(f"ready {printed}", command.lines)
                for _ in range(2):  # the README's mosquitto_pub and curl
                    url = f"mqtt://127.0.0.1:{gateway.port('mqtt')}"
                    line = f"simulate --protocol mqtt --kind load --name d --count 1 --url {url} --address queue/jobs"
                    assert forked.waypost("device", *line.split(), environment=environment).returncode == 0
                continue
            if command.starts(*SERVES, *NEEDS_A_GATEWAY):
                continue
            if gateway is not None and command.starts("store repair"):
                assert gateway.stop() == 0
            done = forked.waypost(*command.words, environment=environment)
            assert done.returncode == 0 or command.starts("store new-epoch"), done.stderr
            holds(done.stdout, command.lines)
    finally:
        if gateway is not None:
            gateway.__exit__()
