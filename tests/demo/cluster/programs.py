"""Programs of Debian that the cluster needs, and the one line that installs the missing ones."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from tests.demo.errors import DemoError

SERVERS: Final = Path("/usr/lib/postgresql")
"""Folder of Debian's PostgreSQL servers, by version."""
SYSTEM_FOLDERS: Final = os.pathsep.join(("/usr/sbin", "/sbin"))
"""Folders of servers, which the PATH of an ordinary user may lack."""


class Programs(NamedTuple):
    """Paths of the programs."""

    haproxy: Path
    postgresql: Path
    """Folder with `initdb`, `postgres` and `pg_basebackup`."""
    setpriv: Path


def find_programs() -> Programs:
    """Return the programs. Raises DemoError with the command that installs the missing ones."""
    search = os.pathsep.join((os.environ.get("PATH", os.defpath), SYSTEM_FOLDERS))
    haproxy, setpriv = shutil.which("haproxy", path=search), shutil.which("setpriv", path=search)
    servers = [path.parent for path in SERVERS.glob("*/bin/postgres")]
    missing = [
        package
        for package, found in (("haproxy", haproxy), ("postgresql", servers), ("util-linux", setpriv))
        if not found
    ]
    if haproxy is None or setpriv is None or missing:
        raise DemoError(
            f"missing programs; install them as root: apt-get install -y --no-install-recommends {' '.join(missing)}"
        )
    newest = max(servers, key=lambda path: int(path.parent.name))
    return Programs(Path(haproxy), newest, Path(setpriv))


def server_user() -> str | None:
    """Return the user for PostgreSQL, which refuses root; None for an ordinary user, who runs it himself."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
