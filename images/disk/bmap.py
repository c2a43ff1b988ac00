"""Block maps (format 2.0 of bmap-tools): the parts of an image that hold data, and the hash of each."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

BLOCK: Final = 4096
PIECE: Final = 1 << 20
UNKNOWN: Final = "0" * 64
"""Placeholder for the file's own hash while that is computed."""


def make_map(image: Path) -> str:
    """Return the map of an image file, derived from its holes."""
    ranges = list(_find_data(image))
    size = image.stat().st_size
    lines = [
        '<?xml version="1.0" ?>',
        '<bmap version="2.0">',
        f"    <ImageSize> {size} </ImageSize>",
        f"    <BlockSize> {BLOCK} </BlockSize>",
        f"    <BlocksCount> {-(-size // BLOCK)} </BlocksCount>",
        f"    <MappedBlocksCount> {sum(last - first + 1 for first, last in ranges)} </MappedBlocksCount>",
        "    <ChecksumType> sha256 </ChecksumType>",
        f"    <BmapFileChecksum> {UNKNOWN} </BmapFileChecksum>",
        "    <BlockMap>",
    ]
    with image.open("rb") as source:
        for first, last in ranges:
            where = f"{first}-{last}" if last > first else f"{first}"
            lines.append(
                f'        <Range chksum="{_digest(source.fileno(), first, last, size)}"> {escape(where)} </Range>'
            )
    text = "\n".join([*lines, "    </BlockMap>", "</bmap>", ""])
    return text.replace(UNKNOWN, hashlib.sha256(text.encode()).hexdigest(), 1)


def _find_data(image: Path) -> Iterator[tuple[int, int]]:
    """Yield the first and last block of each part that is not a hole."""
    size, at, last = image.stat().st_size, 0, -1
    with image.open("rb") as source:
        while at < size:
            try:
                begin = os.lseek(source.fileno(), at, os.SEEK_DATA)
            except OSError:  # nothing but holes from here on
                return
            at = os.lseek(source.fileno(), begin, os.SEEK_HOLE)
            first, last = max(begin // BLOCK, last + 1), (at - 1) // BLOCK
            if first <= last:
                yield first, last


def _digest(descriptor: int, first: int, last: int, size: int) -> str:
    found = hashlib.sha256()
    at, end = first * BLOCK, min((last + 1) * BLOCK, size)
    while at < end:
        piece = os.pread(descriptor, min(PIECE, end - at), at)
        found.update(piece)
        at += len(piece)
    return found.hexdigest()
