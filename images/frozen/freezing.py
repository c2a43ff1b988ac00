"""The gateway as one folder that needs no Python on the machine it runs on, made by PyInstaller (`gateway.spec`).

PyInstaller freezes for the machine it runs on: for another kind it runs in that one's root file system.
"""

from __future__ import annotations

import _sqlite3  # noqa: F401 - loaded with their libraries, which `freeze` looks at
import _ssl  # noqa: F401
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from images import source
from images.programs import require, run
from images.steps import Input, Steps, remove

SPEC: Final = Path(__file__).with_name("gateway.spec")
ENTRY: Final = "from edge.appliance.main import main\n\nmain()\n"
PROGRAM: Final = "waypost"
"""The folder's name, and the program's in it."""
DATE: Final = 1577836800
"""Of everything in it, seconds since 1970: it says nothing, and is the same whenever it is made."""


def freeze(steps: Steps) -> Path:
    """The folder of a gateway for this kind of machine, made by this Python. Raises ImageError."""
    source.require_checkout()
    require("cc", "objdump", "strip")
    title = f"gateway for {platform.machine()}, frozen"
    own = system_libraries(Path("/proc/self/maps").read_text())
    made = steps.result(f"frozen-{platform.machine()}", title, [*inputs(), sys.version, *own], _here)
    return made / PROGRAM


def system_libraries(maps: str) -> list[Path]:
    """Of those that a process has loaded (proc(5), maps), the machine's that are frozen with Python: once apt has
    brought a newer OpenSSL or SQLite, another gateway is made."""
    found = re.findall(r"(/\S*/lib(?:crypto|python3|sqlite3|ssl)[^/\s]*\.so[.\d]*)$", maps, re.MULTILINE)
    return sorted({Path(path) for path in found})


def inputs() -> list[Input]:
    """What a frozen gateway is made of, the Python apart."""
    builds = (source.ROOT / name for name in ("hatch_build.py", "pyproject.toml"))
    return [*(source.ROOT / package for package in source.GATEWAY), SPEC, ENTRY, source.LOCK, *builds]


def _here(folder: Path, log: Path) -> None:
    work = folder / "work"
    entry = prepare(work)
    run(sys.executable, source.ROOT / "hatch_build.py", log=log)
    run(
        *command(sys.executable, root=str(source.ROOT), work=str(work), target=str(folder)),
        log=log,
        environment=environment(source.ROOT, entry),
    )
    clear(work)


def prepare(work: Path) -> Path:
    """What PyInstaller starts from, in a folder for its own files."""
    work.mkdir(parents=True)
    entry = work / f"{PROGRAM}.py"
    entry.write_text(ENTRY)
    return entry


def command(python: str, *, root: str, work: str, target: str) -> Sequence[str]:
    """PyInstaller's, with paths as where it runs sees them."""
    spec = f"{root}/{SPEC.relative_to(source.ROOT)}"
    options = ("--noconfirm", "--log-level", "WARN", "--distpath", target, "--workpath", f"{work}/analysis")
    return (python, "-m", "PyInstaller", *options, spec)


def environment(root: Path, entry: Path) -> dict[str, str]:
    """What the specification asks for, and what makes PyInstaller's results the same each time."""
    return {
        "WAYPOST_FREEZE_ROOT": str(root),
        "WAYPOST_FREEZE_ENTRY": str(entry),
        "PYTHONPATH": str(root),
        "PYTHONHASHSEED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SOURCE_DATE_EPOCH": str(DATE),
    }


def clear(work: Path) -> None:
    """Leave the result, and what PyInstaller warned of."""
    warnings = work / "analysis" / "gateway" / "warn-gateway.txt"
    if warnings.is_file():
        warnings.replace(work.with_name("warnings.txt"))
    remove(work)
