"""Programs of Debian that the cluster needs, and the one line that installs the missing ones."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from tests.demo.cluster.keycloak_distribution import archive_file
from tests.demo.errors import DemoError

SERVERS: Final = Path("/usr/lib/postgresql")
"""Folder of Debian's PostgreSQL servers, by version."""
RABBITMQ: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Server of Debian's RabbitMQ, without the script that changes the user."""
SYSTEM_FOLDERS: Final = os.pathsep.join(("/usr/sbin", "/sbin"))
"""Folders of servers, which the PATH of an ordinary user may lack."""


class RabbitPrograms(NamedTuple):
    """Paths of the programs of RabbitMQ."""

    server: Path
    epmd: Path
    """Server of names, which is Erlang's."""


class Programs(NamedTuple):
    """Paths of the programs."""

    haproxy: Path
    postgresql: Path
    """Folder with `initdb`, `postgres` and `pg_basebackup`."""
    setpriv: Path
    rabbitmq: RabbitPrograms | None
    """None if it is not installed."""
    maven: Path | None
    """Fetches Keycloak; None if it is not installed."""


def find_programs(*, keycloak: bool = False) -> Programs:
    """Return the programs. `keycloak`: it will run. Raises DemoError with the command that installs missing ones."""
    search = os.pathsep.join((os.environ.get("PATH", os.defpath), SYSTEM_FOLDERS))
    haproxy, setpriv = shutil.which("haproxy", path=search), shutil.which("setpriv", path=search)
    java, maven = shutil.which("java", path=search), shutil.which("mvn", path=search)
    servers = [path.parent for path in SERVERS.glob("*/bin/postgres")]
    needed: list[tuple[str, object]] = [("haproxy", haproxy), ("postgresql", servers), ("util-linux", setpriv)]
    if keycloak:
        needed += [("default-jre-headless", java), ("maven", maven or archive_file().exists())]
    missing = [package for package, found in needed if not found]
    if haproxy is None or setpriv is None or missing:
        raise DemoError(
            f"missing programs; install them as root: apt-get install -y --no-install-recommends {' '.join(missing)}"
        )
    newest = max(servers, key=lambda path: int(path.parent.name))
    return Programs(Path(haproxy), newest, Path(setpriv), _find_rabbitmq(search), Path(maven) if maven else None)


def _find_rabbitmq(search: str) -> RabbitPrograms | None:
    epmd = shutil.which("epmd", path=search)
    return RabbitPrograms(RABBITMQ, Path(epmd)) if epmd is not None and RABBITMQ.is_file() else None


def server_user() -> str | None:
    """Return the user for PostgreSQL, which refuses root; None for an ordinary user, who runs it himself."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
