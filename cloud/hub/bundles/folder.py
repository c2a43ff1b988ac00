"""Folder with the update bundles of a hub: `DATA/bundles`, or a folder that several hubs share. It blocks.

A bundle is a file that never changes: it is added and removed as a whole. Its index (`bridge.block_index`) is next to
it, and is there first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Final, NamedTuple

from bridge.block_index import INDEX_BYTES_MAX, SUFFIX, BlockIndex, BlockIndexError
from bridge.durable_file import FILE_MODE, FOLDER_MODE, sync_path
from bridge.hub_bundles import NAME_WORDS, is_bundle_name, is_served_name
from cloud.hub.bundles.limits import BUNDLE_BYTES_MAX, BUNDLES_MAX, COPIED_BYTES, FREE_BYTES_MIN
from edge.output.text import word

FOLDER: Final = "bundles"
"""Folder in the data directory of a hub, unless its configuration names another."""
LOCK: Final = ".lock"
"""File that a command locks while it changes the folder."""
_MAGIC: Final = b"hsqs"
"""First bytes of a squashfs, which a bundle in RAUC's format `verity` is."""


class BundleRefused(Exception):
    """A bundle cannot be added or removed. The message says why and what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class StoredBundle(NamedTuple):
    """Bundle of the folder."""

    name: str
    size: int
    sha256: str
    has_index: bool
    """Gateways fetch only what their running system does not have."""


class OpenBundle(NamedTuple):
    """File that is open for reading: the bundle, or its index."""

    descriptor: int
    size: int
    tag: str
    """Changes when another file takes its name."""


def free_bytes(folder: Path) -> int:
    """Return the free bytes of a folder's disk. Raises OSError."""
    return shutil.disk_usage(folder).free


class BundleFolder:
    """Bundles in one folder. Methods raise OSError. Threads may share it."""

    def __init__(self, folder: Path, free: Callable[[Path], int] = free_bytes) -> None:
        """`free`: see `free_bytes`."""
        self.folder = folder
        self._free = free
        self._digests: dict[str, tuple[str, str]] = {}
        """Tag of each bundle, and its SHA-256: reading one takes a second."""

    @classmethod
    def of(cls, configured: str | None, data: Path) -> BundleFolder:
        """Return that of a hub. `configured`: `bundles` of its configuration; `data`: its data directory."""
        return cls(Path(configured) if configured is not None else data / FOLDER)

    def open(self, name: str, sha256: str | None = None) -> OpenBundle | None:
        """Open a bundle or an index for reading; the caller closes the descriptor. None: it is not there.

        `sha256`: digest that the bundle must have, also for its index; None: any.
        """
        opened = self._open(name)
        if opened is None or sha256 is None:
            return opened
        try:
            bundle = name.removesuffix(SUFFIX)
            if bundle == name:
                found = self._digest(name, opened)
            else:
                there = self.find(bundle)
                found = there.sha256 if there is not None else ""
        except BaseException:
            os.close(opened.descriptor)
            raise
        if found == sha256:
            return opened
        os.close(opened.descriptor)
        return None

    def find(self, name: str) -> StoredBundle | None:
        """Return a bundle; None: there is none."""
        opened = self._open(name) if is_bundle_name(name) else None
        if opened is None:
            return None
        try:
            sha256 = self._digest(name, opened)
        finally:
            os.close(opened.descriptor)
        return StoredBundle(name, opened.size, sha256, (self.folder / f"{name}{SUFFIX}").is_file())

    def bundles(self) -> list[StoredBundle]:
        """Return all bundles by name."""
        names = sorted(path.name for path in self.folder.glob("*") if is_bundle_name(path.name))
        return [found for name in names if (found := self.find(name)) is not None]

    def add(self, file: Path) -> StoredBundle:
        """Copy a bundle, and the index next to it, into the folder; both are on disk on return. Repeating it does no
        harm. Raises BundleRefused."""
        name = file.name
        if not is_bundle_name(name):
            raise BundleRefused(f"{name}: {NAME_WORDS}", "rename it")
        self.folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        with self._locked(), file.open("rb") as source:
            size = os.fstat(source.fileno()).st_size
            _check_bundle(file, size, source)
            there = self.find(name)
            if there is not None:
                return self._require_same(there, source)
            self._check_room(size)
            try:
                sha256 = self._copy(source, name)
                index = _read_index(file, sha256, size)
                self._write_index(f"{name}{SUFFIX}", index)
                self._part(name).replace(self.folder / name)
            finally:
                self._part(name).unlink(missing_ok=True)
            sync_path(self.folder)
            return StoredBundle(name, size, sha256, index is not None)

    def remove(self, name: str) -> bool:
        """Remove a bundle and its index; return False if there is none. Open downloads of it end well."""
        if not is_bundle_name(name) or not (self.folder / name).exists():
            return False
        with self._locked():
            (self.folder / name).unlink(missing_ok=True)
            (self.folder / f"{name}{SUFFIX}").unlink(missing_ok=True)
            sync_path(self.folder)
        return True

    # --- inside -----------------------------------------------------------------------------------------------------

    def _open(self, name: str) -> OpenBundle | None:
        if not is_served_name(name):
            return None
        try:
            descriptor = os.open(self.folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            return None
        return OpenBundle(descriptor, found.st_size, f'"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"')

    def _digest(self, name: str, opened: OpenBundle) -> str:
        """Return the SHA-256 of a bundle that is open."""
        known = self._digests.get(name)
        if known is None or known[0] != opened.tag:
            with open(os.dup(opened.descriptor), "rb") as source:
                source.seek(0)
                known = self._digests[name] = (opened.tag, hashlib.file_digest(source, "sha256").hexdigest())
        return known[1]

    def _part(self, name: str) -> Path:
        """Return the path of a copy that is not complete; no request can name it."""
        return self.folder / f".{name}.part"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one command at a time change the folder, and remove what an interrupted one left."""
        with (self.folder / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in self.folder.glob(".*.part"):
                left.unlink()
            yield

    def _require_same(self, there: StoredBundle, source: BufferedReader) -> StoredBundle:
        """Return the bundle of this name if it has the same content. Raises BundleRefused."""
        source.seek(0)
        if hashlib.file_digest(source, "sha256").hexdigest() == there.sha256:
            return there
        raise BundleRefused(
            f"{self.folder} has another bundle called {there.name}, which gateways may be fetching",
            f"give the new one another name, or remove the old one: waypost hub bundle remove {word(there.name)}",
        )

    def _check_room(self, size: int) -> None:
        """Raise BundleRefused if a bundle of this size does not fit."""
        if sum(1 for path in self.folder.glob("*") if is_bundle_name(path.name)) >= BUNDLES_MAX:
            step = "remove those that no gateway fetches any more: waypost hub bundle list, waypost hub bundle remove"
            raise BundleRefused(f"{self.folder} has {BUNDLES_MAX} bundles, the limit", step)
        lacking = size + INDEX_BYTES_MAX + FREE_BYTES_MIN - self._free(self.folder)
        if lacking > 0:
            raise BundleRefused(
                f"{(lacking >> 20) + 1} MiB of free space are missing on the disk of {self.folder}: "
                f"{FREE_BYTES_MIN >> 20} MiB stay free for registry and lake",
                "remove old bundles (waypost hub bundle remove), or set `bundles` to another folder",
            )

    def _copy(self, source: BufferedReader, name: str) -> str:
        """Copy a bundle to its part, on disk on return; return its SHA-256."""
        digest = hashlib.sha256()
        source.seek(0)
        with _new_file(self._part(name)) as target:
            while read := source.read(COPIED_BYTES):
                digest.update(read)
                target.write(read)
            target.flush()
            os.fsync(target.fileno())
        return digest.hexdigest()

    def _write_index(self, name: str, content: bytes | None) -> None:
        """Write an index, on disk on return, in place of one that an interrupted removal left. None: there is none."""
        if content is None:
            (self.folder / name).unlink(missing_ok=True)
            return
        with _new_file(self._part(name)) as target:
            target.write(content)
            target.flush()
            os.fsync(target.fileno())
        self._part(name).replace(self.folder / name)


def _new_file(path: Path) -> BufferedWriter:
    """Create a file that only this user can read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE), "wb")


def _check_bundle(file: Path, size: int, source: BufferedReader) -> None:
    """Raise BundleRefused unless a file looks like a bundle. A gateway verifies its signature."""
    if size > BUNDLE_BYTES_MAX:
        raise BundleRefused(f"{file} has more than {BUNDLE_BYTES_MAX >> 20} MiB, the limit of a bundle")
    if source.read(len(_MAGIC)) != _MAGIC:
        raise BundleRefused(f"{file} is not a bundle", "build one: waypost image bundle")


def _read_index(file: Path, sha256: str, size: int) -> bytes | None:
    """Return the index next to a bundle; None: there is none. Raises BundleRefused if it is of another one."""
    index = file.with_name(f"{file.name}{SUFFIX}")
    try:
        with index.open("rb") as source:
            content = source.read(INDEX_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    step = "copy both files from where they were built, or remove the index: then gateways fetch all of the bundle"
    try:
        found = BlockIndex.decode(content)
    except BlockIndexError as error:
        raise BundleRefused(f"{index}: {error}", step) from None
    if (found.sha256, found.size) != (sha256, size):
        raise BundleRefused(f"{index} is the index of another bundle", step)
    return content
