"""Visibility of HTTP requests: one tenant's data, or the whole fleet's.

A user with the right ``view:#`` sees the data of its own tenant. Data of several tenants, or of the hub itself, needs
the right on `FLEET`, which no other filter matches.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from starlette.requests import Request

from cloud.hub.peers import InvalidPeer, PeerKind, parse_user
from edge.broker.http.access import HttpAccess
from edge.broker.http.refusal import RequestRefused
from edge.broker.model.authorization import EVERYTHING, AccessRule, Grant, Operation

FLEET: Final = "$fleet"
"""Address in the rules of users that means every tenant."""

OPERATOR_RULES: Final = (AccessRule((EVERYTHING, FLEET), frozenset((Operation.VIEW, Operation.MANAGE))),)
"""Rights of the operator token in the hub's data directory."""


class Scope(NamedTuple):
    """Part of the fleet that a request may see or change."""

    tenant: str | None
    """Only data of this tenant; None: of all tenants."""

    def covers(self, tenant: str) -> bool:
        """Return whether the tenant is within the scope."""
        return self.tenant is None or self.tenant == tenant


async def scope_of(access: HttpAccess, request: Request, operation: Operation = Operation.VIEW) -> Scope:
    """Return the scope of the user who sent the request, for viewing or managing. Raises `RequestRefused`."""
    async with access.admitted(request) as (grant, _):
        return Scope(None) if grant is None else _granted(grant, operation)


async def require_fleet(access: HttpAccess, request: Request) -> None:
    """Raise `RequestRefused` unless the user may view data that belongs to no tenant."""
    if (await scope_of(access, request)).tenant is not None:
        raise RequestRefused(
            403,
            f"this covers all tenants, which requires the right view:{FLEET}",
            next_step=f"ask an operator with manage:{FLEET}",
        )


def may_operate(grant: Grant, operation: Operation) -> bool:
    """Return True for a right to the data of the user's tenant, or of every tenant."""
    try:
        _granted(grant, operation)
    except RequestRefused:
        return False
    return True


def _granted(grant: Grant, operation: Operation) -> Scope:
    """Return the scope of a user; the right to manage includes viewing. Raises `RequestRefused`."""
    viewing = operation is Operation.VIEW
    if grant.may(operation, FLEET) or (viewing and grant.may(Operation.MANAGE, FLEET)):
        return Scope(None)
    if not (grant.may_view if viewing else grant.may_manage):
        words = f"{grant.user} has no right to {operation.value}"
        raise RequestRefused(
            403, words, next_step=f"add the user again with --allow {operation.value}:# (waypost hub user add)"
        )
    try:
        return Scope(parse_user(grant.user, PeerKind.PERSON).tenant)
    except InvalidPeer as why:
        raise RequestRefused(403, str(why)) from None
