"""Load the C extension `bridge._native`. Where it is missing or older than its source, that is one clear error."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
"""The folder of our packages."""

__all__ = ["NEXT_STEP", "ROOT", "ExtensionUnusable", "digest_of", "functions", "require"]

NEXT_STEP: Final = "compile it: python hatch_build.py in the checkout, or install Waypost again"


class ExtensionUnusable(ImportError):
    """The C extension is missing, older than its source, or cannot be loaded."""


def digest_of(root: Path, sources: Sequence[str]) -> str:
    """Return the digest of these files below `root`; empty where they are not there, as in a frozen gateway.

    `hatch_build.py` writes it into what it compiles, by a function of its own: it cannot import what is not installed.
    """
    digest = sha256()
    try:
        for name in sources:
            digest.update((root / name).read_bytes())
    except FileNotFoundError:
        return ""
    return digest.hexdigest()


def require(root: Path = ROOT) -> None:
    """Compare the extension with the C files below `root`. Raises ExtensionUnusable."""
    if digest_of(root, functions.SOURCES.split()) not in ("", functions.DIGEST):
        raise ExtensionUnusable("bridge/_native is older than its C source")


try:
    from bridge import _native as functions
except ImportError as why:
    raise ExtensionUnusable(f"bridge/_native is missing or cannot be loaded: {why}") from why
require()
