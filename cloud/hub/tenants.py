"""What one tenant may take of a hub, so that there is some left for the others.

Every bound has the name it has in the configuration, and whoever reaches it is told that name. Who keeps to it is
elsewhere: `cloud.hub.acceptor` (connections, applications), `fleet` and `enrolment` (gateways), `pressure`
(waitingBytes, bytesPerSecond), `spaces` (storedBytes), `commands` (commands).
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
    TENANT_GATEWAYS_MAX,
    TENANT_STORED_BYTES_MAX,
    TENANT_WAITING_BYTES_MAX,
)


class Quota(ResourcePart, frozen=True, kw_only=True):
    """Of each tenant, or of one."""

    connections: Restart[Count] = TENANT_CONNECTIONS_MAX
    """Of its gateways and applications together; a gateway that comes anew takes the place it has."""
    applications: Restart[Count] = TENANT_APPLICATIONS_MAX
    """Connections of its applications."""
    gateways: Restart[Count] = TENANT_GATEWAYS_MAX
    """Names of gateways that enrolled or connected and were not forgotten since: rows of the registry, with
    certificates, marks and versions of configuration."""
    waiting_bytes: Restart[Bytes] = TENANT_WAITING_BYTES_MAX
    """Of what its gateways have sent and has not landed; its gateways are not read while it is more."""
    bytes_per_second: Restart[Bytes | None] = None
    """Of what its gateways send, compressed as it comes; its gateways are not read while it is more. None: as much as
    the hub lands."""
    stored_bytes: Restart[Bytes] = TENANT_STORED_BYTES_MAX
    """Bodies its applications keep in the queues and durable subscriptions of its address space."""
    commands: Restart[Count] = TENANT_COMMANDS_MAX
    """Commands to its gateways that are not over."""


USUAL: Final = Quota()
"""Where the configuration says nothing."""


class Tenants:
    """The quotas of all, and who has reached which."""

    def __init__(self, usual: Quota = USUAL, own: Mapping[str, Quota] | None = None) -> None:
        """`own`: of tenants that have another quota than the usual one, by name."""
        self.reached: Final[Counter[tuple[str, str]]] = Counter()
        """How often who was refused something, or not read, by (tenant, bound)."""
        self._usual = usual
        self._own = dict(own or {})

    @property
    def named(self) -> tuple[str, ...]:
        """Tenants that have a quota of their own."""
        return tuple(self._own)

    def of(self, tenant: str) -> Quota:
        """What this tenant may take."""
        return self._own.get(tenant, self._usual)

    def at_its_bound(self, tenant: str, bound: str) -> str:
        """Count that a tenant has reached a bound, named as in the configuration; returns the words for who is
        refused."""
        self.reached[tenant, bound] += 1
        return full(tenant, bound)


def full(tenant: str, bound: str) -> str:
    """What is wrong for who meets a bound, and what to do."""
    return f"tenant {tenant} is at its quota `{bound}`; who runs the hub can raise it (tenantQuota, or tenants)"
