"""Fetch pinned jars from a repository or a folder, and compile our one class.

Ivy, which comes with Spark, resolves each jar without its dependencies: those are pinned too, or Spark ships them. The
environment's settings apply: `WAYPOST_IVY_SETTINGS` (an ivysettings.xml), `DEFAULT_ARTIFACT_REPOSITORY` (Spark's
variable for a private repository), `HTTPS_PROXY`, `JAVA_TOOL_OPTIONS`. If Ivy fails and Maven is installed, Maven tries
with its own settings.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from spark import java
from spark.connector.pins import Jar

_NOT_TRUSTED = "PKIX path building failed"
_STRANGE_AUTHORITY = (
    "\nJava does not trust who signed the server's certificate. Where a proxy signs with an authority of its own, "
    "install openjdk-17-jre-headless: Debian's Java trusts what this machine trusts"
)

RESOLVE_SECONDS_MAX = 300.0
"""Timeout: 13 MB in some forty files took 4 to 20 s; a slow mirror gets five minutes."""
COMPILE_SECONDS_MAX = 300.0
"""Timeout: 6 s of processor time, minutes on a busy Raspberry Pi."""


class ConnectorMissing(RuntimeError):
    """Jars are not installed, or could not be; the message names the next step."""


def fetch(pins: Sequence[Jar], target: Path, scratch: Path, command: str) -> None:
    """Put the jars into `target`, by Ivy, or by Maven if Ivy fails and Maven is installed.

    `command`: what the user runs to try again. Raises `ConnectorMissing` with the output of both.
    """
    complaints = []
    for tool in (_run_ivy, _run_maven):
        complaint = tool(pins, target, scratch)
        if complaint is None and not find_wrong(pins, target):
            return
        if complaint is not None:
            complaints.append(complaint)
    raise ConnectorMissing(
        "could not bring Spark's jars:\n  "
        + "\n  ".join(complaints)
        + (_STRANGE_AUTHORITY if any(_NOT_TRUSTED in complaint for complaint in complaints) else "")
        + "\nCheck the network or set WAYPOST_IVY_SETTINGS / DEFAULT_ARTIFACT_REPOSITORY to a mirror, or put\n  "
        + _names(pins)
        + f"\nin a folder and run `{command} --from FOLDER`"
    )


def copy(pins: Sequence[Jar], source: Path, target: Path) -> None:
    """Copy the jars from a folder. Raises `ConnectorMissing`."""
    for jar in pins:
        if not (source / jar.file_name).is_file():
            raise ConnectorMissing(f"{source} has no {jar.file_name}; it must hold all of: {_names(pins)}")
        shutil.copy(source / jar.file_name, target)


def find_wrong(pins: Sequence[Jar], place: Path) -> list[str]:
    """Return the names of pinned jars that are missing from `place` or have another SHA-256."""
    return [jar.file_name for jar in pins if _sha256(place / jar.file_name) != jar.sha256]


def compile_scala(source: Path, class_path: Sequence[Path], jar: Path) -> None:
    """Compile a source against Spark and these jars, with the compiler that Spark ships; a Java runtime is enough.

    Raises `ConnectorMissing`.
    """
    spark_jars = _spark_jars()
    compiler = os.pathsep.join(str(path) for path in spark_jars if path.name.startswith(("scala-", "jline-")))
    against = os.pathsep.join(map(str, (*spark_jars, *class_path)))
    command = [str(java.find().program), "-cp", compiler, "scala.tools.nsc.Main", "-classpath", against]
    complaint = _run([*command, "-d", str(jar), str(source)], seconds=COMPILE_SECONDS_MAX)
    if complaint is not None or not jar.is_file():
        raise ConnectorMissing(f"{source.name} was not compiled: {complaint}")


def _sha256(path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _names(pins: Sequence[Jar]) -> str:
    return ", ".join(jar.file_name for jar in pins)


def _run_ivy(pins: Sequence[Jar], target: Path, scratch: Path) -> str | None:
    """Run Ivy's command line on a module file of the pins; return its complaint if it fails."""
    # A cache of its own: a user's cache or local Maven repository that holds descriptors without jars fails Ivy.
    module = scratch / "ivy.xml"
    module.write_text(_ivy_module(pins))
    command = [str(java.find().program), *_proxy_options(), "-jar", str(_ivy_jar()), "-warn", "-m2compatible"]
    command += ["-cache", str(scratch / "cache"), *_ivy_settings(scratch), "-types", "jar", "-ivy", str(module)]
    return _run([*command, "-retrieve", f"{target}/[artifact]-[revision].[ext]"])


def _ivy_module(pins: Sequence[Jar]) -> str:
    lines = [
        f'<dependency org="{jar.group}" name="{jar.artifact}" rev="{jar.version}" transitive="false" conf="default"/>'
        for jar in pins
    ]
    head = '<ivy-module version="2.0"><info organisation="waypost" module="jars"/><dependencies>'
    return head + "".join(lines) + "</dependencies></ivy-module>"


def _spark_jars() -> list[Path]:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConnectorMissing("pyspark is not installed in this environment: install the extra `spark`")
    return sorted((Path(spec.origin).parent / "jars").glob("*.jar"))


def _ivy_jar() -> Path:
    found = [path for path in _spark_jars() if path.name.startswith("ivy-")]
    if not found:
        raise ConnectorMissing("this pyspark ships no ivy jar: reinstall it")
    return found[-1]


def _ivy_settings(scratch: Path) -> list[str]:
    given = os.environ.get("WAYPOST_IVY_SETTINGS")
    if given:
        return ["-settings", given]
    repository = os.environ.get("DEFAULT_ARTIFACT_REPOSITORY")
    if not repository:
        return []
    settings = scratch / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="given"/><resolvers>'
        f'<ibiblio name="given" m2compatible="true" root={quoteattr(repository)}/></resolvers></ivysettings>'
    )
    return ["-settings", str(settings)]


def _proxy_options() -> list[str]:
    """Return the usual proxy variables as options of Java."""
    options = []
    for scheme in ("http", "https"):
        value = os.environ.get(f"{scheme}_proxy") or os.environ.get(f"{scheme.upper()}_PROXY")
        parts = urlsplit(value) if value else None
        if parts is not None and parts.hostname:
            options += [f"-D{scheme}.proxyHost={parts.hostname}", f"-D{scheme}.proxyPort={parts.port or 80}"]
    return options


def _run_maven(pins: Sequence[Jar], target: Path, scratch: Path) -> str | None:
    program = shutil.which("mvn")
    if program is None:
        return "mvn: not installed"
    for jar in pins:
        coordinates = f"{jar.group}:{jar.artifact}:{jar.version}"
        command = [program, "-B", "-q", "dependency:copy", f"-Dartifact={coordinates}", f"-DoutputDirectory={target}"]
        complaint = _run(command, cwd=scratch)
        if complaint is not None:
            return complaint
    return None


def _run(command: Sequence[str], cwd: Path | None = None, seconds: float = RESOLVE_SECONDS_MAX) -> str | None:
    name = Path(command[0]).name
    try:
        done = subprocess.run(  # noqa: S603 - arguments are pins and paths of ours
            list(command), capture_output=True, text=True, timeout=seconds, cwd=cwd, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{name}: {error}"
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip(" \t.:")]
    return f"{name}: {' | '.join(lines[-4:])[:600] or f'exit code {done.returncode}'}"
