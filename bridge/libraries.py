"""Load the compiled form of our C sources (`hatch_build.py` compiles them)."""

from __future__ import annotations

import ctypes
import re
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
"""The folder of our packages."""

NEXT_STEP: Final = "compile it: python hatch_build.py in the checkout, or install Waypost again"


class ExtensionUnusable(ImportError):
    """The compiled code is missing, older than its source, or cannot be loaded. The message says which file."""


def library_path(source: Path) -> Path:
    """Return where the library of a source stands. Its name holds the hash of the source and of our headers that it
    includes, so a library of an older source has another name.

    Raises OSError when a file of it is not there.
    """
    text = source.read_bytes()
    included = [source.parent / name.decode() for name in re.findall(rb'^#include "(.+)"$', text, re.MULTILINE)]
    digest = sha256(text + b"".join(path.read_bytes() for path in included))
    return source.with_name(f"_{source.stem}_{digest.hexdigest()[:16]}.so")


def entry_of(source: Path, name: str) -> Any:
    """Return the function of this name in the library of a source. It returns an object of Python.

    Raises ExtensionUnusable.
    """
    try:
        library = library_path(source)
        if not library.exists():
            older = any(source.parent.glob(f"_{source.stem}_*.so"))
            raise ExtensionUnusable(f"{source.name} {'has changed since it was' if older else 'was not'} compiled")
        entry = ctypes.PyDLL(str(library))[name]
    except AttributeError:
        raise ExtensionUnusable(f"{library.name} has no {name}") from None
    except OSError as error:
        raise ExtensionUnusable(f"{source.name} cannot be loaded: {error}") from error
    entry.restype = ctypes.py_object
    return entry
