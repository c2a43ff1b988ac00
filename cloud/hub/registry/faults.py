"""Why the registry cannot be used.

    cloud.lake.faults.RegistryError
    ├── RegistryUrlError      the URL names no registry this program can open
    ├── RegistryUnreachable   the server does not answer
    ├── RegistryRefused       the server or the file does not let this hub in, or loses what it says it has stored
    ├── RegistryForeign       the database holds something else
    ├── RegistryTooNew        a newer program made it
    ├── WriterReplaced        another hub writes under this hub's id
    ├── GatewaysMoved         gateways of a landing have connected to another hub meanwhile
    └── LandingElsewhere      another hub has not finished what it lands of a gateway

Each message is one line that says what to do next, and holds no password.
"""

from __future__ import annotations

from cloud.lake.faults import RegistryError


class RegistryUrlError(RegistryError, ValueError):
    """The URL names no registry this program can open."""


class RegistryUnreachable(RegistryError):
    """The server does not answer."""


class RegistryRefused(RegistryError):
    """The server or the file does not let this hub in, or loses what it says it has stored."""


class RegistryForeign(RegistryError):
    """The database holds something else."""


class RegistryTooNew(RegistryError):
    """The registry was made by a newer program."""


class WriterReplaced(RegistryError):
    """Another hub has started under this hub's writer id."""


class GatewaysMoved(RegistryError):
    """Gateways of a landing have connected to another hub meanwhile."""


class LandingElsewhere(RegistryError):
    """Another hub has not finished what it lands of a gateway."""
