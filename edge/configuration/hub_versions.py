"""Versions of the hub's configuration at one gateway: the one in force, the one on trial, and failures.

Commit-confirm: a new version is on trial until the hub confirms it; otherwise the previous version is restored. The
whole state is one value, `HubVersions`, and each step returns the next value. It is on disk before it has any effect,
in one file that is replaced as a whole: after a power cut between two steps the file has one value or the other, and
both define what to do. This module has neither files nor a clock: the caller runs the deadline of a trial, which
restarts with the program.

| state | event | next |
|---|---|---|
| settled | a valid version above `newest` | trial, with `newest` raised |
| settled | an invalid version above `newest` | settled, refused, with `newest` raised: the number is not tried again |
| trial | the hub's confirmation | settled, with the new version in force |
| trial | its deadline, a failed start, too many starts | settled, with the previous version in force |
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from bridge.desired import ApplyFailure, ApplyOutcome, Desired, DesiredReport
from bridge.hidden import hides

STARTS_MAX: Final = 3
"""Maximum starts of the program during one trial, in case the version crashes the program at each start."""


class VersionNotAccepted(Exception):
    """A version is ignored, because its number is not newer than the last decision, or another version is on trial."""


@hides("resources")
class Version(msgspec.Struct, frozen=True):
    """A version of the hub's part of the configuration."""

    number: int
    resources: list[dict[str, Any]]
    confirm_s: float
    restart: bool = False
    digest: str = ""
    """`bridge.desired.digest_of` its document; empty for a version that an older program took."""


class HubVersions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of the hub's versions at a gateway."""

    authority: str = ""
    """Issuer of the numbers: SHA-256 of the certificate of the hub's authority, hexadecimal."""
    newest: int = 0
    """Highest number with a decision; versions up to it are ignored."""
    confirmed: Version | None = None
    trial: Version | None = None
    starts: int = 0
    """Starts of the program during the trial."""
    failure: ApplyFailure | None = None
    """Failure of the newest version, if it failed."""
    kept: tuple[str, ...] = ()
    """Kind/name of resources that were changed at the gateway and override `confirmed`, until the next version."""

    @property
    def in_force(self) -> Version | None:
        """Version in force; None: the hub manages nothing."""
        return self.trial or self.confirmed

    @property
    def in_force_kept(self) -> tuple[str, ...]:
        """Overrides in force: none during a trial."""
        return self.kept if self.trial is None else ()

    def report(self) -> DesiredReport:
        """Return the report for the hub."""
        return DesiredReport(
            version=self.confirmed.number if self.confirmed is not None else 0,
            trying=self.trial.number if self.trial is not None else None,
            newest=self.newest,
            failure=self.failure,
            kept=self.in_force_kept,
            digest=self.in_force.digest if self.in_force is not None else "",
        )

    # --- steps ------------------------------------------------------------------------------------------------

    def for_authority(self, authority: str) -> HubVersions:
        """Return the state for documents of this authority. A new authority starts new numbers; the version in
        force stays."""
        if authority == self.authority:
            return self
        confirmed = msgspec.structs.replace(self.confirmed, number=0) if self.confirmed is not None else None
        return HubVersions(authority=authority, confirmed=confirmed, kept=self.kept)

    def require_new(self, number: int) -> None:
        """Raise `VersionNotAccepted` unless a version of this number may be decided next."""
        if self.trial is not None:
            raise VersionNotAccepted(f"version {self.trial.number} is on trial; {number} has to wait")
        if number <= self.newest:
            raise VersionNotAccepted(
                f"version {number} is not newer than {self.newest}, which this gateway accepted or refused"
            )

    def tried(self, desired: Desired, digest: str = "") -> HubVersions:
        """Put a version into force, on trial. Raises `VersionNotAccepted`."""
        self.require_new(desired.version)
        trial = Version(desired.version, desired.resources, desired.confirm_s, desired.restart, digest)
        return msgspec.structs.replace(self, newest=desired.version, trial=trial, starts=0, failure=None)

    def refused(self, number: int, why: str) -> HubVersions:
        """Refuse a version. Raises `VersionNotAccepted`."""
        self.require_new(number)
        failure = ApplyFailure(number, ApplyOutcome.REFUSED, why)
        return msgspec.structs.replace(self, newest=number, failure=failure)

    def confirmed_by_hub(self, number: int) -> HubVersions:
        """Confirm a version; ignored when it is no longer on trial."""
        if self.trial is None or self.trial.number != number:
            return self
        return msgspec.structs.replace(self, confirmed=self.trial, trial=None, starts=0, kept=())

    def rolled_back(self, why: str) -> HubVersions:
        """End the trial and restore the previous version."""
        if self.trial is None:
            return self
        failure = ApplyFailure(self.trial.number, ApplyOutcome.ROLLED_BACK, why)
        return msgspec.structs.replace(self, trial=None, starts=0, failure=failure)

    def started(self) -> HubVersions:
        """Count a start of the program; after `STARTS_MAX` of them the trial is rolled back."""
        if self.trial is None:
            return self
        if self.starts >= STARTS_MAX:
            return self.rolled_back(
                f"the gateway started {self.starts} times during the trial and did not keep running"
            )
        return msgspec.structs.replace(self, starts=self.starts + 1)

    def with_overrides(self, names: tuple[str, ...]) -> HubVersions:
        """Override these resources (Kind/name) with the gateway's own; a trial is rolled back."""
        settled = self.rolled_back("its resources were overridden at the gateway during the trial")
        return msgspec.structs.replace(settled, kept=tuple(dict.fromkeys((*settled.kept, *names))))
