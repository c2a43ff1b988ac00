"""The initial RAM disk reboots from a slot without init, and never starts a shell of root as Debian's would."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from images.rootfs.building import INITRAMFS

SCRIPT = INITRAMFS / "scripts/init-bottom/waypost"
STUBS = {
    "cat": "echo ro rauc.slot=B panic=10",
    "sleep": 'echo "slept $1"',
    "reboot": 'echo "reboot $*"; kill $PPID',
}
"""Stubs of the commands that the script calls; each prints its call."""


def said(folder: Path, *words: str, whole: bool) -> list[str]:
    """Run the script and return its lines. A damaged slot ends only with a reboot."""
    stubs = {**STUBS, "run-init": f"test {int(whole)} = 1"}
    for name, body in stubs.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "rootmnt": "/root", "init": "/sbin/init"}
    done = subprocess.run(
        [str(SCRIPT), *words], capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert (done.returncode == 0) is whole
    return done.stdout.splitlines()


def test_complete_slot_is_started(tmp_path: Path) -> None:
    assert said(tmp_path, whole=True) == []
    assert said(tmp_path, "prereqs", whole=True) == []


def test_slot_without_init_is_reported_and_the_machine_restarts(tmp_path: Path) -> None:
    told = said(tmp_path, whole=False)
    assert "slot B holds no /sbin/init" in told[0]
    assert told[1:] == ["slept 10", "reboot -f"]
