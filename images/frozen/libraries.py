"""Debian's libraries that PyInstaller puts into a frozen gateway for arm64: of which sources, in which version."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Final

from images.errors import ImageError

PACKAGES: Final = {
    "libbz2": "libbz2-1.0",
    "libcrypto": "libssl3",
    "libexpat": "libexpat1",
    "libffi": "libffi8",
    "libgcc_s": "libgcc-s1",
    "liblzma": "liblzma5",
    "libpython3": "libpython3.11",
    "libsqlite3": "libsqlite3-0",
    "libssl": "libssl3",
    "libuuid": "libuuid1",
    "libz": "zlib1g",
}
"""The package of each, by its name without versions. What is unpacked only is in no record of dpkg."""


def names(program: Path) -> list[str]:
    """Of those in a frozen gateway, without versions; what is in folders belongs to Python packages."""
    found = (path.name.partition(".")[0] for path in (program / "_internal").glob("lib*.so*"))
    return sorted(set(found))


def sources(root: Path, libraries: list[str]) -> list[str]:
    """As Debian's field `Built-Using` has them (``openssl (= 3.0.22-1~deb12u2)``), by the change logs in a root.

    Raises ImageError for a library whose package is not known here.
    """
    unknown = [name for name in libraries if name not in PACKAGES]
    if unknown:
        hint = f"say in {Path(__file__).name} which of Debian's packages it is from"
        raise ImageError(f"the bill of materials has no place for {', '.join(unknown)}", hint=hint)
    return sorted({_source(root, PACKAGES[name]) for name in libraries})


def _source(root: Path, package: str) -> str:
    log = root / "usr/share/doc" / package / "changelog.Debian.gz"
    try:
        first = gzip.decompress(log.read_bytes()).decode().partition("\n")[0]
        name, version = re.match(r"(\S+) \((\S+)\)", first).groups()  # type: ignore[union-attr]
    except (OSError, AttributeError):
        raise ImageError(f"{log} does not say which version of {package} there is") from None
    return f"{name} (= {version})"
