"""The versions of a configuration from the hub at one gateway: which is in force or tried, what became of others.

Commit-confirm: a version that is taken up is on trial until the hub has confirmed it; else the version before it is in
force again. All that is known is one value, `HubVersions`, and each step makes the next value of it. It is on disk
before anything follows from it, in one file that is replaced as a whole: a power cut between any two steps leaves the
value before or the one after, and either says what to do. No files and no clock here: how long a trial lasts is for who
runs it, and begins anew when the program does.

| in | comes | then |
|---|---|---|
| settled | a version above `newest` that is valid | on trial, with `newest` raised |
| settled | one that is not valid here | refused, with `newest` raised: the same number is not tried again |
| trial | the hub's confirmation | settled, with it in force |
| trial | its deadline, a start that fails, too many starts | settled, with the one before in force |
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from bridge.desired import ApplyFailure, ApplyOutcome, Desired, DesiredReport
from bridge.hidden import hides

STARTS_MAX: Final = 3
"""Starts of the program during one trial: a version that makes it end before the deadline does so at each start."""


class NotTaken(Exception):
    """A version is not taken, as one like it or a newer one was decided about; the message says why."""


@hides("resources")
class Version(msgspec.Struct, frozen=True):
    """A version of the hub's part of the configuration."""

    number: int
    resources: list[dict[str, Any]]
    confirm_s: float
    restart: bool = False
    digest: str = ""
    """As `bridge.desired.digest_of` its document; empty of one an older program took."""


class HubVersions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a gateway knows of them."""

    authority: str = ""
    """Whose numbers these are: SHA-256 of the certificate of the hub's authority, hexadecimal."""
    newest: int = 0
    """None up to this number is taken any more."""
    confirmed: Version | None = None
    trial: Version | None = None
    starts: int = 0
    """Of the program, during the trial."""
    failure: ApplyFailure | None = None
    """Of the newest version, where it failed."""
    kept: tuple[str, ...] = ()
    """Kind/name of resources that are as somebody at the gateway said, until the version after `confirmed` is."""

    @property
    def in_force(self) -> Version | None:
        """None: the hub decides nothing here."""
        return self.trial or self.confirmed

    @property
    def in_force_kept(self) -> tuple[str, ...]:
        """`kept`, as far as it counts now: a version on trial is tried as it is."""
        return self.kept if self.trial is None else ()

    def report(self) -> DesiredReport:
        """What the hub is told."""
        return DesiredReport(
            version=self.confirmed.number if self.confirmed is not None else 0,
            trying=self.trial.number if self.trial is not None else None,
            newest=self.newest,
            failure=self.failure,
            kept=self.in_force_kept,
            digest=self.in_force.digest if self.in_force is not None else "",
        )

    # --- steps ------------------------------------------------------------------------------------------------

    def of(self, authority: str) -> HubVersions:
        """As documents of this authority find it: of another one the numbers mean nothing. What is in force stays."""
        if authority == self.authority:
            return self
        confirmed = msgspec.structs.replace(self.confirmed, number=0) if self.confirmed is not None else None
        return HubVersions(authority=authority, confirmed=confirmed, kept=self.kept)

    def require_new(self, number: int) -> None:
        """Raises `NotTaken` unless a version of this number is decided about next."""
        if self.trial is not None:
            raise NotTaken(f"version {self.trial.number} is being tried; {number} is looked at after it")
        if number <= self.newest:
            raise NotTaken(f"version {number} is not newer than {self.newest}, which this gateway has decided about")

    def tried(self, desired: Desired, digest: str = "") -> HubVersions:
        """This version is in force from now on, on trial. Raises `NotTaken`."""
        self.require_new(desired.version)
        trial = Version(desired.version, desired.resources, desired.confirm_s, desired.restart, digest)
        return msgspec.structs.replace(self, newest=desired.version, trial=trial, starts=0, failure=None)

    def refused(self, number: int, why: str) -> HubVersions:
        """This version is not for this gateway. Raises `NotTaken`."""
        self.require_new(number)
        failure = ApplyFailure(number, ApplyOutcome.REFUSED, why)
        return msgspec.structs.replace(self, newest=number, failure=failure)

    def confirmed_by_hub(self, number: int) -> HubVersions:
        """The hub has confirmed this version; late for one that is not on trial any more."""
        if self.trial is None or self.trial.number != number:
            return self
        return msgspec.structs.replace(self, confirmed=self.trial, trial=None, starts=0, kept=())

    def rolled_back(self, why: str) -> HubVersions:
        """The version before the one on trial is in force again."""
        if self.trial is None:
            return self
        failure = ApplyFailure(self.trial.number, ApplyOutcome.ROLLED_BACK, why)
        return msgspec.structs.replace(self, trial=None, starts=0, failure=failure)

    def started(self) -> HubVersions:
        """The program starts: what is on trial is tried on, some times."""
        if self.trial is None:
            return self
        if self.starts >= STARTS_MAX:
            return self.rolled_back(
                f"the gateway started {self.starts} times during the trial and did not keep running"
            )
        return msgspec.structs.replace(self, starts=self.starts + 1)

    def keeping(self, names: tuple[str, ...]) -> HubVersions:
        """These resources (Kind/name) are as somebody at the gateway says, from now on; what is on trial is not any
        more."""
        settled = self.rolled_back("somebody at the gateway decided otherwise meanwhile")
        return msgspec.structs.replace(settled, kept=tuple(dict.fromkeys((*settled.kept, *names))))
