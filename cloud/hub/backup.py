"""Backup of a hub in one file: registry, authority, and users. The lake is not in it.

The file is a tar archive, compressed (Zstandard) and encrypted with a passphrase (`cloud.hub.sealed_file`).
Its members, in order:

``manifest.json``           format, version of the registry, time
``registry/TABLE/NUMBER``   up to 500 rows: columns and rows, MessagePack
``credentials.db``          users of a registry in the data directory (SQLite)
``authority/FILE``          keys and certificates
``totals.json``             number of rows of each table

All rows are of one moment, also while hubs run. The whole file is checked before anything is restored.

A restored registry is older than its lake. The restore compares them: the lake refuses commits that were lost, and hubs
read back the landed sequences of each gateway (``cloud/decisions/0020-registry-older-than-its-lake.md``).
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sqlite3
import tarfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final, NamedTuple, cast

import msgspec
import sqlalchemy as sa
import zstandard

from bridge.durable_file import FILE_MODE, FOLDER_MODE, replace_file, sync_path
from bridge.version import VERSION
from cloud.hub.enrolment.files import FOLDER as AUTHORITY
from cloud.hub.registry.database import Database
from cloud.hub.registry.lake_check import LakeCheck
from cloud.hub.registry.names import all_gateways
from cloud.hub.registry.portable import RegistryPart, finish_arrival, read_registry, write_registry
from cloud.hub.registry.schema import SCHEMA_VERSION
from cloud.hub.registry.writer import RegistryWriter
from cloud.hub.sealed_file import COST, SealBroken, SealedReader, SealedWriter
from cloud.lake.delta import DeltaLake
from cloud.place.place import LakePlace
from edge.broker.security.credentials import FILE as USERS

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
TOTALS: Final = "totals.json"
PASSPHRASE_CHARACTERS_MIN: Final = 12
"""Characters of a passphrase: fewer are guessed within days, even at 0.4 s a guess."""
_REGISTRY: Final = re.compile(r"registry/([a-z_]{1,63})/\d{8}")
_FILE: Final = re.compile(rf"{AUTHORITY}/[a-z][a-z0-9_-]{{0,62}}\.pem|{re.escape(USERS)}")


class BackupError(Exception):
    """The backup cannot be made or used; the message says why and what to do."""


class BackupManifest(msgspec.Struct, kw_only=True, frozen=True):
    """Begin of a backup."""

    format: int
    schema: int
    """Schema version of the registry."""
    registry_id: str
    made_at: float
    """UTC seconds."""
    version: str
    """Version of the program."""


class BackupSummary(NamedTuple):
    """Content of a complete backup."""

    manifest: BackupManifest
    rows: Mapping[str, int]
    """Rows of each table."""
    files: frozenset[str]
    """Files of the data directory."""


class RestoredHub(NamedTuple):
    """Result of a restore."""

    summary: BackupSummary
    beyond: int
    """Writers with commits in the lake that the backup does not know."""
    unknown_gateways: frozenset[tuple[str, str]]
    """(tenant, name) of gateways with messages in the lake that the backup does not know."""


def require_passphrase(text: str) -> str:
    """Check a passphrase. Raises `BackupError`."""
    if len(text) < PASSPHRASE_CHARACTERS_MIN:
        raise BackupError(f"the passphrase is too short: it needs {PASSPHRASE_CHARACTERS_MIN} characters or more")
    return text


# --- writing ------------------------------------------------------------------------------------------------------


def write_backup(
    file: Path, data: Path | None, registry: sa.URL, passphrase: str, *, cost: int = COST
) -> BackupSummary:
    """Write a backup of the hub with this data directory, which may run; the file is complete or not there.

    `data`: None for the registry alone. Raises `BackupError`, `RegistryError`, OSError.
    """
    require_passphrase(passphrase)
    if file.exists():
        raise BackupError(f"{file} exists already: name a new file")
    whole = file.with_name(f"{file.name}.new")
    whole.unlink(missing_ok=True)
    descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as written:
            sealed = SealedWriter(written, passphrase, cost=cost)
            with (
                zstandard.ZstdCompressor(level=3).stream_writer(cast("IO[bytes]", sealed), closefd=False) as packed,
                tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
            ):
                summary = _write(archive, data, registry)
            sealed.finish()
            written.flush()
            os.fsync(written.fileno())
        _publish(whole, file)
    finally:
        whole.unlink(missing_ok=True)
    sync_path(file.parent)
    return summary


def _publish(whole: Path, file: Path) -> None:
    """Give a complete file its name. Raises `BackupError` if another one has got it meanwhile, OSError."""
    try:
        os.link(whole, file)
    except FileExistsError:
        raise BackupError(f"{file} exists already: name a new file") from None
    except OSError:  # a file system without hard links, as of a memory card
        whole.rename(file)


def _write(archive: tarfile.TarFile, data: Path | None, registry: sa.URL) -> BackupSummary:
    counts: Counter[str] = Counter()

    def use(registry_id: str, parts: Iterator[RegistryPart]) -> BackupManifest:
        if counts:
            raise BackupError("the registry was changed while it was read: try again")
        manifest = BackupManifest(
            format=FORMAT, schema=SCHEMA_VERSION, registry_id=registry_id, made_at=time.time(), version=VERSION
        )
        _add(archive, MANIFEST, msgspec.json.encode(manifest))
        for number, part in enumerate(parts):
            _add(archive, f"registry/{part.table}/{number:08}", msgspec.msgpack.encode(part))
            counts[part.table] += len(part.rows)
        return manifest

    manifest = read_registry(registry, use)
    files = dict(_files_of(data)) if data is not None else {}
    for name, content in files.items():
        _add(archive, name, content)
    _add(archive, TOTALS, msgspec.json.encode(counts))
    return BackupSummary(manifest, counts, frozenset(files))


def _files_of(data: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a data directory that cannot be made again."""
    if (data / USERS).exists():
        yield USERS, _users(data / USERS)
    folder = data / AUTHORITY
    for each in sorted(folder.iterdir()) if folder.is_dir() else ():
        name = f"{AUTHORITY}/{each.name}"
        if _FILE.fullmatch(name) and each.is_file() and not each.is_symlink():
            yield name, each.read_bytes()


def _users(file: Path) -> bytes:
    """Return the users as they are at one time."""
    with contextlib.closing(sqlite3.connect(file)) as source:
        return source.serialize()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), FILE_MODE, int(time.time())
    archive.addfile(member, io.BytesIO(content))


# --- reading ------------------------------------------------------------------------------------------------------


def check_backup(file: Path, passphrase: str) -> BackupSummary:
    """Read a whole backup, and return its content. Raises `BackupError`, OSError."""
    counts: Counter[str] = Counter()
    files: set[str] = set()
    totals: dict[str, int] | None = None
    with _members(file, passphrase) as (manifest, members):
        for name, content in members:
            if totals is not None:
                raise BackupError(f"{file} is damaged: it has {name} after its end")
            if name == TOTALS:
                totals = msgspec.json.decode(content, type=dict[str, int])
            elif _FILE.fullmatch(name):
                files.add(name)
            else:
                part = _part(name, content)
                counts[part.table] += len(part.rows)
    if totals is None or +counts != +Counter(totals):
        raise BackupError(f"{file} is damaged: it has other rows than it lists")
    return BackupSummary(manifest, counts, frozenset(files))


def restore_backup(
    file: Path, passphrase: str, data: Path, registry: sa.URL, lake: LakePlace, *, replace: bool = False
) -> RestoredHub:
    """Restore a backup into a locked data directory and an empty registry, for a lake.

    No hub may run. `replace`: registry and files that are there are replaced. Until the end no hub uses the registry;
    an interrupted restore may be repeated. Raises `BackupError`, `RegistryError`, `LakeError`, OSError.
    """
    summary = check_backup(file, passphrase)
    there = [name for name in sorted(summary.files) if (data / name).exists()]
    if there and not replace:
        raise BackupError(f"{data / there[0]} exists already: restore into a new data directory, or use --replace")
    if summary.rows.get("commits") and not lake.tables():
        raise BackupError(f"the lake {lake.uri} has no tables: restore it first, or name the lake with --lake")
    manifest = summary.manifest
    database = Database(registry)
    try:
        with _members(file, passphrase) as (_, members):
            parts = (_part(name, content) for name, content in members if _REGISTRY.fullmatch(name))
            written = write_registry(database, manifest.registry_id, manifest.schema, parts, replace=replace)
        for table, count in written.items():
            if count != summary.rows[table]:
                raise BackupError(
                    f"table {table} has {count} rows after {summary.rows[table]} were to be written: try again"
                )
        opened = DeltaLake(lake)
        beyond = LakeCheck(database, manifest.registry_id, RegistryWriter("")).repair(opened)
        known = database.transaction(all_gateways)
        with _members(file, passphrase) as (_, members):
            for name, content in members:
                if _FILE.fullmatch(name):
                    _extract(data / name, content)
        finish_arrival(database)
    finally:
        database.close()
    return RestoredHub(summary, beyond, frozenset(opened.gateways() - known))


@contextlib.contextmanager
def _members(file: Path, passphrase: str) -> Iterator[tuple[BackupManifest, Iterator[tuple[str, bytes]]]]:
    """Open a backup: its manifest, and name and content of the members. Raises `BackupError`, also for damage that is
    found later."""
    try:
        with (
            file.open("rb") as source,
            zstandard.ZstdDecompressor().stream_reader(io.BufferedReader(SealedReader(source, passphrase))) as unpacked,
            tarfile.open(fileobj=unpacked, mode="r|") as archive,
        ):
            found = _contents(archive)
            name, content = next(found, ("", b""))
            if name != MANIFEST:
                raise BackupError(f"{file} is not a backup of a hub")
            manifest = msgspec.json.decode(content, type=BackupManifest)
            if manifest.format > FORMAT:
                raise BackupError(f"a newer version ({manifest.version}) made the backup: use that version")
            yield manifest, found
    except SealBroken as error:
        raise BackupError(f"{file} cannot be used: {error}") from error
    except (tarfile.TarError, zstandard.ZstdError, EOFError, msgspec.MsgspecError) as error:
        raise BackupError(f"{file} is damaged: {error}") from error


def _contents(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in archive:
        content = archive.extractfile(member) if member.isreg() else None
        if content is None:
            raise tarfile.ReadError(f"{member.name} is not a file")
        yield member.name, content.read()


def _part(name: str, content: bytes) -> RegistryPart:
    part = msgspec.msgpack.decode(content, type=RegistryPart)
    named = _REGISTRY.fullmatch(name)
    if named is None or named[1] != part.table:
        raise tarfile.ReadError(f"{name} is not a part of a backup")
    return part


def _extract(target: Path, content: bytes) -> None:
    target.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    replace_file(target, content)
