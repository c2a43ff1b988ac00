"""`waypost top` in a pseudo-terminal, `waypost watch` and `waypost events` on a running gateway."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import error_of, output_of
from tests.support.processes import Waypost, edge

ROOT = Path(__file__).parents[2]
COLUMNS, ROWS = 100, 24
SECONDS_MAX = 40.0
"""Longest time until the screen shows something."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    with edge(tmp_path_factory.mktemp("live"), "hall") as running:
        yield running


class Terminal:
    """Pseudo-terminal with a command on it."""

    def __init__(self, *words: str) -> None:
        self.screen = b""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.attributes = termios.tcgetattr(slave)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "edge.appliance.main", *words],
            stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True,
        )  # fmt: skip
        self._slave = slave

    def until(self, text: bytes) -> None:
        """Read until the bytes since the last call have a text."""
        self.screen = b""
        end = time.monotonic() + SECONDS_MAX
        while text not in self.screen:
            assert time.monotonic() < end, self.screen
            if select.select([self._master], [], [], 0.2)[0]:
                self.screen += os.read(self._master, 65_536)

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def attributes_now(self) -> object:
        return termios.tcgetattr(self._slave)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def top(gateway: Waypost) -> Iterator[Terminal]:
    terminal = Terminal("top", "--data", str(gateway.data), "--interval", "0.5")
    yield terminal
    terminal.close()


def test_top_draws_tables_and_restores_the_terminal(top: Terminal) -> None:
    top.until(b"q end")
    assert b"\x1b[?1049h" in top.screen
    assert b"clients -> store" in top.screen
    assert b"\x1b[7m 1 clients \x1b[0m" in top.screen
    top.press(b"2")
    top.until(b"\x1b[7m 2 addresses \x1b[0m")
    top.press(b"4")
    top.until(b"\x1b[7m 4 problems \x1b[0m")
    top.press(b"q")
    top.until(b"\x1b[?25h\x1b[?1049l")
    assert top.process.wait(SECONDS_MAX) == 0
    assert top.attributes_now() == top.attributes


def test_top_needs_a_terminal(gateway: Waypost) -> None:
    assert "this needs a terminal" in error_of("top", "--data", str(gateway.data), code=2)


def test_watch_marks_what_changed(gateway: Waypost) -> None:
    words = ("watch", "--count", "2", "--interval", "1.1", "status", "--data", str(gateway.data))
    looks = output_of(*words).strip("\n").split("\n\n")
    assert len(looks) == 2
    assert not [line for line in looks[0].splitlines() if line.startswith("*")]
    assert [line for line in looks[1].splitlines() if line.startswith("* up ")]


def test_events_begin_with_the_whole_status(gateway: Waypost) -> None:
    document = json.loads(output_of("events", "--json", "--data", str(gateway.data)))
    assert (document["schema"], document["kind"]) == (1, "status")
    assert document["items"][0]["messages"]["received"] == 0


def test_events_for_people_show_problems(gateway: Waypost) -> None:
    shown = output_of("events", "--data", str(gateway.data))
    assert "no problems" in shown or " began: " in shown
