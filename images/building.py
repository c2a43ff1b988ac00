"""Build the image of a card from a checkout: all steps, in order."""

from __future__ import annotations

import os
from collections.abc import Sequence
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
from images.steps import BuildSteps

PROGRAMS = (*rootfs.PROGRAMS, *cross.PROGRAMS, *deb.PROGRAMS, *disk.SYSTEM_PROGRAMS)
"""Programs that the parts of every system need."""


def build_image(
    steps: BuildSteps,
    cache: Path,
    board: str,
    mirror: Mirror,
    pair: tuple[Path | None, Path | None],
    *,
    trusted: Sequence[Path] = (),
    fresh: bool = False,
) -> Path:
    """Return the folder with an image and its files. Raises ImageError.

    `pair`: key and certificate to sign with, or neither. `trusted`: certificates of other keys that gateways accept.
    """
    keys = _check_prerequisites(cache, pair, disk.PROGRAMS, trusted)
    archive, package = _build_parts(steps, mirror, fresh=fresh)
    return disk.build(steps, board, archive=archive, package=package, keys=keys)


def build_bundle(
    steps: BuildSteps,
    cache: Path,
    mirror: Mirror,
    pair: tuple[Path | None, Path | None],
    *,
    trusted: Sequence[Path] = (),
    fresh: bool = False,
) -> bundle.UpdateBundle:
    """Return the update bundle for all boards. Raises ImageError."""
    keys = _check_prerequisites(cache, pair, bundle.PROGRAMS, trusted)
    archive, package = _build_parts(steps, mirror, fresh=fresh)
    made = disk.build_system(steps, archive=archive, package=package, keys=keys)
    return bundle.build(steps, made, keys)


def _check_prerequisites(
    cache: Path, pair: tuple[Path | None, Path | None], programs: tuple[str, ...], trusted: Sequence[Path]
) -> signing.SigningKeys:
    """Return the signing keys, after all checks: a missing program is reported before the first long step.

    Raises ImageError.
    """
    if os.geteuid() != 0:
        raise ImageError(
            "an image holds files of several owners, which requires root", hint="sudo waypost image …", code=USAGE
        )
    source.require_checkout()
    require(*dict.fromkeys((*PROGRAMS, *programs)))
    cross.require_emulation()
    return signing.load_keys(cache, *pair, trusted)


def _build_parts(steps: BuildSteps, mirror: Mirror, *, fresh: bool) -> tuple[Path, Path]:
    """Return the archive of Debian's part of a root file system, and the gateway's package."""
    with ThreadPoolExecutor(2) as pool:  # each is emulated on one processor for minutes
        archive = pool.submit(rootfs.build_base, steps, mirror, fresh=fresh)
        frozen = pool.submit(cross.freeze, steps, mirror, fresh=fresh)
        package = deb.build_package(steps, frozen.result(), "aarch64")
        return archive.result(), package
