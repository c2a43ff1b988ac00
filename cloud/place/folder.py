"""Lake in a folder of this machine. Durable is what `fsync` has written: a file, and its name in the directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    import deltalake


class Folder:
    """Place in a folder, implements `cloud.place.place.LakePlace`."""

    storage_options: Final = None
    tears: Final = True

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"Folder({str(self.path)!r})"

    def __str__(self) -> str:
        return str(self.path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Folder) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def uri(self) -> str:
        return str(self.path)

    @property
    def spark_uri(self) -> str:
        return str(self.path.resolve())

    def at(self, name: str) -> Folder:
        return Folder(self.path / name)

    def delta(self, version: int | None = None) -> deltalake.DeltaTable:
        from deltalake import DeltaTable  # noqa: PLC0415 - half a second that `--help` must not pay

        return DeltaTable(self.path, version=version)

    def is_table(self) -> bool:
        return (self.path / "_delta_log").is_dir()

    def tables(self) -> list[str]:
        return sorted(path.parent.name for path in self.path.glob("*/_delta_log"))

    def names(self, folder: str) -> Sequence[str]:
        try:
            return os.listdir(self.path / folder)
        except FileNotFoundError:
            return ()

    def size(self, path: str) -> int | None:
        try:
            return (self.path / path).stat().st_size
        except FileNotFoundError:
            return None

    def read(self, path: str) -> bytes | None:
        try:
            return (self.path / path).read_bytes()
        except FileNotFoundError:
            return None

    def source(self, path: str) -> Path:
        return self.path / path

    def make(self) -> None:
        _make_directory(self.path)

    def check(self) -> None:
        """Do nothing: faults show when the folder is used."""

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        whole = self.path / path
        _make_directory(whole.parent)
        opened = whole.open("xb")
        try:
            with opened as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                whole.unlink(missing_ok=True)
            raise
        _sync(whole.parent)

    def put_new(self, path: str, content: bytes) -> bool:
        whole = self.path / path
        fresh = whole.parent / f".{uuid.uuid4()}.tmp"
        try:
            with fresh.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(fresh, whole)
            except FileExistsError:
                return False
            return True
        finally:
            fresh.unlink(missing_ok=True)

    def delete(self, path: str) -> None:
        (self.path / path).unlink(missing_ok=True)

    def clear(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def sync(self, folder: str, names: Sequence[str]) -> None:
        directory = self.path / folder
        for name in names:
            if (directory / name).exists():
                _sync(directory / name)
        _sync(directory)


def _sync(path: Path) -> None:
    """Sync a file, or the names in a directory: the same call on Linux."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_directory(path: Path) -> None:
    """Create a directory and its parents, each synced in the one above."""
    if path.is_dir():
        return
    _make_directory(path.parent)
    path.mkdir(exist_ok=True)
    _sync(path.parent)
