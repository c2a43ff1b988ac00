"""Quotas of tenants: what one tenant may use, so that the others get their share.

Every limit has the name of its configuration field, and errors name it. Other modules enforce the limits:
`cloud.hub.acceptor` (connections, applications), `registry.gateway_admission` and `enrolment` (gateways), `pressure`
(waitingBytes, bytesPerSecond), `spaces` (storedBytes), `commands` (commands), `devices` (devices).
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
from cloud.lake.faults import RegistryError


class TenantRemoved(RegistryError):
    """The tenant was removed: nothing can be made in it, and its name is not given out again."""

    def __init__(self, tenant: str) -> None:
        super().__init__(f"tenant {tenant} was removed, and its name is not given out again")


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
    """Bytes a second that its gateways may send to all hubs, compressed as they arrive; above its share of that a hub
    does not read them. None: no limit."""
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
        self._shared: Mapping[str, Quota] = {}

    @property
    def named(self) -> tuple[str, ...]:
        """Tenants with a quota of their own."""
        return tuple({**self._own, **self._shared})

    def share(self, quotas: Mapping[str, Quota]) -> None:
        """Replace the quotas that operators have set, which take precedence over the configuration."""
        self._shared = quotas

    def shared(self, tenant: str) -> Quota | None:
        """Return the quota that an operator has set for a tenant; None without one."""
        return self._shared.get(tenant)

    def source_of(self, tenant: str) -> str:
        """Return where the quota of a tenant comes from: ``operator``, ``configuration`` or ``default``."""
        if tenant in self._shared:
            return "operator"
        return "configuration" if tenant in self._own else "default"

    def of(self, tenant: str) -> Quota:
        """Return the quota of a tenant."""
        return self._shared.get(tenant) or self._own.get(tenant, self._usual)

    def count_refusal(self, tenant: str, bound: str) -> str:
        """Count a refusal at a limit, named as in the configuration; return the error message."""
        self.reached[tenant, bound] += 1
        return quota_message(tenant, bound)


def quota_fault(quota: Quota) -> str | None:
    """Return why a quota is invalid; None if it is valid."""
    if 0 in (quota.bytes_per_second, quota.waiting_bytes, quota.stored_bytes):
        return "0 bytes would stop the tenant; to stop it, revoke its gateways"
    return None


def quota_message(tenant: str, bound: str) -> str:
    """Return the error message for a tenant that has reached a limit."""
    return f"tenant {tenant} is at its quota `{bound}`; the operator of the hub can raise it (waypost tenant set-quota)"
