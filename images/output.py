"""Write results to the place that the user named: whole or not at all, and never over something else."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from images.errors import USAGE, ImageError
from images.steps import remove


def check_target(out: Path, *, holding: str | None = None) -> None:
    """Raise ImageError if nothing can be written there, before long steps begin.

    `holding`: the target is a folder that replaces an earlier one, which is empty or has this file; None: the target is
    a folder for files.
    """
    if holding is not None and out.exists() and not _is_replaceable(out, holding):
        raise ImageError(f"{out} exists and was not made by this command", hint="choose another place", code=USAGE)
    parent = out.absolute() if holding is None else out.absolute().parent
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir():
        raise ImageError(f"{parent} is not a folder", hint="choose another place", code=USAGE)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ImageError(f"{parent} is not writable", hint="choose another place", code=USAGE)


def _is_replaceable(out: Path, holding: str) -> bool:
    return out.is_dir() and (not any(out.iterdir()) or (out / holding).exists())


def copy_tree(made: Path, out: Path, *, holding: str) -> None:
    """Copy a folder to `out`, replacing an earlier one: a folder that is empty or has the file `holding`.

    Raises ImageError if something else is there.
    """
    check_target(out, holding=holding)
    fresh = out.with_name(f"{out.name}.part")
    try:
        remove(fresh)
        fresh.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(made, fresh, symlinks=True)
        remove(out)
        fresh.rename(out)
    except OSError as error:
        with contextlib.suppress(OSError):
            remove(fresh)
        raise ImageError(f"{error.filename or out}: {error.strerror}") from None


def copy_file(made: Path, folder: Path) -> Path:
    """Copy a file into a folder, replacing one of the same name, and return its path. Raises ImageError."""
    return _write_new(folder / made.name, lambda fresh: shutil.copyfile(made, fresh))


def write_text(target: Path, text: str) -> Path:
    """Write a file in UTF-8 and return it. Raises ImageError."""
    return _write_new(target, lambda fresh: fresh.write_text(text, encoding="utf-8"))


def _write_new(target: Path, write: Callable[[Path], object]) -> Path:
    """Write a new file next to the target and rename it to the target. Raises ImageError.

    Both are on the disk then, as the folder may be on a stick that is removed next.
    """
    fresh = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write(fresh)
        _sync(fresh)
        fresh.replace(target)
        _sync(target.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise ImageError(f"{target}: {error.strerror}") from None
    return target


def _sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
