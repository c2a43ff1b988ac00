"""Changes that people make to a running gateway's own configuration: check, apply, try, keep, restore.

It uses the same functions as `waypost apply`, `diff` and `get`. Its methods block for files: call them in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from bridge.resources.effects import restarts
from bridge.resources.errors import ConfigurationError, ConfigurationRejected
from bridge.resources.plan import ResourceChange
from bridge.resources.resource import Resource, of_kind
from edge.broker.configuration import BrokerConfiguration
from edge.configuration.effective import build_configuration, exposure, notices
from edge.configuration.following import ConfigurationFollower
from edge.configuration.history import KeptVersion
from edge.configuration.hub_part import name_of
from edge.configuration.kinds import KINDS
from edge.configuration.local_trial import LocalTrial
from edge.configuration.own_text import SOURCE, parse_own, resources_in, shown_text
from edge.configuration.repository import Repository
from edge.configuration.resources import AddressSpec


class CheckedChange(NamedTuple):
    """Result of a change that is not made yet."""

    changes: Sequence[ResourceChange]
    notes: Sequence[str]
    """Warnings: what takes effect later, is not enforced, or lets others in."""
    before: BrokerConfiguration
    after: BrokerConfiguration


class AppliedChange(NamedTuple):
    """Result of a change."""

    version: int
    changes: Sequence[ResourceChange]


class LocalConfiguration:
    """Own configuration of one gateway."""

    def __init__(self, repository: Repository, following: ConfigurationFollower) -> None:
        self._repository = repository
        self._following = following
        self.trial = LocalTrial(repository)

    @property
    def version(self) -> int:
        """Version in force. Raises `RepositoryError`."""
        return self._repository.version

    @property
    def hub_version(self) -> int:
        """Version of the hub's configuration in force; 0: none. Raises `RepositoryError`."""
        version = self._repository.hub_versions().in_force
        return 0 if version is None else version.number

    def resource_of(self, address: str) -> Resource | None:
        """Return the Address resource with this name or pattern; None without one."""
        latest = self._following.latest
        own = ((each, spec) for each, spec in of_kind(latest, AddressSpec) if spec.address_space is None)
        return next((each for each, spec in own if spec.address == address), None)

    def text(self) -> str:
        """Return the own resources as YAML without secrets. Raises `RepositoryError`."""
        return shown_text(self._repository.documents())

    def text_of(self, version: int) -> tuple[KeptVersion, str] | None:
        """Return an earlier version, and its text; None if it is not kept. Raises `RepositoryError`."""
        kept = self._repository.history.read(version)
        return None if kept is None else (kept, shown_text(kept.resources))

    def history(self) -> list[KeptVersion]:
        """Return the kept versions, the latest first."""
        return list(self._repository.history.versions())

    def in_force(self) -> tuple[Sequence[Resource], Sequence[str]]:
        """Return all resources in force, and Kind/name of those that the hub manages. Raises as `Repository.load`."""
        snapshot = self._repository.load()
        return snapshot.resources, snapshot.managed

    def check(self, text: str) -> CheckedChange:
        """Return what a text would change. Raises `ConfigurationRejected`, `RepositoryError`."""
        return self._check(parse_own(text, self._repository.documents()))

    def check_version(self, version: int) -> CheckedChange:
        """Return what a return to an earlier version would change. Raises as `check`, and KeyError."""
        kept = self._repository.history.read(version)
        if kept is None:
            raise KeyError(version)
        return self._check(resources_in(kept.resources))

    def _check(self, resources: Sequence[Resource]) -> CheckedChange:
        changes = self._repository.plan_whole(resources)
        before = self._repository.load().resources
        after = _after(before, resources, changes)
        self._require_fit(after)
        notes = [*notices(resources), *exposure(after), *restarts(KINDS, before, after)]
        return CheckedChange(changes, notes, build_configuration(before), build_configuration(after))

    def apply(self, text: str, *, expected: int, by: str, try_s: float | None) -> AppliedChange:
        """Make a text the own configuration. With `try_s` it is on trial, and `revert` is due after this time.

        Raises `ConfigurationRejected`, `ConfigurationChanged`, `RepositoryError`; nothing is then changed.
        """
        return self._replace(parse_own(text, self._repository.documents()), expected, by, try_s)

    def restore(self, version: int, *, expected: int, by: str, try_s: float | None) -> AppliedChange | None:
        """Apply an earlier version with its secrets; None if it is not kept. Raises as `apply`."""
        kept = self._repository.history.read(version)
        return None if kept is None else self._replace(resources_in(kept.resources), expected, by, try_s)

    def _require_fit(self, after: Sequence[Resource]) -> None:
        """Raise `ConfigurationRejected` if the options of this gateway do not fit these resources."""
        fault = self._following.fault(after, restart=True)
        if fault is not None:
            raise ConfigurationRejected([ConfigurationError(SOURCE, 0, "", fault)])

    def _replace(self, resources: Sequence[Resource], expected: int, by: str, try_s: float | None) -> AppliedChange:
        self._require_fit(_after(self._repository.load().resources, resources, self._repository.plan_whole(resources)))
        begin: Callable[[], None] = self.trial.keep if try_s is None else lambda: self.trial.begin(by, try_s)
        return AppliedChange(*self._repository.replace_whole(resources, expected=expected, by=by, before=begin))


def _after(
    before: Sequence[Resource], resources: Sequence[Resource], changes: Sequence[ResourceChange]
) -> list[Resource]:
    """Return the resources in force after a change."""
    deleted = {f"{change.kind}/{change.name}" for change in changes if change.after is None}
    changed = {f"{change.kind}/{change.name}" for change in changes if change.before != change.after}
    given = [each for each in resources if name_of(each) in changed]
    kept = [each for each in before if name_of(each) not in deleted | {name_of(one) for one in given}]
    return [*kept, *given]
