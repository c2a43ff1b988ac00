"""What a container is built from: a folder with a Dockerfile, which balena, Docker and buildah take."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from packaging.markers import default_environment

from images import source
from images.frozen import freezing
from images.frozen.locked import DISTRIBUTION, entries, needed
from images.programs import run
from images.steps import Steps

HERE: Final = Path(__file__).parent
GATEWAY: Final = HERE / "gateway"
HUB: Final = HERE / "hub"
EXTRAS: Final = "cloud,postgresql"
"""Of the project, what a hub needs."""


def gateway(steps: Steps, packages: Mapping[str, Path]) -> Path:
    """The folder of a gateway with its Debian packages, by their architecture. Raises ImageError."""
    made = steps.result(
        "container-gateway",
        f"container of a gateway ({', '.join(sorted(packages))})",
        [GATEWAY, *sorted(path.parent.name for path in packages.values())],
        lambda folder, _: _lay_out_gateway(folder, packages),
    )
    return made / "context"


def _lay_out_gateway(folder: Path, packages: Mapping[str, Path]) -> None:
    context = folder / "context"
    shutil.copytree(GATEWAY, context)
    (context / "packages").mkdir()
    for path in packages.values():
        shutil.copy(path, context / "packages")


def hub(steps: Steps) -> Path:
    """The folder of a hub with its Python packages, for this kind of machine. Raises ImageError."""
    source.require_checkout()
    wanted = needed(f"{DISTRIBUTION}[{EXTRAS}]", {name: str(value) for name, value in default_environment().items()})
    lock = entries(source.LOCK.read_text(), wanted)
    wheels = steps.result(
        "wheels-hub", "Python packages of a hub", [lock, sys.version], lambda folder, log: _gather(folder, lock, log)
    )
    ours = [*(source.ROOT / package for package in ("bridge", "edge", "cloud")), source.ROOT / "pyproject.toml"]
    made = steps.result(
        "container-hub",
        "container of a hub",
        [HUB, wheels.name, *ours, source.ROOT / "hatch_build.py"],
        lambda folder, log: _lay_out_hub(folder, wheels, log),
    )
    return made / "context"


def _pip(*arguments: str | Path) -> tuple[str | Path, ...]:
    return (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "wheel", "--no-deps", *arguments)


def _gather(folder: Path, lock: str, log: Path) -> None:
    (folder / "lock").write_text(lock)
    options = ("--no-build-isolation", "--require-hashes", "-r", folder / "lock")
    run(*_pip("--wheel-dir", folder / "wheels", *options), log=log, environment=_environment())


def _lay_out_hub(folder: Path, wheels: Path, log: Path) -> None:
    context = folder / "context"
    shutil.copytree(HUB, context)
    shutil.copytree(wheels / "wheels", context / "wheels")
    run(
        *_pip("--no-build-isolation", "--wheel-dir", context / "wheels", source.ROOT),
        log=log,
        environment=_environment(),
    )


def _environment() -> dict[str, str]:
    return {"SOURCE_DATE_EPOCH": str(freezing.DATE)}
