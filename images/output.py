"""Results where the person asked for them: there whole or not at all, and never over something else."""

from __future__ import annotations

import shutil
from pathlib import Path

from images.errors import USAGE, ImageError
from images.steps import remove


def copy_tree(made: Path, out: Path, *, holding: str) -> None:
    """Copy a folder to `out`, in the place of an earlier one: a folder that is empty or has a file `holding`.

    Raises ImageError where something else is.
    """
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / holding).exists())):
        raise ImageError(f"{out} is there, and is nothing this command made", hint="choose another place", code=USAGE)
    fresh = out.with_name(f"{out.name}.part")
    try:
        remove(fresh)
        fresh.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(made, fresh, symlinks=True)
        remove(out)
        fresh.rename(out)
    except OSError as error:
        raise ImageError(f"{error.filename or out}: {error.strerror}") from None


def copy_file(made: Path, folder: Path) -> Path:
    """Copy a file into a folder, in the place of one of its name; where it is now. Raises ImageError."""
    target = folder / made.name
    fresh = target.with_name(f"{target.name}.part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made, fresh)
        fresh.replace(target)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise ImageError(f"{error.filename or target}: {error.strerror}") from None
    return target
