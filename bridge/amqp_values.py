"""Codec for AMQP 1.0 values: the type system of part 1, section 1.6, without an engine.

Used for small values: SASL frames, capabilities, properties, and message sections that are translated to another
protocol.
Integers of every width decode to `int`; values that must keep their width when written have a class (`Ubyte`, `Uint`,
`Ulong`). Input is bounds-checked, and its nesting and number of values are limited before anything is allocated: the
only error is `DecodeError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from bridge.hidden import hides
from bridge.limits import DEPTH_MAX, FIXED_ITEMS_A_VALUE, VALUES_MAX

UUID_KEYS_MAX = 256
"""Most UUID keys of one map. A peer that chooses UUIDs chooses their hashes, and so can make lookups slow."""


class DecodeError(ValueError):
    """The bytes are not an AMQP value; the message says where."""


class TooLarge(DecodeError):
    """The bytes may be valid but hold more than is decoded."""


class Allowance:
    """Remaining number of values that may be decoded, shared by nested values."""

    __slots__ = ("left",)

    def __init__(self, values: int = VALUES_MAX) -> None:
        self.left = values

    def spend(self, values: int) -> None:
        """Use up this many. Raises `TooLarge` when fewer are left."""
        self.left -= values
        if self.left < 0:
            raise TooLarge("it contains more values than the limit")


class Symbol(str):
    """A symbolic value from a constrained domain (section 1.6.21), ASCII."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970, UTC (section 1.6.17)."""


class Ubyte(int):
    """Integer that is written as `ubyte` (section 1.6.3)."""


class Int(int):
    """Integer that is written as `int` (section 1.6.9)."""


class Uint(int):
    """Integer that is written as `uint` (section 1.6.5)."""


class Ulong(int):
    """Integer that is written as `ulong` (section 1.6.6)."""


class DecimalBits(bytes):
    """A decimal of 4, 8 or 16 bytes in the Binary Integer Decimal encoding of IEEE 754 (sections 1.6.13 to 1.6.15)."""

    def number(self) -> Decimal | None:
        """Return the exact value; None for infinity and NaN."""
        exponent_bits, bias, digits = _DECIMALS[len(self)]
        coefficient_bits = 8 * len(self) - 1 - exponent_bits
        raw = int.from_bytes(self, "big")
        sign, rest = raw >> 8 * len(self) - 1, raw & (1 << 8 * len(self) - 1) - 1
        if rest >> 8 * len(self) - 5 == 0b1111:
            return None
        if rest >> 8 * len(self) - 3 == 0b11:  # the coefficient begins with the bits 100
            coefficient_bits -= 2
            coefficient = 1 << coefficient_bits + 2 | rest & (1 << coefficient_bits) - 1
        else:
            coefficient = rest & (1 << coefficient_bits) - 1
        exponent = (rest >> coefficient_bits & (1 << exponent_bits) - 1) - bias
        if coefficient >= 10**digits:
            coefficient = 0  # IEEE 754 reads a non-canonical coefficient as zero
        return Decimal((sign, tuple(map(int, str(coefficient))), exponent))


_DECIMALS: Mapping[int, tuple[int, int, int]] = {4: (8, 101, 7), 8: (10, 398, 16), 16: (14, 6176, 34)}
"""Bits and bias of the exponent, and digits of the coefficient, by size (IEEE 754, table 3.6)."""


@hides("value")
class DescribedValue(NamedTuple):
    """A value annotated with a descriptor (section 1.5)."""

    descriptor: Any
    value: Any


class Symbols(tuple[str, ...]):
    """A field of type symbol with ``multiple`` (section 1.4): written as one symbol or an array of symbols."""

    __slots__ = ()


# --- decoding ---------------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _character(code: int) -> str:
    """Return a char. A surrogate or a code beyond the last plane is replaced, as it could not be sent again."""
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
    0x74: (struct.Struct(">4s"), DecimalBits),
    0x80: (struct.Struct(">Q"), _same),
    0x81: (struct.Struct(">q"), _same),
    0x82: (struct.Struct(">d"), _same),
    0x83: (struct.Struct(">q"), Timestamp),
    0x84: (struct.Struct(">8s"), DecimalBits),
    0x94: (struct.Struct(">16s"), DecimalBits),
    0x98: (struct.Struct(">16s"), lambda raw: UUID(bytes=raw)),
}
_TEXT: Mapping[int, Callable[[bytes], Any]] = {
    0x0: _same,
    0x1: lambda raw: raw.decode("utf-8"),
    0x3: lambda raw: Symbol(raw.decode("ascii", "replace")),
}
_UINT32 = struct.Struct(">I")
_LONG_MAX = (1 << 63) - 1


def decode(data: bytes, offset: int = 0, allowance: Allowance | None = None) -> tuple[Any, int]:
    """Return the value that starts at `offset`, and the offset after it.

    Raises only `DecodeError`; `TooLarge` when the value contains more values than the allowance (default `VALUES_MAX`)
    has left. That is detected before they are created.
    """
    try:
        return _value(data, offset, len(data), DEPTH_MAX, allowance or Allowance())
    except (IndexError, struct.error):
        raise DecodeError(f"value at byte {offset} is cut short") from None
    except UnicodeDecodeError as error:
        raise DecodeError(f"string in the value at byte {offset} is not UTF-8: {error.reason}") from None
    except TypeError:
        raise DecodeError(f"map at byte {offset} has a key of an unsupported type") from None


def _value(data: bytes, offset: int, end: int, depth: int, left: Allowance) -> tuple[Any, int]:
    """Decode one value. `end`: end of the enclosing value; `left`: allowance for nested values."""
    code = data[offset]
    if code == 0:
        if depth == 0:
            raise DecodeError("nested too deep")
        descriptor, offset = _value(data, offset + 1, end, depth - 1, left)
        value, offset = _value(data, offset, end, depth - 1, left)
        return DescribedValue(descriptor, value), offset
    return _primitive(data, code, offset + 1, end, depth, left)


def _primitive(data: bytes, code: int, offset: int, end: int, depth: int, left: Allowance) -> tuple[Any, int]:
    """Decode the value of constructor `code`; its bytes start at `offset`."""
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
            start, stop = _extent(data, offset, end, wide=width == 0xB)
            return convert_text(bytes(data[start:stop])), stop
    elif (width in (0xC, 0xD) and code & 0xF <= 1) or code in (0xE0, 0xF0):
        return _compound(data, code, offset, end, depth, left)
    raise DecodeError(f"0x{code:02x} at byte {offset - 1} is not a format code")


def _extent(data: bytes, offset: int, end: int, *, wide: bool) -> tuple[int, int]:
    """Read the size field at `offset`; return the start and the end of the bytes it announces."""
    if wide:
        size, offset = _UINT32.unpack_from(data, offset)[0], offset + 4
    else:
        size, offset = data[offset], offset + 1
    if offset + size > end:
        raise DecodeError(f"{size} bytes announced at byte {offset}, but only {end - offset} are left")
    return offset, offset + size


def _compound(data: bytes, code: int, offset: int, end: int, depth: int, left: Allowance) -> tuple[Any, int]:
    if depth == 0:
        raise DecodeError("nested too deep")
    wide = code >> 4 in (0xD, 0xF)
    start, stop = _extent(data, offset, end, wide=wide)
    if wide:
        count, start = _UINT32.unpack_from(data, start)[0], start + 4
    else:
        count, start = data[start], start + 1
    if count > stop - start and count:
        raise DecodeError(f"{count} items announced in {stop - start} bytes at byte {start}")
    if code in (0xE0, 0xF0):
        items, offset = _array(data, count, start, stop, depth - 1, left)
    else:
        left.spend(count)
        items, offset = [], start
        for _ in range(count):
            item, offset = _value(data, offset, stop, depth - 1, left)
            items.append(item)
    if offset != stop:
        raise DecodeError(f"items at byte {start} end at {offset}, not at {stop} as announced")
    return (_map(items, start) if code & 0xF == 1 else items), stop


def _array(data: bytes, count: int, offset: int, end: int, depth: int, left: Allowance) -> tuple[list[Any], int]:
    if data[offset] == 0:
        descriptor, offset = _value(data, offset + 1, end, depth, left)
        left.spend(count)
        items, offset = _items(data, count, offset, end, depth, left)
        return [DescribedValue(descriptor, item) for item in items], offset
    fixed = _FIXED.get(data[offset])
    if fixed is None:
        left.spend(count)
        return _items(data, count, offset, end, depth, left)
    left.spend(count // FIXED_ITEMS_A_VALUE)
    reader, convert = fixed
    stop = offset + 1 + count * reader.size
    if stop > end:
        raise DecodeError(f"array at byte {offset} is cut short")
    return [convert(item) for (item,) in reader.iter_unpack(data[offset + 1 : stop])], stop


def _items(data: bytes, count: int, offset: int, end: int, depth: int, left: Allowance) -> tuple[list[Any], int]:
    """Decode the items of an array, which all have the constructor at `offset`."""
    code, offset = data[offset], offset + 1
    items = []
    for _ in range(count):
        item, offset = _primitive(data, code, offset, end, depth, left)
        items.append(item)
    return items, offset


def _map(items: list[Any], start: int) -> dict[Any, Any]:
    if len(items) % 2:
        raise DecodeError(f"map at byte {start} has a key without a value")
    keys = items[::2]
    if len(keys) > UUID_KEYS_MAX and sum(isinstance(key, UUID) for key in keys) > UUID_KEYS_MAX:
        raise DecodeError(f"map at byte {start} has more than {UUID_KEYS_MAX} keys that are UUIDs")
    return dict(zip(keys, items[1::2], strict=True))


# --- encoding ---------------------------------------------------------------------------------------------------


def encode(value: Any) -> bytes:
    """Encode `value` as short as possible; a plain `int` is written as `long`, `list` and `tuple` as a list.

    Raises TypeError for a Python type without an AMQP type.
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


_DECIMAL_CODES = {4: b"\x74", 8: b"\x84", 16: b"\x94"}
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
    # a peer's invalid symbol was decoded with replacements; it is sent back with "?"
    Symbol: lambda value: _encode_variable(0xA3, value.encode("ascii", "replace")),
    str: lambda value: _encode_variable(0xA1, value.encode("utf-8")),
    bytes: lambda value: _encode_variable(0xA0, value),
    DecimalBits: lambda value: _DECIMAL_CODES[len(value)] + value,
    UUID: lambda value: b"\x98" + value.bytes,
    DescribedValue: lambda value: b"\x00" + encode(value.descriptor) + encode(value.value),
    Symbols: _encode_symbols,
    list: _encode_list,
    tuple: _encode_list,
    dict: _encode_map,
}
