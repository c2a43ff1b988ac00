"""ext4 file systems that are the same bytes whenever they are made from the same tree."""

from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path
from typing import Final

from images.programs import run

BLOCK: Final = 4096
NAMESPACE: Final = uuid.UUID("6f0f6f6e-9a0a-5d2e-8a7c-5d5c9b6a6b1e")
"""Namespace of the UUIDs of our file systems."""
FEATURES: Final = "^has_journal,^orphan_file,^metadata_csum_seed"
"""Features of a root, which is never written to and has no journal; older programs can read it."""


def make(target: Path, tree: Path, *, mebibytes: int, label: str, date: int, journal: bool, log: Path) -> None:
    """Make a file system with the content of `tree`. Raises ImageError.

    Every time in it is `date` or older. `journal`: the file system will be written to.
    """
    identity = uuid.uuid5(NAMESPACE, label)
    features = "^orphan_file,^metadata_csum_seed" if journal else FEATURES
    options = ("-q", "-F", "-b", str(BLOCK), "-L", label, "-U", str(identity), "-O", features)
    # Reserved blocks: when users have filled the disk, root can still write settings and the record of an update.
    reserved = ("-m", "1" if journal else "0")
    extended = f"hash_seed={uuid.uuid5(identity, 'hash')},lazy_itable_init=0,root_owner=0:0"
    environment = {"E2FSPROGS_FAKE_TIME": str(date), "SOURCE_DATE_EPOCH": str(date)}
    run(
        "mke2fs",
        *options,
        *reserved,
        "-t",
        "ext4",
        "-E",
        extended,
        "-d",
        tree,
        target,
        f"{mebibytes}M",
        log=log,
        environment=environment,
    )
    _set_inode_dates(target, tree, date, log)


def _set_inode_dates(target: Path, tree: Path, date: int, log: Path) -> None:
    """Set the dates of all inodes: mke2fs copies change and access times of `tree`, which are those of this build."""
    commands = []
    for path in (tree, *sorted(tree.rglob("*"))):
        name = "/" + path.relative_to(tree).as_posix() if path != tree else "/"
        for field in ("ctime", "atime", "crtime"):
            commands += [f'set_inode_field "{name}" {field} @{date}', f'set_inode_field "{name}" {field}_extra 0']
        changed = min(int(path.lstat().st_mtime), date)
        commands += [f'set_inode_field "{name}" mtime @{changed}', f'set_inode_field "{name}" mtime_extra 0']
    environment = {"E2FSPROGS_FAKE_TIME": str(date), "DEBUGFS_PAGER": "cat"}
    file = target.with_name(f"{target.name}.debugfs")
    file.write_text("\n".join(commands) + "\n")
    run("debugfs", "-w", "-f", file, target, log=Path(os.devnull), environment=environment)
    file.unlink()


def compute_sha256(file: Path) -> str:
    """Return the SHA-256 of a file."""
    found = hashlib.sha256()
    with file.open("rb") as source:
        while piece := source.read(1 << 20):
            found.update(piece)
    return found.hexdigest()
