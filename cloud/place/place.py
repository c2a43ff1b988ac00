"""Interface of a place that holds a lake, and its names.

A place holds objects by their path (`telemetry/_delta_log/00000000000000000000.json`). Written objects are complete and
durable on return. Every operation raises `OSError`, with the next step in the message if it is known.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

from cloud.place.folder import Folder
from cloud.place.options import InvalidOptions, from_environment

if TYPE_CHECKING:
    import deltalake

LOG = "_delta_log"
"""Folder of a table's log."""


class LakePlace(Protocol):
    """Place of a lake, or of a table or folder in it."""

    @property
    def name(self) -> str:
        """Last part of the path: the table's name."""
        ...

    @property
    def uri(self) -> str:
        """URI for delta-rs and for people."""
        ...

    @property
    def spark_uri(self) -> str:
        """URI for Spark."""
        ...

    @property
    def storage_options(self) -> dict[str, str] | None:
        """Options of delta-rs in addition to the URI. May hold secrets."""
        ...

    @property
    def tears(self) -> bool:
        """True if a power cut may leave a partly written object."""
        ...

    def at(self, name: str) -> LakePlace:
        """Return the place below this one with a name, existing or not."""
        ...

    def delta(self, version: int | None = None) -> deltalake.DeltaTable:
        """Open the Delta table at this place. Raises what delta-rs raises."""
        ...

    def is_table(self) -> bool:
        """Return whether a Delta table exists at this place."""
        ...

    def tables(self) -> list[str]:
        """Return the names of the Delta tables below this place, sorted."""
        ...

    def names(self, folder: str) -> Sequence[str]:
        """Return the names in a folder; empty for a missing one."""
        ...

    def size(self, path: str) -> int | None:
        """Return the bytes of an object; None if missing."""
        ...

    def read(self, path: str) -> bytes | None:
        """Return the content of a small object; None if missing."""
        ...

    def source(self, path: str) -> Path | IO[bytes]:
        """Return an object for pyarrow to read. Raises `FileNotFoundError`."""
        ...

    def make(self) -> None:
        """Create the place if necessary."""
        ...

    def check(self) -> None:
        """Check that the place can do what a writer needs. Called once before writing."""
        ...

    def create(self, path: str) -> AbstractContextManager[IO[bytes]]:
        """Open a new object to write: complete and durable when the block ends, removed when it raises.

        Raises `FileExistsError`.
        """
        ...

    def put_new(self, path: str, content: bytes) -> bool:
        """Create an object as a whole; return False if it exists. One of several concurrent writers wins. After a lost
        response, compare the content to find out which."""
        ...

    def delete(self, path: str) -> None:
        """Delete an object if it exists."""
        ...

    def clear(self) -> None:
        """Delete everything below this place."""
        ...

    def sync(self, folder: str, names: Sequence[str]) -> None:
        """Sync files that others have written in a folder, and the folder itself."""
        ...


LakeLocation: TypeAlias = LakePlace | Path | str
"""A place, or its name: a path or a URI."""


def place_of(location: LakeLocation) -> LakePlace:
    """Return the place of a name."""
    if isinstance(location, Path):
        return Folder(location)
    return parse(location) if isinstance(location, str) else location


def parse(name: str) -> LakePlace:
    """Return the place of a path or URI (`file:`, `s3:`, `s3a:`). Endpoint and credentials come from the environment.

    Raises `InvalidOptions`.
    """
    if "://" not in name:
        return Folder(Path(name))
    parts = urlsplit(name)
    if parts.scheme == "file":
        return Folder(Path(unquote(parts.path)))
    if parts.scheme not in ("s3", "s3a"):
        raise InvalidOptions(f"{parts.scheme}: a lake must be a folder, or s3://BUCKET/FOLDER")
    if not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidOptions("a lake in a bucket must have the form s3://BUCKET or s3://BUCKET/FOLDER")
    from cloud.place.bucket import Bucket  # noqa: PLC0415 - a folder needs no client of object stores

    return Bucket(parts.netloc, parts.path.strip("/"), from_environment(os.environ))


def place_of_table(table: deltalake.DeltaTable) -> LakePlace:
    """Return the place of an open table."""
    return parse(table.table_uri)
