"""Debian package of a frozen gateway: after `apt install ./waypost_*.deb` it serves.

dpkg-deb alone builds it, and the same gateway gives the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from images import source
from images.errors import ImageError
from images.frozen import freezing
from images.frozen.cross import BUILT_USING
from images.programs import require, run
from images.steps import BuildSteps

HERE: Final = Path(__file__).parent
PROGRAMS: Final = ("dpkg-deb",)
SCRIPTS: Final = ("postinst", "prerm", "postrm")
LIBRARY: Final = "usr/lib/waypost"
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
"""Debian's name of a kind of machine, by the kernel's."""

COMPLETIONS: Final = {
    "bash": "bash-completion/completions/waypost",
    "zsh": "zsh/vendor-completions/_waypost",
    "fish": "fish/vendor_completions.d/waypost.fish",
}
"""Completion script of each shell, below /usr/share."""

CONTROL: Final = """\
Package: waypost
Version: {version}
Architecture: {architecture}
Maintainer: Waypost <maintainers@waypost.invalid>
Installed-Size: {kibibytes}
Depends: libc6 (>= {libc}), adduser, debconf, init-system-helpers
{built_using}Section: net
Priority: optional
Description: messaging gateway that survives the power cut
 A broker for MQTT and AMQP 1.0 that keeps what it acknowledges on disk, serves devices with or without an uplink,
 and forwards to a hub. This package brings its own Python.
"""


def build_package(steps: BuildSteps, frozen: Path, machine: str) -> Path:
    """Return the package of a frozen gateway for a machine (``x86_64``, ``aarch64``). Raises ImageError."""
    require(*PROGRAMS)
    name = f"waypost_{source.read_version()}_{ARCHITECTURES[machine]}.deb"
    made = steps.result(
        f"package-{machine}",
        f"Debian package for {ARCHITECTURES[machine]}",
        [frozen.parent.name, source.read_version(), CONTROL, HERE, source.ROOT / "LICENSE"],
        lambda folder, log: _make(folder / name, frozen, machine, log),
    )
    return made / name


def _make(target: Path, frozen: Path, machine: str, log: Path) -> None:
    tree = target.with_name("tree")
    _lay_out(tree, frozen)
    files = [path for path in sorted(tree.rglob("*")) if path.is_file() and not path.is_symlink()]
    control = tree / "DEBIAN"
    control.mkdir()
    size = sum(path.stat().st_size for path in files)
    text = CONTROL.format(
        version=source.read_version(),
        architecture=ARCHITECTURES[machine],
        kibibytes=(size + 1023) // 1024,
        libc=find_libc_version(tree),
        built_using=_built_using_field(frozen),
    )
    (control / "control").write_text(text)
    sums = (f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(tree)}\n" for path in files)  # noqa: S324
    (control / "md5sums").write_text("".join(sums))
    for name in (*SCRIPTS, "templates"):
        shutil.copy(HERE / name, control)
    _normalize(tree)
    words = ("dpkg-deb", "--root-owner-group", "-Zxz", "-z6", "--build", tree, target)
    run(*words, log=log, environment={"SOURCE_DATE_EPOCH": str(freezing.DATE)})
    shutil.rmtree(tree)


def _built_using_field(frozen: Path) -> str:
    """Return the field for the content from Debian; empty for a gateway frozen with this machine's own libraries."""
    note = frozen.with_name(BUILT_USING)
    return f"Built-Using: {note.read_text()}\n" if note.is_file() else ""


def _lay_out(tree: Path, frozen: Path) -> None:
    """Lay out the files of the package."""
    shutil.copytree(frozen, tree / LIBRARY, symlinks=True)
    shutil.copy(HERE / "prepare", tree / LIBRARY / "prepare")
    (tree / "usr/bin").mkdir()
    (tree / "usr/bin" / freezing.PROGRAM).symlink_to(f"../lib/waypost/{freezing.PROGRAM}")
    units = tree / "usr/lib/systemd/system"  # /lib is a link to it, and Debian 13 warns of files below the link
    units.mkdir(parents=True)
    shutil.copy(HERE / "waypost.service", units)
    _write_completions(tree / "usr/share")
    texts = tree / "usr/share/doc/waypost"
    texts.mkdir(parents=True)
    shutil.copy(HERE / "README.Debian", texts / "README")
    shutil.copy(source.ROOT / "LICENSE", texts / "copyright")


def _write_completions(share: Path) -> None:
    """Write the scripts of `waypost completion`, where each shell looks for them."""
    for shell, place in COMPLETIONS.items():
        made = get_completion_class(shell)
        if made is None:
            raise ImageError(f"click has no completion for {shell}")
        complete = made(click.Command(freezing.PROGRAM), {}, freezing.PROGRAM, "_WAYPOST_COMPLETE")
        (share / place).parent.mkdir(parents=True, exist_ok=True)
        (share / place).write_text(complete.source_template % complete.source_vars())


def _normalize(tree: Path) -> None:
    """Set modes and dates that are the same in every build."""
    for path in (*tree.rglob("*"), tree):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (freezing.DATE, freezing.DATE), follow_symlinks=False)


def find_libc_version(tree: Path) -> str:
    """Return the newest version of the C library that a program or library of a tree requires."""
    found = {
        tuple(map(int, version.split(b".")))
        for path in tree.rglob("*")
        if path.is_file() and not path.is_symlink() and (content := path.read_bytes()).startswith(b"\x7fELF")
        for version in re.findall(rb"\0GLIBC_(\d+\.\d+)(?:\.\d+)?(?=\0)", content)
    }
    if not found:
        raise ImageError(f"{tree} holds no program")
    return ".".join(map(str, max(found)))
