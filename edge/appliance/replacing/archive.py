"""File with a whole data directory: a tar archive (POSIX.1-2001), compressed with Zstandard, with digests (SHA-256).

The first member describes the archive, the last one lists the digests. So a truncated file is recognised, and a changed
one too.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Final, TypeVar

import msgspec
import zstandard

from bridge.durable_file import FILE_MODE, FOLDER_MODE, sync_path
from edge.appliance.update.wanted import FOLDER as UPDATES
from edge.broker.listeners.endpoints import FILE_NAME as ENDPOINTS
from edge.broker.store.lock import LOCK_NAME
from edge.broker.store.moved import ARRIVING_NAME, MOVED_NAME

T = TypeVar("T")

HEAD: Final = "waypost-gateway.json"
SUMS: Final = "waypost-sums.json"
FORMAT: Final = 1
FIRST_BOOT: Final = "first-boot"
"""Folder with the settings of a card: each card has its own."""
LEFT_OUT: Final = frozenset({LOCK_NAME, ENDPOINTS, MOVED_NAME, ARRIVING_NAME, FIRST_BOOT, UPDATES})
"""Entries of a data directory that belong to its machine, or to a running process."""
ENDINGS_LEFT_OUT: Final = (".new", ".part", "-shm")
"""Unfinished files, and SQLite's shared memory, which it makes again."""
DESCRIPTION_BYTES_MAX: Final = 1 << 20
"""Largest description, and list of digests: some 10 000 files, of which a gateway has dozens."""
PIECE_BYTES: Final = 1 << 20


class ArchiveDamaged(Exception):
    """The file is not a complete archive; the message says why."""


class ArchiveHead(msgspec.Struct, frozen=True, kw_only=True):
    """Description of an archive."""

    format: int
    id: str
    """Random; the same in the mark of the directory that the gateway left."""
    gateway: str
    epoch: str
    version: str
    created: str
    """ISO 8601, UTC."""
    bytes: int
    """Size of all files."""


def list_files(data: Path) -> list[Path]:
    """Return the files of a data directory that belong to the gateway, in order."""
    found = []
    for top in sorted(data.iterdir()):
        if top.name in LEFT_OUT or top.is_symlink():
            continue
        inside = sorted(top.rglob("*")) if top.is_dir() else [top]
        found += [each for each in inside if each.is_file() and not each.is_symlink()]
    return [each for each in found if not each.name.endswith(ENDINGS_LEFT_OUT)]


def digests_bytes(data: Path, files: Sequence[Path]) -> int:
    """Return the largest size of the list of digests of these files."""
    longest = ("\\u0000" * len(path.relative_to(data).as_posix()) for path in files)
    return sum(len(name) + 2 * hashlib.sha256().digest_size + len('"":"",') for name in longest)


def write_archive(target: Path, data: Path, head: ArchiveHead) -> None:
    """Write the archive of a stopped gateway's directory; it is on disk on return. Raises OSError."""
    sums: dict[str, str] = {}
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    with os.fdopen(descriptor, "wb") as out:
        with (
            zstandard.ZstdCompressor(level=3).stream_writer(out, closefd=False) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            _add(archive, HEAD, msgspec.json.encode(head))
            for path in list_files(data):
                name = path.relative_to(data).as_posix()
                sums[name] = _add_file(archive, name, path)
            _add(archive, SUMS, msgspec.json.encode(sums))
        out.flush()
        os.fsync(out.fileno())


def read_head(source: Path) -> ArchiveHead:
    """Return the description of an archive. Raises ArchiveDamaged, OSError."""
    with source.open("rb") as file, _damage_explained():
        first = next(_members(file), None)
    if first is None:
        raise ArchiveDamaged("it is empty")
    return first[0]


def unpack_archive(source: Path, target: Path) -> ArchiveHead:
    """Unpack an archive into a new folder and verify it; files are on disk on return.

    Raises ArchiveDamaged, OSError.
    """
    target.mkdir(mode=FOLDER_MODE)
    sums: dict[str, str] = {}
    listed: dict[str, str] | None = None
    described: ArchiveHead | None = None
    with source.open("rb") as file, _damage_explained():
        for head, name, content in _members(file):
            described = head
            if listed is not None:
                raise ArchiveDamaged("it has files behind its list of digests")
            if name == SUMS:
                listed = _decode(content.read(DESCRIPTION_BYTES_MAX), dict[str, str])
            elif name != HEAD:
                sums[name] = _unpack(content, target / _checked_name(name))
    if described is None or listed is None:
        raise ArchiveDamaged("it is not complete")
    if listed != sums:
        wrong = sorted(name for name in listed.keys() | sums.keys() if listed.get(name) != sums.get(name))
        raise ArchiveDamaged(f"it was changed: {wrong[0]}")
    for folder in sorted({each.parent for each in target.rglob("*")} | {target}):
        sync_path(folder)
    return described


# --- inside -----------------------------------------------------------------------------------------------------------


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), FILE_MODE
    archive.addfile(info, io.BytesIO(content))


def _add_file(archive: tarfile.TarFile, name: str, path: Path) -> str:
    """Add a file and return its digest."""
    with path.open("rb") as source:
        info = tarfile.TarInfo(name)
        info.size, info.mode = os.fstat(source.fileno()).st_size, FILE_MODE
        reader = _HashingReader(source)
        archive.addfile(info, reader)
    return reader.digest.hexdigest()


class _HashingReader(io.RawIOBase):
    """Computes the digest of a file while it is read."""

    def __init__(self, source: IO[bytes]) -> None:
        self.digest = hashlib.sha256()
        self._source = source

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        piece = self._source.read(size)
        self.digest.update(piece)
        return piece


@contextlib.contextmanager
def _damage_explained() -> Iterator[None]:
    """Turn errors of reading an archive, of its members or of their content, into ArchiveDamaged."""
    try:
        yield
    except (tarfile.TarError, zstandard.ZstdError, EOFError) as why:
        raise ArchiveDamaged(f"it cannot be read: {why}") from None


def _members(file: IO[bytes]) -> Iterator[tuple[ArchiveHead, str, IO[bytes]]]:
    """Yield the head with the name and content of each member. Raises ArchiveDamaged, and errors of the two formats."""
    head: ArchiveHead | None = None
    unpacked = zstandard.ZstdDecompressor().stream_reader(file)
    with tarfile.open(fileobj=unpacked, mode="r|") as archive:
        for info in archive:
            content = archive.extractfile(info) if info.isreg() else None
            if content is None:
                raise ArchiveDamaged(f"{info.name} is not a file")
            if head is None:
                if info.name != HEAD:
                    raise ArchiveDamaged("it is not a gateway's archive")
                head = _decode(content.read(DESCRIPTION_BYTES_MAX), ArchiveHead)
                if head.format != FORMAT:
                    raise ArchiveDamaged(f"its format {head.format} needs a newer program")
            yield head, info.name, content


def _decode(content: bytes, type_: type[T]) -> T:
    """Decode a description. Raises ArchiveDamaged."""
    try:
        return msgspec.json.decode(content, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as why:
        raise ArchiveDamaged(f"its description cannot be read: {why}") from None


def _checked_name(name: str) -> PurePosixPath:
    """Return the name of a file inside of the directory. Raises ArchiveDamaged."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or path.parts[0] in LEFT_OUT or "\0" in name:
        raise ArchiveDamaged(f"{name!r} is not a file of a gateway")
    return path


def _unpack(content: IO[bytes], target: Path) -> str:
    """Write a file durably and return its digest. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
    digest = hashlib.sha256()
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    with os.fdopen(descriptor, "wb") as out:
        while piece := content.read(PIECE_BYTES):
            digest.update(piece)
            out.write(piece)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()
