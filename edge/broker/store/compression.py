"""Compression of segments by zstd (RFC 8878). Imported with the first segment that needs it: zstd takes 0.4 MiB."""

from __future__ import annotations

import threading
from typing import Final

import zstandard

_LEVEL: Final = 1
"""40-70 us for a segment of 15 KB; level 3 makes noise and JSON less than a hundredth smaller."""


class _SegmentZstd(threading.local):
    """One compressor and one decompressor a thread: neither may be shared."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd: Final = _SegmentZstd()


def compress(data: bytes) -> bytes:
    """One frame, which says how long `data` is."""
    return _zstd.compressor.compress(data)


def decompress(frame: bytes) -> bytes:
    """What was compressed. Raises ValueError where it is not one whole frame."""
    try:
        return _zstd.decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"zstd: {error}") from error
