"""Protobuf by a registered descriptor: a message becomes the document that its JSON form would be.

Enumerations are their name, `google.protobuf.Timestamp` is its time, and a wrapper (such as
`google.protobuf.DoubleValue`, with which a field can be left out) is its content. In proto3 a field without presence
that is not sent has its default: a temperature of 0.0 is not sent at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from spark.decoding import reasons
from spark.decoding.limits import DEPTH_MAX
from spark.decoding.value import UnreadableBody

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


class BadDescriptor(ValueError):
    """The data is not a descriptor set with this message; the text says what to do."""


def message_class(descriptor_set: bytes, name: str) -> Any:
    """Return the class of message `name` of a `FileDescriptorSet` (`protoc --include_imports --descriptor_set_out`).

    Raises `BadDescriptor`.
    """
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file
    except DecodeError:
        raise BadDescriptor(
            "not a descriptor set; make one with protoc --include_imports --descriptor_set_out"
        ) from None
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files:
            pool.Add(file)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except KeyError:
        known = sorted(message for file in files for message in _messages(file.package, file.message_type))
        raise BadDescriptor(f"no message {name} in the descriptor set; it has {', '.join(known) or 'none'}") from None
    except TypeError as error:
        raise BadDescriptor(f"the descriptor set is not whole (protoc --include_imports?): {error}") from None


def _messages(prefix: str, messages: Iterable[Any]) -> Iterable[str]:
    for message in messages:
        name = f"{prefix}.{message.name}" if prefix else message.name
        yield name
        yield from _messages(name, message.nested_type)


def parse(body: bytes, message: Any) -> object:
    """Return the document. Raises `UnreadableBody`."""
    try:
        raw = message.FromString(body)
    except DecodeError:
        raise UnreadableBody(reasons.NOT_PROTOBUF) from None
    # Bytes of something else are often a message of unknown fields; of known ones it may be defaults, written out.
    if not raw.ListFields() and len(UnknownFieldSet(raw)):
        raise UnreadableBody(reasons.NOT_PROTOBUF)
    return _document(raw, 0)


def _document(message: Any, depth: int) -> object:
    if depth > DEPTH_MAX:
        raise UnreadableBody(reasons.TOO_DEEP)
    if message.DESCRIPTOR.full_name == _TIMESTAMP:
        try:
            return (_EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1_000)).isoformat()
        except OverflowError:
            return None
    document: dict[str, object] = {}
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            held = getattr(message, field.name)
            if len(held):
                document[field.name] = _repeated(field, held, depth)
        elif not field.has_presence or message.HasField(field.name):
            document[field.name] = _single(field, getattr(message, field.name), depth)
    return document


def _repeated(field: Any, held: Any, depth: int) -> object:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        value = entry.fields_by_name["value"]
        return {_key(key): _single(value, held[key], depth) for key in held}
    return [_single(field, item, depth) for item in held]


def _key(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _single(field: Any, raw: Any, depth: int) -> object:
    if field.message_type is not None:
        return raw.value if field.message_type.full_name in _WRAPPERS else _document(raw, depth + 1)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(raw)
        return known.name if known is not None else raw
    return raw
