"""What one tenant may take of a hub, so that there is some left for the others."""

from __future__ import annotations

from typing import Final, NamedTuple

from cloud.hub.limits import TENANT_CONNECTIONS_MAX, TENANT_WAITING_BYTES_MAX


class Quota(NamedTuple):
    """Of each tenant."""

    connections: int = TENANT_CONNECTIONS_MAX
    """Of its gateways and applications together; a gateway that comes anew takes the place it has."""
    waiting_bytes: int = TENANT_WAITING_BYTES_MAX
    """Of what its gateways have sent and has not landed; its gateways are not read while it is more."""


USUAL: Final = Quota()
"""Where the configuration says nothing."""
