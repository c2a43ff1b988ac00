r"""Walk through a page of the documentation as a reader does: run each command, compare its output.

A block of ``sh`` is run, in the order of the page, in one folder. A line that begins with ``# `` is the output of the
command above; ``# …`` marks omitted lines. Numbers, random names and the space between words may differ. The README,
the tutorials, and each page with ``<!-- test: transcript -->`` are run completely. A block of ``yaml`` that starts with
the line ``# NAME.yaml`` is a file. A command that serves runs until the page ends; it gets free ports, and later lines
with a port of the page get the real one. A block of ``console`` is not run: it needs more than a test has (hardware,
another machine, root).

HTML comments in the page are for the test: ``<!-- test: stop hub run -->`` ends a command that serves, as Ctrl-C does;
``<!-- test: landed 3 ./data/hub/lake -->`` waits until a lake has this many messages.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.conftest import ROOT
from tests.support.command import SECONDS_MAX, run_waypost
from tests.support.lake import rows
from tests.support.processes import Waypost, free_port, wait_until

SERVES: Final = ("run", "hub run")
FOLLOWS: Final = ("client trace",)
"""Commands that follow a client until they are stopped: `test_packet_trace` has one."""
LAUNCHER: Final = ("demo", "test", "bench", "docs", "lock")
"""Commands of the launcher itself, which take long."""
LANDED_S_MAX: Final = 60.0
COMMAND_S_MAX: Final = 200.0
"""Longest command: a pass of all jobs while other tests run."""
STATUS_S_MAX: Final = 20.0
"""Longest wait until a repeated status matches the page: a link needs a moment."""
PARTS: Final = re.compile(r"^```(\w+)\n(.*?)^```$|^<!-- test: (.*?) -->$", re.MULTILINE | re.DOTALL)
PASSWORD: Final = re.compile(r"^password: (\S+)", re.MULTILINE)
ENVIRONMENT: Final = {**os.environ, "PYTHONPATH": str(ROOT), "WAYPOST_PROGRAM": "./waypost", "COLUMNS": "200"}


class Command(NamedTuple):
    """A command, and its output on the page."""

    program: str
    words: list[str]
    lines: list[str]

    def starts(self, *beginnings: str) -> bool:
        return " ".join(self.words).startswith(beginnings)


class File(NamedTuple):
    """File that the reader writes."""

    name: str
    text: str


class Directive(NamedTuple):
    """Step that only the test takes."""

    words: list[str]


Step = Command | File | Directive

TRANSCRIPT: Final = ["transcript"]
"""Words of the directive that marks a transcript."""


def steps(page: Path) -> list[Step]:
    """Return the steps of a page in order."""
    found: list[Step] = []
    for language, block, directive in PARTS.findall(page.read_text()):
        if directive:
            found.append(Directive(shlex.split(directive)))
        elif language == "sh":
            found += _commands(block)
        elif language == "yaml" and (name := re.match(r"# (\S+\.yaml)\n", block)):
            found.append(File(name[1], block))
    return found


def is_transcript(page: Path) -> bool:
    """Return True when a page is a transcript."""
    return Directive(TRANSCRIPT) in steps(page)


def commands(page: Path) -> list[Command]:
    """Return the commands of a page."""
    return [step for step in steps(page) if isinstance(step, Command)]


def _commands(block: str) -> Iterator[Command]:
    read: list[Command] = []
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("# ") and read:
            read[-1].lines.append(line.removeprefix("# "))
        elif line and not line.startswith("#"):
            program, *words = shlex.split(line, comments=True)
            read.append(Command(program, words, []))
    yield from read


def masked(text: str) -> str:
    """Return a printed line without the parts that differ between two runs."""
    text = re.sub(r"(?<=password: )\S+", "PASSWORD", text)
    text = re.sub(r"\bwpt1\.\S+", "TOKEN", text)
    text = re.sub(r"\b[0-9a-f]{8}(?:[0-9a-f]{24})?\b", "EPOCH", text)
    return " ".join(re.sub(r"\d[\d.,]*", "0", text).split())


def assert_printed(printed: str, lines: list[str]) -> None:
    """Check that every line is printed in this order, without other lines in between unless `…` allows them."""
    left = [masked(line) for line in printed.splitlines() if line.strip()]
    skipping = False
    for line in lines:
        if line == "…":
            skipping = True
            continue
        wanted = masked(line)
        while skipping and left and not left[0].startswith(wanted):
            left.pop(0)
        assert left, f"not printed: {line!r} in:\n{printed}"
        assert left.pop(0).startswith(wanted), f"{line!r} in:\n{printed}"
        skipping = False
    assert skipping or not left, f"the page leaves out {left}"


class Reader:
    """Reader of a page, who runs command after command."""

    def __init__(self, folder: Path) -> None:
        self.passwords: dict[str, str] = {}
        """Printed passwords, by the passwords of the page."""
        self._folder = folder
        self._serving: dict[str, Waypost] = {}
        self._ports: dict[str, str] = {}
        """Real ports, by the ports of the page."""
        self._secrets: dict[str, str] = {}
        """Printed secrets to type, by the option that reads them."""

    def translate(self, word: str) -> str:
        """Return a word of the page with the ports and passwords of this run."""
        for shown, password in self.passwords.items():
            word = word.replace(shown, password)
        return re.sub(r"(?<=:)\d{4}(?=$|/)", lambda port: self._ports.get(port[0], port[0]), word)

    def take(self, step: Step) -> None:
        """Do one step of the page."""
        match step:
            case File(name, text):
                (self._folder / name).write_text(re.sub(r"(listeners: \{.*\})", _free_ports, text))
            case Directive(words) if words == TRANSCRIPT:
                pass
            case Directive(["stop", *words]):
                self._stop(" ".join(words))
            case Directive(["landed", count, lake]):
                place, number = self._folder / lake, int(count)
                wait_until(lambda: len(rows(place, "telemetry")) >= number, timeout_s=LANDED_S_MAX, what="the messages")
            case Directive(words):
                raise AssertionError(f"no such directive: {words}")
            case Command():
                self._type(step)

    def close(self) -> None:
        """Stop all commands that serve."""
        for running in reversed(self._serving.values()):
            running.__exit__()

    def _stop(self, words: str) -> None:
        [name] = [each for each in self._serving if each.startswith(words)]
        assert self._serving[name].stop() == 0

    def _type(self, command: Command) -> None:
        words = [self.translate(word) for word in command.words]
        if command.program != "./waypost":
            self._run_other_program(command, words)
        elif command.starts(*SERVES):
            self._serve(command, words)
        elif not command.starts(*FOLLOWS, *LAUNCHER):
            self._run(command, words)

    def _run(self, command: Command, words: list[str]) -> None:
        if command.starts("init"):
            words += ["--mqtt", "0.0.0.0:0", "--amqp", "0.0.0.0:0", "--http", f"127.0.0.1:{free_port()}"]
            words += ["--https", f"0.0.0.0:{free_port()}"]
        typed = "".join(secret for option, secret in self._secrets.items() if option in words)
        shows_log = command.starts("lake run")  # its table of jobs
        until = time.monotonic() + (STATUS_S_MAX if command.starts("status", "bridge status") else 0)
        while True:
            done = run_waypost(*words, environment=ENVIRONMENT, stdin=typed, timeout_s=COMMAND_S_MAX)
            assert done.returncode == 0, f"{words}: {done.stderr}"
            try:
                assert_printed(f"{done.stderr}\n{done.stdout}" if shows_log else done.stdout, command.lines)
                break
            except AssertionError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)
        self._remember_secrets(command, done.stdout)

    def _remember_secrets(self, command: Command, printed: str) -> None:
        shown = PASSWORD.findall("\n".join(command.lines))
        self.passwords.update(zip(shown, PASSWORD.findall(printed), strict=True))
        for token in re.findall(r"^wpt1\.\S+", printed, re.MULTILINE):
            self._secrets["--token-file"] = token
        for password in PASSWORD.findall(printed):
            self._secrets["--password-stdin"] = password

    def _run_other_program(self, command: Command, words: list[str]) -> None:
        if command.program.startswith("mosquitto_"):
            words = _with_port(words, self._ports)
        done = subprocess.run(
            [command.program, *words], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        assert_printed(done.stdout, command.lines)

    def _serve(self, command: Command, words: list[str]) -> None:
        name = " ".join(command.words)
        before = self._serving.get(name)
        ports = {} if before is None else {key: str(port) for key, (_, port) in before.endpoints.items()}
        running = Waypost(self._folder / f"{len(self._serving)}.log", *_at_free_ports(command, words, ports))
        running.environment = ENVIRONMENT
        self._serving[name] = running.start()
        assert command.lines, f"the page does not show what `{name}` prints"
        for protocol, port in re.findall(r"(\w+)=\S+:(\d+)", command.lines[0]):
            self._ports[port] = str(running.port(protocol))


def _free_ports(listeners: re.Match[str]) -> str:
    return re.sub(r":\d+\"", ':0"', listeners[0])


def _with_port(words: list[str], ports: dict[str, str]) -> list[str]:
    if "-p" in words:
        place = words.index("-p") + 1
        return [*words[:place], ports.get(words[place], words[place]), *words[place + 1 :]]
    return ["-p", ports["1883"], *words]


def _at_free_ports(command: Command, words: list[str], ports: dict[str, str]) -> list[str]:
    """Return the words with free ports, or with those of the command's earlier run."""
    dev, hub = "--dev" in words, command.starts("hub run")
    if not dev and not hub:
        return words  # its configuration has them
    for protocol in ("amqp", "http") if hub else ("mqtt", "amqp", "http"):
        served = {"amqp": "amqps", "http": "https"}.get(protocol, protocol) if hub and not dev else protocol
        port, option = ports.get(served, "0"), f"--{protocol}"
        host = "0.0.0.0" if hub and not dev and protocol == "amqp" else "127.0.0.1"
        if option in words:
            words[words.index(option) + 1] = f"{host}:{port}"
        else:
            words = [*words, option, f"{host}:{port}"]
    return words
