"""Freeze `waypost-flash` into one file, which needs neither Python nor the rest of Waypost on its machine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from images import source
from images.debian import Mirror
from images.errors import USAGE, ImageError
from images.frozen import by_machine
from images.frozen.freezing import FrozenProgram
from images.frozen.lock_file import DISTRIBUTION
from images.steps import BuildSteps

PROGRAM: Final = "waypost-flash"
MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
"""Debian's names of the kinds of machines for which it is built."""


def freeze_flasher(steps: BuildSteps, machine: str, mirror: Mirror, *, fresh: bool = False) -> Path:
    """Return the program for a kind of machine (``x86_64``, ``aarch64``). Raises ImageError."""
    if machine not in MACHINES:
        kinds = " or ".join(MACHINES.values())
        raise ImageError(f"{PROGRAM} is built for {kinds}; this machine is {machine}", hint="--machine", code=USAGE)
    return by_machine.freeze(steps, machine, mirror, make_program(machine), fresh=fresh)


def make_program(machine: str) -> FrozenProgram:
    """Return the flasher for a kind of machine, named by version and architecture."""
    return FrozenProgram(
        f"{PROGRAM}-{source.read_version()}-{MACHINES[machine]}",
        PROGRAM,
        suffix="-flasher",
        spec=Path(__file__).with_name("flasher.spec"),
        entry="from images.flashing.program import main\n\nmain()\n",
        sources=("bridge", "edge/card", "edge/output", "images"),
        requirement=DISTRIBUTION,
        packages=frozenset({"segno", "zstandard"}),
    )
