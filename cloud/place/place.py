"""What is asked of where a lake is, and how it is named.

A place holds objects by their path below it (`telemetry/_delta_log/00000000000000000000.json`). What is written is
whole and on the medium on return. Every operation raises `OSError`, whose message says what to do where it is known.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

from cloud.place.folder import Folder
from cloud.place.options import BadOptions, from_environment

if TYPE_CHECKING:
    import deltalake

LOG = "_delta_log"
"""The folder of a table's log."""


class Place(Protocol):
    """A lake, or a table or folder of it."""

    @property
    def name(self) -> str:
        """The last part of its name: a table's."""
        ...

    @property
    def uri(self) -> str:
        """As delta-rs and people name it."""
        ...

    @property
    def spark_uri(self) -> str:
        """As Spark names it."""
        ...

    @property
    def storage_options(self) -> dict[str, str] | None:
        """What delta-rs needs beside the name. May hold secrets."""
        ...

    @property
    def tears(self) -> bool:
        """A power cut may leave a part of what was being written."""
        ...

    def at(self, name: str) -> Place:
        """What is under this name below it, there or not."""
        ...

    def delta(self, version: int | None = None) -> deltalake.DeltaTable:
        """The Delta table here. Raises what delta-rs raises."""
        ...

    def is_table(self) -> bool:
        """There is a Delta table here."""
        ...

    def tables(self) -> list[str]:
        """Names of the Delta tables below it, in order."""
        ...

    def names(self, folder: str) -> Sequence[str]:
        """What is in a folder below it; nothing where there is none."""
        ...

    def size(self, path: str) -> int | None:
        """Bytes of an object; None where there is none."""
        ...

    def read(self, path: str) -> bytes | None:
        """All of a small object; None where there is none."""
        ...

    def source(self, path: str) -> Path | IO[bytes]:
        """An object as pyarrow reads it. Raises `FileNotFoundError`."""
        ...

    def make(self) -> None:
        """Make it, empty, where it has to be made."""
        ...

    def check(self) -> None:
        """Look whether it does what is asked of it here: for whoever is about to write there, once."""
        ...

    def create(self, path: str) -> AbstractContextManager[IO[bytes]]:
        """A new object to write: there, whole and on the medium, when the block ends well; not there when it raises.

        Raises `FileExistsError`.
        """
        ...

    def put_new(self, path: str, content: bytes) -> bool:
        """Put an object there, whole; False where there is one: of several who try at once one does. Whose it is what
        is there tells: an answer may have been lost."""
        ...

    def delete(self, path: str) -> None:
        """Delete an object, where it is there."""
        ...

    def clear(self) -> None:
        """Delete everything below it."""
        ...

    def sync(self, folder: str, names: Sequence[str]) -> None:
        """What others have written under these names in a folder, and that they are there, is on the medium."""
        ...


Somewhere: TypeAlias = Place | Path | str
"""A place, or its name: a path, or a URI."""


def place_of(somewhere: Somewhere) -> Place:
    """The place of this name."""
    if isinstance(somewhere, Path):
        return Folder(somewhere)
    return parse(somewhere) if isinstance(somewhere, str) else somewhere


def parse(name: str) -> Place:
    """The place of a path or URI: `file:`, `s3:`, `s3a:`; how its store is reached is in the environment.

    Raises `BadOptions`.
    """
    if "://" not in name:
        return Folder(Path(name))
    parts = urlsplit(name)
    if parts.scheme == "file":
        return Folder(Path(unquote(parts.path)))
    if parts.scheme not in ("s3", "s3a"):
        raise BadOptions(f"{parts.scheme}: a lake is a folder, or s3://BUCKET/FOLDER")
    if not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
        raise BadOptions("a lake in a bucket is s3://BUCKET or s3://BUCKET/FOLDER, and nothing else")
    from cloud.place.bucket import Bucket  # noqa: PLC0415 - a folder needs no client of object stores

    return Bucket(parts.netloc, parts.path.strip("/"), from_environment(os.environ))


def of_table(table: deltalake.DeltaTable) -> Place:
    """Where a table is that was opened."""
    return parse(table.table_uri)
