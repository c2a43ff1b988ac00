"""RAUC itself with a card's system.conf, on two files or devices of this machine, and small systems in bundles."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from edge.appliance.update.slots import Rauc, SlotsError
from images.disk import bundle, filesystem, signing
from images.rootfs.building import OVERLAY
from tests.support.processes import wait_until

MIB = 8
VARIABLES = """#!/bin/sh
case $0 in
*fw_printenv) for last; do :; done; grep "^$last=" "$ENVIRONMENT" ;;
*) sed -i "/^$1=/d" "$ENVIRONMENT"; echo "$1=$2" >> "$ENVIRONMENT" ;;
esac
"""
"""U-Boot's tools, on a file."""


class Slotted:
    """RAUC's service on two slots, with its own bus."""

    def __init__(
        self,
        folder: Path,
        keys: signing.SigningKeys,
        monkeypatch: pytest.MonkeyPatch,
        *,
        slots: Mapping[str, Path] | None = None,
        tools: str = VARIABLES,
    ) -> None:
        """`slots`: devices of the slots, instead of empty files. `tools`: script that is U-Boot's tools."""
        self.folder = folder
        self.slot = slots or {letter: folder / f"{letter}.img" for letter in "AB"}
        if slots is None:
            for path in self.slot.values():
                path.write_bytes(bytes(MIB << 20))
        self.environment = folder / "environment"
        self.environment.write_text("BOOT_ORDER=A B\nBOOT_A_LEFT=3\nBOOT_B_LEFT=3\n")
        for name in ("fw_printenv", "fw_setenv"):
            (folder / "bin").mkdir(exist_ok=True)
            (folder / "bin" / name).write_text(tools)
            (folder / "bin" / name).chmod(0o755)
        for name in ("run", "data"):
            (folder / name).mkdir()
        self.keyring = folder / "keyring.pem"
        self.trust(keys)
        text = (OVERLAY / "etc/rauc/system.conf").read_text().replace("bundle-formats=-plain\n", "")
        places = {
            "/dev/waypost/root-a": self.slot["A"],
            "/dev/waypost/root-b": self.slot["B"],
            "/etc/rauc/keyring.pem": self.keyring,
            "/data/rauc": folder / "data",
            "/run/rauc": folder / "run",
        }
        for there, here in places.items():
            assert there in text
            text = text.replace(there, str(here))
        self.configuration = folder / "system.conf"
        self.configuration.write_text(text)
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        monkeypatch.setenv("ENVIRONMENT", str(self.environment))
        monkeypatch.setenv("DBUS_STARTER_BUS_TYPE", "session")
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", f"unix:path={folder / 'bus'}")
        self.rauc = Rauc(("rauc", f"--conf={self.configuration}"))
        self._running: list[subprocess.Popen[bytes]] = []

    def trust(self, keys: signing.SigningKeys) -> None:
        """Run a system that was built with these keys."""
        self.keyring.write_bytes(keys.keyring)

    def start(self, booted: str = "A") -> None:
        """Start the service in the system of this slot."""
        (self.folder / "bus").unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            address = os.environ["DBUS_SESSION_BUS_ADDRESS"]
            self._begin("dbus-daemon", "--session", "--nofork", f"--address={address}", log=log)
            wait_until((self.folder / "bus").exists, timeout_s=60, what="a bus")
            self._begin("rauc", f"--conf={self.configuration}", f"--override-boot-slot={booted}", "service", log=log)
        wait_until(self._answers, timeout_s=60, what="RAUC's service", every_s=0.3)

    def _begin(self, *words: str, log: object) -> None:
        self._running.append(subprocess.Popen(words, stdout=log, stderr=log))  # type: ignore[call-overload]

    def _answers(self) -> bool:
        try:
            self.rauc.slots()
        except SlotsError:
            return False
        return True

    def stop(self) -> None:
        while self._running:
            process = self._running.pop()
            process.kill()
            process.wait(60)


def make_system(folder: Path, keyring: bytes = b"") -> Path:
    """Make a root file system as `images.disk.building.build_system` leaves it; return its folder.

    `keyring`: certificates that the system trusts.
    """
    (folder / "root/etc/rauc").mkdir(parents=True)
    (folder / "root/etc/rauc/keyring.pem").write_bytes(keyring)
    (folder / "root" / "content").write_bytes(os.urandom(3 << 20))
    filesystem.make(
        folder / "root.ext4", folder / "root", mebibytes=MIB, label="waypost-root", date=0, journal=False,
        log=folder / "log",
    )  # fmt: skip
    (folder / "root.sha256").write_text(filesystem.compute_sha256(folder / "root.ext4") + "\n")
    return folder


def packed(system: Path, keys: signing.SigningKeys, version: str) -> Path:
    """Return the signed bundle of a system."""
    target = system / f"{version}.raucb"
    build_id = (system / "root.sha256").read_text().strip()
    bundle.make(target, system / "root.ext4", build_id, keys, system / "log", version=version)
    return target
