"""Sparkplug B payload (specification 3.0, section 6.4.1) as Protobuf messages, as far as readings need it.

The descriptor is built here, with the specification's field numbers, because generated code would depend on one version
of the Protobuf library. Fields that are not listed are skipped.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE: Final = "waypost.sparkplug"

_KINDS: Final = {
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
    "float": _Field.TYPE_FLOAT,
    "double": _Field.TYPE_DOUBLE,
    "bool": _Field.TYPE_BOOL,
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
}
_PROPERTY_VALUE: Final = (
    "3 uint32 int_value, 4 uint64 long_value, 5 float float_value, 6 double double_value, 7 bool boolean_value, "
    "8 string string_value"
)
_MESSAGES: Final = {
    "PropertyValue": ("1 uint32 type, 2 bool is_null", _PROPERTY_VALUE),
    "PropertySet": ("1 string* keys, 2 PropertyValue* values", ""),
    "DataSet": ("1 uint64 num_of_columns", ""),
    "Template": ("1 string version, 2 Metric* metrics, 4 string template_ref, 5 bool is_definition", ""),
    "Metric": (
        "1 string name, 2 uint64 alias, 3 uint64 timestamp, 4 uint32 datatype, 5 bool is_historical, "
        "6 bool is_transient, 7 bool is_null, 9 PropertySet properties",
        "10 uint32 int_value, 11 uint64 long_value, 12 float float_value, 13 double double_value, "
        "14 bool boolean_value, 15 string string_value, 16 bytes bytes_value, 17 DataSet dataset_value, "
        "18 Template template_value",
    ),
    "Payload": ("1 uint64 timestamp, 2 Metric* metrics, 3 uint64 seq, 4 string uuid, 5 bytes body", ""),
}
"""Fields of each message, and those of its `oneof value`: number, type (`*`: repeated), name."""


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="waypost/sparkplug_b.proto", package=_PACKAGE, syntax="proto2")
    for name, (plain, one_of) in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if one_of:
            message.oneof_decl.add(name="value")
        for fields, index in ((plain, None), (one_of, 0)):
            for field in filter(None, fields.split(", ")):
                _add(message, field, index)
    return file


def _add(message: descriptor_pb2.DescriptorProto, field: str, one_of: int | None) -> None:
    number, kind, name = field.split()
    label = _Field.LABEL_REPEATED if kind.endswith("*") else _Field.LABEL_OPTIONAL
    added = message.field.add(name=name, number=int(number), label=label)
    kind = kind.rstrip("*")
    if kind in _KINDS:
        added.type = _KINDS[kind]
    else:
        added.type, added.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    if one_of is not None:
        added.oneof_index = one_of


def _payload() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Payload"))


Payload: Final = _payload()
"""The message class: `Payload.FromString(body)` raises `google.protobuf.message.DecodeError`."""
