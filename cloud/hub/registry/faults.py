"""Errors of the registry.

    cloud.lake.faults.RegistryError
    ├── RegistryUrlError      the URL is not one of a registry
    ├── RegistryUnreachable   the server does not answer
    ├── RegistryRefused       server or file deny access, or do not keep what they confirm
    ├── RegistryForeign       the database belongs to something else
    ├── RegistryTooNew        a newer version of the program made it
    ├── RegistryLeft          it was moved elsewhere, or a move or restore into it has not ended
    ├── RowsRefused           the database refuses what a transaction would store
    ├── WriterReplaced        another hub uses this hub's writer id
    ├── CommitDamaged         the ranges of a commit cannot be read
    ├── GatewaysMoved         gateways of a landing have connected to another hub
    └── LandingElsewhere      a hub with another lake has an unfinished landing of a gateway

Each message is one line with the next step, and holds no password.
"""

from __future__ import annotations

from cloud.lake.faults import RegistryError


class RegistryUrlError(RegistryError, ValueError):
    """The URL is not one of a registry that this program can open."""


class RegistryUnreachable(RegistryError):
    """The server does not answer."""


class RegistryRefused(RegistryError):
    """The server or the file denies access, or does not keep what it confirms."""


class RegistryForeign(RegistryError):
    """The database belongs to something else."""


class RegistryTooNew(RegistryError):
    """The registry was made by a newer program."""


class RegistryLeft(RegistryError):
    """The registry was moved to another place, or a move or restore into it has not ended."""


class RowsRefused(RegistryError):
    """The database refuses what a transaction would store: it can be used, and repeating the work changes nothing."""


class WriterReplaced(RegistryError):
    """Another hub has started under this hub's writer id."""


class CommitDamaged(RegistryError):
    """The ranges of a commit cannot be read."""

    def __init__(self, name: tuple[str, str, int], version: int | None) -> None:
        """`name`: writer, table, commit; `version`: that of the table if it has landed."""
        writer, table, commit = name
        super().__init__(f"commit {commit} of table {table} by writer {writer or '(none)'} is damaged")
        self.name = name
        self.version = version


class GatewaysMoved(RegistryError):
    """Gateways of a landing have connected to another hub since."""


class LandingElsewhere(RegistryError):
    """A hub with another lake has an unfinished landing of a gateway."""
