"""Examples for devices in Go and Rust, built once for tests.

`python -m tests.support.built_examples` builds them into the environment, with `go` and `cargo` and the libraries of
their versions. A program belongs to its sources: after a change of one it has to be built again.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.checkout import ROOT

FOLDER: Final = Path(os.environ.get("WAYPOST_BUILT_EXAMPLES", Path(sys.prefix) / "share" / "waypost" / "examples"))
"""Place of the programs."""
PROGRAM: Final = "waypost-device"
SOURCES: Final = {
    "go": ("*.go", "go.mod", "go.sum"),
    "rust": ("Cargo.toml", "src/*.rs"),
}
BUILD_S_MAX: Final = 900.0
"""Timeout of a build: Rust's takes two minutes of processor time."""


@functools.cache
def built_program(name: str) -> Path:
    """Return the place of the program for the present sources; it may be missing."""
    folder, digest = ROOT / "firmware_examples" / name, hashlib.sha256()
    for pattern in SOURCES[name]:
        for file in sorted(folder.glob(pattern)):
            digest.update(f"{file.name} {file.stat().st_size}\n".encode() + file.read_bytes())
    return FOLDER / f"{name}-{digest.hexdigest()[:16]}" / PROGRAM


def build(name: str) -> int:
    """Build a program; return the exit code, 127 without its tool."""
    source, made = ROOT / "firmware_examples" / name, built_program(name)
    if made.exists():
        return 0
    work = made.parent.with_suffix(".work")
    work.mkdir(parents=True, exist_ok=True)
    if name == "go":
        output = work / PROGRAM
        code = build_go(source, output)
    else:
        output = build_rust(source)
        code = 0
    if code == 0:
        made.parent.mkdir(exist_ok=True)
        shutil.copy(output, made)
    shutil.rmtree(work)
    return code


def build_rust(source: Path) -> Path:
    """Build the Rust example of a folder, with the libraries that are built; return the program."""
    work = FOLDER / "rust-libraries"
    if _run(("cargo", "build", "--target-dir", str(work)), source, {}) != 0:
        raise AssertionError("the example in Rust does not build")
    return work / "debug" / PROGRAM


def build_go(source: Path, output: Path) -> int:
    """Build the Go example of a folder; return the exit code, 127 without its tool."""
    return _run(("go", "build", "-o", str(output)), source, {"GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"})


def _run(command: tuple[str, ...], folder: Path, variables: Mapping[str, str]) -> int:
    if shutil.which(command[0]) is None:
        sys.stderr.write(f"{command[0]} is not installed\n")
        return 127
    try:
        return subprocess.run(
            command, cwd=folder, env={**os.environ, **variables}, check=False, timeout=BUILD_S_MAX
        ).returncode
    except subprocess.TimeoutExpired:
        return 1


if __name__ == "__main__":
    sys.exit(max(build(name) for name in SOURCES))
