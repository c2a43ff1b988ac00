"""Class archive: the JVM's classes, parsed and linked once at set-up, mapped at every later start.

It is optional. Without an archive, or with one made by another Java or for other jars, starts are slower and nothing
else changes. The JVM silently ignores an archive that does not fit. For this reason the name of an archive states what
it was made by and for; one with another name is stale, and the commands say so.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from spark import java
from spark.connector.jar_set import DELTA, share_folder

MAKE_SECONDS_MAX = 240.0


def archive_path(home: java.Java) -> Path:
    """Return the path of the archive for exactly this Java, this Spark and these jars."""
    from importlib.metadata import version  # noqa: PLC0415

    return share_folder() / f"classes-java{home.build}-spark{version('pyspark')}-{DELTA.pins()}.jsa"


def find_stale(home: java.Java) -> list[Path]:
    """Return the archives that do not fit this Java, this Spark and these jars."""
    return sorted(set(share_folder().glob("classes-*.jsa")) - {archive_path(home)})


def stale_notice(home: java.Java) -> str | None:
    """Return a notice if the archive has become stale; None if starts are as fast as before."""
    if archive_path(home).is_file() or not find_stale(home):
        return None
    command = shlex.join([sys.executable, "-P", "-m", "spark.setup", "archive"])
    return (
        f"Spark starts slower than it could: the class archive was made before Java (now {home.build}), Spark or the "
        f"connector was updated. `{command}` makes a new one, once"
    )


def jvm_options(home: java.Java) -> tuple[str, ...]:
    """Return options that use the archive; none if it has not been made."""
    archive = archive_path(home)
    return (f"-XX:SharedArchiveFile={archive}", "-Xshare:auto") if archive.is_file() else ()


def make_archive() -> str:
    """Make the archive unless it is there; return a message for the user.

    A session starts and stops in a JVM that archives its classes on exit. A pass of every job in it would cost three
    times as much, and save one second more of a first pass. The new archive replaces all former ones. Some runtimes
    cannot make an archive; then the message says so. Raises `ConnectorMissing` or `java.JavaMissing` if Spark cannot
    start at all, and `OSError` if the environment cannot be written.
    """
    DELTA.paths()
    home = java.find()
    target = archive_path(home)
    if target.is_file():
        return f"class archive is there already: {target}"
    target.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="waypost-archive-", dir=target.parent) as scratch:
        fresh = Path(scratch) / target.name
        command = [
            sys.executable,
            "-m",
            "spark.warmup",
            f"-XX:ArchiveClassesAtExit={fresh}",
        ]
        try:
            done = subprocess.run(  # noqa: S603 - this very program
                command, capture_output=True, text=True, timeout=MAKE_SECONDS_MAX, check=False
            )
        except subprocess.TimeoutExpired:
            return f"no class archive: the trial start took longer than {MAKE_SECONDS_MAX:.0f} s (starts stay slower)"
        if done.returncode != 0 or not fresh.is_file():
            last = (done.stderr.strip().splitlines() or ["the JVM wrote no archive"])[-1]
            return f"no class archive: {last[:300]} (starts stay slower)"
        fresh.replace(target)
    for former in find_stale(home):
        former.unlink(missing_ok=True)
    return f"class archive made in {time.monotonic() - started:.0f} s: {target} ({target.stat().st_size / 1e6:.0f} MB)"
