"""Programs of this machine that making an image takes: found beforehand, run with a log, named when they fail."""

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
    "strip": "binutils",
}
"""The package of each."""

SAID_LINES: Final = 15
"""Of what a program said, how much an error shows."""


def require(*programs: str, files: Mapping[str, str] | None = None) -> None:
    """`files`: paths that have to be there, each with its package. Raises ImageError with the packages to install."""
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
    """A program, also where only root's search path has it."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def run(
    *command: str | Path,
    log: Path,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    given: str | None = None,
) -> None:
    """Run to the end; what it says goes to the end of `log`. `environment`: added to ours; `given`: its input.

    Raises ImageError with its last lines.
    """
    words = [str(word) for word in command]
    words[0] = find(words[0]) or words[0]
    with log.open("a", encoding="utf-8") as said:
        said.write(f"$ {shlex.join(words)}\n")
        said.flush()
        try:
            done = subprocess.run(  # noqa: S603 - the fixed commands of our steps
                words,
                stdout=said,
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


def output(*command: str | Path) -> str:
    """What a program prints. Raises ImageError with what it said instead."""
    words = [str(word) for word in command]
    words[0] = find(words[0]) or words[0]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - as above
    except OSError as error:
        raise ImageError(f"{words[0]} cannot be started: {error.strerror}") from None
    if done.returncode:
        raise ImageError(f"{Path(words[0]).name} ended with {done.returncode}:\n{(done.stderr or done.stdout).strip()}")
    return done.stdout
