"""Roles: names for the rights that people of a hub usually have.

A role is a short way to write rights; it is not stored. A user has the highest role with rights that it all has, and
may have further rights. The words mean the same as the profiles of users at a gateway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from cloud.hub.scope import FLEET
from edge.broker.model.authorization import AccessRule, Operation
from edge.broker.security.rights import parse_rights


class UserRole(StrEnum):
    """Roles of people, from the lowest."""

    VIEWER = "viewer"
    """Sees the gateways of its tenant."""
    OPERATOR = "operator"
    """Changes them too, and manages users of the tenant within its own rights."""
    ADMIN = "admin"
    """Sees and changes everything of every tenant, and the hub itself."""


RIGHTS: Final[Mapping[UserRole, tuple[str, ...]]] = {
    UserRole.VIEWER: ("view:#",),
    UserRole.OPERATOR: ("view:#", "manage:#"),
    UserRole.ADMIN: (f"view:{FLEET}", f"manage:{FLEET}"),
}
"""Rights of each role, as `--allow` takes them."""


def with_role(role: UserRole | None, allow: Sequence[str]) -> list[str]:
    """Return the rights of a role, and further ones."""
    own = RIGHTS[role] if role is not None else ()
    return [*own, *(each for each in allow if each not in own)]


def role_of(rules: Sequence[AccessRule]) -> UserRole | None:
    """Return the highest role with rights that these include; None without one. The right to manage includes
    viewing."""
    have = _single(rules)
    have |= {(Operation.VIEW, address) for operation, address in have if operation is Operation.MANAGE}
    fitting = [role for role, rights in RIGHTS.items() if _single(parse_rights(rights)) <= have]
    return fitting[-1] if fitting else None


def has_fleet_right(rules: Sequence[AccessRule]) -> bool:
    """Return whether these include a right on every tenant."""
    return any(address == FLEET for _, address in _single(rules))


def _single(rules: Sequence[AccessRule]) -> set[tuple[Operation, str]]:
    """Return each operation on each address by itself."""
    return {(operation, address) for rule in rules for operation in rule.operations for address in rule.addresses}
