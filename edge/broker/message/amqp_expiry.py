"""Remove the absolute-expiry-time from the properties of a message (AMQP 1.0 section 3.2.4)."""

from __future__ import annotations

from typing import Final

from bridge.amqp_values import DecodeError
from bridge.sections import EXPIRY_FIELD, PROPERTIES, sections, skip

_NULL: Final = b"\x40"
_SIZE_BYTES: Final = {0xC0: 1, 0xD0: 4}
"""Bytes of the size and of the count of a list, by format code."""


def without_expiry(message: bytes) -> bytes:
    """Return the message without absolute-expiry-time; everything else keeps its encoding.

    Clients drop expired messages silently (Qpid JMS by default). An invalid message is returned unchanged.
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
        raise DecodeError(f"invalid field at byte {field}")
    size = int.from_bytes(message[size_at:count_at], "big") - (following - field) + 1
    return message[:size_at] + size.to_bytes(width, "big") + message[count_at:field] + _NULL + message[following:]
