"""Files of this checkout."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def files() -> list[Path]:
    """Return every file of the project: those that git tracks or would add, or all files of an export without git."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        hidden = re.compile(r"/(\.venv|\.git|__pycache__|\.\w+_cache|\.hypothesis|data)/|\.venv\.lock$")
        found = (path for path in ROOT.rglob("*") if path.is_file() and not hidden.search(str(path)))
    else:
        found = (ROOT / os.fsdecode(name) for name in listed.split(b"\0") if name)
    return sorted(path for path in found if path.is_file())


def texts(*, without: Path | None = None) -> Iterator[tuple[str, str]]:
    """Yield (path, content) of every text file except `without`."""
    for path in files():
        if path == without:
            continue
        content = path.read_bytes()
        if b"\0" not in content:
            yield path.relative_to(ROOT).as_posix(), content.decode("utf-8")


def modules(*folders: str) -> Iterator[tuple[str, str]]:
    """Return (path, source) of the Python modules in these top-level folders."""
    return ((path, text) for path, text in texts() if path.endswith(".py") and path.split("/")[0] in folders)
