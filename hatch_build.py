"""What installing Waypost makes beside copying it: the AMQP engine's inner loops, compiled.

The result stands beside its source, in a checkout (an editable installation) as in a wheel, under a name with the
source's hash. Without a compiler the installation succeeds all the same: the loops then run in Python, and the log and
`waypost doctor` say so. By hand: `python hatch_build.py`.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("bridge", "engine", "loops.c")
FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra")
COMPILER_S = 60
"""A compiler that takes longer does not work; this file takes a fraction of a second."""


class CompileError(Exception):
    """The loops could not be compiled; what the compiler said."""


def library_path(root: Path) -> Path:
    """See `bridge.engine.compiled.library_path`, which looks for what this names (a test holds them together)."""
    source = root / SOURCE
    return source.with_name(f"_loops_{sha256(source.read_bytes()).hexdigest()[:16]}.so")


def compile_loops(root: Path, folder: Path | None = None) -> Path:
    """Make the library unless it is there, beside its source or in `folder`, and remove those of older sources.

    The compiler is what ``CC`` says, else ``cc``. Raises CompileError.
    """
    library = library_path(root)
    if folder is not None:
        library = folder / library.name
    if not library.exists():
        fresh = library.with_name(f"{library.name}.{os.getpid()}")  # a compiler that is interrupted leaves half a file
        command = [*shlex.split(os.environ.get("CC") or "cc"), *FLAGS]
        try:
            done = subprocess.run(  # noqa: S603 - the compiler of whoever installs
                [*command, "-o", str(fresh), str(root / SOURCE)],
                capture_output=True,
                text=True,
                timeout=COMPILER_S,
                check=False,
            )
            if done.returncode != 0:
                raise CompileError(done.stderr.strip() or f"{command[0]} ended with {done.returncode}")
            fresh.replace(library)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileError(str(error)) from error
        finally:
            fresh.unlink(missing_ok=True)
    for old in library.parent.glob("_loops_*.so"):
        if old != library:
            old.unlink()
    return library


class LoopsHook(BuildHookInterface[Any]):
    """Called by hatchling for every wheel, editable ones among them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; a wheel that holds the result is one for this kind of machine."""
        try:
            library = compile_loops(Path(self.root))
        except CompileError as error:
            self.app.display_warning(f"the AMQP engine's inner loops will run in Python, at half the speed: {error}")
            return
        if version != "editable":
            build_data["artifacts"].append(f"/{library.relative_to(self.root).as_posix()}")
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{compile_loops(Path(__file__).parent)}\n")
    except CompileError as failure:
        sys.exit(f"hatch_build: {failure}")
