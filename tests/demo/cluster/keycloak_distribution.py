"""Keycloak's distribution from Maven Central: where it is kept, how it is fetched, and how its server starts."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.demo.cluster.realm import PASSWORD, REALM, realm

VERSION: Final = "26.0.0"
ARTIFACT: Final = f"org.keycloak:keycloak-quarkus-dist:{VERSION}:zip"
ARCHIVE_MB: Final = 147
"""Size of the distribution."""
ADMIN: Final = "admin"
TEMPORARY: Final = "tmp"
QUICK_START: Final = "-XX:TieredStopAtLevel=1"
"""Option of Java for a short life: the second compiler would take most of the processor time of a start."""
UNFINISHED: Final = ".new"
"""End of the name of a distribution that is not complete."""


def archive_file() -> Path:
    """Return the place of the distribution, which is kept over runs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "waypost" / f"keycloak-quarkus-dist-{VERSION}.zip"


def fetch_command(maven: Path, folder: Path) -> list[str]:
    """Return the command that fetches the distribution into a folder."""
    return [str(maven), "-q", "-B", "dependency:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={folder}"]


def keep_archive(folder: Path) -> None:
    """Move the distribution from the folder of `fetch_command` to its place, where it appears complete."""
    place = archive_file()
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_name(place.name + UNFINISHED)
    shutil.move(folder / place.name, unfinished)
    unfinished.replace(place)


def unpack_command(folder: Path) -> list[str]:
    """Return the command that unpacks the distribution below a folder."""
    return [sys.executable, "-m", "zipfile", "-e", str(archive_file()), str(folder)]


def home_of(folder: Path) -> Path:
    """Return the folder of a distribution that was unpacked below this one."""
    return folder / f"keycloak-{VERSION}"


def prepare(home: Path, roots: Sequence[str], token_s: int) -> None:
    """Write the realm for the import at the first start; see `realm`. Temporary files stay in the folder, too."""
    (home / TEMPORARY).mkdir()
    folder = home / "data" / "import"
    folder.mkdir(parents=True)
    (folder / f"{REALM}-realm.json").write_text(json.dumps(realm(roots, token_s)))


def serve_command(home: Path, port: int) -> list[str]:
    """Return the command of a server with its data in memory."""
    options = ("--import-realm", "--db=dev-mem", "--http-host=127.0.0.1", f"--http-port={port}")
    return ["/bin/bash", str(home / "bin" / "kc.sh"), "start-dev", *options]


def serve_environment(home: Path) -> Mapping[str, str]:
    """Return what the environment of a server has in addition."""
    return {
        "JAVA_OPTS_APPEND": f"-Djava.io.tmpdir={home / TEMPORARY} -XX:-UsePerfData {QUICK_START}",
        "KC_BOOTSTRAP_ADMIN_USERNAME": ADMIN,
        "KC_BOOTSTRAP_ADMIN_PASSWORD": PASSWORD,
        "JAVA_OPTS_KC_HEAP": "-Xms64m -Xmx512m",
    }


def issuer_of(port: int) -> str:
    """Return the issuer that a server on this port of the loopback is."""
    return f"http://127.0.0.1:{port}/realms/{REALM}"
