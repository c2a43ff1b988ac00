"""Whose things a request over HTTP may see or change: those of one tenant, or the whole fleet's.

A user sees its own tenant's with the right to view all of the tenant's addresses (``view:#``). What is of several
tenants, or of the hub itself, is for who has the right on `FLEET`, which no other filter matches.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from starlette.requests import Request

from cloud.hub.peers import Kind, NotAPeer, user
from edge.broker.http.access import HttpAccess
from edge.broker.http.refusal import RequestRefused
from edge.broker.model.authorization import Grant, Operation

FLEET: Final = "$fleet"
"""The address that stands for every tenant, in rules of users."""


class Scope(NamedTuple):
    """What somebody may ask for."""

    tenant: str | None
    """Things of this one; None: of all."""

    def covers(self, tenant: str) -> bool:
        """Things of this tenant are within it."""
        return self.tenant is None or self.tenant == tenant


async def scope_of(access: HttpAccess, request: Request, operation: Operation = Operation.VIEW) -> Scope:
    """Of who sent the request, for viewing or managing. Raises RequestRefused."""
    async with access.admitted(request) as (grant, _):
        return Scope(None) if grant is None else _granted(grant, operation)


async def require_fleet(access: HttpAccess, request: Request) -> None:
    """Raise Refused unless who sent the request may view what is of no tenant."""
    if (await scope_of(access, request)).tenant is not None:
        raise RequestRefused(403, f"this is not one tenant's alone: it needs the right view:{FLEET}")


def _granted(grant: Grant, operation: Operation) -> Scope:
    """Who may manage may view. Raises RequestRefused."""
    viewing = operation is Operation.VIEW
    if grant.may(operation, FLEET) or (viewing and grant.may(Operation.MANAGE, FLEET)):
        return Scope(None)
    if not (grant.may_view if viewing else grant.may_manage):
        words = f"{grant.user} has no right to {operation.value}"
        raise RequestRefused(403, f"{words}: add it anew with --allow {operation.value}:# (waypost hub user add)")
    try:
        return Scope(user(grant.user, Kind.PERSON).tenant)
    except NotAPeer as why:
        raise RequestRefused(403, str(why)) from None
