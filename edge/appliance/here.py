"""Data directories of gateways and hubs on this machine: where packages put them, and below the current directory."""

from __future__ import annotations

import enum
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from edge.broker.security.operator_token import FILE as OPERATOR_TOKEN
from edge.broker.store.lock import HUB_LOCK_NAME, LOCK_NAME, is_held

INSTALLED: Final = Path("/var/lib")
INSTALLED_PREFIX: Final = "waypost"
"""Packages, images and containers keep their data in a folder of this name, or with this beginning."""
ENTRIES_MAX: Final = 200
"""Entries of the current directory, and of its folder `data`, that are looked at."""


class Role(enum.Enum):
    """Program that a data directory belongs to."""

    GATEWAY = "gateway"
    HUB = "hub"


class DataDirectory(NamedTuple):
    """Data directory of a gateway or hub that has run on it."""

    path: Path
    role: Role
    running: bool
    readable: bool
    """False if this user may not read it. Role and state are then not known: it passes as a gateway that runs."""


def directories(current: Path | None = None, installed: Path = INSTALLED) -> list[DataDirectory]:
    """Return the data directories of this machine, installed ones first."""
    found = [
        directory for path in _paths(current or Path(), installed) if (directory := _look(path, installed)) is not None
    ]
    return list({directory.path.absolute(): directory for directory in found}.values())


def running(role: Role | None = None) -> list[DataDirectory]:
    """Return the data directories that are in use, of this role or of both."""
    return [each for each in directories() if each.running and role in (None, each.role)]


def _paths(current: Path, installed: Path) -> Iterator[Path]:
    yield from (path for path in _folders(installed) if path.name.startswith(INSTALLED_PREFIX))
    yield current
    yield from _folders(current)
    yield from _folders(current / "data")


def _folders(path: Path) -> list[Path]:
    """Return the folders in a folder in the order of their names, of the first `ENTRIES_MAX` entries."""
    try:
        with os.scandir(path) as entries:
            return sorted(path / one.name for one in itertools.islice(entries, ENTRIES_MAX) if one.is_dir())
    except OSError:
        return []


def _look(path: Path, installed: Path) -> DataDirectory | None:
    """Return a data directory; None for another folder."""
    if not os.access(path, os.R_OK | os.X_OK):
        hidden = path.parent == installed
        return DataDirectory(path, Role.GATEWAY, running=True, readable=False) if hidden else None
    role = role_of(path)
    if role is None:
        return None
    held = is_held(path, HUB_LOCK_NAME if role is Role.HUB else LOCK_NAME)
    return DataDirectory(path, role, held, readable=True)


def role_of(path: Path) -> Role | None:
    """Return the program that has run on a directory; None if none has, or this user may not look."""
    if (path / HUB_LOCK_NAME).exists():
        return Role.HUB
    return Role.GATEWAY if (path / OPERATOR_TOKEN).exists() and (path / LOCK_NAME).exists() else None
