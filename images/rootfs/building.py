"""The root file system of a gateway: Debian's packages, the gateway's own, and our files over both.

Debian's part takes minutes, as programs of arm64 are emulated while it is installed; it is made once for the same lists
and the same archive, and `fresh` asks for newer packages.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from images import source
from images.debian import SUITE, Mirror, quoted
from images.programs import find, require, run
from images.steps import Steps, remove

HERE: Final = Path(__file__).parent
PACKAGES: Final = HERE / "packages.list"
EXCLUDES: Final = HERE / "excludes.list"
INITRAMFS: Final = HERE / "initramfs"
OVERLAY: Final = HERE / "overlay"
UNITS: Final = HERE / "units.list"

PROGRAMS: Final = ("mmdebstrap", "qemu-aarch64-static", "arch-test")
TREE: Final = "root"
STATE: Final = ("waypost", "timesync", "rauc", "ssh")
"""Folders of the data partition; the first is the gateway's own."""

LEFT_OUT: Final = (
    "boot/firmware/*", "etc/machine-id", "etc/resolv.conf", "etc/ssh/ssh_host_*", "initrd.img.old", "vmlinuz.old",
    "run/*", "tmp/*", "usr/lib/linux-image-*", "usr/lib/raspi-firmware", "usr/lib/u-boot", "var/cache/*",
    "var/lib/apt/lists/*", "var/lib/dbus/machine-id", "var/lib/dpkg/*-old", "var/lib/systemd/random-seed", "var/log/*",
)  # fmt: skip
"""What a root has no use for: of another partition, of one machine alone, or left by installing."""


def base(steps: Steps, mirror: Mirror, *, fresh: bool = False) -> Path:
    """The archive of Debian's part. Raises ImageError."""
    require(*PROGRAMS)
    made = steps.result(
        "debian-arm64",
        f"Debian {SUITE} for arm64 (emulated, minutes)",
        [SUITE, PACKAGES, EXCLUDES, INITRAMFS, *mirror.named],
        lambda folder, log: mirror.install(folder / "base.tar", lines(PACKAGES), base_options(), log=log),
        again=fresh,
    )
    return made / "base.tar"


def base_options() -> Sequence[str]:
    """How mmdebstrap is told what to leave out, and what the initial RAM disk is made of."""
    filters = [
        f"--dpkgopt=path-include={line[1:]}" if line.startswith("!") else f"--dpkgopt=path-exclude={line}"
        for line in lines(EXCLUDES)
    ]
    place = '"$1/etc/initramfs-tools"'
    ours = "--dpkgopt=force-confold"  # of the files that the hook puts there, one is a package's too
    return [*filters, ours, f"--essential-hook=mkdir -p {place} && cp -r {quoted(INITRAMFS)}/. {place}"]


def lines(file: Path) -> list[str]:
    """Of a list: without comments and empty ones."""
    found = (line.strip() for line in file.read_text().splitlines())
    return [line for line in found if line and not line.startswith("#")]


def lay_out(root: Path, archive: Path, package: Path, keyring: Path, log: Path) -> None:
    """Make the tree of a root file system. Needs root: its files have owners. Raises ImageError."""
    root.mkdir()
    run("tar", "--extract", "--numeric-owner", "--file", archive, "--directory", root, log=log)
    shutil.copy(package, root / "waypost.deb")
    environment = (
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
        "DEBIAN_FRONTEND=noninteractive",
        f"SOURCE_DATE_EPOCH={source.date()}",
    )
    # Without waiting for the disk after each file: a tree that was cut off is made anew.
    install = ("dpkg", "--force-unsafe-io", "--install", "/waypost.deb")
    run("env", "-i", *environment, find("chroot") or "chroot", root, *install, log=log)
    remove(root / "waypost.deb")
    _keep_firmware(root)
    for pattern in LEFT_OUT:
        for path in root.glob(pattern) if "*" in pattern else (root / pattern,):
            remove(path)
    shutil.copytree(OVERLAY, root, dirs_exist_ok=True, symlinks=True)
    shutil.copy(keyring, root / "etc/rauc/keyring.pem")
    (root / "etc/machine-id").touch()
    # Made here: a link that leads nowhere would keep these sources from being packed into a wheel.
    (root / "etc/resolv.conf").symlink_to("/run/systemd/resolve/stub-resolv.conf")
    issue = root / "etc/issue.d/waypost.issue"
    issue.parent.mkdir(exist_ok=True)
    issue.symlink_to("/run/waypost/issue")
    (root / "data").mkdir()
    # Until a time service has answered, the clock is no earlier than this image (systemd takes this file's date).
    epoch = root / "usr/lib/clock-epoch"
    epoch.touch()
    for line in lines(UNITS):
        words = ("mask", line[1:]) if line.startswith("-") else ("enable", line)
        run("systemctl", f"--root={root}", "--quiet", *words, log=log)
    _date(root, source.date())


def _keep_firmware(root: Path) -> None:
    """Beside the root: what the boot partition is made of."""
    firmware = root.with_name("firmware")
    firmware.mkdir()
    for path in sorted((root / "usr/lib/raspi-firmware").iterdir()):
        shutil.copy(path, firmware)
    for path in sorted(root.glob("usr/lib/linux-image-*/broadcom/bcm*-rpi-*.dtb")):
        shutil.copy(path, firmware)
    shutil.copy(root / "usr/lib/u-boot/rpi_arm64/u-boot.bin", firmware)


def _date(root: Path, date: int) -> None:
    """No file is newer than what it is made of; its owner's and group's rights stay as they are."""
    for path in (*root.rglob("*"), root):
        if path.lstat().st_mtime > date or not path.is_relative_to(root / "usr"):
            os.utime(path, (date, date), follow_symlinks=False)
    os.utime(root / "usr/lib/clock-epoch", (date, date))


def owner(root: Path, user: str) -> tuple[int, int]:
    """Numbers of a user and its group in a root."""
    for line in (root / "etc/passwd").read_text().splitlines():
        name, _, uid, gid, *_ = line.split(":")
        if name == user:
            return int(uid), int(gid)
    raise LookupError(user)
