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
from images.frozen import cross
from images.package import deb
from images.programs import require
from images.rootfs import building as rootfs
from images.steps import Steps

PROGRAMS = (*rootfs.PROGRAMS, *cross.PROGRAMS, *deb.PROGRAMS, *disk.SYSTEM_PROGRAMS)
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
    keys = _check_prerequisites(cache, pair, disk.PROGRAMS)
    archive, package = _build_parts(steps, mirror, fresh=fresh)
    return disk.build(steps, board, archive=archive, package=package, keys=keys)


def build_bundle(
    steps: Steps, cache: Path, mirror: Mirror, pair: tuple[Path | None, Path | None], *, fresh: bool = False
) -> bundle.Bundle:
    """The file of an update, for all boards. Raises ImageError."""
    keys = _check_prerequisites(cache, pair, bundle.PROGRAMS)
    archive, package = _build_parts(steps, mirror, fresh=fresh)
    made = disk.build_system(steps, archive=archive, package=package, keys=keys)
    return bundle.build(steps, made, keys)


def _check_prerequisites(
    cache: Path, pair: tuple[Path | None, Path | None], programs: tuple[str, ...]
) -> signing.SigningKeys:
    """What it is signed with. All that can be lacking is said before the first of many minutes. Raises ImageError."""
    if os.geteuid() != 0:
        raise ImageError(
            "an image holds files of several owners, which takes root", hint="sudo waypost image …", code=USAGE
        )
    source.require_checkout()
    require(*dict.fromkeys((*PROGRAMS, *programs)))
    cross.require_emulation()
    return signing.load_keys(cache, *pair)


def _build_parts(steps: Steps, mirror: Mirror, *, fresh: bool) -> tuple[Path, Path]:
    """Debian's part of a root, and the gateway's package."""
    with ThreadPoolExecutor(2) as pool:  # each is emulated for minutes on one processor
        archive = pool.submit(rootfs.build_base, steps, mirror, fresh=fresh)
        frozen = pool.submit(cross.freeze, steps, mirror, fresh=fresh)
        package = deb.build_package(steps, frozen.result(), "aarch64")
        return archive.result(), package
