"""When a message says itself that it expires: absolute-expiry-time of its properties (AMQP 1.0 section 3.2.4)."""

from __future__ import annotations

from typing import Final

from bridge.amqp_values import DecodeError
from bridge.sections import EXPIRY_FIELD, PROPERTIES, sections, skip

_NULL: Final = b"\x40"
_SIZE_BYTES: Final = {0xC0: 1, 0xD0: 4}
"""Bytes of the size, and of the count, of a list, by its format code."""


def without_expiry(message: bytes) -> bytes:
    """A message that never expires; everything but this one field stays as it is encoded.

    A client that finds the time in the past drops the message without a word (Qpid JMS, unless told otherwise). One
    that cannot be read stays as it is.
    """
    try:
        for section in sections(message):
            if section.code == PROPERTIES:
                return _nulled(message, section.value, section.end)
            if section.code > PROPERTIES:
                break
    except DecodeError:
        pass
    return message


def _nulled(message: bytes, value: int, end: int) -> bytes:
    width = _SIZE_BYTES.get(message[value])
    if width is None:
        return message
    size_at, count_at = value + 1, value + 1 + width
    field = count_at + width
    if int.from_bytes(message[count_at:field], "big") <= EXPIRY_FIELD:
        return message
    for _ in range(EXPIRY_FIELD):
        field = skip(message, field)
    following = skip(message, field)
    if following > end:
        raise DecodeError(f"a field at byte {field} that does not fit")
    size = int.from_bytes(message[size_at:count_at], "big") - (following - field) + 1
    return message[:size_at] + size.to_bytes(width, "big") + message[count_at:field] + _NULL + message[following:]
