"""What is built: the packages of a gateway, installed or in a checkout, their version and their date."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Final

from images.errors import USAGE, ImageError

ROOT: Final = Path(__file__).parent.parent
"""The folder the packages are in: a checkout's, or where they are installed."""

GATEWAY: Final = ("bridge", "edge")
"""The packages of a gateway."""

LOCK: Final = ROOT / "requirements.lock"
JAVA_LOCK: Final = ROOT / "requirements-jre.lock"
"""The pins of a Java out of a wheel."""


def version() -> str:
    """Of Waypost."""
    found = re.search(r'"([^"]+)"', (ROOT / "bridge" / "version.py").read_text().partition("VERSION")[2])
    if found is None:
        raise ImageError("bridge/version.py names no version")
    return found[1]


def date() -> int:
    """Seconds since 1970 that everything made has as its date, so that the same inputs make the same bytes: what
    SOURCE_DATE_EPOCH says (reproducible-builds.org), else when the checkout's commit was made, else its version file.

    Raises ImageError.
    """
    said = os.environ.get("SOURCE_DATE_EPOCH")
    if said:
        if not said.isdecimal():
            raise ImageError(f"SOURCE_DATE_EPOCH={said} is not a number of seconds", code=USAGE)
        return int(said)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - a fixed command
        return int(done.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):
        return int((ROOT / "bridge" / "version.py").stat().st_mtime)


def require_checkout() -> None:
    """Raises ImageError where the pins of what a gateway is made of are not there."""
    if not LOCK.is_file():
        raise ImageError(
            "images are built from a checkout: requirements.lock says what goes into them",
            hint="clone the project, and run ./waypost image … there",
            code=USAGE,
        )
