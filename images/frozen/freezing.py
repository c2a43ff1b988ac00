"""Freeze a gateway into a folder that needs no Python on its machine, with PyInstaller (`gateway.spec`).

PyInstaller freezes for the machine it runs on. For another kind it runs in that one's root file system.
"""

from __future__ import annotations

import _sqlite3  # noqa: F401 - loads the libraries that `freeze` looks for
import _ssl  # noqa: F401
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from images import source
from images.programs import require, run
from images.steps import BuildSteps, Input, remove

SPEC: Final = Path(__file__).with_name("gateway.spec")
ENTRY: Final = "from edge.appliance.main import main\n\nmain()\n"
PROGRAM: Final = "waypost"
"""Name of the folder, and of the program in it."""
DATE: Final = 1577836800
"""Date of every file, seconds since 1970. It is fixed, so that results are the same whenever they are made."""


def freeze(steps: BuildSteps) -> Path:
    """Return the folder of a gateway for this kind of machine, made with this Python. Raises ImageError."""
    source.require_checkout()
    require("cc", "objdump", "strip")
    title = f"gateway for {platform.machine()}, frozen"
    own = find_system_libraries(Path("/proc/self/maps").read_text())
    made = steps.result(f"frozen-{platform.machine()}", title, [*list_inputs(), sys.version, *own], _freeze)
    return made / PROGRAM


def find_system_libraries(maps: str) -> list[Path]:
    """Return the system libraries that are frozen with Python, from the maps of a process (proc(5)).

    A newer OpenSSL or SQLite from apt then makes another gateway.
    """
    found = re.findall(r"(/\S*/lib(?:crypto|python3|sqlite3|ssl)[^/\s]*\.so[.\d]*)$", maps, re.MULTILINE)
    return sorted({Path(path) for path in found})


def list_inputs() -> list[Input]:
    """Return the inputs of a frozen gateway, except the Python."""
    builds = (source.ROOT / name for name in ("hatch_build.py", "pyproject.toml"))
    return [*(source.ROOT / package for package in source.GATEWAY), SPEC, ENTRY, source.LOCK, *builds]


def _freeze(folder: Path, log: Path) -> None:
    work = folder / "work"
    entry = write_entry(work)
    run(sys.executable, source.ROOT / "hatch_build.py", log=log)
    run(
        *build_command(sys.executable, root=str(source.ROOT), work=str(work), target=str(folder)),
        log=log,
        environment=build_environment(source.ROOT, entry),
    )
    remove_work(work)


def write_entry(work: Path) -> Path:
    """Write the script that PyInstaller starts from, into a folder for its own files."""
    work.mkdir(parents=True)
    entry = work / f"{PROGRAM}.py"
    entry.write_text(ENTRY)
    return entry


def build_command(python: str, *, root: str, work: str, target: str) -> Sequence[str]:
    """Return PyInstaller's command line, with paths as they are where it runs."""
    spec = f"{root}/{SPEC.relative_to(source.ROOT)}"
    options = ("--noconfirm", "--log-level", "WARN", "--distpath", target, "--workpath", f"{work}/analysis")
    return (python, "-m", "PyInstaller", *options, spec)


def build_environment(root: Path, entry: Path) -> dict[str, str]:
    """Return the variables that the specification reads, and those that make the result reproducible."""
    return {
        "WAYPOST_FREEZE_ROOT": str(root),
        "WAYPOST_FREEZE_ENTRY": str(entry),
        "PYTHONPATH": str(root),
        "PYTHONHASHSEED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SOURCE_DATE_EPOCH": str(DATE),
    }


def remove_work(work: Path) -> None:
    """Remove the work folder, keeping PyInstaller's warnings."""
    warnings = work / "analysis" / "gateway" / "warn-gateway.txt"
    if warnings.is_file():
        warnings.replace(work.with_name("warnings.txt"))
    remove(work)
