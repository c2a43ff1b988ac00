"""Make the index of a bundle's blocks (`bridge.block_index`), with which gateways fetch only what they do not have."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from bridge.block_index import BLOCK_BYTES, SUFFIX, BlockIndex, compress, describe_block
from images.disk import filesystem
from images.errors import ImageError

SUPERBLOCK_BYTES: Final = 96
COMPRESSOR_OPTIONS: Final = 1 << 10
"""Flag of a squashfs: its data begins after a block with the compressor's options."""
FLAGS: Final = struct.Struct("<24xH")
LENGTH: Final = struct.Struct("<H")
LENGTH_MASK: Final = 0x7FFF
"""Bits of a length; the highest bit says that the block is not compressed."""


def write_index(bundle: Path, root: Path) -> Path:
    """Write the index next to a bundle, and return it. `root`: the file system in the bundle.

    Raises ImageError when the blocks of the file system are not in the bundle as zlib of this machine compresses them:
    then a gateway could not make them either.
    """
    blocks = []
    with bundle.open("rb") as packed, root.open("rb") as source:
        offset = _find_data(packed.read(SUPERBLOCK_BYTES + LENGTH.size))
        packed.seek(offset)
        while content := source.read(BLOCK_BYTES):
            if not any(content):
                continue  # a hole, which has no bytes
            expected = compress(content)
            if packed.read(len(expected)) != expected:
                raise ImageError(
                    f"{bundle.name}: the block at {offset} is not as zlib compresses it here",
                    hint="build the bundle on Debian: its mksquashfs and Python share a zlib",
                )
            blocks.append(describe_block(content, offset, expected))
            offset += len(expected)
    index = BlockIndex(filesystem.compute_sha256(bundle), bundle.stat().st_size, tuple(blocks))
    target = bundle.with_name(f"{bundle.name}{SUFFIX}")
    target.write_bytes(index.encode())
    return target


def _find_data(head: bytes) -> int:
    """Return where the data of a squashfs begins, from its first bytes."""
    flags = int(FLAGS.unpack_from(head)[0])
    if not flags & COMPRESSOR_OPTIONS:
        return SUPERBLOCK_BYTES
    length = int(LENGTH.unpack_from(head, SUPERBLOCK_BYTES)[0])
    return SUPERBLOCK_BYTES + LENGTH.size + (length & LENGTH_MASK)
