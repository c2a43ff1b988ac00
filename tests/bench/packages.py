"""Third-party programs: found, installed from Debian if allowed, or reported as missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

PLACES: Final = f"{os.environ.get('PATH', '')}:/usr/sbin"


class BrokerMissing(Exception):
    """A program is not installed; the message names the package to install."""


def program(name: str, *packages: str) -> Path:
    """Return the path of `name`; install its Debian packages if it is missing. Raises BrokerMissing."""
    found = shutil.which(name, path=PLACES)
    if found is None:
        install(name, *packages)
        found = shutil.which(name, path=PLACES)
    if found is None:
        raise BrokerMissing(f"{name} is not in Debian's {' '.join(packages)}")
    return Path(found)


def install(what: str, *packages: str) -> None:
    """Install Debian packages without starting their daemons. Raises BrokerMissing when this is not allowed
    or fails.
    """
    command = "apt-get install --no-install-recommends " + " ".join(packages)
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    allowed = os.environ.get("WAYPOST_APT") != "never" and shutil.which("apt-get") is not None
    if not allowed or (as_root and not _succeeds([*as_root, "true"])):
        raise BrokerMissing(f"{what} is not there: {command}")
    say(f"  installing {' '.join(packages)}")
    # RUNLEVEL keeps Debian's scripts from starting the service: a private one starts on its own ports.
    environment = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1"]
    apt = [*environment, "apt-get", "-q", "-o", "DPkg::Lock::Timeout=300"]
    if _succeeds([*apt, "install", "-y", "--no-install-recommends", *packages]):
        return
    if not _succeeds([*apt, "update"]) or not _succeeds([*apt, "install", "-y", "--no-install-recommends", *packages]):
        raise BrokerMissing(f"{what} could not be installed: {command}")


def _succeeds(command: list[str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False).returncode == 0


def say(text: str) -> None:
    """Print progress to stderr; stdout is for the result."""
    print(text, file=sys.stderr, flush=True)
