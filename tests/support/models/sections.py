"""Model of `EngineLoops.malformed_at` and `EngineLoops.strip_header` in Python."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.amqp_values import DecodeError
from bridge.limits import DEPTH_MAX, SECTIONS_MAX
from bridge.sections import (
    _SMALL_ULONG,
    _SYMBOLIC,
    _ULONG,
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    EXPIRY_FIELD,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
)

_LIST0, _LIST8, _LIST32 = 0x45, 0xC0, 0xD0
_MAP8, _MAP32 = 0xC1, 0xD1
_ARRAY8, _ARRAY32 = 0xE0, 0xF0
_BINARIES = frozenset((0xA0, 0xB0))
_TEXTS = frozenset((0xA1, 0xB1))
_SYMBOLS = frozenset((0xA3, 0xB3))
_LISTS = frozenset((_LIST0, _LIST8, _LIST32))
_MAPS = frozenset((_MAP8, _MAP32))
_ARRAYS = frozenset((_ARRAY8, _ARRAY32))
_EMPTY = frozenset((0x40, 0x41, 0x42, 0x43, 0x44, _LIST0))
"""Constructors without bytes of their own."""
_BOOLEAN, _CHAR = 0x56, 0x73
_WIDTHS = {
    **dict.fromkeys((0x50, 0x51, 0x52, 0x53, 0x54, 0x55, _BOOLEAN), 1),
    **dict.fromkeys((0x60, 0x61), 2),
    **dict.fromkeys((0x70, 0x71, 0x72, _CHAR, 0x74), 4),
    **dict.fromkeys((0x80, 0x81, 0x82, 0x83, 0x84), 8),
    **dict.fromkeys((0x94, 0x98), 16),
}
"""Bytes after each constructor of a fixed width."""
_TYPES = {
    HEADER: _LISTS,
    PROPERTIES: _LISTS,
    SEQUENCE: _LISTS,
    DATA: _BINARIES,
    VALUE: None,
    DELIVERY_ANNOTATIONS: _MAPS,
    MESSAGE_ANNOTATIONS: _MAPS,
    APPLICATION_PROPERTIES: _MAPS,
    FOOTER: _MAPS,
}
"""Constructors that the value of a section may have (section 3.2); None: any."""
_APPLICATION_KEYS = _TEXTS | _SYMBOLS
_ANNOTATION_KEYS = _APPLICATION_KEYS | {0x44, _SMALL_ULONG, _ULONG}
_KEYS = {
    APPLICATION_PROPERTIES: _APPLICATION_KEYS,
    DELIVERY_ANNOTATIONS: _ANNOTATION_KEYS,
    MESSAGE_ANNOTATIONS: _ANNOTATION_KEYS,
    FOOTER: _ANNOTATION_KEYS,
}
"""Constructors of the keys of these maps. Symbols and strings are interchangeable, because clients mix them up."""


def malformed_at(message: bytes) -> int:
    """Return the start of the first section that is malformed or out of order; -1 for a well-formed message.

    Checks every value (part 1, section 1.6) and the order and types of the sections (part 3, section 3.2). Fields of
    the header and of the properties may have any type, because clients write strings for symbols. A message without a
    body passes, because clients send such messages. `bridge/engine/loops.c` has the same rules.
    """
    offset = before = 0
    for _ in range(SECTIONS_MAX):
        start = offset
        try:
            before, offset = _check_section(message, start, before)
        except (IndexError, DecodeError):
            return start
        if offset == len(message):
            return -1
    return offset


def _check_section(message: bytes, start: int, before: int) -> tuple[int, int]:
    """Return code and end of the section at `start`, which follows one of code `before`. Raises IndexError or
    `DecodeError`.
    """
    if message[start] != 0:
        raise DecodeError(f"no section at byte {start}")
    code, value = _section_code(message, start + 1)
    second_body = DATA <= before <= VALUE and code != FOOTER
    if not HEADER <= code <= FOOTER or (
        (code <= before or second_body) and not (code == before and code in (DATA, SEQUENCE))
    ):
        raise DecodeError(f"section 0x{code:x} at byte {start} is out of order")
    constructor, types, end = message[value], _TYPES[code], len(message)
    if types is not None and constructor not in types:
        raise DecodeError(f"section at byte {start} has a value of the wrong type")
    if constructor == 0:
        return code, _check_value(message, value, end, DEPTH_MAX)
    return code, _check_content(message, constructor, value + 1, end, DEPTH_MAX, _KEYS.get(code))


def _section_code(message: bytes, offset: int) -> tuple[int, int]:
    """Return the code of a descriptor (0 for no section), and the offset after it."""
    constructor = message[offset]
    if constructor == _SMALL_ULONG:
        return message[offset + 1], offset + 2
    if constructor == 0:
        raise DecodeError(f"a described descriptor at byte {offset}")
    end = _check_content(message, constructor, offset + 1, len(message), 1, None)
    if constructor == _ULONG:
        return int.from_bytes(message[offset + 1 : end], "big"), end
    if constructor in _SYMBOLS:
        return _SYMBOLIC.get(message[offset + (2 if constructor == 0xA3 else 5) : end].decode("ascii"), 0), end
    return 0, end


def _check_value(data: bytes, offset: int, end: int, depth: int) -> int:
    """Return the offset after the value at `offset`. Raises `DecodeError` if it is malformed or exceeds `end`."""
    if offset >= end:
        raise DecodeError(f"value at byte {offset} is cut short")
    constructor = data[offset]
    if constructor:
        return _check_content(data, constructor, offset + 1, end, depth, None)
    return _check_value(data, _check_descriptor(data, offset, end, depth), end, depth - 1)


def _check_descriptor(data: bytes, offset: int, end: int, depth: int) -> int:
    if depth <= 0 or end - offset < 2 or data[offset + 1] == 0:
        raise DecodeError(f"a descriptor at byte {offset} that cannot be one")
    return _check_value(data, offset + 1, end, depth - 1)


def _check_content(
    data: bytes, constructor: int, offset: int, end: int, depth: int, keys: frozenset[int] | None
) -> int:
    """Return the offset after the content of `constructor`; `keys`: constructors allowed for keys of a map."""
    if constructor in _EMPTY:
        return offset
    width = _WIDTHS.get(constructor)
    if width is not None:
        stop = offset + width
        if stop > end or (constructor == _BOOLEAN and data[offset] > 1):
            raise DecodeError(f"value at byte {offset} is malformed")
        if constructor == _CHAR:
            scalar = int.from_bytes(data[offset:stop], "big")
            if scalar > 0x10FFFF or 0xD800 <= scalar <= 0xDFFF:
                raise DecodeError(f"char at byte {offset} is not a Unicode scalar value")
        return stop
    wide = 4 if constructor & 0x10 else 1
    if end - offset < wide:
        raise DecodeError(f"value at byte {offset} is cut short")
    start = offset + wide
    stop = start + int.from_bytes(data[offset:start], "big")
    if stop > end:
        raise DecodeError(f"value at byte {offset} is cut short")
    if constructor in _MAPS or constructor in _LISTS or constructor in _ARRAYS:
        _check_items(data, constructor, start, stop, depth, keys)
    elif constructor in _TEXTS or constructor in _SYMBOLS:
        _check_text(data[start:stop], "ascii" if constructor in _SYMBOLS else "utf-8")
    elif constructor not in _BINARIES:
        raise DecodeError(f"0x{constructor:02x} at byte {offset - 1} is not a format code")
    return stop


def _check_text(text: bytes, encoding: str) -> None:
    try:
        text.decode(encoding)
    except UnicodeDecodeError as error:
        raise DecodeError(f"text that is not {encoding}: {error.reason}") from None


def _check_items(data: bytes, constructor: int, offset: int, end: int, depth: int, keys: frozenset[int] | None) -> None:
    """Check the count at `offset` and the items after it, which end exactly at `end`."""
    start = offset + (4 if constructor & 0x10 else 1)
    count = int.from_bytes(data[offset:start], "big")
    if depth <= 0 or start > end or count > end - start:
        raise DecodeError(f"items at byte {offset} are nested too deep, or more than their bytes")
    if constructor in _ARRAYS:
        at = _check_array(data, start, end, count, depth - 1)
    else:
        if constructor in _MAPS and count % 2:
            raise DecodeError(f"map at byte {offset} has a key without a value")
        at = start
        for i in range(count):
            if keys is not None and i % 2 == 0 and at < end and data[at] not in keys:
                raise DecodeError(f"key at byte {at} is of a type that keys must not have")
            at = _check_value(data, at, end, depth - 1)
    if at != end:
        raise DecodeError(f"items at byte {offset} end at {at}, not at {end} as announced")


def _check_array(data: bytes, offset: int, end: int, count: int, depth: int) -> int:
    if offset < end and data[offset] == 0:
        if end - offset < 2 or data[offset + 1] == 0:
            raise DecodeError(f"a descriptor at byte {offset} that cannot be one")
        offset = _check_value(data, offset + 1, end, depth)
    if offset >= end or data[offset] == 0:
        raise DecodeError(f"array at byte {offset} has no constructor")
    constructor, offset = data[offset], offset + 1
    width = _WIDTHS.get(constructor)
    if width is not None and constructor not in (_BOOLEAN, _CHAR):
        return offset + count * width
    for _ in range(count):
        offset = _check_content(data, constructor, offset, end, depth, None)
    return offset


def strip_header(messages: Sequence[bytes], header: bytes) -> list[bytes] | None:
    """Return the messages without `header` if every message is usual; otherwise None.

    A usual message begins with this header section (or none) and continues with a section of the bare message that
    needs no inspection. It has no annotations and no properties up to absolute-expiry-time, and is well-formed.
    """
    bodies = []
    start = len(header)
    for message in messages:
        if not message.startswith(header) or message[start : start + 2] != b"\x00\x53":
            return None
        try:
            code, value = message[start + 2], start + 3
            if not PROPERTIES <= code <= FOOTER or message[value] == 0:
                return None
            if code == PROPERTIES and _reaches_expiry(message, value):
                return None
        except IndexError:
            return None
        body = message[start:] if start else message
        if malformed_at(body) >= 0:
            return None
        bodies.append(body)
    return bodies


def _reaches_expiry(message: bytes, offset: int) -> bool:
    """Return True when the properties at `offset` include the expiry time, or are too short to have a count."""
    code = message[offset]
    if code == _LIST8:
        return len(message) < offset + 3 or message[offset + 2] > EXPIRY_FIELD
    if code == _LIST32:
        return len(message) < offset + 9 or int.from_bytes(message[offset + 5 : offset + 9], "big") > EXPIRY_FIELD
    return False
