"""The sections of an encoded AMQP message (part 3, section 3.2), found without decoding what is in them.

The broker looks at the header of every message and at little else; the bare message passes through untouched. So the
scanner walks over values by their size alone. Every step is bounds-checked: the only error is `DecodeError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
"""Bytes behind each constructor of a fixed width."""
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
"""Constructors of the keys of these maps. Symbols and strings pass for each other, as clients mix them up."""
EXPIRY_FIELD = 8
"""Place of absolute-expiry-time among the properties (section 3.2.4); those of the group come behind it."""
_DESCRIPTIONS_MAX = DEPTH_MAX
"""Descriptors in a row before one value; a peer must not make us count zeros for ever."""


class Section(NamedTuple):
    """One section: its code, where it starts, where its value starts, and the offset behind it."""

    code: int
    start: int
    value: int
    end: int


def section_at(message: bytes, start: int) -> Section:
    """The section that starts at `start`. Raises `DecodeError` when none does or it is cut short."""
    try:
        if message[start] != 0:
            raise DecodeError(f"no section at byte {start}")
        if message[start + 1] == _SMALL_ULONG:
            code, value = message[start + 2], start + 3
        else:
            code, value = _descriptor(message, start + 1)
        if not HEADER <= code <= FOOTER:
            raise DecodeError(f"0x{code:x} at byte {start} is no section")
        end = _skip(message, value)
    except IndexError:
        raise DecodeError(f"section at byte {start} is cut short") from None
    return Section(code, start, value, end)


def sections(message: bytes) -> Iterator[Section]:
    """Every section in turn. Raises `DecodeError` at the first byte that is not of one, `TooLarge` where there are
    more of them than any sender writes."""
    offset = count = 0
    while offset < len(message):
        count += 1
        if count > SECTIONS_MAX:
            raise TooLarge(f"more than {SECTIONS_MAX} sections")
        section = section_at(message, offset)
        yield section
        offset = section.end


def bare_message(message: bytes) -> tuple[int, int]:
    """(end of the header section, start of the bare message): what stands between are delivery annotations.

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


def malformed_at(message: bytes) -> int:
    """Return where the first section begins that is malformed or out of order; -1 for a well-formed message.

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
    """(code, end) of the section at `start`, which follows one of code `before`. Raises IndexError or `DecodeError`."""
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
    """The code that a descriptor names (0: of no section), and the offset behind it."""
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
    """The offset behind the value at `offset`. Raises `DecodeError` for a malformed one, or one that leaves `end`."""
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
    """The offset behind what follows `constructor`; `keys`: constructors that the keys of a map may have."""
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
    """Check the count at `offset` and the items behind it, which end exactly at `end`."""
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


def usual_bodies(messages: Sequence[bytes], header: bytes) -> list[bytes] | None:
    """The messages without `header`, where each begins with this header section (or none) and goes on with a whole
    section of the bare message that nobody needs to look at: no annotations, no properties that reach to
    absolute-expiry-time. None where one does not, says so in an unusual form, or is malformed."""
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
    """The list of properties at `offset` has a field for when the message expires; or is too short to have a count."""
    code = message[offset]
    if code == _LIST8:
        return len(message) < offset + 3 or message[offset + 2] > EXPIRY_FIELD
    if code == _LIST32:
        return len(message) < offset + 9 or int.from_bytes(message[offset + 5 : offset + 9], "big") > EXPIRY_FIELD
    return False


def plain_data(bare_message: bytes) -> bytes | None:
    """The payload of a bare message that is one data section and nothing else, as most are; None for any other."""
    size = len(bare_message)
    if size < 5 or bare_message[:3] != b"\x00\x53\x75":
        return None
    if bare_message[3] == 0xA0 and size == 5 + bare_message[4]:
        return bare_message[5:]
    if bare_message[3] == 0xB0 and size == 8 + int.from_bytes(bare_message[4:8], "big"):
        return bare_message[8:]
    return None


def skip(data: bytes, offset: int) -> int:
    """The offset behind the value at `offset`. Raises `DecodeError` when it is cut short."""
    try:
        return _skip(data, offset)
    except IndexError:
        raise DecodeError(f"value at byte {offset} is cut short") from None


def _skip(data: bytes, offset: int) -> int:
    code = data[offset]
    described = 0
    while code == 0:  # the descriptor, then the value it describes
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
    """Section code and offset behind a descriptor that is not in the usual short form."""
    descriptor, end = decode(message, offset, Allowance(HEADER_VALUES_MAX))
    if isinstance(descriptor, str):
        return _SYMBOLIC.get(descriptor, 0), end
    return (descriptor if isinstance(descriptor, int) else 0), end
