"""Write one image onto one card: only the parts that the image fills, the first block last, and all of it read back.

A card without its first block does not start. So a card that was only partly written is an empty card, not half a
gateway. The first block is written after everything else was read back from the card itself, past every cache.
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
from images.flashing.image import PIECE, BlockRange, VerifiedImage

BLKFLSBUF: Final = 0x1261
"""Request of ioctl: the kernel drops its buffers of a disk, so that it is read from the medium (linux/fs.h)."""
FIRST: Final = 4096
"""Bytes that are written last; the partition table is in them."""
DISK_ID: Final = slice(440, 444)
"""Disk signature in the first sector (MBR). Two cards in one machine need different ones."""
SYNC_BYTES: Final = 32 << 20
"""Most bytes in flight to the card, so that progress shows the card and not the page cache."""

Progress = Callable[[str, int], None]
"""Takes what is being done (``writing``, ``reading back``) and by how many bytes it has advanced."""


class WriteResult(NamedTuple):
    """Bytes written to a card, and the seconds it took."""

    bytes: int
    seconds: float


class CardTarget:
    """Disk or file, open for writing and reading back."""

    def __init__(self, path: Path, descriptor: int, *, is_disk: bool) -> None:
        self.path = path
        self.is_disk = is_disk
        self._descriptor = descriptor
        self._unsynced = 0

    @property
    def size(self) -> int:
        """Size in bytes that the target claims to have. Raises ImageError."""
        with self._translate_errors("read"):
            return os.lseek(self._descriptor, 0, os.SEEK_END)

    def write(self, at: int, content: bytes) -> None:
        """Write bytes at an offset. Raises ImageError."""
        with self._translate_errors("written"):
            view = memoryview(content)
            while view:
                count = os.pwrite(self._descriptor, view, at)
                view, at = view[count:], at + count
            self._unsynced += len(content)
            if self._unsynced >= SYNC_BYTES:
                os.fdatasync(self._descriptor)
                self._unsynced = 0

    def sync(self) -> None:
        """Wait until all data is on the card, and drop the caches. Raises ImageError."""
        with self._translate_errors("written"):
            os.fsync(self._descriptor)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            if self.is_disk:
                with contextlib.suppress(PermissionError):  # POSIX_FADV_DONTNEED suffices
                    fcntl.ioctl(self._descriptor, BLKFLSBUF)

    def read(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes between two offsets. Raises ImageError."""
        while begin < end:
            with self._translate_errors("read"):
                piece = os.pread(self._descriptor, min(PIECE, end - begin), begin)
            if not piece:
                raise ImageError(f"{self.path} ends at {begin / 1e6:.0f} MB", hint=_OTHER_CARD, code=INTEGRITY)
            yield piece
            begin += len(piece)

    @contextlib.contextmanager
    def _translate_errors(self, verb: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _explain_error(self.path, verb, error) from None


@contextlib.contextmanager
def open_target(path: Path, size: int, *, is_disk: bool = False) -> Iterator[CardTarget]:
    """Open a disk that nothing else uses, or a file, which is created with this size. Raises ImageError."""
    # O_EXCL fails for a disk in use (open(2)). Without O_CREAT a removed disk is not replaced by a file of its name.
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_EXCL if is_disk else os.O_CREAT)
    if is_disk and not path.is_block_device():
        raise _explain_error(path, "opened", OSError(errno.ENODEV, os.strerror(errno.ENODEV)))
    try:
        descriptor = os.open(path, flags, 0o600)  # settings hold a token and passwords
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise ImageError(f"{path} is in use", hint="unmount it: lsblk shows the mount points") from None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise ImageError(f"{path}: {error.strerror}", hint="run it with sudo", code=USAGE) from None
        raise _explain_error(path, "opened", error) from None
    try:
        if not is_disk:
            os.ftruncate(descriptor, 0)
            os.ftruncate(descriptor, size)
        yield CardTarget(path, descriptor, is_disk=is_disk)
    except OSError as error:
        raise _explain_error(path, "written", error) from None
    finally:
        os.close(descriptor)


def flash(
    handed: VerifiedImage,
    target: CardTarget,
    changed: Mapping[int, bytes],
    progress: Progress,
    *,
    disk_id: bytes | None = None,
) -> WriteResult:
    """Write an image with the `changed` blocks, and read it back. Raises ImageError; the card then does not start.

    `disk_id`: replaces that of the image.
    """
    began = time.monotonic()
    target.write(0, bytes(FIRST))  # the old content no longer starts
    target.sync()
    marks = _write_marks(target, handed.layout.size)
    _require_marks(target, {0: bytes(FIRST), **marks})
    first, intended = _write(handed, target, dict(changed), progress)
    if disk_id is not None:
        first = first[: DISK_ID.start] + disk_id + first[DISK_ID.stop :]
    target.sync()
    _require_marks(target, marks)
    for begin, end, digest in intended:
        _require_digest(target, max(begin, FIRST), end, digest, progress)
    target.write(0, first)
    target.sync()
    _require_digest(
        target, 0, len(first), hashlib.sha256(first).hexdigest(), lambda *_: None
    )  # the card is complete: no interruption from now on
    total = sum(each.end - each.begin for each in intended)
    return WriteResult(total, time.monotonic() - began)


def _write_marks(target: CardTarget, image: int) -> Mapping[int, bytes]:
    """Write marks behind the image and return them by offset, to find a card that is smaller than it claims.

    Such a card loses what is written behind its end, or wraps around: to the first block if its size is a power of two,
    else to some place, which is noticed where the image has data. The image itself may fit, and messages would be lost
    later.
    """
    size = target.size
    places = [1 << power for power in range(image.bit_length(), size.bit_length())] + [size - FIRST]
    marks = {place: place.to_bytes(8, "big") * (FIRST // 8) for place in places if image <= place <= size - FIRST}
    for place, mark in marks.items():
        target.write(place, mark)
    target.sync()
    return marks


def _require_marks(target: CardTarget, marks: Mapping[int, bytes]) -> None:
    """Raise ImageError unless the marks are on the card."""
    for place, mark in marks.items():
        _require_digest(target, place, place + FIRST, hashlib.sha256(mark).hexdigest(), lambda *_: None)


def _write(
    handed: VerifiedImage, target: CardTarget, changed: dict[int, bytes], progress: Progress
) -> tuple[bytes, list[BlockRange]]:
    """Write everything but the first block.

    Returns the first block, and the ranges that the card must have now; their digests leave out the first block.
    """
    intended: list[BlockRange] = []
    first = b""
    at = 0
    with handed.open() as source:
        for each in handed.layout.ranges:
            _skip(source, each.begin - at)
            original, wanted = hashlib.sha256(), hashlib.sha256()
            at = each.begin
            while at < each.end:
                piece = _read(source, min(PIECE, each.end - at))
                original.update(piece)
                piece = _apply_changes(piece, at, changed)
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
                raise _explain_damage(handed.file, each.begin)
            intended.append(BlockRange(each.begin, each.end, wanted.hexdigest()))
    for begin, content in changed.items():  # in holes of the image
        target.write(begin, content)
        intended.append(BlockRange(begin, begin + len(content), hashlib.sha256(content).hexdigest()))
    return first, intended


def _explain_damage(image: Path, at: int) -> ImageError:
    hint = _AGAIN
    if image.suffix not in partition.COMPRESSED:  # only its parts have checksums
        configured = (
            "did `waypost image configure` write settings into it? Give them to waypost flash with --config, "
            "and use the released image. Otherwise "
        )
        hint = configured + hint
    return ImageError(f"{image} does not match its map (at {at / 1e6:.0f} MB)", hint=hint, code=INTEGRITY)


def _apply_changes(piece: bytes, at: int, changed: dict[int, bytes]) -> bytes:
    """Return a piece with the changes inside it, which are taken out of `changed`."""
    inside = [begin for begin in changed if at <= begin < at + len(piece)]
    if not inside:
        return piece
    made = bytearray(piece)
    for begin in inside:
        content = changed.pop(begin)
        made[begin - at : begin - at + len(content)] = content
    return bytes(made)


def _read(source: IO[bytes], count: int) -> bytes:
    """Read exactly `count` bytes. Raises ImageError."""
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


def _require_digest(target: CardTarget, begin: int, end: int, digest: str, progress: Progress) -> None:
    """Raise ImageError unless the range on the card has this digest."""
    found = hashlib.sha256()
    for piece in target.read(begin, end):
        found.update(piece)
        progress("reading back", len(piece))
    if found.hexdigest() != digest:
        words = f"{target.path} does not keep written data (at {begin / 1e6:.0f} MB)"
        raise ImageError(words, hint=_OTHER_CARD, code=INTEGRITY)


_AGAIN: Final = "download it and the files next to it again; the card does not start now"
_OTHER_CARD: Final = "use another card: this one is worn out or smaller than it claims; it does not start now"


def _explain_error(path: Path, verb: str, error: OSError) -> ImageError:
    hint = _OTHER_CARD
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        hint = "free some space, or choose another place; the file is incomplete now"
    elif error.errno in (errno.ENXIO, errno.ENODEV, errno.ENOMEDIUM):
        hint = "was it removed? Insert it and run the command again: it does not start now"
    elif error.errno == errno.EIO:  # also reported when the card is removed during a write
        hint = "was it removed? Run the command again. If it fails again, use another card: it does not start now"
    elif error.errno in (errno.ENOENT, errno.ENOTDIR):
        hint = "name a file in an existing folder"
    elif error.errno == errno.EROFS:
        hint = "check the write-protect switch of the card or its adapter"
    return ImageError(f"{path} cannot be {verb}: {error.strerror}", hint=hint, code=FAILED)
