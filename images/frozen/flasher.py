"""Freeze `waypost-flash` into one file, which needs neither Python nor the rest of Waypost on its machine."""

from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path
from typing import Final

from images import source
from images.errors import USAGE, ImageError
from images.frozen import freezing
from images.programs import require, run
from images.steps import BuildSteps, remove

SPEC: Final = Path(__file__).with_name("flasher.spec")
PROGRAM: Final = "waypost-flash"
ENTRY: Final = "from images.flashing.program import main\n\nmain()\n"
PACKAGES: Final = ("bridge", "edge/card", "edge/output", "images")
"""Sources of the program."""
MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
"""Debian's names of the kinds of machines for which it is built, each on a machine of its kind."""


def freeze_flasher(steps: BuildSteps) -> Path:
    """Return the program for this kind of machine. Raises ImageError."""
    machine = platform.machine()
    if machine not in MACHINES:
        kinds = " or ".join(MACHINES)
        raise ImageError(f"{PROGRAM} is built for {kinds}, on such a machine; this is {machine}", code=USAGE)
    source.require_checkout()
    require("objdump", "strip")
    name = f"{PROGRAM}-{source.read_version()}-{MACHINES[machine]}"
    own = freezing.find_system_libraries(Path("/proc/self/maps").read_text())
    sources = [source.ROOT / package for package in PACKAGES]
    made = steps.result(
        f"flasher-{machine}",
        f"{PROGRAM} for {machine}, frozen",
        [*sources, SPEC, ENTRY, source.LOCK, sys.version, name, *own],
        lambda folder, log: _freeze(folder, name, log),
    )
    return made / name


def _freeze(folder: Path, name: str, log: Path) -> None:
    work = folder / "work"
    work.mkdir()
    entry = work / "waypost_flash.py"
    entry.write_text(ENTRY)
    options = ("--noconfirm", "--log-level", "WARN", "--distpath", work / "made", "--workpath", work / "analysis")
    run(
        sys.executable,
        "-m",
        "PyInstaller",
        *options,
        SPEC,
        log=log,
        environment=freezing.build_environment(source.ROOT, entry),
    )
    shutil.move(work / "made" / PROGRAM, folder / name)
    remove(work)
