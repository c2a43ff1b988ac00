"""Compression of segments with zstd (RFC 8878). Imported on first use, because zstd takes 0.4 MiB."""

from __future__ import annotations

import threading
from typing import Final

import zstandard

_LEVEL: Final = 1
"""40-70 us for a segment of 15 KB; level 3 makes noise and JSON less than a hundredth smaller."""


class _SegmentZstd(threading.local):
    """Compressor and decompressor of one thread. Neither may be shared."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd: Final = _SegmentZstd()


def compress(data: bytes) -> bytes:
    """Return one frame with the size of `data` in its header."""
    return _zstd.compressor.compress(data)


def decompress(frame: bytes) -> bytes:
    """Return the data of one frame. Raises ValueError unless `frame` is exactly one frame."""
    try:
        return _zstd.decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"zstd: {error}") from error
