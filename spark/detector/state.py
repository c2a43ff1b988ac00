"""State of a series, usually its detector, as bytes and back: another process may judge the next value.

CBOR under zlib, not a pickle: data from a table may create these classes and nothing else.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final

import cbor2
import numpy as np

from spark.detector import courses, days, detector, forecast, history, measures, numbering, running
from spark.detector.detector import Detector
from spark.detector.numbering import Numbering

FORMAT: Final = 4
"""Raised with every change of what a detector stores: older states are not read."""
STATE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of an unpacked state; one has some 100 KB. A table of another program may hold anything."""

_STORED_NAMES: Final = {"MeasureRecords": "Records", "SeriesClock": "Clock", "SeriesHistory": "History"}
"""Stored names of classes that were renamed, so that stored states stay readable."""
_CLASSES: Final[dict[str, type]] = {
    _STORED_NAMES.get(each.__name__, each.__name__): each
    for module in (courses, days, detector, forecast, history, measures, numbering, running)
    for each in vars(module).values()
    if isinstance(each, type) and each.__module__ == module.__name__ and not issubclass(each, tuple)
}


class StateError(Exception):
    """The bytes are not a state of this version of the detector."""


def dumps(state: Detector | Numbering) -> bytes:
    """Return the state as bytes."""
    return zlib.compress(cbor2.dumps([FORMAT, _plain(state)]), level=1)


def loads(data: bytes) -> Detector | Numbering:
    """Return the state from the bytes of `dumps`. Raises `StateError`."""
    try:
        unpacker = zlib.decompressobj()
        format_, document = cbor2.loads(unpacker.decompress(data, STATE_BYTES_MAX))
        if format_ != FORMAT:
            raise StateError(f"state of format {format_}, this program has {FORMAT}")
        found = _object(document)
    except (zlib.error, cbor2.CBORDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"no state of a detector: {type(error).__name__}") from None
    if not isinstance(found, Detector | Numbering):
        raise StateError("no state of a detector")
    return found


def _plain(value: Any) -> Any:
    """Return numbers, texts, lists and mappings for the objects of a detector."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return _packed(value)


def _packed(value: Any) -> dict[str, Any]:
    """Return a mapping of one key, which names the kind of the value."""
    if isinstance(value, np.ndarray):
        return {"array": [str(value.dtype), list(value.shape), value.tobytes()]}
    kind = type(value).__name__
    return {"object": [_STORED_NAMES.get(kind, kind), {name: _plain(each) for name, each in _members(value).items()}]}


def _object(value: Any) -> Any:
    if isinstance(value, list):
        return [_object(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return _MAKERS[kind](content)


def _array(content: Any) -> Any:
    dtype, shape, data = content
    return np.frombuffer(data, dtype=np.dtype(dtype)).reshape(shape).copy()


def _instance(content: Any) -> Any:
    name, members = content
    made: Any = object.__new__(_CLASSES[name])
    for member, each in members.items():
        object.__setattr__(made, member, _object(each))
    return made


_MAKERS: Final[dict[str, Callable[[Any], Any]]] = {
    "array": _array,
    "object": _instance,
}


def _members(value: Any) -> dict[str, Any]:
    slots = getattr(type(value), "__slots__", ())
    return {name: getattr(value, name) for name in slots} if slots else dict(vars(value))
