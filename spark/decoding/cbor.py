"""CBOR (RFC 8949) to the same documents that JSON is read into.

Tags of which the library builds objects are taken as what they hold: a shared reference (28, 29) can make a document
contain itself, a regular expression (35) is code, a decimal fraction (4) can name 10^100000000.
"""

from __future__ import annotations

import io
import math
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import cbor2

from spark.decoding import reasons
from spark.decoding.limits import DEPTH_MAX, EXPONENT_MAX
from spark.decoding.value import Unreadable

SELF_DESCRIBED: Final = b"\xd9\xd9\xf7"
"""Tag 55799 (RFC 8949 section 3.4.6): what follows is CBOR, whatever else it may look like."""
_LEVELS: Final = DEPTH_MAX + 2
"""That the reader takes: more than are walked, so that a document too deep is told as such."""


def parsed(body: bytes) -> object:
    """The document. Raises `Unreadable`."""
    body = body.removeprefix(SELF_DESCRIBED)
    stream = io.BytesIO(body)
    decoder = cbor2.CBORDecoder(stream, max_depth=_LEVELS, semantic_decoders=_TAGS, tag_hook=_as_held)
    try:
        said = decoder.decode()
    except cbor2.CBORDecodeError as error:
        raise Unreadable(reasons.TOO_DEEP if "nesting depth" in str(error) else reasons.NOT_CBOR) from None
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise Unreadable(reasons.NOT_CBOR) from None
    if stream.tell() != len(body):
        raise Unreadable(reasons.NOT_CBOR)
    return said


def _held(said: Any, in_key: bool) -> Any:
    """Return the content of a tag; the library builds objects and arrays in it that cannot change, of other types."""
    if isinstance(said, Mapping):
        return {name: _held(value, in_key) for name, value in said.items()}
    return [_held(value, in_key) for value in said] if isinstance(said, tuple) else said


def _as_held(tag: cbor2.CBORTag, in_key: bool) -> Any:
    return _held(tag.value, in_key)


def _refuse(said: Any, _in_key: bool) -> NoReturn:
    raise ValueError(said)


def _integer(said: bytes, in_key: bool) -> int:
    """A bignum (tag 2). Not in a key: unlike texts, integers can be chosen so that all have one place in a table."""
    if in_key:
        raise ValueError(said)
    return int.from_bytes(said, "big")


def _negative(said: bytes, in_key: bool) -> int:
    return -1 - _integer(said, in_key)


def _decimal(said: list[int], _in_key: bool) -> float:
    exponent, mantissa = said
    if abs(exponent) > EXPONENT_MAX:
        return math.inf if exponent > 0 else 0.0
    return _ratio(mantissa * 10 ** max(exponent, 0), 10 ** max(-exponent, 0))


def _binary(said: list[int], _in_key: bool) -> float:
    exponent, mantissa = said
    try:
        return math.ldexp(float(mantissa), exponent)
    except OverflowError:
        return math.inf


def _rational(said: list[int], _in_key: bool) -> float:
    numerator, denominator = said
    return _ratio(numerator, denominator)


def _ratio(numerator: int, denominator: int) -> float:
    """The nearest double, as that of two integers is; infinite where there is none: a reject of this value."""
    try:
        return numerator / denominator
    except (OverflowError, ZeroDivisionError):
        return math.inf


def _uuid(said: bytes, _in_key: bool) -> str:
    return str(uuid.UUID(bytes=said))


_TAGS: Final[Mapping[int, Callable[[Any, bool], Any]]] = {
    2: _integer,
    3: _negative,
    4: _decimal,
    5: _binary,
    30: _rational,
    37: _uuid,
    **dict.fromkeys((25, 29, 256), _refuse),  # references: to what came before, or to texts that did
    **dict.fromkeys((0, 1, 28, 35, 36, 100, 258, 260, 261, 1004), _held),
}
"""Every tag of which the library makes an object that no column has, or code, or a document that contains itself."""
