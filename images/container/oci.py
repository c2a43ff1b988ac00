"""An OCI image out of a folder with a Dockerfile: by buildah, without a daemon, on a base that Debian's packages make.

No registry is asked: where there is one, `docker build` takes the same folder, on the base its Dockerfile names.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from images import source
from images.debian import SUITE, Mirror
from images.errors import USAGE, ImageError
from images.frozen.foreign import require_emulation
from images.programs import require, run
from images.steps import Steps

BASE: Final = "localhost/waypost-base"
_PYTHON: Final = ("ca-certificates", "libssl3", "libstdc++6", "python3", "python3-venv", "tzdata")
PACKAGES: Final = {
    "gateway": ("ca-certificates", "tzdata"),
    "hub": _PYTHON,
    # Spark's scripts look for processes.
    "analytics": (*_PYTHON, "procps"),
}
"""Of Debian: what a program that brings its Python asks for, and what one that does not."""


def ready(architectures: Sequence[str]) -> None:
    """All that can be lacking is said before the first of many minutes. Raises ImageError."""
    if os.geteuid() != 0:
        raise ImageError("a container's files have several owners, which takes root", hint="use sudo", code=USAGE)
    require("buildah", "mmdebstrap")
    if "arm64" in architectures and os.uname().machine != "aarch64":
        require_emulation()


def base(steps: Steps, mirror: Mirror, architecture: str, packages: Sequence[str], *, fresh: bool = False) -> Path:
    """The archive of a small Debian with these packages. Needs root. Raises ImageError."""
    made = steps.result(
        f"container-base-{architecture}",
        f"Debian {SUITE} for containers ({architecture})",
        [SUITE, *packages, *mirror.named],
        lambda folder, log: mirror.small(folder / "base.tar", architecture, packages, log=log),
        again=fresh,
    )
    return made / "base.tar"


def build(context: Path, archive: Path, architecture: str, name: str, out: Path, log: Path) -> None:
    """Make `out`, an OCI archive that calls the image `name`, of a folder and a base. Raises ImageError."""
    kind = ("--arch", architecture)
    with tempfile.TemporaryDirectory(prefix="waypost-container-") as folder:
        buildah = ("buildah", "--root", f"{folder}/storage", "--runroot", f"{folder}/run", "--storage-driver", "vfs")
        run(*buildah, "from", *kind, "--name", "base", "scratch", log=log)
        run(*buildah, "add", "--quiet", "base", archive, "/", log=log)
        run(*buildah, "commit", "--quiet", "--rm", "base", BASE, log=log)
        options = (*kind, "--isolation", "chroot", "--format", "oci", "--pull-never", "--build-arg", f"BASE={BASE}")
        stamp = ("--timestamp", str(source.date()))
        run(*buildah, "build", *options, *stamp, "--tag", name, context, log=log)
        fresh = out.with_name(f"{out.name}.part")
        fresh.unlink(missing_ok=True)  # buildah adds to an archive that is there
        run(*buildah, "push", "--quiet", name, f"oci-archive:{fresh}:{name}", log=log)
        fresh.replace(out)
