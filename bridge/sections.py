"""Scanner for the sections of an encoded AMQP message (part 3, section 3.2), which does not decode their content.

The broker reads the header of every message and little else; the bare message passes through unchanged. So the scanner
skips values by their size. Every step is bounds-checked: the only error is `DecodeError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bridge.amqp_values import Allowance, DecodeError, TooLarge, decode
from bridge.limits import DEPTH_MAX, HEADER_VALUES_MAX, SECTIONS_MAX

HEADER = 0x70
DELIVERY_ANNOTATIONS = 0x71
MESSAGE_ANNOTATIONS = 0x72
PROPERTIES = 0x73
APPLICATION_PROPERTIES = 0x74
DATA = 0x75
SEQUENCE = 0x76
VALUE = 0x77
FOOTER = 0x78

_SYMBOLIC = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}
_SMALL_ULONG, _ULONG = 0x53, 0x80
_LISTS = frozenset((0x45, 0xC0, 0xD0))
_MAPS = frozenset((0xC1, 0xD1))
EXPIRY_FIELD = 8
"""Index of absolute-expiry-time among the properties (section 3.2.4); the group fields follow it."""
_DESCRIPTIONS_MAX = DEPTH_MAX
"""Most consecutive descriptors before one value, so that a peer cannot make us skip zeros forever."""


class MessageSection(NamedTuple):
    """One section: its code, its start, the start of its value, and its end."""

    code: int
    start: int
    value: int
    end: int


def section_at(message: bytes, start: int) -> MessageSection:
    """Return the section that starts at `start`. Raises `DecodeError` when none does or it is cut short."""
    try:
        if message[start] != 0:
            raise DecodeError(f"no section at byte {start}")
        if message[start + 1] == _SMALL_ULONG:
            code, value = message[start + 2], start + 3
        else:
            code, value = _descriptor(message, start + 1)
        if not HEADER <= code <= FOOTER:
            raise DecodeError(f"0x{code:x} at byte {start} is not a section")
        end = _skip(message, value)
    except IndexError:
        raise DecodeError(f"section at byte {start} is cut short") from None
    return MessageSection(code, start, value, end)


def sections(message: bytes) -> Iterator[MessageSection]:
    """Yield every section. Raises `DecodeError` at the first byte that is not part of one, `TooLarge` for more than
    `SECTIONS_MAX`."""
    offset = count = 0
    while offset < len(message):
        count += 1
        if count > SECTIONS_MAX:
            raise TooLarge(f"more than {SECTIONS_MAX} sections")
        section = section_at(message, offset)
        yield section
        offset = section.end


def bare_message(message: bytes) -> tuple[int, int]:
    """Return (end of the header section, start of the bare message); delivery annotations are between them.

    The first is 0 without a header. Raises `DecodeError` for an empty message or one that does not start with sections.
    """
    section = section_at(message, 0)
    header_end = start = 0
    if section.code == HEADER:
        header_end = start = section.end
        if start == len(message):
            raise DecodeError("a message without a body")
        section = section_at(message, start)
    if section.code == DELIVERY_ANNOTATIONS:
        start = section.end
        section = section_at(message, start)
    if section.code < MESSAGE_ANNOTATIONS:
        raise DecodeError(f"section 0x{section.code:x} at byte {start} is out of order")
    return header_end, start


def plain_data(bare_message: bytes) -> bytes | None:
    """Return the payload of a bare message that is a single data section, as most are; None for all others."""
    size = len(bare_message)
    if size < 5 or bare_message[:3] != b"\x00\x53\x75":
        return None
    if bare_message[3] == 0xA0 and size == 5 + bare_message[4]:
        return bare_message[5:]
    if bare_message[3] == 0xB0 and size == 8 + int.from_bytes(bare_message[4:8], "big"):
        return bare_message[8:]
    return None


def skip(data: bytes, offset: int) -> int:
    """Return the offset after the value at `offset`. Raises `DecodeError` when it is cut short."""
    try:
        return _skip(data, offset)
    except IndexError:
        raise DecodeError(f"value at byte {offset} is cut short") from None


def _skip(data: bytes, offset: int) -> int:
    code = data[offset]
    described = 0
    while code == 0:  # a descriptor, then its value
        described += 1
        if described > _DESCRIPTIONS_MAX:
            raise DecodeError("described too often")
        if data[offset + 1] == 0:
            raise DecodeError(f"a described descriptor at byte {offset}")
        offset = _skip(data, offset + 1)
        code = data[offset]
    width = code >> 4
    if width >= 0xA:
        if width & 1:  # 0xB, 0xD, 0xF: a size of four bytes
            end = offset + 5 + int.from_bytes(data[offset + 1 : offset + 5], "big")
        else:
            end = offset + 2 + data[offset + 1]
    elif width >= 4:
        end = offset + 1 + ((1 << (width - 5)) if width > 4 else 0)
    else:
        raise DecodeError(f"0x{code:02x} at byte {offset} is not a format code")
    if end > len(data):
        raise DecodeError(f"value at byte {offset} is cut short")
    return end


def _descriptor(message: bytes, offset: int) -> tuple[int, int]:
    """Return the section code of a descriptor that is not in the usual short form, and the offset after it."""
    descriptor, end = decode(message, offset, Allowance(HEADER_VALUES_MAX))
    if isinstance(descriptor, str):
        return _SYMBOLIC.get(descriptor, 0), end
    return (descriptor if isinstance(descriptor, int) else 0), end
