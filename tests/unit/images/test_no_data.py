"""A gateway reports a data partition that it cannot mount, retries a few times, and then stops."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from images.rootfs.building import OVERLAY

LABEL = "waypost-1a2b3c4d"
SCRIPT = OVERLAY / "usr/lib/waypost-system/no-data"
STUBS = {
    "mountpoint": "exit 0",
    "mount": "exit 1",
    "sync": "exit 0",
    "journalctl": "echo 'fsck failed with exit status 4.'",
    "sleep": 'echo "slept $1"',
    "systemctl": 'echo "systemctl $1"',
}
"""Stubs of the commands that the script calls; each prints its call."""


class Machine:
    """A root folder with these programs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.count = root / "boot/firmware/waypost.no-data"
        self.count.parent.mkdir(parents=True)
        (root / "usr/lib/waypost-system").mkdir(parents=True)
        self.stubs = root / "stubs"
        self.stubs.mkdir()
        for name, body in STUBS.items():
            self.stub(name, body)

    def stub(self, name: str, body: str) -> None:
        (self.stubs / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.stubs / name).chmod(0o755)

    def start(self) -> list[str]:
        """Run the script; return its lines."""
        environment = {"PATH": f"{self.stubs}:{os.environ['PATH']}"}
        done = subprocess.run(
            [str(SCRIPT), str(self.root)], capture_output=True, text=True, check=True, timeout=60, env=environment
        )
        return done.stdout.splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_machine_restarts_a_few_times_and_then_waits(machine: Machine) -> None:
    for _ in range(3):
        said = machine.start()
        assert said[-2:] == ["slept 600", "systemctl reboot"]
        assert "cannot be mounted" in said[0]
        assert said[1] == "fsck failed with exit status 4."
        assert (machine.root / "run/waypost/light").read_text() == "waiting\n"
    said = machine.start()
    assert said[-1] == "slept infinity"
    assert "stays as it is" in said[-2]
    assert machine.count.read_text() == "3\n"


def test_starts_that_cannot_be_counted_are_not_repeated(machine: Machine) -> None:
    machine.count.with_name("waypost.no-data.new").mkdir()
    said = machine.start()
    assert said[-1] == "slept infinity"
    assert "systemctl reboot" not in said


@pytest.mark.parametrize("torn", ["", "x", "1 2"])
def test_torn_count_restarts_at_zero(machine: Machine, torn: str) -> None:
    machine.count.write_text(torn)
    assert machine.start()[-1] == "systemctl reboot"
    assert machine.count.read_text() == "1\n"


def test_missing_disk_with_the_data_is_named(machine: Machine) -> None:
    (machine.root / "dev/waypost").mkdir(parents=True)
    (machine.root / "dev/waypost/card-data").touch()
    seen = machine.root / "seen"
    # The disk appears at the third look; the fourth partition of the card has the same label.
    looks = f'echo x >> {seen}; [ "$(wc -l < {seen})" -lt 3 ] || echo /dev/sda'
    body = f'case "$*" in *" -t "*) {looks} ;; *) echo {LABEL} ;; esac'
    machine.stub("blkid", body)
    said = machine.start()
    assert any(LABEL in line for line in said)
    assert said.count("slept 5") == 2, "no try of the slot is used up"
    assert said[-2:] == ["slept 10", "systemctl reboot"]
