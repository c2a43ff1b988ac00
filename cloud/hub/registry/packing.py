"""Packed columns of the registry, most of them with a checksum."""

from __future__ import annotations

import contextlib
import logging
import zlib
from typing import Any

import msgspec

from cloud.lake.sequences import SequenceRange

log = logging.getLogger(__name__)


def pack_checked(value: Any) -> bytes:
    """Pack a value with a checksum."""
    content = msgspec.msgpack.encode(value)
    return msgspec.msgpack.encode((zlib.crc32(content), content))


def unpack_ends(packed: bytes | None, gateway: str) -> dict[int, int]:
    """Unpack the ends of a store's logs. Damaged ends are dropped, so that no store is taken for an older copy by
    mistake."""
    with contextlib.suppress(msgspec.DecodeError):
        if packed is None:
            return {}
        checksum, content = msgspec.msgpack.decode(packed, type=tuple[int, bytes])
        if zlib.crc32(content) == checksum:
            return dict(msgspec.msgpack.decode(content, type=list[tuple[int, int]]))
    log.error("registry: the log ends of gateway %s are damaged; starting again without them", gateway)
    return {}


def unpack_ranges(packed: bytes) -> list[SequenceRange] | None:
    """Unpack the ranges of a prepared commit; None when they are damaged."""
    try:
        checksum, content = msgspec.msgpack.decode(packed, type=tuple[int, bytes])
        if zlib.crc32(content) == checksum:
            return msgspec.msgpack.decode(content, type=list[SequenceRange])
    except msgspec.DecodeError:
        with contextlib.suppress(msgspec.DecodeError):  # written before there were checksums
            return msgspec.msgpack.decode(packed, type=list[SequenceRange])
    return None


def unpack_openings(packed: bytes, gateway: str) -> list[str]:
    """Unpack the openings of a row. Damaged ones are dropped, as for a store that is new to this hub."""
    try:
        return msgspec.msgpack.decode(packed, type=list[str])
    except msgspec.DecodeError as error:
        log.error("registry: the openings of gateway %s are damaged: %s", gateway, error)  # noqa: TRY400
        return []
