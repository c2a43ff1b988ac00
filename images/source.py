"""Source of what is built: the packages of a gateway, installed or in a checkout, their version and date."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Final

from images.errors import USAGE, ImageError

ROOT: Final = Path(__file__).parent.parent
"""Folder that holds the packages: a checkout's, or that of the installation."""

GATEWAY: Final = ("bridge", "edge")
"""The packages of a gateway."""

LOCK: Final = ROOT / "requirements.lock"
JAVA_LOCK: Final = ROOT / "requirements-jre.lock"
"""Pins of a Java from a wheel."""


def read_version() -> str:
    """Return the version of Waypost."""
    found = re.search(r'"([^"]+)"', (ROOT / "bridge" / "version.py").read_text().partition("VERSION")[2])
    if found is None:
        raise ImageError("bridge/version.py names no version")
    return found[1]


def build_date() -> int:
    """Return the date of everything that is built, seconds since 1970, so that the same inputs give the same bytes.

    It is SOURCE_DATE_EPOCH (reproducible-builds.org), else the date of the checkout's commit, else that of its version
    file. Raises ImageError.
    """
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        if not given.isdecimal():
            raise ImageError(f"SOURCE_DATE_EPOCH={given} is not a number of seconds", code=USAGE)
        return int(given)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - a fixed command
        return int(done.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):
        return int((ROOT / "bridge" / "version.py").stat().st_mtime)


def require_checkout() -> None:
    """Raise ImageError unless the pins of a gateway's packages are available."""
    if not LOCK.is_file():
        raise ImageError(
            "images are built from a checkout: requirements.lock pins their packages",
            hint="clone the project, and run ./waypost image … there",
            code=USAGE,
        )
