"""Where C sources of ours are once they are compiled (`hatch_build.py` does it)."""

from __future__ import annotations

import ctypes
import logging
import os
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

log = logging.getLogger(__name__)

Made = TypeVar("Made")

SETTING: Final = "WAYPOST_ENGINE"
"""Environment variable: ``python`` runs Python whatever is there; ``c`` or nothing is the usual."""

ROOT: Final = Path(__file__).parent.parent
"""The folder of our packages."""


def library_path(source: Path) -> Path:
    """What was made of a source: its name holds the hash of the source and what it includes of ours, so an old one is
    never loaded.

    Raises OSError when a file of it is not there.
    """
    text = source.read_bytes()
    included = [source.parent / name.decode() for name in re.findall(rb'^#include "(.+)"$', text, re.MULTILINE)]
    digest = sha256(text + b"".join(path.read_bytes() for path in included))
    return source.with_name(f"_{source.stem}_{digest.hexdigest()[:16]}.so")


def entry_of(library: Path, name: str) -> Any:
    """The function of this name in what was made of a source: what it returns is an object of Python.

    Raises OSError when the source was not compiled, or is not what it should be.
    """
    if not library.exists():
        raise OSError("not compiled when Waypost was installed")
    try:
        entry = ctypes.PyDLL(str(library))[name]
    except AttributeError:
        raise OSError(f"{library} has no {name}") from None
    entry.restype = ctypes.py_object
    return entry


def unless_python(load: Callable[[], Made], without: str) -> Made | None:
    """What `load` makes of a compiled source. None where Python is to run, and where `load` raises OSError: then
    `without`, what it is like without it, is logged with the reason."""
    if os.environ.get(SETTING) == "python":
        return None
    try:
        return load()
    except OSError as error:
        log.warning("%s: %s", without, error)
        return None
