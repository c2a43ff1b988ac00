"""The Delta connector's jars: pinned here, brought once at set-up, local files ever after.

`python -m spark.setup install` resolves the pins with Ivy, the resolver that comes with Spark, into
`<environment>/share/waypost/jars/<pins>`; the folder appears by one rename after every SHA-256 was checked, so a
folder that exists is whole. Nothing at run time asks a network: `jars()` only looks.

Jars that Spark itself ships are left out: every pin is fetched without its dependencies. The environment's own
settings are honoured: `WAYPOST_IVY_SETTINGS` (an ivysettings.xml), `DEFAULT_ARTIFACT_REPOSITORY` (Spark's variable
for a repository of one's own), `HTTPS_PROXY`, `JAVA_TOOL_OPTIONS`; and where Ivy fails and Maven is installed, Maven
is asked with the settings it has. `--from DIR` takes the jars from a folder, for machines without any network.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from spark import java

_NOT_TRUSTED = "PKIX path building failed"
_STRANGE_AUTHORITY = (
    "\nJava does not trust who signed the server's certificate. Where a proxy signs with an authority of its own, "
    "install openjdk-17-jre-headless: Debian's Java trusts what this machine trusts"
)

RESOLVE_SECONDS_MAX = 300.0
"""12 MB in five files: 4 s seen; a slow mirror is given five minutes."""


class ConnectorMissing(RuntimeError):
    """The jars are not installed, or could not be; the message says the next step."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One pinned jar: Maven coordinates and the SHA-256 of the file."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Name of the file in the folder of jars."""
        return f"{self.artifact}-{self.version}.jar"


_DELTA_VERSION = "4.4.0"
JARS: tuple[Jar, ...] = tuple(
    Jar("io.delta", artifact, _DELTA_VERSION, sha256)
    for artifact, sha256 in (
        ("delta-spark_4.2_2.13", "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"),
        ("delta-storage", "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
        ("delta-kernel-api", "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11"),
        ("delta-kernel-defaults", "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b"),
        ("delta-kernel-unitycatalog", "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa"),
    )
)
INSTALL_COMMAND = shlex.join([sys.executable, "-P", "-m", "spark.setup", "install"])


def pins() -> str:
    """Short name of this set of pins: the folder's name, and part of the class archive's."""
    text = "\n".join(f"{jar.group}:{jar.artifact}:{jar.version}:{jar.sha256}" for jar in JARS)
    return f"delta-{_DELTA_VERSION}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def share() -> Path:
    """The environment's folder of things brought or made at set-up."""
    return Path(sys.prefix) / "share" / "waypost"


def folder() -> Path:
    """Where the jars of these pins are, once installed."""
    return share() / "jars" / pins()


def jars() -> list[Path]:
    """The installed jars. Raises `ConnectorMissing` when set-up has not brought them."""
    paths = [folder() / jar.file_name for jar in JARS]
    if not all(path.is_file() for path in paths):
        raise ConnectorMissing(f"the Delta connector is not installed in {sys.prefix}: run `{INSTALL_COMMAND}` once")
    return paths


def install(source: Path | None = None) -> bool:
    """Bring the jars, checked, into the environment; False when they were there and whole already.

    `source` is a folder that holds the jars by their Maven names; without it they are resolved.
    Raises `ConnectorMissing` naming what failed and the next step; the environment is then as it was.
    """
    target = folder()
    if target.is_dir() and not wrong_jars(target):
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
        fresh = Path(scratch) / "jars"
        fresh.mkdir()
        if source is not None:
            _copy(source, fresh)
        else:
            _resolve(fresh, Path(scratch))
        wrong = wrong_jars(fresh)
        if wrong:
            raise ConnectorMissing(
                f"jars missing or not what was pinned: {', '.join(wrong)}; nothing was installed. "
                "Check the repository or mirror they came from"
            )
        if target.exists():
            shutil.rmtree(target)
        fresh.replace(target)
    return True


def wrong_jars(place: Path) -> list[str]:
    """Names of pinned jars that are absent from `place` or have another SHA-256."""
    return [jar.file_name for jar in JARS if _sha256(place / jar.file_name) != jar.sha256]


def _sha256(path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(source: Path, target: Path) -> None:
    for jar in JARS:
        if not (source / jar.file_name).is_file():
            raise ConnectorMissing(f"{source} has no {jar.file_name}; it must hold all of: {_names()}")
        shutil.copy(source / jar.file_name, target)


def _names() -> str:
    return ", ".join(jar.file_name for jar in JARS)


def _resolve(target: Path, scratch: Path) -> None:
    """Ivy first, Maven where Ivy fails and Maven is there; raises `ConnectorMissing` with both answers."""
    complaints = []
    for tool in (_run_ivy, _run_maven):
        complaint = tool(target, scratch)
        if complaint is None and not wrong_jars(target):
            return
        if complaint is not None:
            complaints.append(complaint)
    raise ConnectorMissing(
        "could not bring the Delta connector's jars:\n  "
        + "\n  ".join(complaints)
        + (_STRANGE_AUTHORITY if any(_NOT_TRUSTED in complaint for complaint in complaints) else "")
        + "\nCheck the network or set WAYPOST_IVY_SETTINGS / DEFAULT_ARTIFACT_REPOSITORY to a mirror, or put\n  "
        + _names()
        + f"\nin a folder and run `{INSTALL_COMMAND} --from FOLDER`"
    )


def _run_ivy(target: Path, scratch: Path) -> str | None:
    """Ivy's own command line over a module file of the pins; the complaint when it fails."""
    # A cache of its own: a user's cache or local Maven repository that holds descriptors without jars fails Ivy.
    module = scratch / "ivy.xml"
    module.write_text(_ivy_module())
    command = [str(java.find().program), *_proxy_options(), "-jar", str(_ivy_jar()), "-warn", "-m2compatible"]
    command += ["-cache", str(scratch / "cache"), *_ivy_settings(scratch), "-types", "jar", "-ivy", str(module)]
    return _run([*command, "-retrieve", f"{target}/[artifact]-[revision].[ext]"])


def _ivy_module() -> str:
    lines = [
        f'<dependency org="{jar.group}" name="{jar.artifact}" rev="{jar.version}" transitive="false" conf="default"/>'
        for jar in JARS
    ]
    head = '<ivy-module version="2.0"><info organisation="waypost" module="jars"/><dependencies>'
    return head + "".join(lines) + "</dependencies></ivy-module>"


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConnectorMissing("pyspark is not installed in this environment: install the extra `spark`")
    found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
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
    """The proxy variables every other client here reads, in Java's words."""
    options = []
    for scheme in ("http", "https"):
        value = os.environ.get(f"{scheme}_proxy") or os.environ.get(f"{scheme.upper()}_PROXY")
        parts = urlsplit(value) if value else None
        if parts is not None and parts.hostname:
            options += [f"-D{scheme}.proxyHost={parts.hostname}", f"-D{scheme}.proxyPort={parts.port or 80}"]
    return options


def _run_maven(target: Path, scratch: Path) -> str | None:
    program = shutil.which("mvn")
    if program is None:
        return "mvn: not installed"
    for jar in JARS:
        coordinates = f"{jar.group}:{jar.artifact}:{jar.version}"
        command = [program, "-B", "-q", "dependency:copy", f"-Dartifact={coordinates}", f"-DoutputDirectory={target}"]
        complaint = _run(command, cwd=scratch)
        if complaint is not None:
            return complaint
    return None


def _run(command: Sequence[str], cwd: Path | None = None) -> str | None:
    name = Path(command[0]).name
    try:
        done = subprocess.run(  # noqa: S603 - arguments are pins and paths of ours
            list(command), capture_output=True, text=True, timeout=RESOLVE_SECONDS_MAX, cwd=cwd, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{name}: {error}"
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip(" \t.:")]
    return f"{name}: {' | '.join(lines[-4:])[:600] or f'exit code {done.returncode}'}"
