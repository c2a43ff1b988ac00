"""AMQP 1.0 values as Python values and back: the type system of part 1, section 1.6, without any engine.

Used where few bytes are looked at and one by one: SASL frames, capabilities and properties, message sections that
leave in another protocol. Integers of every width decode to `int`; what must keep its width when written has a class
(`Ubyte`, `Uint`, `Ulong`). Input of a peer is bounds-checked and nesting is limited: the only error is `DecodeError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from bridge.hidden import hides

DEPTH_MAX = 32
"""Nested lists, maps, arrays and described types of one value; a peer's nesting must not exhaust our stack."""

_UINT32_MAX = 0xFFFF_FFFF


class DecodeError(ValueError):
    """The bytes are no AMQP value; the message says where."""


class Symbol(str):
    """A symbolic value from a constrained domain (section 1.6.21), ASCII."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970, UTC (section 1.6.17)."""


class Ubyte(int):
    """Written as `ubyte` (section 1.6.3)."""


class Int(int):
    """Written as `int` (section 1.6.9)."""


class Uint(int):
    """Written as `uint` (section 1.6.5)."""


class Ulong(int):
    """Written as `ulong` (section 1.6.6)."""


@hides("value")
class Described(NamedTuple):
    """A value annotated with a descriptor (section 1.5)."""

    descriptor: Any
    value: Any


class Symbols(tuple[str, ...]):
    """Written as a single symbol or an array of symbols: a field of type symbol with ``multiple`` (section 1.4)."""

    __slots__ = ()


# --- decoding ---------------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _character(code: int) -> str:
    """A char; what is no Unicode scalar value (a surrogate, beyond the last plane) is replaced: it cannot be sent."""
    return chr(code) if code < 0xD800 or 0xE000 <= code <= 0x10FFFF else "\N{REPLACEMENT CHARACTER}"


_CONSTANTS: Mapping[int, Any] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_FIXED: Mapping[int, tuple[struct.Struct, Callable[[Any], Any]]] = {
    0x50: (struct.Struct(">B"), _same),
    0x51: (struct.Struct(">b"), _same),
    0x52: (struct.Struct(">B"), _same),
    0x53: (struct.Struct(">B"), _same),
    0x54: (struct.Struct(">b"), _same),
    0x55: (struct.Struct(">b"), _same),
    0x56: (struct.Struct(">B"), bool),
    0x60: (struct.Struct(">H"), _same),
    0x61: (struct.Struct(">h"), _same),
    0x70: (struct.Struct(">I"), _same),
    0x71: (struct.Struct(">i"), _same),
    0x72: (struct.Struct(">f"), _same),
    0x73: (struct.Struct(">I"), _character),
    0x74: (struct.Struct(">4s"), _same),  # decimals stay as their IEEE 754 bytes
    0x80: (struct.Struct(">Q"), _same),
    0x81: (struct.Struct(">q"), _same),
    0x82: (struct.Struct(">d"), _same),
    0x83: (struct.Struct(">q"), Timestamp),
    0x84: (struct.Struct(">8s"), _same),
    0x94: (struct.Struct(">16s"), _same),
    0x98: (struct.Struct(">16s"), lambda raw: UUID(bytes=raw)),
}
_TEXT: Mapping[int, Callable[[bytes], Any]] = {
    0x0: _same,
    0x1: lambda raw: raw.decode("utf-8"),
    0x3: lambda raw: Symbol(raw.decode("ascii", "replace")),
}
_UINT32 = struct.Struct(">I")
_LONG_MAX = (1 << 63) - 1


def decode(data: bytes, offset: int = 0) -> tuple[Any, int]:
    """The value that starts at `offset`, and the offset behind it. Raises `DecodeError` and nothing else."""
    try:
        return _value(data, offset, DEPTH_MAX)
    except (IndexError, struct.error):
        raise DecodeError(f"value at byte {offset} is cut short") from None
    except UnicodeDecodeError as error:
        raise DecodeError(f"string in the value at byte {offset} is not UTF-8: {error.reason}") from None
    except TypeError:
        raise DecodeError(f"map at byte {offset} has a key that cannot be one") from None


def decode_all(data: bytes) -> list[Any]:
    """Every value of `data`, one behind the other."""
    values, offset = [], 0
    while offset < len(data):
        value, offset = decode(data, offset)
        values.append(value)
    return values


def _value(data: bytes, offset: int, depth: int) -> tuple[Any, int]:
    code = data[offset]
    if code == 0:
        if depth == 0:
            raise DecodeError("nested too deep")
        descriptor, offset = _value(data, offset + 1, depth - 1)
        value, offset = _value(data, offset, depth - 1)
        return Described(descriptor, value), offset
    return _primitive(data, code, offset + 1, depth)


def _primitive(data: bytes, code: int, offset: int, depth: int) -> tuple[Any, int]:
    """The value of constructor `code` whose own bytes start at `offset`."""
    if code in _CONSTANTS:
        return _CONSTANTS[code], offset
    if code == 0x45:
        return [], offset
    fixed = _FIXED.get(code)
    if fixed is not None:
        reader, convert = fixed
        return convert(reader.unpack_from(data, offset)[0]), offset + reader.size
    width = code >> 4
    if width in (0xA, 0xB):
        convert_text = _TEXT.get(code & 0xF)
        if convert_text is not None:
            start, end = _extent(data, offset, wide=width == 0xB)
            return convert_text(bytes(data[start:end])), end
    elif (width in (0xC, 0xD) and code & 0xF <= 1) or code in (0xE0, 0xF0):
        return _compound(data, code, offset, depth)
    raise DecodeError(f"0x{code:02x} at byte {offset - 1} is no format code")


def _extent(data: bytes, offset: int, *, wide: bool) -> tuple[int, int]:
    """First byte and the byte behind what a size field at `offset` announces."""
    if wide:
        size, offset = _UINT32.unpack_from(data, offset)[0], offset + 4
    else:
        size, offset = data[offset], offset + 1
    if offset + size > len(data):
        raise DecodeError(f"{size} bytes announced at byte {offset}, {len(data) - offset} are there")
    return offset, offset + size


def _compound(data: bytes, code: int, offset: int, depth: int) -> tuple[Any, int]:
    if depth == 0:
        raise DecodeError("nested too deep")
    wide = code >> 4 in (0xD, 0xF)
    start, end = _extent(data, offset, wide=wide)
    if wide:
        count, start = _UINT32.unpack_from(data, start)[0], start + 4
    else:
        count, start = data[start], start + 1
    if count > end - start and count:
        raise DecodeError(f"{count} items announced in {end - start} bytes at byte {start}")
    body = data[:end] if end < len(data) else data
    if code in (0xE0, 0xF0):
        items, offset = _array(body, count, start, depth - 1)
    else:
        items, offset = [], start
        for _ in range(count):
            item, offset = _value(body, offset, depth - 1)
            items.append(item)
    if offset != end:
        raise DecodeError(f"items at byte {start} end at {offset}, not at {end} as announced")
    if code & 0xF == 1:
        if count % 2:
            raise DecodeError(f"map at byte {start} has a key without a value")
        return dict(zip(items[::2], items[1::2], strict=True)), end
    return items, end


def _array(data: bytes, count: int, offset: int, depth: int) -> tuple[list[Any], int]:
    descriptor, described = None, False
    if data[offset] == 0:
        described = True
        descriptor, offset = _value(data, offset + 1, depth)
    code = data[offset]
    offset += 1
    items = []
    for _ in range(count):
        item, offset = _primitive(data, code, offset, depth)
        items.append(Described(descriptor, item) if described else item)
    return items, offset


# --- encoding ---------------------------------------------------------------------------------------------------


def encode(value: Any) -> bytes:
    """`value` in its shortest encoding; a plain `int` is written as `long`, `list` and `tuple` as a list.

    Raises TypeError for a Python type that has no AMQP type here.
    """
    encoder = _ENCODERS.get(type(value))
    if encoder is not None:
        return encoder(value)
    for kind, encoder in _ENCODERS.items():
        if kind is not type(None) and isinstance(value, kind):
            return encoder(value)
    if isinstance(value, Mapping):
        return _encode_map(value)
    raise TypeError(f"{type(value).__name__} has no AMQP type")


def _encode_variable(short: int, raw: bytes) -> bytes:
    if len(raw) < 256:
        return bytes((short, len(raw))) + raw
    return bytes((short + 0x10,)) + _UINT32.pack(len(raw)) + raw


def _encode_long(value: int) -> bytes:
    if value > _LONG_MAX:  # a peer's ulong, sent back
        return struct.pack(">BQ", 0x80, value)
    return struct.pack(">Bb", 0x55, value) if -128 <= value < 128 else struct.pack(">Bq", 0x81, value)


def _encode_uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    return bytes((0x52, value)) if value < 256 else struct.pack(">BI", 0x70, value)


def _encode_ulong(value: int) -> bytes:
    if value == 0:
        return b"\x44"
    return bytes((0x53, value)) if value < 256 else struct.pack(">BQ", 0x80, value)


def _encode_compound(short: int, count: int, body: bytes) -> bytes:
    if len(body) < 255 and count < 256:
        return bytes((short, len(body) + 1, count)) + body
    return struct.pack(">BII", short + 0x10, len(body) + 4, count) + body


def _encode_list(items: Any) -> bytes:
    return _encode_compound(0xC0, len(items), b"".join(map(encode, items))) if items else b"\x45"


def _encode_map(items: Mapping[Any, Any]) -> bytes:
    return _encode_compound(0xC1, 2 * len(items), b"".join(encode(part) for item in items.items() for part in item))


def _encode_symbols(names: Symbols) -> bytes:
    if len(names) == 1:
        return _encode_variable(0xA3, names[0].encode("ascii", "replace"))
    raw = [name.encode("ascii", "replace") for name in names]
    if all(len(name) < 256 for name in raw):
        return _encode_compound(0xE0, len(raw), b"\xa3" + b"".join(bytes((len(name),)) + name for name in raw))
    return _encode_compound(0xE0, len(raw), b"\xb3" + b"".join(_UINT32.pack(len(name)) + name for name in raw))


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    Timestamp: lambda value: struct.pack(">Bq", 0x83, value),
    Ubyte: lambda value: bytes((0x50, value)),
    Uint: _encode_uint,
    Int: lambda value: struct.pack(">Bi", 0x71, value),
    Ulong: _encode_ulong,
    int: _encode_long,
    float: lambda value: struct.pack(">Bd", 0x82, value),
    # a peer's symbol that was none, and was read with replacements, is sent back with "?"
    Symbol: lambda value: _encode_variable(0xA3, value.encode("ascii", "replace")),
    str: lambda value: _encode_variable(0xA1, value.encode("utf-8")),
    bytes: lambda value: _encode_variable(0xA0, value),
    UUID: lambda value: b"\x98" + value.bytes,
    Described: lambda value: b"\x00" + encode(value.descriptor) + encode(value.value),
    Symbols: _encode_symbols,
    list: _encode_list,
    tuple: _encode_list,
    dict: _encode_map,
}
