"""A gateway installs the newest signed bundle of a stick when it is newer than the running one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from edge.appliance.main import run
from edge.appliance.update.slots import Rauc, SystemSlot, SystemSlots
from images.rootfs.building import OVERLAY

pytestmark = pytest.mark.skipif(shutil.which("dpkg") is None, reason="this is no Debian")

SCRIPT = OVERLAY / "usr/lib/waypost-system/usb-update"
INFO = """
case $4 in /*) set -- "$4" ;; *) set -- "$3" ;; esac
if grep -q ^signed "$1"; then
    echo "RAUC_MF_COMPATIBLE='waypost-arm64'"
    sed -n "s/^signed \\(.*\\)/RAUC_MF_VERSION='\\1'/p" "$1"
else
    echo "Reading bundle: $1" >&2
    echo "signature verification failed: self-signed certificate" >&2
    exit 1
fi
"""
"""Stub of rauc(1): the text of a bundle holds its signature and its version."""
WAYPOST = """
case $* in
--version) echo "waypost $MADE_WITH" ;;
*status) cat "$STATUS" ;;
*) echo "installs ${3##*/}"; ! grep -q 'given up' "$3" ;;
esac
"""


class Gateway:
    """A root folder with a stick."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.stick = root / "run/waypost-usb/sda1"
        self.stick.mkdir(parents=True)
        self._stubs, self._capsys, self._monkeypatch = root / "stubs", capsys, monkeypatch
        self._stubs.mkdir()
        bodies = {
            "rauc": INFO, "waypost": WAYPOST, "systemctl": "echo $1", "umount": "echo unmounted",
            "lsblk": "echo $FORMAT", "mount": '[ "$FORMAT" != ext4 ] || { echo "bad superblock"; exit 32; }',
        }  # fmt: skip
        for name, body in bodies.items():
            (self._stubs / name).write_text(f"#!/bin/sh\n{body}\n")
            (self._stubs / name).chmod(0o755)
        self.runs("")

    def runs(self, version: str) -> None:
        """Set the version of the running bundle in `waypost update status`; empty: the system of the card's
        image."""
        booted = SystemSlot("rootfs.0", "A", good=True, version=version, build="")
        other = SystemSlot("rootfs.1", "B", good=True, version="9.9.9", build="")
        self._monkeypatch.setattr(Rauc, "slots", lambda _: SystemSlots(booted, other, "rootfs.0"))
        assert run(["update", "status", "--root", str(self.root)]) == 0
        (self.root / "status").write_text(self._capsys.readouterr().out)

    def put_in(self, bundles: Mapping[str, str]) -> list[str]:
        """Read a stick with these bundles; return the lines printed before the unmount."""
        done = self.read("vfat", bundles)
        assert done.returncode == 0, done.stderr
        *said, last = done.stdout.splitlines()
        assert last == "unmounted"
        return said

    def read(self, file_system: str, bundles: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run the script on a stick of this file system; reading ext4 fails."""
        for name, content in bundles.items():
            (self.stick / name).write_text(content)
        environment = {
            "PATH": f"{self._stubs}:{os.environ['PATH']}", "STATUS": str(self.root / "status"),
            "MADE_WITH": "0.1.0", "FORMAT": file_system,
        }  # fmt: skip
        return subprocess.run(
            [str(SCRIPT), "sda1", str(self.root)], capture_output=True, text=True, check=False, timeout=60,
            env=environment,
        )  # fmt: skip


@pytest.fixture
def gateway(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Gateway:
    return Gateway(tmp_path, capsys, monkeypatch)


def name(version: str) -> str:
    return f"waypost-{version}-arm64.raucb"


def test_newer_of_two_bundles_is_installed(gateway: Gateway) -> None:
    bundles = {name(each): f"signed {each}" for each in ("0.9.0", "0.10.0", "0.2.0")}
    assert gateway.put_in(bundles) == [f"installs {name('0.10.0')}", "reboot"]


def test_stick_without_a_bundle_is_ignored(gateway: Gateway) -> None:
    (gateway.stick / name("8")).symlink_to("/etc/passwd")
    (gateway.stick / name("9")).mkdir()
    assert gateway.put_in({"holiday.jpg": "", "waypost-0.2.0-amd64.raucb": "signed 0.2.0"}) == []


@pytest.mark.parametrize("older", ["0.1.0", "0.2.0", "0.3.0~rc1", "0.3.0"])
def test_bundle_that_is_not_newer_is_ignored_under_any_name(gateway: Gateway, older: str) -> None:
    gateway.runs("0.3.0")
    [said] = gateway.put_in({name("7.0.0"): f"signed {older}"})
    assert f"{name('7.0.0')} on the stick is not installed: it holds {older}, and 0.3.0 runs" in said


def test_valid_bundle_is_installed_next_to_a_torn_or_foreign_one(gateway: Gateway) -> None:
    told, *done = gateway.put_in({name("0.3.0"): "by somebody", name("0.2.0"): "signed 0.2.0"})
    assert f"{name('0.3.0')} on the stick is not installed: signature verification failed" in told
    assert done == [f"installs {name('0.2.0')}", "reboot"]


@pytest.mark.parametrize("file_system", ["ntfs", "BitLocker", "hfsplus"])
def test_unreadable_stick_is_reported_with_a_remedy(gateway: Gateway, file_system: str) -> None:
    done = gateway.read(file_system, {name("9"): "signed 9"})
    assert done.returncode == 0
    [said] = done.stdout.splitlines()
    assert f"sda1 is formatted as {file_system}" in said
    assert "FAT32 or exFAT" in said


def test_damaged_stick_is_reported(gateway: Gateway) -> None:
    done = gateway.read("ext4", {})
    assert done.returncode == 1
    assert "sda1 (ext4) cannot be read: bad superblock" in done.stdout


def test_rolled_back_bundle_is_skipped(gateway: Gateway) -> None:
    said = gateway.put_in({name("0.3.0"): "signed 0.3.0\ngiven up", name("0.2.0"): "signed 0.2.0"})
    assert said == [f"installs {name('0.3.0')}", f"installs {name('0.2.0')}", "reboot"]
    for each in gateway.stick.iterdir():
        each.unlink()
    assert gateway.put_in({name("0.3.0"): "signed 0.3.0\ngiven up"}) == [f"installs {name('0.3.0')}"], "no restart"


def test_names_cannot_control_the_console(gateway: Gateway) -> None:
    [said] = gateway.put_in({name("1\x1b[2J\x07"): "by somebody"})
    assert said.startswith("Waypost: waypost-1[2J-arm64.raucb on the stick is not installed")


def test_names_with_newlines_and_patterns_are_ignored(gateway: Gateway) -> None:
    said = gateway.put_in({name("1\n2"): "signed 3", name("[4]"): "signed 4", name("4"): "by somebody"})
    assert said[-2:] == [f"installs {name('[4]')}", "reboot"]
    assert not [line for line in said[:-2] if "is not installed" not in line]
