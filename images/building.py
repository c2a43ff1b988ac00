"""From a checkout to the image of a card: every step in its order."""

from __future__ import annotations

import os
from pathlib import Path

from images.debian import Mirror
from images.disk import building as disk
from images.disk import signing
from images.errors import USAGE, ImageError
from images.frozen import foreign
from images.package import deb
from images.rootfs import building as rootfs
from images.steps import Steps


def build_image(
    steps: Steps,
    cache: Path,
    board: str,
    mirror: str | None,
    pair: tuple[Path | None, Path | None],
    *,
    fresh: bool = False,
) -> Path:
    """The folder with all of an image; `pair`: key and certificate to sign with, or neither. Raises ImageError."""
    if os.geteuid() != 0:
        raise ImageError(
            "an image holds files of several owners, which takes root", hint="sudo waypost image build …", code=USAGE
        )
    packages = Mirror(mirror)
    archive = rootfs.base(steps, packages, fresh=fresh)
    package = deb.package(steps, foreign.freeze(steps, packages), "aarch64")
    keys = signing.keys(cache, *pair)
    return disk.build(steps, board, archive=archive, package=package, keys=keys)
