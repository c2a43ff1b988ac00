"""Repository of a gateway's applied resources: files in its data directory that are replaced atomically.

``DIR/config/resources.json`` has a version counter and the gateway's own documents as written;
``DIR/config/hub.json`` has the hub's versions, an overlay over them (`hub_versions`). A change is made under a lock,
validated as a whole, written to a new file, synced and renamed, and the folder is synced: a power cut leaves the old
configuration or the new one. A running gateway checks `mark` and loads after a change. Messages are in other files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bridge.desired import Desired
from bridge.durable_file import FILE_MODE
from bridge.hidden import hides
from bridge.resources import plan
from bridge.resources.errors import ConfigurationRejected
from bridge.resources.overlay import Overlay
from bridge.resources.plan import Documents, ResourceChange
from bridge.resources.resource import Resource, ResourceKinds
from edge.configuration.file import ConfigurationFile, Mark
from edge.configuration.history import ON_THIS_MACHINE, ConfigurationHistory
from edge.configuration.hub_part import layer, layers, managed, name_of, not_ours
from edge.configuration.hub_versions import HubVersions
from edge.configuration.kinds import KINDS

FORMAT: Final = 1
"""Format number of the files; newer programs use higher numbers."""
FOLDER: Final = "config"
"""Folder in the data directory."""
FOLDER_MODE: Final = 0o700


class ConfigurationSnapshot(msgspec.Struct, frozen=True):
    """All resources in force, which are valid together. `version` counts changes; 0 is the empty configuration."""

    version: int
    """Version of the gateway's own part."""
    resources: tuple[Resource, ...]
    managed: tuple[str, ...] = ()
    """Kind/name of resources that the hub manages, at least in part."""


@hides("resources")
class _File(msgspec.Struct):
    format: int
    version: int
    resources: Documents


class _HubFile(msgspec.Struct):
    format: int
    versions: HubVersions


class _Planned(NamedTuple):
    """Content that `apply` writes."""

    documents: Documents
    changes: list[ResourceChange]
    versions: HubVersions


UNCHECKED: Final = ResourceKinds(KINDS)
"""The same kinds without checks, for resources that are only a part of the configuration."""


class ConfigurationChanged(Exception):
    """There was another change since the one that a person looked at; `version` is in force now."""

    def __init__(self, version: int) -> None:
        super().__init__(f"the configuration was changed in the meantime: version {version} is in force")
        self.version = version


class Repository:
    """Applied resources of one data directory."""

    def __init__(self, data: Path) -> None:
        """`data`: the gateway's data directory; nothing is created in it before the first change."""
        self.folder = data / FOLDER
        self._own = ConfigurationFile(
            self.folder / "resources.json",
            _File,
            FORMAT,
            damaged="move it away and apply the configuration again",
        )
        self._hub = ConfigurationFile(
            self.folder / "hub.json",
            _HubFile,
            FORMAT,
            damaged="move it away; the local configuration is then in force until the hub sends a new version",
        )
        self.path = self._own.path
        self.history = ConfigurationHistory(self.folder)
        """Earlier versions of the own part."""
        self._seen: tuple[Mark, int] | None = None

    @property
    def version(self) -> int:
        """Version of the gateway's own part on disk, 0 before the first change. Costs one `stat` while the file is
        unchanged.

        Raises `RepositoryError`.
        """
        mark = self._own.mark()
        if mark is None:
            return 0
        if self._seen is None or self._seen[0] != mark:
            self._seen = (mark, self._read().version)
        return self._seen[1]

    @property
    def mark(self) -> tuple[Mark | None, Mark | None]:
        """Stamp of both files, which differs after a change. Costs two `stat`. Raises `RepositoryError`."""
        return self._own.mark(), self._hub.mark()

    def load(self) -> ConfigurationSnapshot:
        """Return everything in force. Raises `RepositoryError`, and `ConfigurationRejected` for a badly edited file."""
        file, versions = self._read(), self.hub_versions()
        over = layer(versions.in_force, versions.in_force_kept)
        resources = tuple(plan.load(KINDS, file.resources, str(self.path), over))
        decided = tuple(name_of(each) for key, each in over.managed.items() if not over.keeps(key))
        return ConfigurationSnapshot(file.version, resources, decided)

    def decided(self) -> list[Resource]:
        """Return the resources without a version on trial, for actions that outlast a trial. Raises as `load`."""
        file, versions = self._read(), self.hub_versions()
        return plan.load(KINDS, file.resources, str(self.path), layer(versions.confirmed, versions.kept))

    def own(self) -> list[Resource]:
        """Return the gateway's own resources, which may be invalid without the hub's part. Raises as `load`."""
        return plan.load(UNCHECKED, self._read().resources, str(self.path), Overlay(UNCHECKED))

    def plan(self, resources: Sequence[Resource], *, keep: bool = False) -> list[ResourceChange]:
        """Return the changes that `apply` would make, without writing. Raises as `apply`."""
        return self._planned(self._read(), self.hub_versions(), resources, keep=keep).changes

    def apply(
        self, resources: Sequence[Resource], *, keep: bool = False, by: str = ON_THIS_MACHINE
    ) -> tuple[int, list[ResourceChange]]:
        """Add these resources, or replace those of the same kind and name. Return (version, one change per resource).

        All or nothing: raises `ConfigurationRejected` when the result would not be valid, or the hub decides about one
        of them; `RepositoryError` when it cannot be written; the configuration is then unchanged. Nothing is written
        when nothing changes. `keep`: these resources override the hub's until its next version. `by`: user, for the
        history.
        """
        with self._locked():
            file, versions = self._read(), self.hub_versions()
            planned = self._planned(file, versions, resources, keep=keep)
            version = self._commit(file, planned.documents, planned.changes, by)
            if planned.versions != versions:
                self._write_hub(planned.versions)
            return version, planned.changes

    def delete(self, keys: Sequence[tuple[str, str]], *, by: str = ON_THIS_MACHINE) -> tuple[int, list[ResourceChange]]:
        """Delete the own resources with these (kind, name); unknown ones are not in the changes.

        All or nothing; raises as `apply` (for example when a forwarder needs the connector).
        """
        with self._locked():
            file, over = self._read(), layers(self.hub_versions())
            kept, changes = plan.deleted(KINDS, file.resources, set(keys), str(self.path), over)
            return self._commit(file, kept, changes, by), changes

    # --- the whole of the own part ----------------------------------------------------------------------------

    def documents(self) -> Documents:
        """Return the own resources as written. Raises `RepositoryError`."""
        return self._read().resources

    def plan_whole(self, resources: Sequence[Resource]) -> list[ResourceChange]:
        """Return the changes that `replace_whole` would make, without writing. Raises as `apply`."""
        return self._planned_whole(self._read(), self.hub_versions(), resources)[1]

    def replace_whole(
        self, resources: Sequence[Resource], *, expected: int, by: str, before: Callable[[], None] = lambda: None
    ) -> tuple[int, list[ResourceChange]]:
        """Make these the own resources: others are deleted. Return as `apply` does, and raise as it.

        `expected`: version that the change was made of; `ConfigurationChanged` if it is another one by now. `before` is
        called before a new version is written.
        """
        with self._locked():
            file, versions = self._read(), self.hub_versions()
            if file.version != expected:
                raise ConfigurationChanged(file.version)
            documents, changes = self._planned_whole(file, versions, resources)
            if any(change.before != change.after for change in changes):
                before()
            return self._commit(file, documents, changes, by), changes

    def restore(self, documents: Documents, by: str) -> int:
        """Make these documents, which were valid before, the own resources. Return the version. Raises
        `RepositoryError`."""
        with self._locked():
            file = self._read()
            changes = [ResourceChange("", "", {"resources": file.resources}, {"resources": documents})]
            return self._commit(file, documents, changes, by)

    def _planned_whole(
        self, file: _File, versions: HubVersions, resources: Sequence[Resource]
    ) -> tuple[Documents, list[ResourceChange]]:
        old = {plan.key_of(document): document for document in file.resources}
        given = {resource.key for resource in resources}
        stays = [document for key, document in old.items() if key in given]
        changed = [each for each in resources if old.get(each.key) != each.document]
        planned = self._planned(_File(FORMAT, file.version, stays), versions, changed, keep=False)
        deleted = [ResourceChange(*key, document, None) for key, document in old.items() if key not in given]
        # resources that stay as they are may be the hub's to decide about; they are no change
        return planned.documents, [*planned.changes, *deleted]

    # --- the hub's part ---------------------------------------------------------------------------------------

    def hub_versions(self) -> HubVersions:
        """Return the state of the hub's versions. Raises `RepositoryError`."""
        file = self._hub.read()
        return HubVersions() if file is None else file.versions

    def step(self, step: Callable[[HubVersions], HubVersions]) -> HubVersions:
        """Replace the state by the result of `step`; it is on disk on return. Raises `RepositoryError` and errors of
        `step`."""
        with self._locked():
            before = self.hub_versions()
            after = step(before)
            if after != before:
                self._write_hub(after)
            return after

    def take(
        self,
        desired: Desired,
        authority: str,
        fault: Callable[[Sequence[Resource]], str | None],
        *,
        digest: str = "",
    ) -> HubVersions:
        """Put a version on trial, or refuse it when it is not valid over the own resources or `fault` returns a reason;
        the decision is on disk on return. `digest`: of the document. Raises `VersionNotAccepted`, `RepositoryError`."""

        def step(before: HubVersions) -> HubVersions:
            known = before.for_authority(authority)
            known.require_new(desired.version)
            tried = known.tried(desired, digest)
            try:
                why = fault(plan.load(KINDS, self._read().resources, str(self.path), layer(tried.trial)))
            except ConfigurationRejected as rejected:
                why = str(rejected)
            return tried if why is None else known.refused(desired.version, why)

        return self.step(step)

    # --- inside -----------------------------------------------------------------------------------------------

    def _planned(self, file: _File, versions: HubVersions, resources: Sequence[Resource], *, keep: bool) -> _Planned:
        """Plan a change. Raises `ConfigurationRejected`."""
        in_force = layer(versions.in_force, versions.in_force_kept)
        decided = [(each, managed(in_force, each)) for each in resources]
        same = [each for each, hubs in decided if hubs is not None and hubs.document == each.document]
        others = [each for each, hubs in decided if hubs is not None and hubs.document != each.document]
        if others and not keep and versions.in_force is not None:
            raise ConfigurationRejected([not_ours(each, versions.in_force.number) for each in others])
        if others:
            versions = versions.with_overrides(tuple(name_of(each) for each in others))
        given = [each for each in resources if each not in same]
        documents, changes = plan.applied(KINDS, file.resources, given, str(self.path), layers(versions))
        unchanged = [ResourceChange(*each.key, each.document, each.document) for each in same]
        return _Planned(documents, [*changes, *unchanged], versions)

    def _commit(self, file: _File, documents: Documents, changes: Sequence[ResourceChange], by: str) -> int:
        if all(change.before == change.after for change in changes):
            return file.version
        version = file.version + 1
        self.history.add_missing(file.version, file.resources)
        self._own.write(_File(FORMAT, version, documents))
        self.history.add(version, documents, by)
        return version

    def _read(self) -> _File:
        return self._own.read() or _File(FORMAT, 0, [])

    def _write_hub(self, versions: HubVersions) -> None:
        self._hub.write(_HubFile(FORMAT, versions))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock for one change, also between processes; the kernel releases it when a process dies."""
        try:
            for folder in (self.folder.parent, self.folder):  # one call would create the first with the umask
                folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE)
        except OSError as why:
            raise self._own.failed("write", why) from why
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
