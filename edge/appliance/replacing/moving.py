"""Move a gateway: out of the directory that it leaves, into the one of its new card or machine.

A moved gateway must not run in both places: the old directory is marked before its archive gets its name, and the store
refuses a marked directory. The new one starts a new epoch, and so does an old one if the move is cancelled. So no two
messages get the same name, whatever happens to the archive. Messages that had not been sent keep their names; a hub
that gets one twice takes it once.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from bridge.durable_file import FILE_MODE, sync_path
from bridge.version import VERSION
from edge.appliance.first_boot.journal import FirstBootJournal
from edge.appliance.first_boot.places import write_whole
from edge.appliance.replacing.archive import (
    DESCRIPTION_BYTES_MAX,
    FIRST_BOOT,
    FORMAT,
    ArchiveDamaged,
    ArchiveHead,
    digests_bytes,
    list_files,
    read_head,
    unpack_archive,
    write_archive,
)
from edge.broker.store.lock import LOCK_NAME, DirectoryLock
from edge.broker.store.moved import ARRIVING_NAME, MOVED_NAME
from edge.broker.store.sqlite import FILE_NAME

UNPACKED: Final = "arriving.part"
"""Folder with the unpacked files, inside of the directory that they replace: renaming needs one file system."""
STAYING: Final = frozenset({LOCK_NAME, ARRIVING_NAME, UNPACKED, FIRST_BOOT})
"""Entries of the new directory that are not replaced."""
BEGUN: Final = frozenset({LOCK_NAME, UNPACKED, f"{ARRIVING_NAME}.new"})
"""Entries that an import leaves in an empty folder when it is interrupted before its mark."""
OF_GATEWAY: Final = (FILE_NAME, FIRST_BOOT, MOVED_NAME, ARRIVING_NAME)
"""Entries of which a data directory has at least one."""


class MoveRefused(Exception):
    """The move cannot begin or continue; `next_step` says what to do."""

    def __init__(self, words: str, next_step: str) -> None:
        super().__init__(words)
        self.next_step = next_step


class MoveMark(msgspec.Struct, frozen=True, kw_only=True):
    """Content of either mark."""

    id: str
    gateway: str
    entries: tuple[str, ...] = ()
    """Names in `UNPACKED` that replace those of the directory."""
    replaced: bool = False
    """True when all have arrived: the store may be written, and nothing is removed any longer."""


def move_out(data: Path, target: Path, *, gateway: str, epoch: str, created: str) -> ArchiveHead:
    """Write the archive of a stopped gateway, and mark its directory as left.

    Repeated after an interruption, it writes the archive of the same move again. It replaces no other file. Raises
    MoveRefused, StoreError, OSError.
    """
    if not (data / FILE_NAME).is_file():
        raise MoveRefused(f"no store in {data}", "give --data as for `waypost run`")
    lock = DirectoryLock(data)
    try:
        if (data / ARRIVING_NAME).exists():
            raise MoveRefused(f"a move to {data} was interrupted", "run `waypost replace import` again")
        files = list_files(data)
        if digests_bytes(data, files) > DESCRIPTION_BYTES_MAX:
            raise MoveRefused(f"{data} has too many files ({len(files)})", "move those away that are not the gateway's")
        before = _read_mark(data / MOVED_NAME)
        _require_replaceable_file(target, before)
        head = ArchiveHead(
            format=FORMAT,
            id=before.id if before is not None else secrets.token_hex(8),
            gateway=gateway,
            epoch=epoch,
            version=VERSION,
            created=created,
            bytes=sum(path.stat().st_size for path in files),
        )
        fresh = target.with_name(f"{target.name}.part")
        write_archive(fresh, data, head)
        write_whole(data / MOVED_NAME, msgspec.json.encode(MoveMark(id=head.id, gateway=gateway)), mode=FILE_MODE)
        fresh.replace(target)
        sync_path(target.parent)
    finally:
        lock.release()
    return head


def move_in(data: Path, source: Path | None, begin_epoch: Callable[[], object]) -> MoveMark:
    """Replace the content of a stopped gateway's directory by an archive. `source`: None continues an interrupted move.

    The caller has checked that nothing is lost with the present content. Raises MoveRefused, ArchiveDamaged,
    StoreError, OSError.
    """
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    require_replaceable(data)
    lock = DirectoryLock(data)
    try:
        mark = _read_mark(data / ARRIVING_NAME)
        if mark is None:
            if source is None:
                raise MoveRefused(f"no move to {data} was interrupted", "name the archive")
            mark = _unpack(data, source)
        elif source is not None and read_head(source).id != mark.id:
            raise MoveRefused(
                f"another move to {data} was interrupted, of the gateway {mark.gateway}",
                "end it first: `waypost replace import` without FILE; then import this file",
            )
        if not mark.replaced:
            _replace_entries(data, mark)
            FirstBootJournal(data, _owner(data)).keep_gateway()  # a token of this card would replace the identity
            mark = msgspec.structs.replace(mark, replaced=True)
            _write_mark(data, mark)
    finally:
        lock.release()
    begin_epoch()
    (data / ARRIVING_NAME).unlink()
    sync_path(data)
    return mark


def require_replaceable(data: Path) -> None:
    """Raise MoveRefused for a folder with files that is not a data directory: an import removes all of them.

    Raises OSError.
    """
    found = sorted(each.name for each in data.iterdir() if each.name not in BEGUN) if data.is_dir() else []
    if found and not any((data / name).exists() for name in OF_GATEWAY):
        words = f"{data} is not a gateway's data directory, and has files which would be lost, such as {found[0]}"
        raise MoveRefused(words, "name the data directory as for `waypost run`, or an empty folder, with --data")


def give_up(data: Path, begin_epoch: Callable[[], object]) -> MoveMark:
    """Let a gateway that was moved run here again, under a new epoch. Raises MoveRefused, StoreError, OSError."""
    mark = _read_mark(data / MOVED_NAME)
    if mark is None:
        raise MoveRefused(f"the gateway of {data} was not moved", "nothing: it may run")
    begin_epoch()
    (data / MOVED_NAME).unlink()
    sync_path(data)
    return mark


# --- inside -----------------------------------------------------------------------------------------------------------


def _unpack(data: Path, source: Path) -> MoveMark:
    """Unpack and verify an archive inside of the directory, and mark that from here on it replaces the content."""
    place = data / UNPACKED
    _remove(place)
    try:
        head = unpack_archive(source, place)
    except BaseException:
        with contextlib.suppress(OSError):
            _remove(place)
        raise
    owner = _owner(data)
    if owner != (os.geteuid(), os.getegid()):
        for each in (place, *place.rglob("*")):
            os.chown(each, *owner, follow_symlinks=False)
    mark = MoveMark(id=head.id, gateway=head.gateway, entries=tuple(sorted(each.name for each in place.iterdir())))
    _write_mark(data, mark)
    return mark


def _write_mark(data: Path, mark: MoveMark) -> None:
    """Mark the directory as one that is being replaced, on disk on return. Raises OSError."""
    write_whole(data / ARRIVING_NAME, msgspec.json.encode(mark), mode=FILE_MODE, owner=_owner(data))


def _replace_entries(data: Path, mark: MoveMark) -> None:
    """Remove the former content and move in the unpacked one. Each step may be repeated: an entry that has left the
    folder has arrived."""
    place = data / UNPACKED
    arrived = {name for name in mark.entries if not (place / name).exists()}
    for each in sorted(data.iterdir()):
        if each.name not in STAYING and each.name not in arrived:
            _remove(each)
    for name in mark.entries:
        if name not in arrived:
            (place / name).rename(data / name)
    sync_path(data)
    _remove(place)


def _require_replaceable_file(target: Path, mark: MoveMark | None) -> None:
    """Raise MoveRefused for a file that is not an archive of this move. Raises OSError."""
    if not target.exists():
        return
    with contextlib.suppress(ArchiveDamaged):
        if mark is not None and read_head(target).id == mark.id:
            return
    raise MoveRefused(f"{target} exists, and is not a file of this move", "name another file, or remove it first")


def _owner(data: Path) -> tuple[int, int]:
    """Return user and group of a directory. Raises OSError."""
    found = data.stat()
    return found.st_uid, found.st_gid


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _read_mark(file: Path) -> MoveMark | None:
    """Return a mark; None without one. Raises MoveRefused, OSError."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=MoveMark)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as why:
        raise MoveRefused(f"{file} cannot be read: {why}", "the medium may be failing: see waypost doctor") from None
