"""Debian libraries that PyInstaller puts into a frozen gateway for arm64, with their sources and versions."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from images.errors import ImageError
from images.programs import run_for_output

PACKAGES: Final = {
    "libbz2": ("libbz2-1.0",),
    "libcrypto": ("libssl3t64", "libssl3"),
    "libexpat": ("libexpat1",),
    "libffi": ("libffi8",),
    "libgcc_s": ("libgcc-s1",),
    "liblzma": ("liblzma5",),
    "libpython3": ("libpython3.13", "libpython3.11"),
    "libsqlite3": ("libsqlite3-0",),
    "libssl": ("libssl3t64", "libssl3"),
    "libuuid": ("libuuid1",),
    "libz": ("zlib1g",),
    "libzstd": ("libzstd1",),
}
"""Debian package of each library in Debian 13 and 12, by the library's name without versions. dpkg has no record of
unpacked packages.
"""
FOLDER: Final = "usr/lib/aarch64-linux-gnu"
MODULES: Final = ("_bz2", "_ctypes", "_hashlib", "_lzma", "_sqlite3", "_ssl", "_uuid", "pyexpat", "zlib")
"""Modules of Python that link libraries, of those in a gateway."""
NOT_TAKEN: Final = {"ld-linux-aarch64", "libc", "libm"}
"""Libraries that PyInstaller leaves to the system."""


def list_needed(root: Path, python: str) -> list[str]:
    """Return the libraries that Python needs in a root, without versions.

    This takes a second; `list_libraries` knows them after the minutes of a freeze.
    """
    modules = root / f"usr/lib/python{python}/lib-dynload"
    waiting = [root / f"usr/bin/python{python}", *(path for name in MODULES for path in modules.glob(f"{name}.*so"))]
    found: set[str] = set()
    while waiting:
        needed = re.findall(r"\(NEEDED\)[^[]*\[(\S+)\]", run_for_output("readelf", "--dynamic", str(waiting.pop())))
        waiting += [root / FOLDER / name for name in needed if name not in found and (root / FOLDER / name).is_file()]
        found.update(needed)
    return sorted({name.partition(".")[0] for name in found} - NOT_TAKEN)


def list_libraries(program: Path) -> list[str]:
    """Return the libraries in a frozen gateway, without versions. Those in folders belong to Python packages."""
    found = (path.name.partition(".")[0] for path in (program / "_internal").glob("lib*.so*"))
    return sorted(set(found))


def find_sources(root: Path, libraries: list[str]) -> list[str]:
    """Return the sources of libraries as in Debian's field `Built-Using` (``openssl (= 3.0.22-1~deb12u2)``).

    They are read from the change logs in a root. Raises ImageError for a library of an unlisted package.
    """
    unknown = [name for name in libraries if name not in PACKAGES]
    if unknown:
        hint = f"add its Debian package to {Path(__file__).name}"
        raise ImageError(f"the bill of materials lacks the package of {', '.join(unknown)}", hint=hint)
    return sorted({_find_source(root, PACKAGES[name]) for name in libraries})


def _find_source(root: Path, packages: Sequence[str]) -> str:
    texts = root / "usr/share/doc"
    package = next((name for name in packages if (texts / name).exists()), packages[-1])
    log = texts / package / "changelog.Debian.gz"
    try:
        first = gzip.decompress(log.read_bytes()).decode().partition("\n")[0]
        name, version = re.match(r"(\S+) \((\S+)\)", first).groups()  # type: ignore[union-attr]
    except (OSError, AttributeError):
        raise ImageError(f"{log} does not name the version of {package}") from None
    return f"{name} (= {version})"
