"""CBOR (RFC 8949), decoded into the same documents as JSON.

Tags that the library turns into objects are replaced by their content: a shared reference (28, 29) can make a document
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
from spark.decoding.value import UnreadableBody

SELF_DESCRIBED: Final = b"\xd9\xd9\xf7"
"""Tag 55799 (RFC 8949 section 3.4.6): the following data is CBOR, whatever else it may look like."""
_LEVELS: Final = DEPTH_MAX + 2
"""Levels that the library accepts: more than are walked, so that a document which is too deep is reported as such."""


def parse(body: bytes) -> object:
    """Return the document. Raises `UnreadableBody`."""
    body = body.removeprefix(SELF_DESCRIBED)
    stream = io.BytesIO(body)
    decoder = cbor2.CBORDecoder(stream, max_depth=_LEVELS, semantic_decoders=_TAGS, tag_hook=_unwrap_tag)
    try:
        content = decoder.decode()
    except cbor2.CBORDecodeError as error:
        raise UnreadableBody(reasons.TOO_DEEP if "nesting depth" in str(error) else reasons.NOT_CBOR) from None
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise UnreadableBody(reasons.NOT_CBOR) from None
    if stream.tell() != len(body):
        raise UnreadableBody(reasons.NOT_CBOR)
    return content


def _to_document(content: Any, in_key: bool) -> Any:
    """Return the content of a tag; the library puts immutable objects and arrays of other types into it."""
    if isinstance(content, Mapping):
        return {name: _to_document(value, in_key) for name, value in content.items()}
    return [_to_document(value, in_key) for value in content] if isinstance(content, tuple) else content


def _unwrap_tag(tag: cbor2.CBORTag, in_key: bool) -> Any:
    return _to_document(tag.value, in_key)


def _refuse(content: Any, _in_key: bool) -> NoReturn:
    raise ValueError(content)


def _integer(content: bytes, in_key: bool) -> int:
    """Return a bignum (tag 2). Refused in a key: unlike texts, integers can be chosen to collide in a hash table."""
    if in_key:
        raise ValueError(content)
    return int.from_bytes(content, "big")


def _negative(content: bytes, in_key: bool) -> int:
    return -1 - _integer(content, in_key)


def _decimal(content: list[int], _in_key: bool) -> float:
    exponent, mantissa = content
    if abs(exponent) > EXPONENT_MAX:
        return math.inf if exponent > 0 else 0.0
    return _ratio(mantissa * 10 ** max(exponent, 0), 10 ** max(-exponent, 0))


def _binary(content: list[int], _in_key: bool) -> float:
    exponent, mantissa = content
    try:
        return math.ldexp(float(mantissa), exponent)
    except OverflowError:
        return math.inf


def _rational(content: list[int], _in_key: bool) -> float:
    numerator, denominator = content
    return _ratio(numerator, denominator)


def _ratio(numerator: int, denominator: int) -> float:
    """Return the nearest double, as for the ratio of two integers; infinity without one, which rejects the value."""
    try:
        return numerator / denominator
    except (OverflowError, ZeroDivisionError):
        return math.inf


def _uuid(content: bytes, _in_key: bool) -> str:
    return str(uuid.UUID(bytes=content))


_TAGS: Final[Mapping[int, Callable[[Any, bool], Any]]] = {
    2: _integer,
    3: _negative,
    4: _decimal,
    5: _binary,
    30: _rational,
    37: _uuid,
    **dict.fromkeys((25, 29, 256), _refuse),  # references: to what came before, or to texts that did
    **dict.fromkeys((0, 1, 28, 35, 36, 100, 258, 260, 261, 1004), _to_document),
}
"""Tags that the library turns into objects that no column can hold, into code, or into cyclic documents."""
