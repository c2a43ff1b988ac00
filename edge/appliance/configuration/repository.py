"""Where a gateway keeps the resources applied to it: one file in its data directory, whole or as it was.

``DIR/config/resources.json`` holds a version counter and the documents as they were written. A change is made under a
lock, validated as a whole, written beside the file, synced, renamed over it and the folder synced: a power cut leaves
the old configuration or the new one. A running gateway looks at `version` and loads when it has changed; messages
are in another file altogether and no change of configuration touches them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bridge.hidden import hides
from bridge.resources import plan
from bridge.resources.plan import Change, Documents
from bridge.resources.resource import Resource
from edge.configuration.kinds import KINDS

FORMAT: Final = 1
"""Layout of the file; a file with a higher number was made by a newer program."""
FOLDER: Final = "config"
"""In the data directory."""
FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
"""Resources hold passwords of remote peers."""


class RepositoryError(Exception):
    """The file cannot be read or written; the message says why and what to do next."""


class Snapshot(msgspec.Struct, frozen=True):
    """Everything applied, valid as a whole. `version` counts changes from 0, the empty configuration."""

    version: int
    resources: tuple[Resource, ...]


@hides("resources")
class _File(msgspec.Struct):
    format: int
    version: int
    resources: Documents


class _Head(msgspec.Struct):
    format: int


class Repository:
    """The applied resources of one data directory."""

    def __init__(self, data: Path) -> None:
        """`data` is the gateway's data directory; nothing is made in it before the first change."""
        self.folder = data / FOLDER
        self.path = self.folder / "resources.json"
        self._seen: tuple[tuple[int, int, int], int] | None = None

    @property
    def version(self) -> int:
        """The version on disk, 0 before the first change. Costs one `stat` while the file is the same.

        Raises `RepositoryError`.
        """
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return 0
        except OSError as why:
            raise self._failed("read", why) from why
        mark = (status.st_ino, status.st_mtime_ns, status.st_size)
        if self._seen is None or self._seen[0] != mark:
            self._seen = (mark, self._read().version)
        return self._seen[1]

    def load(self) -> Snapshot:
        """Everything applied. Raises `RepositoryError`, or `ConfigurationRejected` when somebody edited nonsense in."""
        file = self._read()
        return Snapshot(file.version, tuple(plan.load(KINDS, file.resources, str(self.path))))

    def plan(self, resources: Sequence[Resource]) -> list[Change]:
        """What `apply` would do, one change a resource given, nothing written. Raises as `apply` does."""
        return plan.applied(KINDS, self._read().resources, resources, str(self.path))[1]

    def apply(self, resources: Sequence[Resource]) -> tuple[int, list[Change]]:
        """Add these resources, or replace those of the same kind and name; (version, one change a resource given).

        All or nothing: raises `ConfigurationRejected` when the whole would not be valid, `RepositoryError` when it
        cannot be written; the configuration is then as it was. Nothing is written when nothing changes.
        """
        with self._locked():
            file = self._read()
            merged, changes = plan.applied(KINDS, file.resources, resources, str(self.path))
            return self._commit(file, merged, changes), changes

    def delete(self, keys: Sequence[tuple[str, str]]) -> tuple[int, list[Change]]:
        """Take the resources with these (kind, name) away; what is not there is left out of the changes.

        All or nothing, raising as `apply` does (for one: a forwarder may need the connector).
        """
        with self._locked():
            file = self._read()
            kept, changes = plan.deleted(KINDS, file.resources, set(keys), str(self.path))
            return self._commit(file, kept, changes), changes

    def _commit(self, file: _File, documents: Documents, changes: Sequence[Change]) -> int:
        if all(change.before == change.after for change in changes):
            return file.version
        version = file.version + 1
        self._write(_File(FORMAT, version, documents))
        return version

    def _read(self) -> _File:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return _File(FORMAT, 0, [])
        except OSError as why:
            raise self._failed("read", why) from why
        try:
            made_by = msgspec.json.decode(data, type=_Head).format
            if made_by > FORMAT:
                raise RepositoryError(
                    f"{self.path} has format {made_by} and this program knows up to {FORMAT}: a newer program made it; "
                    "run that one, or apply the configuration anew in another data directory"
                )
            return msgspec.json.decode(data, type=_File)
        except msgspec.DecodeError as why:
            raise RepositoryError(
                f"{self.path} is damaged ({why}): move it away and apply the configuration again; no messages are in it"
            ) from why

    def _write(self, file: _File) -> None:
        fresh = self.path.with_suffix(".new")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
            with os.fdopen(descriptor, "wb") as out:
                out.write(msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")
                out.flush()
                os.fsync(out.fileno())
            fresh.replace(self.path)
            self._sync_folder()
        except OSError as why:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise self._failed("write", why) from why

    def _sync_folder(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One change at a time, between processes too; the kernel gives the lock back when a process dies."""
        try:
            for folder in (self.folder.parent, self.folder):  # one call would leave the first to the umask
                folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, FILE_MODE)
        except OSError as why:
            raise self._failed("write", why) from why
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _failed(self, verb: str, why: OSError) -> RepositoryError:
        return RepositoryError(f"cannot {verb} {why.filename or self.path}: {why.strerror or why}")
