"""Medium that records calls and fails, for real processes, which preload `medium.c`.

`Medium` starts programs with a record of each call (`Event`) that changes files below one folder, and makes calls fail
while they run. It does not interpret the stored data. Needs a C compiler: without one `compiled` skips the test.
"""

from __future__ import annotations

import enum
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, Self

import pytest

SOURCE: Final = Path(__file__).with_name("medium.c")
FREE_BYTES_MIN: Final = 1 << 30
"""Free memory that `fast_folder` requires. A container has a folder of 64 MB by default."""
_RECORD: Final = struct.Struct("<IIQQ")
_FIELDS: Final = {
    "classes": (0, "I"), "write_errno": (4, "I"), "sync_errno": (8, "I"), "read_errno": (12, "I"),
    "open_errno": (16, "I"), "limited": (20, "I"), "room": (24, "q"), "writes": (32, "I"), "syncs": (36, "I"),
    "reads": (40, "I"), "failures": (44, "I"), "syncs_before": (48, "i"), "syncs_failing": (52, "i"),
    "syncs_before_death": (56, "i"), "refusals": (60, "i"), "stalled": (64, "I"), "asleep": (68, "I"),
}  # fmt: skip
"""Offset and format of each field of ``struct control``."""


class Kind(enum.IntEnum):
    """Kind of a change to a file."""

    OPENED = 1
    CREATED = 2
    WRITTEN = 3
    TRUNCATED = 4
    SYNCED = 5
    SYNC_FAILED = 6
    UNLINKED = 7
    RENAMED = 8
    MADE = 9
    """A new folder."""


class Files(enum.IntFlag):
    """Files that are to fail."""

    DATABASE = 1
    LOG = 2
    """SQLite's write-ahead log."""
    OTHER = 4
    ALL = 7


class Event(NamedTuple):
    """One call that succeeded (or a sync that failed), in the order the kernel saw them."""

    kind: Kind
    file: int
    """Number of the open file; 0 for calls that take a path."""
    offset: int
    data: bytes
    """Written data, or the path."""


@cache
def compiled(source: Path = SOURCE) -> Path:
    """Compile a library to preload. Skips the test without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip(f"no C compiler for {source.name}: apt-get install gcc libc6-dev")
    folder = Path(tempfile.mkdtemp(prefix=f"{source.stem}-"))
    library = folder / f"{source.stem}.so"
    command = [compiler, "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


def fast_folder() -> str | None:
    """Return a folder in memory, if there is one, for tests that do not depend on the disk: they close and copy, or a
    trace decides which data is durable.
    """
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < FREE_BYTES_MIN:
        return None
    return str(memory)


class Medium:
    """Watches the folder `root` in every process started with `environment`; a context manager."""

    def __init__(self, root: Path, *, folder: Path, tracing: bool = False) -> None:
        """`folder`, outside `root`, holds the control file and the trace."""
        self._root = root
        self._trace = folder / "medium.trace" if tracing else None
        self._path = folder / "medium.control"
        self._path.write_bytes(bytes(mmap.PAGESIZE))
        with self._path.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a process on this medium."""
        added = {
            "LD_PRELOAD": str(compiled()),
            "WAYPOST_MEDIUM_ROOT": str(self._root),
            "WAYPOST_MEDIUM_CONTROL": str(self._path),
        }
        if self._trace is not None:
            added["WAYPOST_MEDIUM_TRACE"] = str(self._trace)
        return {**os.environ, **added}

    def fail(
        self,
        files: Files,
        *,
        write: int = 0,
        sync: int = 0,
        read: int = 0,
        opening: int = 0,
        syncs_before: int = 0,
        syncs_failing: int = -1,
    ) -> None:
        """Make calls on `files` fail with these errors (`errno`) until `heal`."""
        for name, value in (
            ("write_errno", write), ("sync_errno", sync), ("read_errno", read), ("open_errno", opening),
            ("syncs_before", syncs_before), ("syncs_failing", syncs_failing),
        ):  # fmt: skip
            self._set(name, value)
        self._set("classes", files)

    def limit(self, room: int, *, files: Files = Files.ALL, refusals: int = 0) -> None:
        """Let `files` grow by `room` bytes more, then fail with ENOSPC at the last byte as a file system does.

        The limit holds until `heal`, or until this many calls have failed.
        """
        self._set("room", room)
        self._set("refusals", refusals)
        self._set("limited", 1)
        self._set("classes", files)

    def stall(self, files: Files) -> None:
        """Block syncs of `files` until `heal`."""
        self._set("stalled", files)

    def heal(self) -> None:
        """End all failures and stalls."""
        for name in ("write_errno", "sync_errno", "read_errno", "open_errno", "limited", "syncs_before", "stalled"):
            self._set(name, 0)

    def die(self, syncs_before: int) -> None:
        """Kill the process as by SIGKILL before the sync after `syncs_before` ones; its writes stay with the kernel."""
        self._set("syncs_before_death", syncs_before + 1)

    def count(self, name: str) -> int:
        """Return ``failures``, ``syncs``, ``writes``, ``reads`` (of files under `fail`), ``asleep`` (syncs), or
        ``room``.
        """
        offset, code = _FIELDS[name]
        return int(struct.unpack_from(f"<{code}", self._control, offset)[0])

    def events(self) -> list[Event]:
        """Return the trace so far, without a record cut off by the end of its process."""
        assert self._trace is not None
        data = self._trace.read_bytes()
        events: list[Event] = []
        at = 0
        while at + _RECORD.size <= len(data):
            kind, file, offset, length = _RECORD.unpack_from(data, at)
            at += _RECORD.size
            if at + length > len(data):
                break
            events.append(Event(Kind(kind), file, offset, data[at : at + length]))
            at += length
        return events

    def _set(self, name: str, value: int) -> None:
        offset, code = _FIELDS[name]
        struct.pack_into(f"<{code}", self._control, offset, value)

    def __enter__(self) -> Self:
        compiled()
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
