"""Compile the C code of Waypost when it is installed.

A result stands beside its source, in a checkout (an editable installation) as in a wheel, under a name with the
source's hash. An installation without a compiler fails. By hand: `python hatch_build.py`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = (
    Path("bridge", "batch_content.c"),
    Path("bridge", "engine", "loops.c"),
    Path("edge", "broker", "mqtt", "arrivals.c"),
    Path("edge", "broker", "mqtt", "departures.c"),
    Path("edge", "broker", "store", "loops.c"),
)
FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra")
COMPILER_S = 60
"""A compiler that takes longer for one of them does not work; it takes a fraction of a second."""


class CompileError(Exception):
    """Something could not be compiled; what the compiler said."""


def run(command: Sequence[str], seconds: int, folder: Path | None = None) -> None:
    """Raises CompileError with what it said."""
    try:
        done = subprocess.run(  # noqa: S603 - the compiler of whoever installs
            command, capture_output=True, text=True, timeout=seconds, check=False, cwd=folder
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(str(error)) from error
    if done.returncode != 0:
        raise CompileError((done.stderr + done.stdout).strip() or f"{command[0]} ended with {done.returncode}")


def compiler() -> list[str]:
    """What ``CC`` says, else ``cc``."""
    return shlex.split(os.environ.get("CC") or "cc")


# --- the inner loops -----------------------------------------------------------------------------------------------


def library_path(source: Path) -> Path:
    """As `bridge.libraries.library_path`, which looks for what this names (a test holds them together): what is not
    installed yet cannot be imported."""
    text = source.read_bytes()
    included = [source.parent / name.decode() for name in re.findall(rb'^#include "(.+)"$', text, re.MULTILINE)]
    digest = sha256(text + b"".join(path.read_bytes() for path in included))
    return source.with_name(f"_{source.stem}_{digest.hexdigest()[:16]}.so")


def compile_loops(root: Path, folder: Path | None = None) -> list[Path]:
    """Make the libraries that are not there, beside their sources or in `folder`, and remove those of older sources.

    Raises CompileError.
    """
    return [compile_source(root / source, folder) for source in SOURCES]


def compile_source(source: Path, folder: Path | None = None) -> Path:
    """As `compile_loops`, of one source."""
    try:
        library = library_path(source)
    except OSError as error:
        raise CompileError(str(error)) from error
    if folder is not None:
        library = folder / library.name
    if not library.exists():
        fresh = library.with_name(f"{library.name}.{os.getpid()}")  # a compiler that is interrupted leaves half a file
        try:
            run([*compiler(), *FLAGS, "-o", str(fresh), str(source)], COMPILER_S)
            fresh.replace(library)
        except OSError as error:
            raise CompileError(str(error)) from error
        finally:
            fresh.unlink(missing_ok=True)
    for old in library.parent.glob(f"_{source.stem}_*.so"):
        if old != library:
            old.unlink()
    return library


# --- installing ----------------------------------------------------------------------------------------------------


class LoopsHook(BuildHookInterface[Any]):
    """Called by hatchling for every wheel, editable ones among them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the loops. A wheel that holds them is one for this kind of machine. Raises CompileError."""
        root = Path(self.root)
        libraries = compile_loops(root)
        if version != "editable":
            build_data["artifacts"] += [f"/{library.relative_to(root).as_posix()}" for library in libraries]
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


if __name__ == "__main__":
    here = Path(__file__).parent
    try:
        sys.stdout.write("".join(f"{path}\n" for path in compile_loops(here)))
    except CompileError as failure:
        sys.exit(f"hatch_build: {failure}")
