"""One image onto one card: only what the image fills, the first block last, and all of it read back.

A card without its first block starts nothing: one whose writing was cut off anywhere is an empty card, not half a
gateway. The first block comes when everything else was read back from the card itself, past every cache.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final, NamedTuple

from images.card import partition
from images.errors import FAILED, INTEGRITY, USAGE, ImageError
from images.flashing.image import PIECE, Handed, Range

BLKFLSBUF: Final = 0x1261
"""Of ioctl: what the kernel has of a disk is forgotten, so that it is read from the disk (linux/fs.h)."""
FIRST: Final = 4096
"""Bytes that come last: the partition table is in them."""
DISK_ID: Final = slice(440, 444)
"""Disk signature in the first sector (MBR). Two cards in one machine need different ones."""
SYNC_BYTES: Final = 32 << 20
"""So much at most is under way to the card: progress is then that of the card, not of the memory."""

Progress = Callable[[str, int], None]
"""Takes what is being done (``writing``, ``reading back``) and how many more bytes of it are done."""


class Written(NamedTuple):
    """What became of a card."""

    bytes: int
    seconds: float


class Target:
    """A disk or a file, open for writing and reading back."""

    def __init__(self, path: Path, descriptor: int, *, is_disk: bool) -> None:
        self.path = path
        self.is_disk = is_disk
        self._descriptor = descriptor
        self._unsynced = 0

    @property
    def size(self) -> int:
        """Bytes it says it has. Raises ImageError."""
        with self._explained("read"):
            return os.lseek(self._descriptor, 0, os.SEEK_END)

    def write(self, at: int, content: bytes) -> None:
        """Raises ImageError."""
        with self._explained("written"):
            view = memoryview(content)
            while view:
                count = os.pwrite(self._descriptor, view, at)
                view, at = view[count:], at + count
            self._unsynced += len(content)
            if self._unsynced >= SYNC_BYTES:
                os.fdatasync(self._descriptor)
                self._unsynced = 0

    def sync(self) -> None:
        """All of it is on the card, and is read from there. Raises ImageError."""
        with self._explained("written"):
            os.fsync(self._descriptor)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            if self.is_disk:
                with contextlib.suppress(PermissionError):  # POSIX_FADV_DONTNEED has done it
                    fcntl.ioctl(self._descriptor, BLKFLSBUF)

    def read(self, begin: int, end: int) -> Iterator[bytes]:
        """Raises ImageError."""
        while begin < end:
            with self._explained("read"):
                piece = os.pread(self._descriptor, min(PIECE, end - begin), begin)
            if not piece:
                raise ImageError(f"{self.path} ends at {begin / 1e6:.0f} MB", hint=_OTHER_CARD, code=INTEGRITY)
            yield piece
            begin += len(piece)

    @contextlib.contextmanager
    def _explained(self, verb: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _failure(self.path, verb, error) from None


@contextlib.contextmanager
def opened(path: Path, size: int, *, is_disk: bool = False) -> Iterator[Target]:
    """A disk that nothing else uses, or a file, made so large. Raises ImageError."""
    # Of a disk it fails where that is in use (open(2)), or was pulled out: a file of its name would be in the memory.
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_EXCL if is_disk else os.O_CREAT)
    if is_disk and not path.is_block_device():
        raise _failure(path, "opened", OSError(errno.ENODEV, os.strerror(errno.ENODEV)))
    try:
        descriptor = os.open(path, flags, 0o600)  # with settings it holds a token and passwords
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise ImageError(f"{path} is in use", hint="unmount what is on it: lsblk shows where it is") from None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise ImageError(f"{path}: {error.strerror}", hint="run it with sudo", code=USAGE) from None
        raise _failure(path, "opened", error) from None
    try:
        if not is_disk:
            os.ftruncate(descriptor, 0)
            os.ftruncate(descriptor, size)
        yield Target(path, descriptor, is_disk=is_disk)
    except OSError as error:
        raise _failure(path, "written", error) from None
    finally:
        os.close(descriptor)


def flash(
    handed: Handed, target: Target, changed: Mapping[int, bytes], progress: Progress, *, disk_id: bytes | None = None
) -> Written:
    """Write an image and the `changed` blocks of it, and read them back. Raises ImageError; the card then starts
    nothing. `disk_id`: replaces the image's own."""
    began = time.monotonic()
    target.write(0, bytes(FIRST))  # what was on the card starts no more
    target.sync()
    marks = _mark(target, handed.layout.size)
    _require_marks(target, {0: bytes(FIRST), **marks})
    first, intended = _write(handed, target, dict(changed), progress)
    if disk_id is not None:
        first = first[: DISK_ID.start] + disk_id + first[DISK_ID.stop :]
    target.sync()
    _require_marks(target, marks)
    for begin, end, digest in intended:
        _require(target, max(begin, FIRST), end, digest, progress)
    target.write(0, first)
    target.sync()
    _require(target, 0, len(first), hashlib.sha256(first).hexdigest(), lambda *_: None)  # it is whole: nothing stops it
    total = sum(each.end - each.begin for each in intended)
    return Written(total, time.monotonic() - began)


def _mark(target: Target, image: int) -> Mapping[int, bytes]:
    """What is written behind an image, by its place: of a card that says it is larger than it is not all of it stays.

    Such a one forgets what is behind its end, or begins anew there: at the first block where its size is a power of
    two, else somewhere, which is found where the image has something. The image may fit, and messages would be lost.
    """
    size = target.size
    places = [1 << power for power in range(image.bit_length(), size.bit_length())] + [size - FIRST]
    marks = {place: place.to_bytes(8, "big") * (FIRST // 8) for place in places if image <= place <= size - FIRST}
    for place, mark in marks.items():
        target.write(place, mark)
    target.sync()
    return marks


def _require_marks(target: Target, marks: Mapping[int, bytes]) -> None:
    """They are there. Raises ImageError."""
    for place, mark in marks.items():
        _require(target, place, place + FIRST, hashlib.sha256(mark).hexdigest(), lambda *_: None)


def _write(handed: Handed, target: Target, changed: dict[int, bytes], progress: Progress) -> tuple[bytes, list[Range]]:
    """Everything but the first block; it, and what has to be on the card now: digests are of what is behind it."""
    intended: list[Range] = []
    first = b""
    at = 0
    with handed.opened() as source:
        for each in handed.layout.ranges:
            _skip(source, each.begin - at)
            original, wanted = hashlib.sha256(), hashlib.sha256()
            at = each.begin
            while at < each.end:
                piece = _read(source, min(PIECE, each.end - at))
                original.update(piece)
                piece = _overlaid(piece, at, changed)
                if at == 0:
                    first, behind = piece[:FIRST], piece[FIRST:]
                    target.write(FIRST, behind)
                else:
                    behind = piece
                    target.write(at, piece)
                wanted.update(behind)
                at += len(piece)
                progress("writing", len(piece))
            if original.hexdigest() != each.digest:
                raise _damaged(handed.file, each.begin)
            intended.append(Range(each.begin, each.end, wanted.hexdigest()))
    for begin, content in changed.items():  # where the image has a hole
        target.write(begin, content)
        intended.append(Range(begin, begin + len(content), hashlib.sha256(content).hexdigest()))
    return first, intended


def _damaged(image: Path, at: int) -> ImageError:
    hint = _AGAIN
    if image.suffix not in partition.COMPRESSED:  # its sums are those of its parts alone
        hint = (
            "is it one that `waypost image configure` has written settings into? Give them to waypost flash: --config, "
            f"with the image as it was handed out. Else {hint}"
        )
    return ImageError(f"{image} is not what its map says (at {at / 1e6:.0f} MB)", hint=hint, code=INTEGRITY)


def _overlaid(piece: bytes, at: int, changed: dict[int, bytes]) -> bytes:
    """What of `changed` lies in a piece is put in, and is done."""
    inside = [begin for begin in changed if at <= begin < at + len(piece)]
    if not inside:
        return piece
    made = bytearray(piece)
    for begin in inside:
        content = changed.pop(begin)
        made[begin - at : begin - at + len(content)] = content
    return bytes(made)


def _read(source: IO[bytes], count: int) -> bytes:
    """Exactly so much. Raises ImageError."""
    import lzma  # noqa: PLC0415 - its errors only

    import zstandard  # noqa: PLC0415 - its errors only

    parts = b""
    while len(parts) < count:
        try:
            piece = source.read(count - len(parts))
        except (OSError, EOFError, lzma.LZMAError, zstandard.ZstdError) as error:
            raise ImageError(f"the image cannot be read: {error}", hint=_AGAIN, code=INTEGRITY) from None
        if not piece:
            raise ImageError("the image ends before its map does", hint=_AGAIN, code=INTEGRITY)
        parts += piece
    return parts


def _skip(source: IO[bytes], count: int) -> None:
    while count > 0:
        count -= len(_read(source, min(PIECE, count)))


def _require(target: Target, begin: int, end: int, digest: str, progress: Progress) -> None:
    """What is on the card has this digest. Raises ImageError."""
    found = hashlib.sha256()
    for piece in target.read(begin, end):
        found.update(piece)
        progress("reading back", len(piece))
    if found.hexdigest() != digest:
        words = f"{target.path} does not keep what is written to it (at {begin / 1e6:.0f} MB)"
        raise ImageError(words, hint=_OTHER_CARD, code=INTEGRITY)


_AGAIN: Final = "download it and what is beside it again; the card starts nothing now"
_OTHER_CARD: Final = "take another card: this one is worn out or not what it says it is; it starts nothing now"


def _failure(path: Path, verb: str, error: OSError) -> ImageError:
    hint = _OTHER_CARD
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        hint = "free some space, or choose another place; what is there now is no image"
    elif error.errno in (errno.ENXIO, errno.ENODEV, errno.ENOMEDIUM):
        hint = "was it pulled out? Put it in again and do it again: it starts nothing now"
    elif error.errno == errno.EIO:  # what a reader says whose card went while it wrote, too
        hint = "was it pulled out? Do it again. If it stays so, take another card: it starts nothing now"
    elif error.errno in (errno.ENOENT, errno.ENOTDIR):
        hint = "name a file in a folder that is there"
    elif error.errno == errno.EROFS:
        hint = "look at the switch at the side of the card or of its adapter"
    return ImageError(f"{path} cannot be {verb}: {error.strerror}", hint=hint, code=FAILED)
