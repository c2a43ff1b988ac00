"""Freeze a program for a kind of machine, in the way that fits."""

from __future__ import annotations

import platform
from pathlib import Path

from images.debian import Mirror
from images.errors import USAGE, ImageError
from images.frozen import cross, freezing
from images.frozen.freezing import GATEWAY, FrozenProgram
from images.steps import BuildSteps


def freeze(
    steps: BuildSteps, machine: str, mirror: Mirror, program: FrozenProgram = GATEWAY, *, fresh: bool = False
) -> Path:
    """Return a program for a machine (``x86_64``, ``aarch64``); a gateway is a folder. Raises ImageError."""
    own = platform.machine()
    if machine == own:
        return freezing.freeze(steps, program)
    if machine == "x86_64":
        raise ImageError(f"a {program.title} for x86_64 is built on such a machine; this is {own}", code=USAGE)
    return cross.freeze(steps, mirror, program, fresh=fresh)
