"""From a checkout to the image of a card: every step in its order."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from images import source
from images.debian import Mirror
from images.disk import building as disk
from images.disk import bundle, signing
from images.errors import USAGE, ImageError
from images.frozen import foreign
from images.package import deb
from images.programs import require
from images.rootfs import building as rootfs
from images.steps import Steps

PROGRAMS = (*rootfs.PROGRAMS, *foreign.PROGRAMS, *deb.PROGRAMS, *disk.SYSTEM_PROGRAMS)
"""Of every system's parts."""


def build_image(
    steps: Steps,
    cache: Path,
    board: str,
    mirror: Mirror,
    pair: tuple[Path | None, Path | None],
    *,
    fresh: bool = False,
) -> Path:
    """The folder with all of an image; `pair`: key and certificate to sign with, or neither. Raises ImageError."""
    keys = _ready(cache, pair, disk.PROGRAMS)
    archive, package = _parts(steps, mirror, fresh=fresh)
    return disk.build(steps, board, archive=archive, package=package, keys=keys)


def build_bundle(
    steps: Steps, cache: Path, mirror: Mirror, pair: tuple[Path | None, Path | None], *, fresh: bool = False
) -> bundle.Bundle:
    """The file of an update, for all boards. Raises ImageError."""
    keys = _ready(cache, pair, bundle.PROGRAMS)
    archive, package = _parts(steps, mirror, fresh=fresh)
    made = disk.system(steps, archive=archive, package=package, keys=keys)
    return bundle.build(steps, made, keys)


def _ready(cache: Path, pair: tuple[Path | None, Path | None], programs: tuple[str, ...]) -> signing.Keys:
    """What it is signed with. All that can be lacking is said before the first of many minutes. Raises ImageError."""
    if os.geteuid() != 0:
        raise ImageError(
            "an image holds files of several owners, which takes root", hint="sudo waypost image …", code=USAGE
        )
    source.require_checkout()
    require(*dict.fromkeys((*PROGRAMS, *programs)))
    foreign.require_emulation()
    return signing.keys(cache, *pair)


def _parts(steps: Steps, mirror: Mirror, *, fresh: bool) -> tuple[Path, Path]:
    """Debian's part of a root, and the gateway's package."""
    with ThreadPoolExecutor(2) as beside:  # each is emulated for minutes on one processor
        archive = beside.submit(rootfs.base, steps, mirror, fresh=fresh)
        frozen = beside.submit(foreign.freeze, steps, mirror, fresh=fresh)
        package = deb.package(steps, frozen.result(), "aarch64")
        return archive.result(), package
