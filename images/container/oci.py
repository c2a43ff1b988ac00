"""Build an OCI image from a folder with a Dockerfile: by buildah, without a daemon, on a base of Debian packages.

No registry is needed. Where one is available, `docker build` takes the same folder on the base that its Dockerfile
names.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from images import source
from images.debian import Mirror
from images.errors import USAGE, ImageError
from images.frozen.cross import require_emulation
from images.programs import require, run
from images.steps import BuildSteps

BASE: Final = "localhost/waypost-base"
_PYTHON: Final = ("ca-certificates", "libssl3", "libstdc++6", "python3", "python3-venv", "tzdata")
PACKAGES: Final = {
    "gateway": ("ca-certificates", "tzdata"),
    "hub": _PYTHON,
    # Spark's scripts look for processes with ps.
    "analytics": (*_PYTHON, "procps"),
}
"""Debian packages for a program that ships its own Python, and for one that does not."""


def check_prerequisites(architectures: Sequence[str]) -> None:
    """Raise ImageError if something is missing, before the first long step."""
    if os.geteuid() != 0:
        raise ImageError(
            "the files of a container have several owners, which requires root", hint="use sudo", code=USAGE
        )
    require("buildah", "mmdebstrap")
    if "arm64" in architectures and os.uname().machine != "aarch64":
        require_emulation()


def build_base(
    steps: BuildSteps, mirror: Mirror, architecture: str, packages: Sequence[str], *, fresh: bool = False
) -> Path:
    """Return the archive of a small Debian with these packages. Needs root. Raises ImageError."""
    made = steps.result(
        f"container-base-{architecture}",
        f"Debian {mirror.release.suite} for containers ({architecture})",
        [*packages, *mirror.cache_inputs],
        lambda folder, log: mirror.install_small(folder / "base.tar", architecture, packages, log=log),
        again=fresh,
    )
    return made / "base.tar"


def build(context: Path, archive: Path, architecture: str, name: str, out: Path, log: Path) -> None:
    """Build `out`, an OCI archive with the image `name`, from a folder and a base. Raises ImageError."""
    kind = ("--arch", architecture)
    with tempfile.TemporaryDirectory(prefix="waypost-container-") as folder:
        buildah = ("buildah", "--root", f"{folder}/storage", "--runroot", f"{folder}/run", "--storage-driver", "vfs")
        run(*buildah, "from", *kind, "--name", "base", "scratch", log=log)
        run(*buildah, "add", "--quiet", "base", archive, "/", log=log)
        run(*buildah, "commit", "--quiet", "--rm", "base", BASE, log=log)
        options = (*kind, "--isolation", "chroot", "--format", "oci", "--pull-never", "--build-arg", f"BASE={BASE}")
        stamp = ("--timestamp", str(source.build_date()))
        run(*buildah, "build", *options, *stamp, "--tag", name, context, log=log)
        fresh = out.with_name(f"{out.name}.part")
        fresh.unlink(missing_ok=True)  # buildah appends to an existing archive
        run(*buildah, "push", "--quiet", name, f"oci-archive:{fresh}:{name}", log=log)
        fresh.replace(out)
