"""Results where the person asked for them: there whole or not at all, and never over something else."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from images.errors import USAGE, ImageError
from images.steps import remove


def require_place(out: Path, *, holding: str | None = None) -> None:
    """Something can be made there, which is known before the minutes that takes. `holding`: a folder that takes the
    place of an earlier one, which is empty or has this file; None: files in a folder. Raises ImageError."""
    if holding is not None and out.exists() and not _replaceable(out, holding):
        raise ImageError(f"{out} is there, and is nothing this command made", hint="choose another place", code=USAGE)
    there = out.absolute() if holding is None else out.absolute().parent
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise ImageError(f"{there} is no folder", hint="choose another place", code=USAGE)
    if not os.access(there, os.W_OK | os.X_OK):
        raise ImageError(f"{there} cannot be written to", hint="choose another place", code=USAGE)


def _replaceable(out: Path, holding: str) -> bool:
    return out.is_dir() and (not any(out.iterdir()) or (out / holding).exists())


def copy_tree(made: Path, out: Path, *, holding: str) -> None:
    """Copy a folder to `out`, in the place of an earlier one: a folder that is empty or has a file `holding`.

    Raises ImageError where something else is.
    """
    require_place(out, holding=holding)
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
    """Copy a file into a folder, in the place of one of its name; where it is now. Raises ImageError."""
    return _put(folder / made.name, lambda fresh: shutil.copyfile(made, fresh))


def write_text(target: Path, text: str) -> Path:
    """Write a file in UTF-8; the file. Raises ImageError."""
    return _put(target, lambda fresh: fresh.write_text(text, encoding="utf-8"))


def _put(target: Path, write: Callable[[Path], object]) -> Path:
    """What `write` makes of a file beside it, in the place of an earlier one. Raises ImageError."""
    fresh = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write(fresh)
        fresh.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise ImageError(f"{target}: {error.strerror}") from None
    return target
