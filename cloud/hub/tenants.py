"""Quotas of tenants: what one tenant may use, so that the others get their share.

Every limit has the name of its configuration field, and errors name it. Other modules enforce the limits:
`cloud.hub.acceptor` (connections, applications), `fleet` and `enrolment` (gateways), `pressure` (waitingBytes,
bytesPerSecond), `spaces` (storedBytes), `commands` (commands), `devices` (devices).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from bridge.resources.fields import Bytes, Count, ResourcePart, Restart
from cloud.hub.limits import (
    TENANT_APPLICATIONS_MAX,
    TENANT_COMMANDS_MAX,
    TENANT_CONNECTIONS_MAX,
    TENANT_DEVICES_MAX,
    TENANT_GATEWAYS_MAX,
    TENANT_STORED_BYTES_MAX,
    TENANT_WAITING_BYTES_MAX,
)


class Quota(ResourcePart, frozen=True, kw_only=True):
    """Limits of one tenant."""

    connections: Restart[Count] = TENANT_CONNECTIONS_MAX
    """Connections of its gateways and applications together; a gateway that reconnects replaces its own."""
    applications: Restart[Count] = TENANT_APPLICATIONS_MAX
    """Connections of its applications."""
    gateways: Restart[Count] = TENANT_GATEWAYS_MAX
    """Gateways that enrolled or connected and were not forgotten since. Each has rows in the registry: certificates,
    marks and versions of configuration."""
    waiting_bytes: Restart[Bytes] = TENANT_WAITING_BYTES_MAX
    """Bytes that its gateways have sent and that have not landed; above it they are not read."""
    bytes_per_second: Restart[Bytes | None] = None
    """Bytes a second that its gateways may send, compressed as they arrive; above it they are not read. None: no
    limit."""
    stored_bytes: Restart[Bytes] = TENANT_STORED_BYTES_MAX
    """Bytes of bodies that its applications keep in the queues and durable subscriptions of its address space."""
    commands: Restart[Count] = TENANT_COMMANDS_MAX
    """Open commands to its gateways."""
    devices: Restart[Count] = TENANT_DEVICES_MAX
    """Devices in each of its tenants of the device registry."""


DEFAULT_QUOTA: Final = Quota()
"""Quota without configuration."""


class Tenants:
    """Quotas of all tenants, with counters of refusals."""

    def __init__(self, usual: Quota = DEFAULT_QUOTA, own: Mapping[str, Quota] | None = None) -> None:
        """`own`: quotas of tenants that do not have the usual one, by name."""
        self.reached: Final[Counter[tuple[str, str]]] = Counter()
        """Number of refusals by (tenant, limit)."""
        self._usual = usual
        self._own = dict(own or {})

    @property
    def named(self) -> tuple[str, ...]:
        """Tenants with a quota of their own."""
        return tuple(self._own)

    def of(self, tenant: str) -> Quota:
        """Return the quota of a tenant."""
        return self._own.get(tenant, self._usual)

    def count_refusal(self, tenant: str, bound: str) -> str:
        """Count a refusal at a limit, named as in the configuration; return the error message."""
        self.reached[tenant, bound] += 1
        return quota_message(tenant, bound)


def quota_message(tenant: str, bound: str) -> str:
    """Return the error message for a tenant that has reached a limit."""
    return f"tenant {tenant} is at its quota `{bound}`; the operator of the hub can raise it (tenantQuota, or tenants)"
