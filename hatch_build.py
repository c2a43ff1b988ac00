"""Compile the C extension of Waypost, `bridge._native`, when it is installed.

It stands in the package, in a checkout (an editable installation) as in a wheel. It uses the limited API of Python
3.11, so a wheel serves every later Python. An installation without a compiler fails. By hand: `python hatch_build.py`.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

EXTENSION = Path("bridge", "_native.abi3.so")
SOURCES = (
    "bridge/native.h",
    "bridge/native.c",
    "bridge/batch_content.c",
    "bridge/engine/loops.c",
    "bridge/transport/sockets.c",
    "edge/broker/mqtt/arrivals.c",
    "edge/broker/mqtt/departures.c",
    "edge/broker/store/loops.c",
)
FLAGS = (
    "-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-DPy_LIMITED_API=0x030B0000",
)  # fmt: skip
COMPILER_S = 300
"""A compiler that takes longer does not work; it takes some seconds on a Raspberry Pi."""
HEADERS_STEP = "install the headers of Python: apt-get install python3-dev"


class CompileError(Exception):
    """The extension cannot be compiled. The message is the compiler's."""


def run(command: Sequence[str], seconds: int) -> None:
    """Run a command. Raises CompileError with its output."""
    try:
        done = subprocess.run(  # noqa: S603 - the compiler of the machine that installs
            command, capture_output=True, text=True, timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(str(error)) from error
    if done.returncode != 0:
        why = (done.stderr + done.stdout).strip() or f"{command[0]} ended with {done.returncode}"
        raise CompileError(f"{why}\n{HEADERS_STEP}" if "Python.h: No such file" in why else why)


def digest_of(root: Path) -> str:
    """Return the digest that `bridge.native` compares with, of the sources below `root`."""
    digest = sha256()
    for name in SOURCES:
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


def compile_extension(root: Path) -> Path:
    """Compile the extension unless it is there and of these sources. Raises CompileError.

    ``CC`` is the compiler and its options; without it ``cc`` compiles.
    """
    extension = root / EXTENSION
    fresh = extension.with_name(f"{extension.name}.{os.getpid()}")  # a compiler that is interrupted leaves half a file
    try:
        digest = digest_of(root)
        if extension.exists() and digest.encode() in extension.read_bytes():
            return extension
        told = (f'-DWAYPOST_SOURCES="{" ".join(SOURCES)}"', f'-DWAYPOST_DIGEST="{digest}"')
        files = [str(root / name) for name in SOURCES if name.endswith(".c")]
        compiler = shlex.split(os.environ.get("CC") or "cc")
        run([*compiler, *FLAGS, f"-I{sysconfig.get_path('include')}", *told, "-o", str(fresh), *files], COMPILER_S)
        fresh.replace(extension)
    except OSError as error:
        raise CompileError(str(error)) from error
    finally:
        fresh.unlink(missing_ok=True)
    return extension


def platform_tag() -> str:
    """Return the tag of this kind of machine: what is compiled here is not checked for others of its kind."""
    return next(tag for tag in platform_tags() if not tag.startswith(("manylinux", "musllinux")))


class ExtensionHook(BuildHookInterface[Any]):
    """Called by hatchling for every wheel, editable ones among them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile. A wheel that holds the extension is one for this kind of machine. Raises CompileError."""
        compile_extension(Path(self.root))
        if version != "editable":
            build_data["artifacts"].append(f"/{EXTENSION.as_posix()}")
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{platform_tag()}"


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{compile_extension(Path(__file__).parent)}\n")
    except CompileError as failure:
        sys.exit(f"hatch_build: {failure}")
