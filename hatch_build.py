"""What installing Waypost makes beside copying it: the inner loops of AMQP and MQTT, compiled.

A result stands beside its source, in a checkout (an editable installation) as in a wheel, under a name with the
source's hash. Without a compiler the installation succeeds all the same: the loops then run in Python, and the log and
`waypost doctor` say so. By hand: `python hatch_build.py`. The hot modules (`bridge/native.py`) are compiled too by
`python hatch_build.py native`, which is a step of set-up; pip, which has no mypy where it builds, leaves them out, and
wheels that are built where mypy is carry them.
"""

from __future__ import annotations

import ast
import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
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

RECORD = Path("bridge", "_native.json")
"""See `bridge.native`, which reads it."""
NATIVE_FLAGS = (
    "-O2", "-fPIC", "-w", "-DNDEBUG",
    "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections", "-fno-asynchronous-unwind-tables",
)  # fmt: skip
"""An idle gateway has the library in memory whole: what nobody outside of it calls needs no name, what nobody calls at
all is left out when it is linked, and tables for unwinding are for languages that raise through C."""
NATIVE_LINK_FLAGS = ("-shared", "-Wl,--gc-sections")
NATIVE_S = 1800
"""For all of it: a Raspberry Pi takes some minutes for the modules."""
COMPILER_BYTES = 150_000_000
"""Memory a compiler takes for one of them: 105 MB for the largest (mypyc before them: 270 MB)."""
WHY_MAX = 300
"""Characters of what a compiler said that are recorded."""
LIMITS = "limits.py"
"""Bounds are looked up when the code runs, as in Python: mypyc would write their values into the code."""

TRANSLATE = """
import json, sys
from mypyc.build import include_dir, mypyc_build
from mypyc.common import RUNTIME_C_FILES
from mypyc.options import CompilerOptions

folder, *sources = sys.argv[1:]
options = CompilerOptions(multi_file=True, target_dir=folder, group_name="waypost")
(_,), ((files, _),), more = mypyc_build(["--config-file", f"{folder}/mypy.ini", *sources], options)
here, runtime = include_dir(), [*RUNTIME_C_FILES, *(each.path for each in more)]
with open(f"{folder}/files.json", "w") as out:
    json.dump([here, [*files, *(f"{here}/{name}" for name in runtime)]], out)
"""
"""Runs mypyc, which keeps what it read for as long as its process lives, and ends it for each fault it finds."""

MYPY = """
[mypy]
ignore_missing_imports = true
[mypy-cproton.*]
follow_imports = skip
[mypy-*.limits]
follow_imports = skip
"""


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


# --- the hot modules -----------------------------------------------------------------------------------------------


def native_modules(root: Path) -> list[str]:
    """The modules to compile, by name."""
    names: list[str] = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["waypost"]["native"]
    return names


def native_sources(root: Path, modules: Sequence[str]) -> list[str]:
    """Paths of the modules and of those of ours they import, near and far: types and constants of these go into the
    code. What nobody would notice a change of is left out (`LIMITS`)."""
    found: set[str] = set()
    waiting = [f"{name.replace('.', '/')}.py" for name in modules]
    while waiting:
        path = waiting.pop()
        if path in found or path.endswith(LIMITS):
            continue
        found.add(path)
        for name in _imported(ast.parse((root / path).read_text())):
            place = name.replace(".", "/")
            waiting += [each for each in (f"{place}.py", f"{place}/__init__.py") if (root / each).is_file()]
    return sorted(found)


def _imported(tree: ast.Module) -> Iterator[str]:
    """Names that may be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def native_record(root: Path, suffix: str) -> dict[str, Any]:
    """What the library is to be made of. Raises CompileError when there is no mypyc."""
    try:
        mypyc = version("mypy")
    except PackageNotFoundError:
        raise CompileError("mypy is not installed") from None
    modules = native_modules(root)
    sources = {path: sha256((root / path).read_bytes()).hexdigest() for path in native_sources(root, modules)}
    made_of = {"python": suffix, "mypyc": mypyc, "modules": modules, "sources": sources}
    recipe = json.dumps([made_of, NATIVE_FLAGS, NATIVE_LINK_FLAGS, TRANSLATE, MYPY])
    return {"library": f"_native_{sha256(recipe.encode()).hexdigest()[:16]}{suffix}", **made_of}


def compile_native(root: Path, suffix: str = EXTENSION_SUFFIXES[0]) -> list[Path]:
    """Make the library of the hot modules unless it is there; its record and itself. Who imports meanwhile finds what
    was there before: the record comes last. Another suffix is that of this Python on another kind of machine, which
    ``CC`` compiles for. Raises CompileError; where it is the compiler's, the record says why."""
    root = root.resolve()
    record = root / RECORD
    with _alone(record.parent):
        said = native_record(root, suffix)
        library = record.with_name(said["library"])
        if not library.exists():
            try:
                _make(library, root, said)
            except CompileError as error:
                _write(record, {"why": str(error)[:WHY_MAX], **said})
                raise
            if native_record(root, suffix) != said:
                library.unlink()
                raise CompileError("sources changed while they were compiled")
        _write(record, said)
        for old in record.parent.glob("_native_*"):
            if old.is_dir():  # of one that was killed
                shutil.rmtree(old)
            elif old != library:
                old.unlink()
    return [record, library]


def _write(record: Path, said: dict[str, Any]) -> None:
    """Unless it says so."""
    text = json.dumps(said, indent=1)
    if not record.exists() or record.read_text() != text:
        fresh = record.with_name(f"{record.name}.{os.getpid()}")
        fresh.write_text(text)
        fresh.replace(record)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Others that compile here wait, and find it done."""
    try:
        lock = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise CompileError(str(error)) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    except OSError as error:
        raise CompileError(str(error)) from error
    finally:
        os.close(lock)


def _make(library: Path, root: Path, said: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="_native_", dir=library.parent) as folder:  # of its own file system
        _build(root, Path(folder), said["modules"]).replace(library)


def _build(root: Path, folder: Path, modules: Sequence[str]) -> Path:
    """The library, in `folder`."""
    ends = time.monotonic() + NATIVE_S

    def run_in_time(*command: str) -> None:
        run(command, max(1, int(ends - time.monotonic())), root)

    (folder / "mypy.ini").write_text(MYPY)
    sources = [f"{name.replace('.', '/')}.py" for name in modules]
    run_in_time(sys.executable, "-P", "-c", TRANSLATE, str(folder), *sources)
    runtime, files = json.loads((folder / "files.json").read_text())
    includes = [f"-I{each}" for each in (runtime, str(folder), sysconfig.get_path("include"))]
    objects = [str(folder / f"{number}.o") for number in range(len(files))]

    def compile_one(number: int) -> None:
        run_in_time(*compiler(), "-c", *NATIVE_FLAGS, *includes, files[number], "-o", objects[number])

    with ThreadPoolExecutor(_compilers_at_once()) as pool:
        list(pool.map(compile_one, sorted(range(len(files)), key=lambda n: -Path(files[n]).stat().st_size)))
    library = folder / "library.so"
    run_in_time(*compiler(), *NATIVE_LINK_FLAGS, "-o", str(library), *objects)
    return library


def _compilers_at_once() -> int:
    """One a processor, as far as there is memory."""
    told = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    room = int(told[1]) * 1024 // COMPILER_BYTES if told else 1
    return max(1, min(room, os.cpu_count() or 1))


# --- installing ----------------------------------------------------------------------------------------------------


class LoopsHook(BuildHookInterface[Any]):
    """Called by hatchling for every wheel, editable ones among them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; a wheel that holds a result is one for this kind of machine. Set-up compiles the hot modules of a
        checkout by itself, beside other steps."""
        root = Path(self.root)
        try:
            libraries = compile_loops(root)
        except CompileError as error:
            self.app.display_warning(f"the inner loops will run in Python, at half the speed: {error}")
            return
        if version != "editable":
            try:
                libraries += compile_native(root)
            except CompileError as error:
                self.app.display_warning(f"the hot modules will run in Python, at two thirds of the speed: {error}")
            build_data["artifacts"] += [f"/{library.relative_to(root).as_posix()}" for library in libraries]
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


if __name__ == "__main__":
    here = Path(__file__).parent
    try:
        made = [*compile_loops(here), *(compile_native(here, *sys.argv[2:]) if sys.argv[1:2] == ["native"] else ())]
        sys.stdout.write("".join(f"{path}\n" for path in made))
    except CompileError as failure:
        sys.exit(f"hatch_build: {failure}")
