"""The modules a gateway spends its time in, as a native library: found, checked against their sources, imported.

Set-up (`python hatch_build.py native`) has mypyc translate what pyproject.toml lists to C. The library stands beside
this file, under a name with a hash of all it was made of; `_native.json` says what that was. Python's own search knows
nothing of it: `NativeFinder` stands before that, and gives modules of the library only while every source is, byte for
byte, what it was then. Where one is not, or nothing was compiled, Python imports the sources.

A package whose modules may be in the library imports this module first.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:
    Loader = MetaPathFinder = object  # to import them takes 0.5 MiB, and Python asks nobody to be one

log = logging.getLogger(__name__)

SETTING: Final = "WAYPOST_MODULES"
"""Environment variable: ``python`` runs the sources whatever is there; ``native`` or nothing is the usual."""

LIBRARY: Final = "waypost__mypyc"
"""The library as a module: it has a function for each module in it, which makes that."""

NOT_COMPILED: Final = "not compiled"

RECORD: Final = Path(__file__).with_name("_native.json")
ROOT: Final = Path(__file__).parent.parent
"""Where the paths in the record begin."""


class Native(NamedTuple):
    """What runs: these modules out of the library at `path`, or none; then `why` none."""

    modules: frozenset[str] = frozenset()
    path: Path = Path()
    mypyc: str = ""
    why: str = ""

    @property
    def fallen_back(self) -> bool:
        """The sources run, though they were compiled, and nobody asked for it."""
        return not self.modules and self.why != NOT_COMPILED and not self.why.startswith(SETTING)


def look(record: Path, root: Path, setting: str) -> Native:
    """What there is to run. It never raises: there are always the sources."""
    if setting not in ("", "native"):
        return Native(why=f"{SETTING}={setting}")
    import json  # noqa: PLC0415 - most commands need none, and are done before it is imported

    try:
        said: dict[str, Any] = json.loads(record.read_bytes())
        why = _changed(said, root)
        if not why and "why" in said:
            why = f"they could not be compiled: {said['why']}"
        if why:
            return Native(why=why)
        path = record.with_name(said["library"])
        path.stat()
        return Native(frozenset(said["modules"]), path, said["mypyc"])
    except FileNotFoundError as error:
        why = NOT_COMPILED if error.filename == str(record) else f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{record.name} cannot be read ({type(error).__name__})"
    return Native(why=why)


def _changed(said: dict[str, Any], root: Path) -> str:
    """What is not as it was when they were compiled; empty when all of it is."""
    from hashlib import sha256  # noqa: PLC0415 - as above

    if said["python"] != EXTENSION_SUFFIXES[0]:
        return f"they were compiled for another Python ({said['python']})"
    for name, digest in said["sources"].items():
        if sha256((root / name).read_bytes()).hexdigest() != digest:
            return f"{name} has changed since they were compiled"
    return ""


@cache
def found() -> Native:
    """What this process runs."""
    native = look(RECORD, ROOT, os.environ.get(SETTING, ""))
    if not native.modules:
        return native
    try:
        spec = ModuleSpec(LIBRARY, ExtensionFileLoader(LIBRARY, str(native.path)), origin=str(native.path))
        spec.has_location = True
        sys.modules[LIBRARY] = library = module_from_spec(spec)
        for name in native.modules:
            _maker(library, name)
    except (ImportError, KeyError, ValueError) as error:
        sys.modules.pop(LIBRARY, None)
        return Native(why=f"{native.path.name} cannot be loaded: {error}")
    return native


def report() -> None:
    """Log it where the sources run though they were compiled."""
    if found().fallen_back:
        log.warning("the hot modules run in Python: %s", found().why)


def _maker(library: ModuleType, name: str) -> Any:
    """The library's function that makes a module. Raises KeyError or ValueError when there is none."""
    import ctypes  # noqa: PLC0415

    attribute = f"init_{name.replace('___', '___3_').replace('.', '___')}"  # as `mypyc.namegen.exported_name` has it
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    pointer = prototype(("PyCapsule_GetPointer", ctypes.pythonapi))
    address = pointer(vars(library)[attribute], f"{LIBRARY}.{attribute}".encode())
    return ctypes.PYFUNCTYPE(ctypes.py_object)(address)


class NativeLoader(Loader):
    """Makes modules of the library. mypyc's function runs the module's body as well."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """See `importlib.abc.Loader`."""
        module: ModuleType = _maker(sys.modules[LIBRARY], spec.name)()
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has run."""


class NativeFinder(MetaPathFinder):
    """Gives the modules that are in the library."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if not fullname.startswith(("bridge.", "edge.broker.")) or fullname not in found().modules:
            return None
        return ModuleSpec(fullname, NativeLoader(), origin=str(ROOT.joinpath(*fullname.split(".")).with_suffix(".py")))


sys.meta_path.insert(0, NativeFinder())
