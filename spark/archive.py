"""The class archive: the JVM's classes, parsed and linked once at set-up, mapped at every later start.

Optional and tolerant: without an archive, or with one made by another Java or for other jars, starts are slower and
nothing else. The JVM checks by itself that an archive fits and passes over one that does not, without a word. So its
name says what it was made by and for: one of another name is stale, which the commands say.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from spark import java
from spark.connector.jar_set import DELTA, share

MAKE_SECONDS_MAX = 240.0


def path(home: java.Java) -> Path:
    """The archive for exactly this Java, this Spark and these jars, there or not."""
    from importlib.metadata import version  # noqa: PLC0415

    return share() / f"classes-java{home.build}-spark{version('pyspark')}-{DELTA.pins()}.jsa"


def stale(home: java.Java) -> list[Path]:
    """Archives that this Java, this Spark and these jars have no use for."""
    return sorted(set(share().glob("classes-*.jsa")) - {path(home)})


def notice(home: java.Java) -> str | None:
    """What to tell a person who starts Spark and had an archive once; None: starts are as fast as they were."""
    if path(home).is_file() or not stale(home):
        return None
    command = shlex.join([sys.executable, "-P", "-m", "spark.setup", "archive"])
    return (
        f"Spark starts slower than it could: the class archive was made before Java (now {home.build}), Spark or the "
        f"connector was updated. `{command}` makes it anew, once"
    )


def jvm_options(home: java.Java) -> tuple[str, ...]:
    """Options that use the archive; none when it has not been made."""
    archive = path(home)
    return (f"-XX:SharedArchiveFile={archive}", "-Xshare:auto") if archive.is_file() else ()


def make() -> str:
    """Run one small pass of every job in a JVM that archives its classes on exit; returns what to tell the user.

    The new archive takes the place of all former ones. Never raises for a JVM that makes no archive (some runtimes
    cannot): the message says so. Raises `ConnectorMissing` or `java.JavaMissing` when no pass can be run at all,
    `OSError` when the environment cannot be written.
    """
    DELTA.paths()
    home = java.find()
    target = path(home)
    target.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="waypost-archive-", dir=target.parent) as scratch:
        fresh = Path(scratch) / target.name
        command = [
            sys.executable,
            "-m",
            "spark.warmup",
            str(Path(scratch) / "lake"),
            f"-XX:ArchiveClassesAtExit={fresh}",
        ]
        try:
            done = subprocess.run(  # noqa: S603 - this very program
                command, capture_output=True, text=True, timeout=MAKE_SECONDS_MAX, check=False
            )
        except subprocess.TimeoutExpired:
            return f"no class archive: the trial pass took longer than {MAKE_SECONDS_MAX:.0f} s (starts stay slower)"
        if done.returncode != 0 or not fresh.is_file():
            last = (done.stderr.strip().splitlines() or ["the JVM wrote no archive"])[-1]
            return f"no class archive: {last[:300]} (starts stay slower)"
        fresh.replace(target)
    for former in stale(home):
        former.unlink(missing_ok=True)
    return f"class archive made in {time.monotonic() - started:.0f} s: {target} ({target.stat().st_size / 1e6:.0f} MB)"
