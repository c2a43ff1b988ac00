"""Load the C extension `bridge._native`; raise one clear error where it is missing or older than its source."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

__all__ = ["ExtensionUnusable", "digest_of", "functions"]

ROOT: Final = Path(__file__).parent.parent
"""The folder of our packages."""


class ExtensionUnusable(ImportError):
    """The C extension is missing, older than its source, or cannot be loaded."""

    hint = "compile it (python hatch_build.py in the checkout), or install Waypost again"

    def __init__(self, why: str) -> None:
        super().__init__(f"the C extension bridge._native {why}")
        self.add_note(self.hint)


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


try:
    from bridge import _native as functions
except ImportError as error:
    raise ExtensionUnusable(f"is missing or cannot be loaded: {error}") from error
if digest_of(ROOT, functions.SOURCES.split()) not in ("", functions.DIGEST):
    raise ExtensionUnusable("is older than its C source")
