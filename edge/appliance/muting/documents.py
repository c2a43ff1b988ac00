"""JSON documents about mutes."""

from __future__ import annotations

from typing import Annotated

import msgspec

from edge.appliance.muting.limits import (
    MUTE_S_MAX,
    NAME_CHARACTERS_MAX,
    REASON_CHARACTERS_MAX,
    WHAT_CHARACTERS_MAX,
)
from edge.appliance.muting.mutes import ProblemMuteRecord
from edge.health.problems import Severity

MuteReason = Annotated[str, msgspec.Meta(min_length=1, max_length=REASON_CHARACTERS_MAX)]


class NewProblemMute(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Wish to mute problems."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
    """Name of the problem, as the status has it."""
    what: Annotated[str, msgspec.Meta(max_length=WHAT_CHARACTERS_MAX)] = ""
    """Text of the one problem to mute; empty for every problem of this name, also later ones."""
    severity: Severity = Severity.ERROR
    """Most serious problem to mute: a problem that gets worse is shown again. Error: every problem."""
    seconds: Annotated[float, msgspec.Meta(gt=0, le=MUTE_S_MAX)]
    """For how long."""
    reason: MuteReason
    """Words for others."""


class ProblemMuteDocument(msgspec.Struct, kw_only=True):
    """Mute in effect."""

    name: str
    what: str
    """Text of the one problem that is muted; empty for every problem of this name."""
    severity: Severity
    """Most serious problem that is muted."""
    until: str
    """End, as an ISO time in UTC."""
    reason: str
    by: str
    """User who muted it; empty without authentication."""

    @classmethod
    def of(cls, record: ProblemMuteRecord) -> ProblemMuteDocument:
        shown = record.shown()
        return cls(
            name=record.name,
            what=record.what,
            severity=record.severity,
            until=shown.until,
            reason=shown.reason,
            by=shown.by,
        )


class ProblemMutesDocument(msgspec.Struct, kw_only=True):
    """Mutes in effect, the first to end first."""

    mutes: list[ProblemMuteDocument]
