"""Pieces of the running system's files, by their digests: source of the blocks that an update need not fetch.

Files are read as any user may read them, which needs neither root nor access to the partition. The file system's own
structures are not found this way. The system is read-only, but a file that changes does no harm: blocks are verified.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Final

from bridge.block_index import PIECE_BYTES, digest_of

_READ_BYTES: Final = 256 << 10
"""Bytes that are read at a time, a number of pieces."""
_OFFSET_BITS: Final = 40
"""Bits of a position within a file; the number of the file is above them. One number needs less memory than two."""


class OwnPieces(Mapping[bytes, bytes]):
    """Contents of pieces by digest, read from the files when they are used.

    A piece that can no longer be read is empty, so that its block does not match.
    """

    def __init__(self, root: Path, wanted: Container[bytes]) -> None:
        """Read all files below `root` on its file system, and remember where the wanted pieces are.

        For a root of 500 MiB it takes some 20 s and 25 MB on a Raspberry Pi.
        """
        self._files: list[str] = []
        self._places: dict[bytes, int] = {}
        for path in _list_files(root):
            self._collect(path, wanted)

    def __getitem__(self, digest: bytes) -> bytes:
        place = self._places[digest]
        try:
            with open(self._files[place >> _OFFSET_BITS], "rb", buffering=0, opener=_open_plainly) as source:
                found = os.pread(source.fileno(), PIECE_BYTES, place & (1 << _OFFSET_BITS) - 1)
        except OSError:
            return b""
        return found.ljust(PIECE_BYTES, b"\0")

    def __contains__(self, digest: object) -> bool:
        return digest in self._places

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def _collect(self, path: str, wanted: Container[bytes]) -> None:
        number, at = len(self._files), 0
        try:
            with open(path, "rb", buffering=0, opener=_open_plainly) as source:
                while content := source.read(_READ_BYTES):
                    for first in range(0, len(content), PIECE_BYTES):
                        digest = digest_of(content[first : first + PIECE_BYTES])
                        if digest in wanted:
                            self._places.setdefault(digest, number << _OFFSET_BITS | at + first)
                    at += len(content)
        except OSError:  # of another user, or a damaged medium: these pieces are fetched
            pass
        self._files.append(path)


def _open_plainly(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _list_files(root: Path) -> Iterator[str]:
    """Yield the regular files below a folder, on its file system, each once."""
    device, seen = os.stat(root).st_dev, set[int]()
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(each for each in folders if _is_on(device, os.path.join(folder, each)))
        for name in sorted(names):
            path = os.path.join(folder, name)
            try:
                found = os.lstat(path)
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode) and found.st_dev == device and found.st_ino not in seen:
                if found.st_nlink > 1:
                    seen.add(found.st_ino)
                yield path


def _is_on(device: int, folder: str) -> bool:
    try:
        return os.lstat(folder).st_dev == device
    except OSError:
        return False
