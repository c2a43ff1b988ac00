"""Protobuf by registered descriptors: matching patterns, and precedence of schemas."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2, wrappers_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.decoding import reasons
from spark.decoding.decoder import Decoder
from spark.decoding.limits import DESCRIPTOR_BYTES_MAX
from spark.decoding.protobuf import message_class
from spark.decoding.schema import BadSchema, PayloadSchema, matches
from spark.decoding.value import EncodedMessage, Value
from tests.spark.decoding.test_text import check

_Field = descriptor_pb2.FieldDescriptorProto
AT_US = 1_773_480_360_000_000


def descriptors() -> bytes:
    """Return the output of `protoc --include_imports` for a message `plant.Sample` with fields of all kinds."""
    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(name="plant.proto", package="plant", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    mode = file.enum_type.add(name="Mode")
    mode.value.add(name="OFF", number=0)
    mode.value.add(name="HEAT", number=1)
    cell = file.message_type.add(name="Cell")
    cell.field.add(name="volts", number=1, type=_Field.TYPE_FLOAT, label=_Field.LABEL_OPTIONAL)
    sample = file.message_type.add(name="Sample")
    entry = sample.nested_type.add(name="ExtraEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=_Field.TYPE_SINT32, label=_Field.LABEL_OPTIONAL)
    for number, (name, kind, of, repeated) in enumerate(
        (
            ("temperature", _Field.TYPE_DOUBLE, "", False),
            ("timestamp", _Field.TYPE_MESSAGE, ".google.protobuf.Timestamp", False),
            ("mode", _Field.TYPE_ENUM, ".plant.Mode", False),
            ("cells", _Field.TYPE_MESSAGE, ".plant.Cell", True),
            ("extra", _Field.TYPE_MESSAGE, ".plant.Sample.ExtraEntry", True),
            ("raw", _Field.TYPE_BYTES, "", False),
            ("self", _Field.TYPE_MESSAGE, ".plant.Sample", False),
        ),
        start=1,
    ):
        label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
        sample.field.add(name=name, number=number, type=kind, type_name=of or None, label=label)
    return files.SerializeToString()


DESCRIPTORS = descriptors()
Sample: Any = message_class(DESCRIPTORS, "plant.Sample")
SCHEMA = PayloadSchema(
    "plant/#",
    "protobuf",
    descriptor=base64.b64encode(DESCRIPTORS).decode(),
    message="plant.Sample",
    units={"temperature": "Cel"},
)
DECODER = Decoder([SCHEMA])


def read(body: bytes) -> list[Value]:
    return DECODER.values(EncodedMessage(body, "plant/7", "application/protobuf"))


def test_a_message_is_its_fields() -> None:
    sample = Sample(temperature=0.0, mode=1, extra={"x": -3})
    sample.timestamp.FromMicroseconds(AT_US)
    sample.cells.add(volts=3.5)
    sample.cells.add()
    assert read(sample.SerializeToString()) == [
        Value("temperature", 0.0, None, None, AT_US, "Cel"),
        Value("mode", None, "HEAT", None, AT_US),
        Value("cells.0.volts", 3.5, None, None, AT_US),
        Value("cells.1.volts", 0.0, None, None, AT_US),
        Value("extra.x", -3.0, None, None, AT_US),
        Value("raw", reason=reasons.NOT_A_SCALAR),
    ]


def test_an_empty_message_is_its_defaults_and_other_bytes_are_none() -> None:
    assert [one.metric for one in read(b"")] == ["temperature", "mode", "raw"]
    assert read(b"\xff\xff") == [Value("", reason=reasons.NOT_PROTOBUF)]
    assert read(b"\xf8\x06\x01") == [Value("", reason=reasons.NOT_PROTOBUF)]  # a field of another message


def test_defaults_that_are_written_out_are_values() -> None:
    """An encoder may write a 0.0 that it could omit (Protobuf's encoding, "Default Values")."""
    assert [one.metric for one in read(b"\x09" + bytes(8))] == ["temperature", "mode", "raw"]
    assert read(b"\x09" + bytes(8) + b"\xf8\x06\x01")[0].reason == reasons.NOT_PROTOBUF


def test_wrappers_and_keys_are_as_in_json() -> None:
    """Wrappers and map keys follow https://protobuf.dev/programming-guides/json/."""
    files = descriptor_pb2.FileDescriptorSet()
    wrappers_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(name="w.proto", package="w", syntax="proto3", dependency=["google/protobuf/wrappers.proto"])
    sample = file.message_type.add(name="Sample")
    entry = sample.nested_type.add(name="OnEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_Field.TYPE_BOOL, label=_Field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=_Field.TYPE_DOUBLE, label=_Field.LABEL_OPTIONAL)
    for number, (name, of, label) in enumerate(
        (
            ("t", ".google.protobuf.DoubleValue", _Field.LABEL_OPTIONAL),
            ("u", ".google.protobuf.DoubleValue", _Field.LABEL_OPTIONAL),
            ("on", ".w.Sample.OnEntry", _Field.LABEL_REPEATED),
        ),
        start=1,
    ):
        sample.field.add(name=name, number=number, type=_Field.TYPE_MESSAGE, type_name=of, label=label)
    descriptor = files.SerializeToString()
    made = message_class(descriptor, "w.Sample")(on={True: 2.0})
    made.t.value = 0.0
    schema = PayloadSchema("#", "protobuf", descriptor=base64.b64encode(descriptor).decode(), message="w.Sample")
    found = Decoder([schema]).values(EncodedMessage(made.SerializeToString(), "a"))
    assert found == [Value("t", 0.0), Value("on.true", 2.0)]


def test_a_message_within_itself() -> None:
    sample = inner = Sample()
    for _ in range(30):
        inner = inner.self
    inner.temperature = 1.0
    assert read(sample.SerializeToString()) == [Value("", reason=reasons.TOO_DEEP)]


@given(st.binary(max_size=80))
@settings(max_examples=300, deadline=None)
def test_random_bytes(body: bytes) -> None:
    check(read(body))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (PayloadSchema("a/#/b", "json"), "pattern"),
        (PayloadSchema("a/b+", "json"), "pattern"),
        (PayloadSchema("", "json"), "pattern"),
        (PayloadSchema("a", "protobuf"), "requires a descriptor set"),
        (PayloadSchema("a", "json", descriptor="", message="x"), "requires a descriptor set"),
        (PayloadSchema("a", "protobuf", descriptor="?", message="x"), "Base64"),
        (PayloadSchema("a", "protobuf", descriptor="////", message="x"), "protoc"),
        (PayloadSchema("a", "protobuf", descriptor=SCHEMA.descriptor, message="Sample"), r"it has .*plant\.Sample"),
        (
            PayloadSchema("a", "protobuf", descriptor="A" * 4 * (DESCRIPTOR_BYTES_MAX // 3 + 1), message="x"),
            "more than",
        ),
        (PayloadSchema("a", "json", units={"t": "x" * 300}), "unit"),
    ],
)
def test_a_schema_that_cannot_be_says_why(schema: PayloadSchema, said: str) -> None:
    with pytest.raises(BadSchema, match=said):
        schema.check()
    SCHEMA.check()


def test_a_descriptor_set_without_its_imports() -> None:
    alone = descriptor_pb2.FileDescriptorSet(file=descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS).file[1:])
    with pytest.raises(BadSchema, match="include_imports"):
        PayloadSchema(
            "a", "protobuf", descriptor=base64.b64encode(alone.SerializeToString()).decode(), message="plant.Sample"
        ).check()


@pytest.mark.parametrize(
    ("pattern", "address", "fits"),
    [
        ("a/b", "a/b", True),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+", "a/b/c", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("#", "a/b", True),
        ("+/b", "a/b", True),
        ("a", "a/b", False),
    ],
)
def test_patterns(pattern: str, address: str, fits: bool) -> None:
    assert matches(pattern, address) is fits


def test_the_most_specific_schema_wins_then_the_newest_and_a_tenant_s_own_first() -> None:
    everybody = [PayloadSchema(pattern, "text", units={"*": pattern}) for pattern in ("a/b", "a/+", "a/#", "#")]
    renewed = PayloadSchema("a/+", "text", units={"*": "renewed"})
    own = PayloadSchema("#", "text", tenant="t2", units={"*": "t2"})
    decoder = Decoder([*everybody, renewed, own])
    units = {address: decoder.values(EncodedMessage(b"1", address))[0].unit for address in ("a/b", "a/c", "a/c/d", "x")}
    assert units == {"a/b": "a/b", "a/c": "renewed", "a/c/d": "a/#", "x": "#"}
    assert decoder.values(EncodedMessage(b"1", "a/b", tenant="t2"))[0].unit == "t2"
