"""Debian packages that an environment is built with, and their installation."""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from launcher.steps import SetUpError, Steps, say

APT = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "DPkg::Lock::Timeout=300")
"""The time-out, 300 s, outlasts the daily run of Debian's own updates."""
INSTALL = ("install", "-y", "--no-install-recommends")
JAVA_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")
"""The releases that Spark runs on; spark/java.py accepts the same."""


def has_java() -> bool:
    """Return whether a Java runtime for Spark is installed."""
    home = os.environ.get("JAVA_HOME")
    places = chain([f"{home}/bin/java"] if home else [], ["java"], glob.glob("/usr/lib/jvm/java-*/bin/java"))
    return any(re.search(r'version "(17|21)[."]', _output(place, "-version")) for place in places)


def missing_packages(compiles: bool) -> list[str]:
    """Return the Debian packages without which the environment cannot be made."""
    missing = [] if importlib.util.find_spec("ensurepip") else ["python3-venv"]
    if compiles:
        if not Path(sysconfig.get_path("include"), "Python.h").exists():
            missing.append("python3-dev")
        if shutil.which("cc") is None:
            missing += ["gcc", "libc6-dev"]
        if shutil.which("pkg-config") is None:
            missing.append("pkg-config")
        if not _output("pkg-config", "--modversion", "openssl"):
            missing.append("libssl-dev")  # without it Proton is compiled without TLS, and no message says so
    return missing


def install(steps: Steps, packages: Iterable[str], java: bool, agreed: bool) -> None:
    """Install packages, and a Java runtime where `java` is wanted and apt has one.

    Root installs at once. With sudo the command is shown and confirmed on the terminal, unless `agreed`. A missing Java
    alone is no reason to ask, because a Python package has one too. Raises SetUpError.
    """
    wanted = list(packages)
    root = os.geteuid() == 0
    allowed = os.environ.get("WAYPOST_APT") != "never" and shutil.which("apt-get") is not None
    if not wanted and not (java and root and allowed):
        return
    sudo = [] if root else ["sudo"]
    apt = " ".join([*sudo, "apt-get"])
    command = f"{apt} update && {apt} {' '.join([*INSTALL, *wanted])}"
    if not allowed or not (root or agreed or _confirmed(command)):
        raise SetUpError(f"missing packages: {' '.join(wanted)}", f"install them, then start again: {command}", code=2)
    if sudo:
        subprocess.run(["sudo", "--validate"], check=False)  # asks for the password where it can be seen
    steps.run("Debian: package lists", [*sudo, *APT, "update", "--error-on=any"])
    if java:
        wanted += [name for name in JAVA_PACKAGES if _has_candidate(name)][:1]
    if wanted:
        steps.run("Debian: interrupted installations", [*sudo, "dpkg", "--configure", "-a"])
        steps.run(f"Debian: {' '.join(wanted)}", [*sudo, *APT, *INSTALL, *wanted])


def _confirmed(command: str) -> bool:
    """Show the command and ask on the terminal. False without a terminal or sudo."""
    if shutil.which("sudo") is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    say(f"Waypost needs Debian packages. This installs them:\n  {command}")
    print("Run it now? [Y/n] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"", "y", "yes"}


def _has_candidate(package: str) -> bool:
    """Return whether this release has the package. `apt-cache show` also succeeds for names of mere dependencies."""
    return re.search(r"^ *Candidate: [^(]", _output("apt-cache", "policy", package), re.MULTILINE) is not None


def _output(*command: str) -> str:
    """Return the output of a program; nothing when it is not installed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    except OSError:
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""
