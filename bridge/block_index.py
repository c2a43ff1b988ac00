"""Index of an update bundle's blocks: a gateway copies from its running system what that has already.

A bundle is a squashfs that compresses the root file system in blocks of 16 KiB with zlib. The index has the hashes of
the 4 KiB pieces of each block. A gateway that has all pieces of a block compresses them again, which gives the same
bytes. The index proves nothing: checksum and signature of the bundle are verified as without it.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec

SUFFIX: Final = ".blocks"
"""The index is next to the bundle, under the same name with this suffix."""
BLOCK_BYTES: Final = 16 << 10
"""Block of a squashfs, which mksquashfs compresses at a time. For another gateway in the same Debian, 23 MiB are
fetched with it, and 39 MiB with blocks of 128 KiB, which make a bundle 4 % smaller."""
PIECE_BYTES: Final = 4 << 10
"""Block of an ext4: a file begins and continues at such a boundary."""
DIGEST_BYTES: Final = 8
"""Bytes of a SHA-256 that are kept. Of a million pieces, two are equal by chance once in 37 million times; then the
checksum of the block differs, and the block is fetched."""
LEVEL: Final = 6
"""Level of zlib: a third of the time of level 9, and 0.4 % more bytes."""
INDEX_BYTES_MAX: Final = 8 << 20
"""Largest index that is read; a root with 768 MiB of content needs 3 MiB."""
PIECES: Final = BLOCK_BYTES // PIECE_BYTES
_NO_PIECE: Final = bytes(PIECE_BYTES)


class BlockIndexError(ValueError):
    """The file is not a block index, or a damaged one."""


class BundleBlock(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Compressed block of a bundle. A block of zeros has no bytes, and is not in the index."""

    offset: Annotated[int, msgspec.Meta(ge=0)]
    """Position of its first byte in the bundle."""
    size: Annotated[int, msgspec.Meta(gt=0, le=BLOCK_BYTES)]
    checksum: int
    """CRC-32 of its bytes in the bundle: another zlib may compress differently."""
    places: Annotated[int, msgspec.Meta(gt=0, lt=1 << PIECES)]
    """Bit mask of the pieces that are not zeros; bit 0: the first one."""
    digests: bytes
    """Digests of those pieces, in order."""

    @property
    def end(self) -> int:
        """Position after its last byte."""
        return self.offset + self.size

    def pieces(self) -> Iterator[bytes]:
        """Yield the digest of each piece that is not zeros."""
        for at in range(0, len(self.digests), DIGEST_BYTES):
            yield self.digests[at : at + DIGEST_BYTES]

    def compose(self, pieces: Mapping[bytes, bytes]) -> bytes | None:
        """Return its bytes in the bundle from the content of its pieces; None: they do not give these bytes."""
        digests = self.pieces()
        content = b"".join(
            pieces[next(digests)] if self.places >> number & 1 else _NO_PIECE for number in range(PIECES)
        )
        packed = compress(content)
        return packed if len(packed) == self.size and zlib.crc32(packed) == self.checksum else None


class BlockIndex(msgspec.Struct, frozen=True, tag_field="kind", tag="waypost-blocks-1"):
    """Index of one bundle."""

    sha256: str
    """SHA-256 of the bundle."""
    size: int
    """Size of the bundle."""
    blocks: tuple[BundleBlock, ...]
    """Blocks in the order of their bytes, without overlaps."""

    def encode(self) -> bytes:
        """Return the file's content."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, content: bytes) -> BlockIndex:
        """Return the index in a file. Raises BlockIndexError."""
        try:
            found = msgspec.msgpack.decode(content, type=cls)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise BlockIndexError(str(error)) from None
        end = 0
        for block in found.blocks:
            if block.offset < end or block.end > found.size:
                raise BlockIndexError(f"the block at {block.offset} overlaps, or is beyond the end of the bundle")
            if len(block.digests) != DIGEST_BYTES * block.places.bit_count():
                raise BlockIndexError(f"the block at {block.offset} has another number of digests than of pieces")
            end = block.end
        return found


def compress(content: bytes) -> bytes:
    """Return a block as it is in a bundle: compressed, unless that does not make it smaller."""
    packed = zlib.compress(content, LEVEL)
    return packed if len(packed) < len(content) else content


def digest_of(piece: bytes) -> bytes:
    """Return the digest of a piece; a shorter one is filled with zeros, as at the end of a file."""
    return hashlib.sha256(piece.ljust(PIECE_BYTES, b"\0")).digest()[:DIGEST_BYTES]


def describe_block(content: bytes, offset: int, packed: bytes) -> BundleBlock:
    """Return the entry of a block. `packed`: its bytes in the bundle, from `offset`."""
    places, digests = 0, []
    for number in range(PIECES):
        piece = content[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]
        if piece != _NO_PIECE:
            places |= 1 << number
            digests.append(digest_of(piece))
    return BundleBlock(offset, len(packed), zlib.crc32(packed), places, b"".join(digests))
