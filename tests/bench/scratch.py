"""Temporary folders of benchmarks, on the medium of the checkout."""

from __future__ import annotations

import tempfile
from pathlib import Path


def scratch_folder(
    parent: Path | None = None, *, ignore_cleanup_errors: bool = False
) -> tempfile.TemporaryDirectory[str]:
    """Return a new folder in `parent`, or in ``build`` of the checkout; it is deleted at its end."""
    return tempfile.TemporaryDirectory(
        prefix="waypost-bench-", dir=parent or Path.cwd() / "build", ignore_cleanup_errors=ignore_cleanup_errors
    )
