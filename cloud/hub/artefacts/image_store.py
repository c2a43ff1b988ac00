"""Images in the place of the lake: parts of `PART_BYTES` in a folder of each artefact. It knows nothing of devices.

An object store cannot append, and a hub must not hold an image in memory. So an image is a folder of parts, and an
upload that broke continues with the missing ones, at any hub. The parts are verified together before the image is used.
The folder has a random name that is never used again, so that a late deletion cannot meet a newer image.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from cloud.hub.artefacts.limits import PART_BYTES
from cloud.place.place import LakePlace

FOLDER: Final = "_artefacts"
"""Folder in the lake. Readers of tables ignore names that begin with an underscore."""


class ImageKey(NamedTuple):
    """Name of an image."""

    tenant: str
    id: str
    """Random name of its folder."""
    size: int

    @property
    def parts(self) -> int:
        """Number of its parts."""
        return -(-self.size // PART_BYTES)

    def part_bytes(self, number: int) -> int:
        """Return the bytes of a part."""
        return min(PART_BYTES, self.size - number * PART_BYTES)


class ImageStore:
    """Images of all tenants. It blocks, and may be used by several threads. Methods raise OSError."""

    def __init__(self, lake: LakePlace) -> None:
        self._place: Final = lake.at(FOLDER)

    def missing(self, key: ImageKey) -> list[int]:
        """Return the numbers of the parts that are not stored. A part that a kill or a power cut has torn counts as
        missing."""
        there = set(self._place.names(_folder(key)))
        return [number for number in range(key.parts) if _name(number) not in there or self._is_torn(key, number)]

    def _is_torn(self, key: ImageKey, number: int) -> bool:
        return self._place.tears and self._place.size(_path(key, number)) != key.part_bytes(number)

    def put(self, key: ImageKey, number: int, content: bytes) -> None:
        """Store a part. One of the same size stays; one of another size is torn, and is replaced."""
        path = _path(key, number)
        if (size := self._place.size(path)) is not None:
            if size == len(content):
                return
            self._place.delete(path)
        with self._place.create(path) as out:
            out.write(content)

    def read(self, key: ImageKey, start: int, size: int) -> bytes:
        """Return up to `size` bytes from a position on, of one part."""
        number, offset = divmod(start, PART_BYTES)
        wanted = min(size, key.part_bytes(number) - offset)
        source = self._place.source(_path(key, number))
        with source.open("rb") if isinstance(source, Path) else source as opened:
            opened.seek(offset)
            found = opened.read(wanted)
        if len(found) != wanted:
            raise OSError(f"part {number} of image {key.id} has less than {offset + wanted} bytes")
        return found

    def parts(self, key: ImageKey) -> Iterator[bytes]:
        """Yield the content of all parts, whatever their sizes are. Raises `FileNotFoundError` for a missing one."""
        for number in range(key.parts):
            found = self._place.read(_path(key, number))
            if found is None:
                raise FileNotFoundError(f"part {number} of image {key.id} is missing")
            yield found

    def sync(self, key: ImageKey) -> None:
        """Make all parts durable, also one that was interrupted after its last byte."""
        self._place.sync(_folder(key), [_name(number) for number in range(key.parts)])

    def delete(self, key: ImageKey) -> None:
        """Delete an image, or what is there of it. Idempotent."""
        self._place.at(_folder(key)).clear()
        if self._place.names(_folder(key)):
            raise OSError(f"image {key.id} could not be deleted")


def _folder(key: ImageKey) -> str:
    return f"{key.tenant}/{key.id}"


def _name(number: int) -> str:
    return f"{number:05}"


def _path(key: ImageKey, number: int) -> str:
    return f"{_folder(key)}/{_name(number)}"
