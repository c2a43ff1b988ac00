"""What the registry packs into one column, most of it under a checksum."""

from __future__ import annotations

import contextlib
import logging
import zlib
from typing import Any

import msgspec

from cloud.lake.faults import RegistryError
from cloud.lake.sequences import SequenceRange

log = logging.getLogger(__name__)


def pack_checked(value: Any) -> bytes:
    """With a checksum."""
    content = msgspec.msgpack.encode(value)
    return msgspec.msgpack.encode((zlib.crc32(content), content))


def unpack_ends(packed: bytes | None, gateway: str) -> dict[int, int]:
    """How far the logs of a store reach; nothing when that is damaged: nobody is taken for a copy by mistake."""
    with contextlib.suppress(msgspec.DecodeError):
        if packed is None:
            return {}
        checksum, content = msgspec.msgpack.decode(packed, type=tuple[int, bytes])
        if zlib.crc32(content) == checksum:
            return dict(msgspec.msgpack.decode(content, type=list[tuple[int, int]]))
    log.error("registry: how far the store of gateway %s went is damaged, and counted anew", gateway)
    return {}


def unpack_ranges(packed: bytes, table: str, commit: int) -> list[SequenceRange]:
    """The ranges of a prepared commit. Raises `RegistryError` when they are damaged."""
    try:
        checksum, content = msgspec.msgpack.decode(packed, type=tuple[int, bytes])
        if zlib.crc32(content) == checksum:
            return msgspec.msgpack.decode(content, type=list[SequenceRange])
    except msgspec.DecodeError:
        with contextlib.suppress(msgspec.DecodeError):  # of before there was a checksum
            return msgspec.msgpack.decode(packed, type=list[SequenceRange])
    raise RegistryError(f"commit {commit} of table {table} is damaged: restore the registry and the lake from a copy")


def unpack_openings(packed: bytes, gateway: str) -> list[str]:
    """The openings of a row; none when it is damaged, which is as if this hub had not heard of the store before."""
    try:
        return msgspec.msgpack.decode(packed, type=list[str])
    except msgspec.DecodeError as error:
        log.error("registry: what is known of the store of gateway %s is damaged: %s", gateway, error)  # noqa: TRY400
        return []
