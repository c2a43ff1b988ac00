"""Steps of a build: each makes one folder from stated inputs, and is not done again while these are the same."""

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
"""Of the hash in a result's name: 64 bits tell a few thousand apart."""

PART: Final = ".part"
"""Behind the name of a result that is being made, or was when somebody ended that."""

OLD_KEPT: Final = 2
"""Results of a step that stay: of these inputs, and of those before, to which a branch may come back."""

Input = str | bytes | Path
"""A text, or a file or folder by its content; of files in a folder names count too, and which are executable."""


def default_cache() -> Path:
    """Where results are kept: the user's cache directory (XDG base directories)."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "waypost" / "images"


class Clocks:
    """On a terminal: which steps are being done, and for how long. Threads share one."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._progress: Progress | None = None

    @contextlib.contextmanager
    def shown(self, title: str) -> Iterator[None]:
        """While its body runs; nothing where nobody looks."""
        if not sys.stderr.isatty():
            yield
            return
        with self._one_at_a_time:
            progress = self._progress = self._progress or _started()
            task = progress.add_task(title, total=None)
        try:
            yield
        finally:
            with self._one_at_a_time:
                progress.remove_task(task)
                if not progress.tasks:
                    progress.stop()
                    self._progress = None


def _started() -> Progress:
    from rich.console import Console  # noqa: PLC0415 - only who looks needs it
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.start()
    return progress


class Steps:
    """The results of steps, one folder each, named by the step and a hash of its inputs."""

    def __init__(self, cache: Path, say: Callable[[str], None] | None = None) -> None:
        """`say`: takes a line for each step; None: standard error."""
        self._cache = cache
        self._say = say or (lambda line: click.echo(line, err=True))
        self.seconds: dict[str, float] = {}
        """How long each step took; 0.0 where its result was there."""
        self._clocks = Clocks()

    def result(
        self, name: str, title: str, inputs: Iterable[Input], make: Callable[[Path, Path], None], *, again: bool = False
    ) -> Path:
        """The folder that `make(folder, log)` fills, now or earlier from the same inputs; `again`: now.

        Raises ImageError, and what `make` raises; a result is there whole or not at all.
        """
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ImageError(f"{self._cache}: {error.strerror}", hint="choose another place with --cache") from None
        place = self._cache / f"{name}-{key(inputs)}"
        if not again and self._unchanged(place, name, title):  # without waiting for who makes another of this step
            return place
        with self._alone(name):
            if not again and self._unchanged(place, name, title):
                return place
            for cut_off in self._of(name, PART):
                remove(cut_off)
            part = place.with_name(place.name + PART)
            log = self._cache / f"{name}.log"
            began = time.monotonic()
            with self._clocks.shown(title), _explained(title):
                log.unlink(missing_ok=True)
                part.mkdir()
                make(part, log)
                remove(place)
                part.rename(place)
            self.seconds[name] = time.monotonic() - began
            self._say(f"  {title:<52} {self.seconds[name]:5.0f} s")
            self._forget(name)
        return place

    def _unchanged(self, place: Path, name: str, title: str) -> bool:
        """The result is there; its date says that somebody wants it."""
        try:
            os.utime(place)
        except FileNotFoundError:
            return False
        self.seconds[name] = 0.0
        self._say(f"  {title:<52} unchanged")
        return True

    def _forget(self, name: str) -> None:
        """Keep the newest results of a step."""
        for old in sorted(self._of(name), key=lambda path: path.stat().st_mtime)[:-OLD_KEPT]:
            remove(old)

    def _of(self, name: str, suffix: str = "") -> list[Path]:
        """What is there of a step."""
        return list(self._cache.glob(f"{name}-{'[0-9a-f]' * KEY_DIGITS}{suffix}"))

    @contextlib.contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """One process makes a step at a time; another waits, and finds it done."""
        with (self._cache / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@contextlib.contextmanager
def _explained(title: str) -> Iterator[None]:
    """What the disk says is no traceback."""
    try:
        yield
    except OSError as error:
        hint = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "free some space, or choose another place with --cache"
        where = f"{error.filename}: " if error.filename else ""
        raise ImageError(f"{title}: {where}{error.strerror}", hint=hint) from None


def key(inputs: Iterable[Input]) -> str:
    """A hash of inputs, in their order."""
    digest = hashlib.sha256()
    for each in inputs:
        digest.update(hashlib.sha256(_content(each)).digest())
    return digest.hexdigest()[:KEY_DIGITS]


def _content(one: Input) -> bytes:
    if isinstance(one, Path):
        return one.read_bytes() if one.is_file() else tree_hash(one).encode()
    return one.encode() if isinstance(one, str) else one


def tree_hash(folder: Path) -> str:
    """A hash of the sources below a folder: names, contents, links, and whether they are executable."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".so" or "__pycache__" in path.parts:
            continue  # made from the rest, some while somebody looks
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            digest.update(f"{name} -> {path.readlink()}\n".encode())
        elif path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{name} {path.stat().st_mode & 0o100:o} {content}\n".encode())
    return digest.hexdigest()


def remove(path: Path) -> None:
    """A file or a tree, or nothing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
