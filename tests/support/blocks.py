"""Bundles as mksquashfs writes them: blocks of a root file system between a head and a tail."""

from __future__ import annotations

import hashlib
from pathlib import Path

from bridge.block_index import BLOCK_BYTES, BlockIndex, compress
from images.disk.block_index import SUPERBLOCK_BYTES, write_index

HEAD = bytes(SUPERBLOCK_BYTES)
TAIL = hashlib.sha512(b"inodes, hashes and the signature").digest() * 40


def make_bundle(root: bytes) -> bytes:
    """Return a bundle with this root file system."""
    blocks = (root[at : at + BLOCK_BYTES] for at in range(0, len(root), BLOCK_BYTES))
    return HEAD + b"".join(compress(block) for block in blocks if any(block)) + TAIL


def make_index(folder: Path, root: bytes) -> BlockIndex:
    """Return the index that a build writes for this root. `folder`: an existing one."""
    bundle, image = folder / "built.raucb", folder / "built.ext4"
    bundle.write_bytes(make_bundle(root))
    image.write_bytes(root)
    return BlockIndex.decode(write_index(bundle, image).read_bytes())
