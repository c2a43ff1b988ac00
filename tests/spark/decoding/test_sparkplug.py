"""Sparkplug B payloads, built byte by byte from the specification's field numbers, without the decoder."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.decoding import reasons, sparkplug
from spark.decoding.decoder import Decoder
from spark.decoding.limits import DEPTH_MAX, VALUES_MAX
from spark.decoding.value import EncodedMessage, Value
from spark.kernels.decode import decode
from tests.spark.decoding.test_text import check

AT_MS = 1_486_144_502_122
AT_US = AT_MS * 1_000
NODE, DEVICE = "spBv1.0/plant/{}/press", "spBv1.0/plant/{}/press/motor"


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def field(number: int, said: bytes | str | float) -> bytes:
    """Encode one field: texts, bytes and messages with their length, integers as varints, floats as doubles."""
    if isinstance(said, float):
        return varint(number << 3 | 1) + struct.pack("<d", said)
    if isinstance(said, int):
        return varint(number << 3) + varint(said)
    data = said.encode() if isinstance(said, str) else said
    return varint(number << 3 | 2) + varint(len(data)) + data


def metric(name: str | None, *fields: tuple[int, bytes | str | float], alias: int | None = None) -> bytes:
    said = field(1, name) if name is not None else b""
    said += field(2, alias) if alias is not None else b""
    return field(2, said + b"".join(field(*one) for one in fields))


def payload(*metrics: bytes, seq: int = 0) -> bytes:
    return field(1, AT_MS) + b"".join(metrics) + field(3, seq)


def read(body: bytes, address: str) -> list[Value]:
    return Decoder().values(EncodedMessage(body, address, "application/octet-stream"))


def test_numbers_are_what_their_columns_hold() -> None:
    """A publisher may send a 64-bit alias or data type where 32 bits are specified; it must not end the job."""
    body = payload(metric("a", (4, (1 << 32) - 1), (13, 1.0), alias=(1 << 64) - 1), metric("b", (4, 34), (13, 2.0)))
    columns = [pa.array([each]) for each in (body, NODE.format("NBIRTH"), None, AT_US, "tenant")]
    columns[2] = columns[2].cast(pa.string())
    (_, first, second) = decode(b"[]", columns).to_pylist()[0]
    assert (first["datatype"], first["alias"], first["value"]) == (0, -1, 1.0)
    assert (second["datatype"], second["value"]) == (34, 2.0)


def test_a_birth_names_what_data_leaves_out() -> None:
    """Specification 6.4.20 (NBIRTH) and 6.4.23 (DDATA): data omits names, and the birth supplies them."""
    unit = field(9, field(1, "engUnit") + field(2, field(1, 12) + field(8, "rpm")))
    speed = field(2, field(1, "Speed") + field(2, 7) + field(4, 3) + unit + field(10, 1500))
    birth = payload(metric("bdSeq", (4, 8), (11, 5)), speed, metric("Running", (4, 11), (14, 1)))
    assert read(birth, NODE.format("NBIRTH")) == [
        Value("online", 1.0, "true", None, AT_US, None, "plant/press"),
        Value("bdSeq", 5.0, None, None, AT_US, None, "plant/press", None, 8),
        Value("Speed", 1500.0, None, None, AT_US, "rpm", "plant/press", 7, 3),
        Value("Running", 1.0, "true", None, AT_US, None, "plant/press", None, 11),
    ]
    data = payload(metric(None, (3, AT_MS - 5), (10, 2**32 - 2), alias=7), seq=1)
    assert read(data, DEVICE.format("DDATA")) == [
        Value("", 2**32 - 2, None, None, AT_US - 5_000, None, "plant/press/motor", 7, None, -2.0)
    ]
    large = payload(metric(None, (11, 2**64 - 1), alias=7), metric(None, (11, 2**53 + 1), alias=7))
    found = read(large, DEVICE.format("DDATA"))
    assert [(one.value, one.text, one.signed) for one in found] == [
        (2.0**64, None, -1.0),  # the birth decides the type and the exact digits
        (2.0**53, str(2**53 + 1), 2.0**53),
    ]


@pytest.mark.parametrize(
    ("fields", "value", "text"),
    [
        (((4, 1), (10, 0xFF)), -1.0, None),
        (((4, 1), (10, 0xFFFFFFFF)), -1.0, None),
        (((4, 2), (10, 0x8000)), -32768.0, None),
        (((4, 3), (10, 0xFFFFFFFF)), -1.0, None),
        (((4, 4), (11, 2**64 - 3)), -3.0, None),
        (((4, 5), (10, 0xFF)), 255.0, None),
        (((4, 8), (11, 2**63)), float(2**63), None),
        (((4, 8), (11, 2**63 + 1)), float(2**63), str(2**63 + 1)),
        (((4, 4), (11, 2**53 + 1)), float(2**53), str(2**53 + 1)),
        (((4, 4), (11, 2**64 - 2**53 - 1)), -float(2**53), str(-(2**53) - 1)),
        (((4, 10), (13, 2.5)), 2.5, None),
        (((4, 11), (14, 0)), 0.0, "false"),
        (((4, 12), (15, "on")), None, "on"),
        (((4, 13), (11, AT_MS)), float(AT_MS), None),
        (((4, 3), (7, 1)), None, None),
    ],
)
def test_data_types(fields: tuple[tuple[int, int]], value: float | None, text: str | None) -> None:
    (found,) = read(payload(metric("m", *fields)), NODE.format("NDATA"))
    assert (found.metric, found.value, found.text, found.reason) == ("m", value, text, None)


def test_deaths_templates_and_values_without_a_column() -> None:
    assert read(payload(metric("bdSeq", (4, 8), (11, 5))), NODE.format("NDEATH"))[0][:3] == ("online", 0.0, "false")
    will = payload(metric("bdSeq", (3, AT_MS), (4, 8), (11, 5)))
    assert [one.time_us for one in read(will, NODE.format("NDEATH"))] == [None, None], "it was written at the birth"
    assert read(payload(), DEVICE.format("DDEATH")) == [
        Value("online", 0.0, "false", None, AT_US, None, "plant/press/motor")
    ]
    template = metric("drive", (4, 19), (18, metric("volts", (4, 10), (13, 400.0))))
    assert [(one.metric, one.value) for one in read(payload(template), NODE.format("NDATA"))] == [
        ("drive/volts", 400.0)
    ]
    found = read(payload(metric("file", (4, 18), (16, b"x")), metric("ok", (4, 10), (13, 1.0))), NODE.format("NDATA"))
    assert [(one.metric, one.reason) for one in found] == [("file", reasons.NOT_A_SCALAR), ("ok", None)]
    online = Decoder().values(EncodedMessage(b'{"online":true,"timestamp":%d}' % AT_MS, "spBv1.0/STATE/host"))
    assert online == [Value("online", 1.0, "true", None, AT_US)]


def deep(levels: int) -> bytes:
    said = metric("leaf", (13, 1.0))
    for _ in range(levels):
        said = metric("t", (18, said))
    return said


@pytest.mark.parametrize(
    ("body", "address", "reason"),
    [
        (b"\xff", NODE.format("NDATA"), reasons.NOT_SPARKPLUG),
        (b"", NODE.format("NDATA"), reasons.NO_VALUES),
        (payload(metric(None, (13, 1.0))), NODE.format("NDATA"), reasons.SPARKPLUG_NAMELESS),
        (payload(metric("m", (13, 1.0))), NODE.format("NCMD"), reasons.SPARKPLUG_COMMAND),
        (payload(), NODE.format("NDATA") + "/device", reasons.SPARKPLUG_TOPIC),
        (payload(), NODE.format("DDATA"), reasons.SPARKPLUG_TOPIC),
        (payload(), "spBv1.0/plant//press", reasons.SPARKPLUG_TOPIC),
        (payload(), "spBv1.0/plant", reasons.SPARKPLUG_TOPIC),
        (payload() + field(4, "SPBV1.0_COMPRESSED"), NODE.format("NDATA"), reasons.SPARKPLUG_COMPRESSED),
        (payload(deep(DEPTH_MAX)), NODE.format("NDATA"), reasons.TOO_DEEP),
        (payload(*[metric("m", (10, 1))] * (VALUES_MAX + 1)), NODE.format("NDATA"), reasons.TOO_MANY),
        (payload(metric("m" * 300, (10, 1))), NODE.format("NDATA"), reasons.TOO_LONG),
    ],
)
def test_what_cannot_be_read_says_why(body: bytes, address: str, reason: str) -> None:
    assert read(body, address) == [Value("", reason=reason)]


def test_a_template_as_deep_as_may_be() -> None:
    assert read(payload(deep(DEPTH_MAX - 1)), NODE.format("NDATA"))[0].value == 1.0


@given(
    st.binary(max_size=60)
    | st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 2**64 - 1) | st.binary(max_size=9) | st.floats()), max_size=6
    ).map(lambda fields: payload(metric(None, *fields))),
    st.sampled_from([kind for group in (sparkplug.BIRTHS, sparkplug.DATA, sparkplug.DEATHS) for kind in group]),
)
@settings(max_examples=300, deadline=None)
def test_every_payload_says_something_that_columns_can_hold(body: bytes, kind: str) -> None:
    check(read(body, (NODE if kind[0] == "N" else DEVICE).format(kind)))


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from((8, 16, 32, 64)))
def test_twos_complement_is_struct_s(number: int, bits: int) -> None:
    number = number % (1 << bits) - (1 << (bits - 1))
    assert sparkplug.twos_complement(number % (1 << 64), bits) == number
