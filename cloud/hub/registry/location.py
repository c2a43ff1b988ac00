"""Location of a registry: its URL, checked before any connection, and its form without secrets."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from cloud.hub.registry.faults import RegistryUrlError

SQLITE, POSTGRESQL = "sqlite", "postgresql+psycopg"
FORMS = "postgresql+psycopg://USER@HOST/DATABASE, or sqlite:////ABSOLUTE/PATH"
EXTRA = "postgresql"
"""Extra of the package that installs the driver."""


def parse(text: str) -> sa.URL:
    """Parse a registry's URL. Raises `RegistryUrlError`; its message quotes nothing that may be a password."""
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise RegistryUrlError(f"the registry's URL is invalid; expected {FORMS}") from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername=POSTGRESQL)
    if url.drivername == SQLITE:
        _check_sqlite(url)
    elif url.drivername == POSTGRESQL:
        _check_postgresql(url)
    else:
        raise RegistryUrlError(f"unknown kind of registry {url.drivername!r}; expected {FORMS}")
    return url


def sqlite_url(path: Path) -> sa.URL:
    """Return the URL of a registry in a SQLite file."""
    return sa.URL.create(SQLITE, database=str(path))


def redact_url(url: sa.URL) -> str:
    """Return the URL without password and options."""
    if url.drivername == SQLITE:
        return url.database or ""
    user = f"{url.username}@" if url.username else ""
    port = f":{url.port}" if url.port is not None else ""
    return f"postgresql://{user}{url.host or ''}{port}/{url.database or ''}"


def _check_sqlite(url: sa.URL) -> None:
    path = (url.database or "").removeprefix("file:")
    if not path.startswith("/"):
        raise RegistryUrlError("a registry in SQLite needs an absolute path: sqlite:////ABSOLUTE/PATH")


def _check_postgresql(url: sa.URL) -> None:
    if "@" in (url.host or ""):
        raise RegistryUrlError("the registry's URL has an extra @; write it as %40 in a user name or password")
    if "password" in url.query:
        raise RegistryUrlError("a password in the options of the registry's URL would be visible; use a passfile")
    if not url.database:
        raise RegistryUrlError(f"the registry's URL names no database; expected {FORMS}")
    try:
        url.get_dialect().import_dbapi()
    except ImportError:
        raise RegistryUrlError(
            f"the driver of PostgreSQL is not installed; install it with: pip install 'waypost[{EXTRA}]'"
        ) from None
