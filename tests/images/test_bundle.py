"""A locally built bundle, and RAUC itself with a card's system.conf: verification and installation in the other slot.

The local kernel may lack dm-verity, so a bundle of the format `plain` is installed; of `verity` only the signature is
checked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.appliance.update.record import UpdateRecord
from edge.appliance.update.slots import BundleInfo, Rauc, SlotsError
from edge.appliance.update.updating import Updater
from images.disk import bundle, filesystem, signing
from images.rootfs.building import OVERLAY
from tests.support.processes import wait_until

pytestmark = [
    pytest.mark.images,
    pytest.mark.skipif(os.geteuid() != 0, reason="not root"),
    pytest.mark.skipif(shutil.which("rauc") is None, reason="rauc is not installed"),
    pytest.mark.skipif(shutil.which("dbus-daemon") is None, reason="dbus is not installed"),
]

MIB = 8
VARIABLES = """#!/bin/sh
case $0 in
*fw_printenv) for last; do :; done; grep "^$last=" "$ENVIRONMENT" ;;
*) sed -i "/^$1=/d" "$ENVIRONMENT"; echo "$1=$2" >> "$ENVIRONMENT" ;;
esac
"""
"""U-Boot's tools, on a file."""


class Slotted:
    """RAUC's service on two files, with its own bus."""

    def __init__(self, folder: Path, keys: signing.SigningKeys, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.slot = {letter: folder / f"{letter}.img" for letter in "AB"}
        for path in self.slot.values():
            path.write_bytes(bytes(MIB << 20))
        self.environment = folder / "environment"
        self.environment.write_text("BOOT_ORDER=A B\nBOOT_A_LEFT=3\nBOOT_B_LEFT=3\n")
        for name in ("fw_printenv", "fw_setenv"):
            (folder / "bin").mkdir(exist_ok=True)
            (folder / "bin" / name).write_text(VARIABLES)
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

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            address = os.environ["DBUS_SESSION_BUS_ADDRESS"]
            self._begin("dbus-daemon", "--session", "--nofork", f"--address={address}", log=log)
            wait_until((self.folder / "bus").exists, timeout_s=60, what="a bus")
            self._begin("rauc", f"--conf={self.configuration}", "--override-boot-slot=A", "service", log=log)
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
        for process in reversed(self._running):
            process.kill()
            process.wait(60)


@pytest.fixture
def keys(tmp_path: Path) -> signing.SigningKeys:
    return signing.load_keys(tmp_path / "keys", None, None)


@pytest.fixture
def slotted(tmp_path: Path, keys: signing.SigningKeys, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slotted]:
    made = Slotted(tmp_path, keys, monkeypatch)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """Root file system as `images.disk.building.build_system` leaves it."""
    folder = tmp_path / "system"
    (folder / "root").mkdir(parents=True)
    (folder / "root" / "content").write_bytes(os.urandom(3 << 20))
    filesystem.make(
        folder / "root.ext4", folder / "root", mebibytes=MIB, label="waypost-root", date=0, journal=False,
        log=folder / "log",
    )  # fmt: skip
    (folder / "root.sha256").write_text(filesystem.compute_sha256(folder / "root.ext4") + "\n")
    return folder


def packed(system: Path, keys: signing.SigningKeys, version: str) -> Path:
    target = system / f"{version}.raucb"
    build_id = (system / "root.sha256").read_text().strip()
    bundle.make(target, system / "root.ext4", build_id, keys, system / "log", version=version)
    return target


def test_bundle_is_written_completely_and_starts_next(
    slotted: Slotted, system: Path, keys: signing.SigningKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = packed(system, keys, "0.2.0")
    build_id = (system / "root.sha256").read_text().strip()
    assert slotted.rauc.inspect(str(signed)) == BundleInfo("0.2.0", build_id)
    monkeypatch.setattr(bundle, "MANIFEST", bundle.MANIFEST.replace("verity", "plain"))
    updating = Updater(slotted.rauc, UpdateRecord(tmp_path / "machine"), lambda: None)
    updating.install(str(packed(system, keys, "0.3.0")))
    found = slotted.rauc.slots()
    assert (found.other.version, found.other.build, found.first) == ("0.3.0", build_id, "rootfs.1")
    assert filesystem.compute_sha256(slotted.slot["B"]) == build_id
    assert not any(slotted.slot["A"].read_bytes())
    assert "BOOT_ORDER=B A" in slotted.environment.read_text()
    assert f"sha256={build_id}" in (tmp_path / "data/central.raucs").read_text()
    slotted.rauc.start_first("booted")
    slotted.rauc.mark_bad("other")
    assert (slotted.rauc.slots().other.good, slotted.rauc.slots().first) == (False, "rootfs.0")


def test_foreign_or_changed_bundle_is_refused(
    slotted: Slotted, system: Path, keys: signing.SigningKeys, tmp_path: Path
) -> None:
    forged = packed(system, signing.load_keys(tmp_path / "others", None, None), "6.6.6")
    changed = packed(system, keys, "0.2.0")
    with changed.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(bytes(20))
    for each in (forged, changed):
        with pytest.raises(SlotsError, match=r"(?i)signature|verif|parse|manifest"):
            slotted.rauc.inspect(str(each))
        with pytest.raises(SlotsError):
            slotted.rauc.install(str(each))
    assert not any(slotted.slot["B"].read_bytes())
    assert "BOOT_ORDER=A B" in slotted.environment.read_text()


def test_old_key_introduces_the_new_one(
    slotted: Slotted, system: Path, keys: signing.SigningKeys, tmp_path: Path
) -> None:
    """A gateway of each release meets bundles of both keys."""
    fresh = signing.load_keys(tmp_path / "fresh", None, None)
    both = signing.load_keys(tmp_path / "keys", None, None, [fresh.certificate])
    by_old, by_new = packed(system, both, "0.2.0"), packed(system, fresh, "0.3.0")
    accepted = {}
    for release, trusted in (("before", keys), ("between", both), ("after", fresh)):
        slotted.trust(trusted)
        accepted[release] = [each for each in (by_old, by_new) if is_accepted(slotted, each)]
    assert accepted == {"before": [by_old], "between": [by_old, by_new], "after": [by_new]}


def is_accepted(slotted: Slotted, file: Path) -> bool:
    try:
        slotted.rauc.inspect(str(file))
    except SlotsError:
        return False
    return True
