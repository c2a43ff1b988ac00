"""Freeze a program so that it needs no Python on its machine, with PyInstaller.

PyInstaller freezes for the machine it runs on. For another kind it runs in that one's root file system (`cross`).
"""

from __future__ import annotations

import _sqlite3  # noqa: F401 - loads the libraries that `freeze` looks for
import _ssl  # noqa: F401
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from images import source
from images.frozen.lock_file import DISTRIBUTION
from images.programs import require, run
from images.steps import BuildSteps, Input, remove


class FrozenProgram(NamedTuple):
    """Program that PyInstaller makes from a specification."""

    name: str
    """Name of the result: of a folder with a program of that name, or of one file."""
    title: str
    suffix: str
    """Suffix of the names of its build steps."""
    spec: Path
    entry: str
    """Script that starts it."""
    sources: tuple[str, ...]
    """Its packages in the checkout."""
    requirement: str
    """Requirement (PEP 508) with its Python packages."""
    packages: frozenset[str] = frozenset()
    """Further Python packages, which require no others."""
    extension: bool = False
    """The C extension is part of it."""


PROGRAM: Final = "waypost"
"""Name of the folder with a gateway, and of the program in it."""
GATEWAY: Final = FrozenProgram(
    PROGRAM,
    "gateway",
    suffix="",
    spec=Path(__file__).with_name("gateway.spec"),
    entry="from edge.appliance.main import main\n\nmain()\n",
    sources=source.GATEWAY,
    requirement=f"{DISTRIBUTION}[edge,kafka]",
    extension=True,
)
BUILD_FILES: Final = ("hatch_build.py", "pyproject.toml")
"""Files of the checkout that compile the C extension."""
DATE: Final = 1577836800
"""Date of every file, seconds since 1970. It is fixed, so that results are the same whenever they are made."""


def freeze(steps: BuildSteps, program: FrozenProgram = GATEWAY) -> Path:
    """Return a program for this kind of machine, made with this Python. Raises ImageError."""
    source.require_checkout()
    require(*(("cc",) if program.extension else ()), "objdump", "strip")
    machine = platform.machine()
    own = find_system_libraries(Path("/proc/self/maps").read_text())
    made = steps.result(
        f"frozen{program.suffix}-{machine}",
        f"{program.title} for {machine}, frozen",
        [*list_inputs(program), sys.version, *own],
        lambda folder, log: _freeze(folder, program, log),
    )
    return made / program.name


def find_system_libraries(maps: str) -> list[Path]:
    """Return the system libraries that are frozen with Python, from the maps of a process (proc(5)).

    A newer OpenSSL or SQLite from apt then makes another gateway.
    """
    found = re.findall(r"(/\S*/lib(?:crypto|python3|sqlite3|ssl)[^/\s]*\.so[.\d]*)$", maps, re.MULTILINE)
    return sorted({Path(path) for path in found})


def list_inputs(program: FrozenProgram) -> list[Input]:
    """Return the inputs of a frozen program, except the Python."""
    sources = (source.ROOT / package for package in program.sources)
    builds = [source.ROOT / name for name in BUILD_FILES] if program.extension else [program.name]
    return [*sources, program.spec, program.entry, source.LOCK, *builds]


def _freeze(folder: Path, program: FrozenProgram, log: Path) -> None:
    work = folder / "work"
    entry = write_entry(work, program)
    if program.extension:
        run(sys.executable, source.ROOT / "hatch_build.py", log=log)
    run(
        *build_command(program, sys.executable, root=str(source.ROOT), work=str(work), target=str(folder)),
        log=log,
        environment=build_environment(program, source.ROOT, entry),
    )
    keep_warnings(work, program, folder)
    remove(work)


def write_entry(work: Path, program: FrozenProgram) -> Path:
    """Write the script that PyInstaller starts from, into a folder for its own files."""
    work.mkdir(parents=True)
    entry = work / f"{PROGRAM}.py"
    entry.write_text(program.entry)
    return entry


def build_command(program: FrozenProgram, python: str, *, root: str, work: str, target: str) -> Sequence[str]:
    """Return PyInstaller's command line, with paths as they are where it runs."""
    spec = f"{root}/{program.spec.relative_to(source.ROOT)}"
    options = ("--noconfirm", "--log-level", "WARN", "--distpath", target, "--workpath", f"{work}/analysis")
    return (python, "-m", "PyInstaller", *options, spec)


def build_environment(program: FrozenProgram, root: Path, entry: Path) -> dict[str, str]:
    """Return the variables that the specification reads, and those that make the result reproducible."""
    return {
        "WAYPOST_FREEZE_NAME": program.name,
        "WAYPOST_FREEZE_ROOT": str(root),
        "WAYPOST_FREEZE_ENTRY": str(entry),
        "PYTHONPATH": str(root),
        "PYTHONHASHSEED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SOURCE_DATE_EPOCH": str(DATE),
    }


def keep_warnings(work: Path, program: FrozenProgram, folder: Path) -> None:
    """Move PyInstaller's warnings from the work folder to the result."""
    name = program.spec.stem
    warnings = work / "analysis" / name / f"warn-{name}.txt"
    if warnings.is_file():
        warnings.replace(folder / "warnings.txt")
