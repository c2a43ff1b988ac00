"""Steps of a build: each makes one folder from stated inputs, and is skipped while these are the same."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from images.errors import ImageError

if TYPE_CHECKING:
    from rich.progress import Progress

KEY_DIGITS: Final = 16
"""Digits of the hash in a result's name: 64 bits distinguish a few thousand."""

PART: Final = ".part"
"""Suffix of a result that is being made, or was when the build was interrupted."""

OLD_KEPT: Final = 2
"""Results of a step that are kept: of these inputs, and of the previous ones for another branch."""

Input = str | bytes | Path
"""A text, or a file or folder by its content. File names in a folder and their executable bits count, too."""


def default_cache() -> Path:
    """Return the folder of results in the user's cache directory (XDG base directories)."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "waypost" / "images"


class StepDisplay:
    """Shows the running steps and their elapsed time on a terminal. Threads share one display."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._progress: Progress | None = None

    @contextlib.contextmanager
    def show(self, title: str) -> Iterator[None]:
        """Show a step while the body runs; do nothing without a terminal."""
        if not sys.stderr.isatty():
            yield
            return
        with self._one_at_a_time:
            progress = self._progress = self._progress or _start_progress()
            task = progress.add_task(title, total=None)
        try:
            yield
        finally:
            with self._one_at_a_time:
                progress.remove_task(task)
                if not progress.tasks:
                    progress.stop()
                    self._progress = None


def _start_progress() -> Progress:
    from rich.console import Console  # noqa: PLC0415 - only needed on a terminal
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.start()
    return progress


class BuildSteps:
    """Results of steps, one folder each, named by the step and a hash of its inputs."""

    def __init__(self, cache: Path, say: Callable[[str], None] | None = None) -> None:
        """Set the cache folder. `say`: takes a line for each step; None: standard error."""
        self._cache = cache
        self._say = say or (lambda line: click.echo(line, err=True))
        self.seconds: dict[str, float] = {}
        """Seconds that each step took; 0.0 if its result existed."""
        self._clocks = StepDisplay()

    def result(
        self, name: str, title: str, inputs: Iterable[Input], make: Callable[[Path, Path], None], *, again: bool = False
    ) -> Path:
        """Return the folder that `make(folder, log)` fills, now or earlier from the same inputs. `again`: make it now.

        Raises ImageError, and what `make` raises. A result appears whole or not at all.
        """
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ImageError(f"{self._cache}: {error.strerror}", hint="choose another place with --cache") from None
        place = self._cache / f"{name}-{make_key(inputs)}"
        if not again and self._reuse(place, name, title):  # do not wait for another build of this step
            return place
        with self._lock(name):
            if not again and self._reuse(place, name, title):
                return place
            for cut_off in self._list_results(name, PART):
                remove(cut_off)
            part = place.with_name(place.name + PART)
            log = self._cache / f"{name}.log"
            began = time.monotonic()
            with self._clocks.show(title), _translate_errors(title):
                log.unlink(missing_ok=True)
                part.mkdir()
                make(part, log)
                remove(place)
                part.rename(place)
            self.seconds[name] = time.monotonic() - began
            self._say(f"  {title:<52} {self.seconds[name]:5.0f} s")
            self._remove_old(name)
        return place

    def _reuse(self, place: Path, name: str, title: str) -> bool:
        """Return whether the result exists, and mark it as used."""
        try:
            os.utime(place)
        except FileNotFoundError:
            return False
        self.seconds[name] = 0.0
        self._say(f"  {title:<52} unchanged")
        return True

    def _remove_old(self, name: str) -> None:
        """Remove all but the newest results of a step."""
        for old in sorted(self._list_results(name), key=lambda path: path.stat().st_mtime)[:-OLD_KEPT]:
            remove(old)

    def _list_results(self, name: str, suffix: str = "") -> list[Path]:
        """Return the results of a step."""
        return list(self._cache.glob(f"{name}-{'[0-9a-f]' * KEY_DIGITS}{suffix}"))

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        """Let one process at a time make a step; another one waits, and finds it done."""
        with (self._cache / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@contextlib.contextmanager
def _translate_errors(title: str) -> Iterator[None]:
    """Turn errors of the disk into an ImageError."""
    try:
        yield
    except OSError as error:
        hint = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "free some space, or choose another place with --cache"
        where = f"{error.filename}: " if error.filename else ""
        raise ImageError(f"{title}: {where}{error.strerror}", hint=hint) from None


def make_key(inputs: Iterable[Input]) -> str:
    """Return a hash of inputs, in their order."""
    digest = hashlib.sha256()
    for each in inputs:
        digest.update(hashlib.sha256(_read_input(each)).digest())
    return digest.hexdigest()[:KEY_DIGITS]


def _read_input(one: Input) -> bytes:
    if isinstance(one, Path):
        return one.read_bytes() if one.is_file() else hash_tree(one).encode()
    return one.encode() if isinstance(one, str) else one


def hash_tree(folder: Path) -> str:
    """Return a hash of the sources below a folder: names, contents, links, and executable bits."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".so" or "__pycache__" in path.parts:
            continue  # derived files, some of them written at this moment
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            digest.update(f"{name} -> {path.readlink()}\n".encode())
        elif path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{name} {path.stat().st_mode & 0o100:o} {content}\n".encode())
    return digest.hexdigest()


def remove(path: Path) -> None:
    """Remove a file or a tree, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
