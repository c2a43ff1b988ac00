"""Rights of new users by profile, and the usual overlap of their passwords."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from edge.appliance.accounts.profiles import PROFILES
from edge.broker.model.authorization import AccessRule
from edge.broker.security.rights import parse_rights

OVERLAP_S: Final = 3600.0
"""Seconds for which old secrets stay valid unless a change says otherwise."""


def rules_of_profile(profile: str | None, allowed: Sequence[str]) -> tuple[AccessRule, ...]:
    """Return the rights of a profile and further ones. Raises ValueError."""
    return parse_rights((*PROFILES.get(profile or "", ()), *allowed))
