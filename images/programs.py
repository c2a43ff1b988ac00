"""Programs of this machine that the image commands run: checked in advance, run with a log, named when they fail."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from images.errors import USAGE, ImageError

DEBIAN: Final = {
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
    "aarch64-linux-gnu-strip": "binutils-aarch64-linux-gnu",
    "arch-test": "arch-test",
    "buildah": "buildah",
    "cc": "gcc libc6-dev",
    "chroot": "coreutils",
    "systemctl": "systemd",
    "xz": "xz-utils",
    "zstd": "zstd",
    "debugfs": "e2fsprogs",
    "dpkg-deb": "dpkg",
    "dtc": "device-tree-compiler",
    "fdtput": "device-tree-compiler",
    "genimage": "genimage",
    "mcopy": "mtools",
    "mke2fs": "e2fsprogs",
    "mkenvimage": "u-boot-tools",
    "mkfs.vfat": "dosfstools",
    "mkimage": "u-boot-tools",
    "mksquashfs": "squashfs-tools",
    "mmdebstrap": "mmdebstrap",
    "objdump": "binutils",
    "openssl": "openssl",
    "qemu-aarch64-static": "qemu-user-static binfmt-support",
    "qemu-img": "qemu-utils",
    "qemu-system-aarch64": "qemu-system-arm",
    "rauc": "rauc",
    "readelf": "binutils",
    "strip": "binutils",
    "unsquashfs": "squashfs-tools",
}
"""Debian package of each program."""

SAID_LINES: Final = 15
"""Lines of a program's output that an error shows."""


def require(*programs: str, files: Mapping[str, str] | None = None) -> None:
    """Raise ImageError with the packages to install if a program or a file is missing.

    `files`: required paths, each with its package.
    """
    lacking = [(name, DEBIAN[name]) for name in programs if find(name) is None]
    lacking += [(path, package) for path, package in (files or {}).items() if not Path(path).exists()]
    if lacking:
        packages = sorted({word for _, package in lacking for word in package.split()})
        raise ImageError(
            f"missing on this machine: {', '.join(name for name, _ in lacking)}",
            hint=f"sudo apt install {' '.join(packages)}",
            code=USAGE,
        )


def find(name: str) -> str | None:
    """Return the path of a program, also if it is only in root's search path."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def run(
    *command: str | Path,
    log: Path,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    given: str | None = None,
) -> None:
    """Run a program and append its output to `log`. Raises ImageError with its last lines.

    `environment`: added to ours; `given`: its input.
    """
    words = [str(word) for word in command]
    words[0] = find(words[0]) or words[0]
    with log.open("a", encoding="utf-8") as output:
        output.write(f"$ {shlex.join(words)}\n")
        output.flush()
        try:
            done = subprocess.run(  # noqa: S603 - the fixed commands of our steps
                words,
                stdout=output,
                stderr=subprocess.STDOUT,
                input=given,
                stdin=subprocess.DEVNULL if given is None else None,
                text=True,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                check=False,
            )
        except OSError as error:
            raise ImageError(f"{words[0]} cannot be started: {error.strerror}") from None
    if done.returncode:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-SAID_LINES:]
        raise ImageError(
            f"{Path(words[0]).name} ended with {done.returncode}:\n" + "\n".join(last), hint=f"the whole log: {log}"
        )


def run_for_output(*command: str | Path) -> str:
    """Run a program and return its output. Raises ImageError with its error output."""
    words = [str(word) for word in command]
    words[0] = find(words[0]) or words[0]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - as above
    except OSError as error:
        raise ImageError(f"{words[0]} cannot be started: {error.strerror}") from None
    if done.returncode:
        raise ImageError(f"{Path(words[0]).name} ended with {done.returncode}:\n{(done.stderr or done.stdout).strip()}")
    return done.stdout
