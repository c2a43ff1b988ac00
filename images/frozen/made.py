"""A frozen gateway for a kind of machine, whichever way it is made here."""

from __future__ import annotations

import platform
from pathlib import Path

from images.debian import Mirror
from images.errors import USAGE, ImageError
from images.frozen import foreign, freezing
from images.steps import Steps


def frozen(steps: Steps, machine: str, mirror: Mirror, *, fresh: bool = False) -> Path:
    """The folder of a gateway for such machines (``x86_64``, ``aarch64``). Raises ImageError."""
    here = platform.machine()
    if machine == here:
        return freezing.freeze(steps)
    if machine == "x86_64":
        raise ImageError(f"a gateway for x86_64 is made on such a machine; this is {here}", code=USAGE)
    return foreign.freeze(steps, mirror, fresh=fresh)
