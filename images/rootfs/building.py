"""Root file system of a gateway: Debian packages, the gateway's package, and our files on top of both.

Installing Debian's packages takes minutes, because arm64 programs are emulated. It is done once for the same lists and
the same archive; `fresh` requests newer packages.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from images import source
from images.debian import EMULATED, PREFERENCES, Mirror, quote_path
from images.programs import find, require, run
from images.steps import BuildSteps, remove

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
    PREFERENCES, "run/*", "tmp/*", "usr/lib/modules/*/System.map", "usr/lib/modules/*/dtb",
    "usr/lib/raspi-firmware", "usr/lib/u-boot", "var/cache/*",
    "var/lib/apt/lists/*", "var/lib/dbus/machine-id", "var/lib/dpkg/*-old", "var/lib/systemd/random-seed", "var/log/*",
)  # fmt: skip
"""Paths that a root does not need: of another partition, of one machine, or left by the installation."""


DEVICE_TREES: Final = "usr/lib/modules/*/dtb/broadcom/bcm*-rpi-*.dtb"
"""Device trees of the kernel."""


def build_base(steps: BuildSteps, mirror: Mirror, *, fresh: bool = False) -> Path:
    """Return the archive of Debian's part. Raises ImageError."""
    require(*PROGRAMS)
    made = steps.result(
        "debian-arm64",
        f"{mirror.release.title} for arm64 (emulated, minutes)",
        [PACKAGES, EXCLUDES, INITRAMFS, *mirror.cache_inputs],
        lambda folder, log: mirror.install(folder / "base.tar", read_list(PACKAGES), mmdebstrap_options(), log=log),
        again=fresh,
    )
    return made / "base.tar"


def mmdebstrap_options() -> Sequence[str]:
    """Return options that leave out files and configure the initial RAM disk."""
    filters = [
        f"--dpkgopt=path-include={line[1:]}" if line.startswith("!") else f"--dpkgopt=path-exclude={line}"
        for line in read_list(EXCLUDES)
    ]
    place = '"$1/etc/initramfs-tools"'
    ours = "--dpkgopt=force-confold"  # one of the files from the hook is also in a package
    return [*filters, ours, f"--essential-hook=mkdir -p {place} && cp -r {quote_path(INITRAMFS)}/. {place}"]


def read_list(file: Path) -> list[str]:
    """Return the lines of a list file, without comments and empty lines."""
    found = (line.strip() for line in file.read_text().splitlines())
    return [line for line in found if line and not line.startswith("#")]


def lay_out(root: Path, archive: Path, package: Path, keyring: Path, log: Path) -> None:
    """Make the tree of a root file system. Needs root, as its files have owners. Raises ImageError."""
    root.mkdir()
    run("tar", "--extract", "--numeric-owner", "--file", archive, "--directory", root, log=log)
    shutil.copy(package, root / "waypost.deb")
    environment = (
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
        "DEBIAN_FRONTEND=noninteractive",
        f"SOURCE_DATE_EPOCH={source.build_date()}",
        *(f"{name}={value}" for name, value in EMULATED.items()),
    )
    # No fsync after each file: an interrupted tree is built again from scratch.
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
    # Created here: a dangling link in the sources could not be packed into a wheel.
    (root / "etc/resolv.conf").symlink_to("/run/systemd/resolve/stub-resolv.conf")
    issue = root / "etc/issue.d/waypost.issue"
    issue.parent.mkdir(exist_ok=True)
    issue.symlink_to("/run/waypost/issue")
    (root / "data").mkdir()
    # systemd 257 would open further sockets for logins. Older versions have no such generator.
    generators = root / "etc/systemd/system-generators"
    generators.mkdir(exist_ok=True)
    (generators / "systemd-ssh-generator").symlink_to("/dev/null")
    # Until a time service answers, the clock is not before the date of this file (systemd's rule), the image's date.
    epoch = root / "usr/lib/clock-epoch"
    epoch.touch()
    for line in read_list(UNITS):
        words = ("mask", line[1:]) if line.startswith("-") else ("enable", line)
        run("systemctl", f"--root={root}", "--quiet", *words, log=log)
    _set_dates(root, source.build_date())


def _keep_firmware(root: Path) -> None:
    """Copy the files of the boot partition next to the root."""
    firmware = root.with_name("firmware")
    firmware.mkdir()
    for path in sorted((root / "usr/lib/raspi-firmware").iterdir()):
        if path.is_file():  # there is a folder of overlays, which no board here needs
            shutil.copy(path, firmware)
    for path in sorted(root.glob(DEVICE_TREES)):
        shutil.copy(path, firmware)
    shutil.copy(root / "usr/lib/u-boot/rpi_arm64/u-boot.bin", firmware)


def _set_dates(root: Path, date: int) -> None:
    """Set the dates of files that are newer than the build date; owners and modes stay."""
    for path in (*root.rglob("*"), root):
        if path.lstat().st_mtime > date or not path.is_relative_to(root / "usr"):
            os.utime(path, (date, date), follow_symlinks=False)
    os.utime(root / "usr/lib/clock-epoch", (date, date))


def find_owner(root: Path, user: str) -> tuple[int, int]:
    """Return the ids of a user and its group in a root."""
    for line in (root / "etc/passwd").read_text().splitlines():
        name, _, uid, gid, *_ = line.split(":")
        if name == user:
            return int(uid), int(gid)
    raise LookupError(user)
