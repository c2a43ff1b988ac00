"""JSON, numbers and text, and rules for every format. No JVM."""

from __future__ import annotations

import json
import math
import time

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.decoding import reasons
from spark.decoding.decoder import Decoder
from spark.decoding.limits import ADDRESSES_REMEMBERED, BODY_BYTES_MAX, DEPTH_MAX, METRIC_CHARACTERS_MAX, VALUES_MAX
from spark.decoding.schema import PayloadSchema
from spark.decoding.value import EncodedMessage, Value

REASONS = {said for name, said in vars(reasons).items() if name.isupper() and isinstance(said, str)}
DECODER = Decoder()
TS_MS, TS_US = 1_773_480_360_000, 1_773_480_360_000_000


def values(body: bytes, content_type: str | None = None) -> list[Value]:
    return DECODER.values(EncodedMessage(body, "load/cpu", content_type))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"21.5", [Value("", 21.5)]),
        (b" -3e2 ", [Value("", -300.0)]),
        (b"+7", [Value("", 7.0)]),
        (b"007", [Value("", 7.0)]),
        (b"true", [Value("", 1.0, "true")]),
        (b'"on"', [Value("", text="on")]),
        (b"null", [Value("")]),
        (b'{"t": 1, "u": "C"}', [Value("t", 1.0), Value("u", text="C")]),
        (b'{"a": {"b": {"c": 2}}, "d": false}', [Value("a.b.c", 2.0), Value("d", 0.0, "false")]),
        (b'{"cells": [3.1, 3.2]}', [Value("cells.0", 3.1), Value("cells.1", 3.2)]),
        (b'{"a": null}', [Value("a")]),
        (b'{"a": 1, "b": 1e999}', [Value("a", 1.0), Value("b", reason=reasons.NOT_FINITE)]),
        (b'{"a": 1, "b": -Infinity}', [Value("a", 1.0), Value("b", reason=reasons.NOT_FINITE)]),
        (b'{"t": nan, "h": 5}', [Value("t", reason=reasons.NOT_FINITE), Value("h", 5.0)]),
        (
            b'{"t": -nan(0x1), "n": "nan", "h": [inf, -INF]}',
            [
                Value("t", reason=reasons.NOT_FINITE),
                Value("n", text="nan"),
                Value("h.0", reason=reasons.NOT_FINITE),
                Value("h.1", reason=reasons.NOT_FINITE),
            ],
        ),
        (b'{"s": "a \\"nan", "t": 1.#QNAN}', [Value("s", text='a "nan'), Value("t", reason=reasons.NOT_FINITE)]),
        (b"21.5\0", [Value("", 21.5)]),
        (b'{"t": 21.5}\0\0', [Value("t", 21.5)]),
        (b'\xef\xbb\xbf{"a": 1}', [Value("a", 1.0)]),
        (b"\xef\xbb\xbf7", [Value("", 7.0)]),
        (b'{"a": 1, "a": 2}', [Value("a", 2.0)]),
        (b"9007199254740992", [Value("", 2.0**53)]),
        (b"9007199254740993", [Value("", 2.0**53, "9007199254740993")]),
        (b"-18446744073709551617", [Value("", -(2.0**64), "-18446744073709551617")]),
    ],
)
def test_values_of_a_body(body: bytes, expected: list[Value]) -> None:
    assert values(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"ts": TS_MS, "t": 20}, [("t", 20.0, TS_US)]),
        ({"Time": "2026-03-14T09:26:00", "ENERGY": {"Power": 7}}, [("ENERGY.Power", 7.0, TS_US)]),
        ({"ts": TS_MS, "values": {"t": 1.5}}, [("values.t", 1.5, TS_US)]),
        ([{"ts": TS_MS, "t": 20}, {"ts": TS_MS + 1, "t": 21}], [("t", 20.0, TS_US), ("t", 21.0, TS_US + 1000)]),
        (
            {"log": [{"time": TS_MS // 1000, "t": 20}, {"time": TS_US, "t": 21}]},
            [("log.t", 20, TS_US), ("log.t", 21, TS_US)],
        ),
        ([{"t": 20}, {"ts": TS_MS, "t": 21}], [("0.t", 20.0, None), ("1.t", 21.0, TS_US)]),
        ({"time": 12.5, "t": 20}, [("time", 12.5, None), ("t", 20.0, None)]),
        ({"ts": 5000, "t": 20}, [("t", 20.0, 5_000_000_000)]),
        ([{"ts": 0, "t": 20}, {"ts": 0.5, "t": 21}], [("t", 20.0, 0), ("t", 21.0, 500_000)]),
        ({"ts": -1, "t": 20}, [("ts", -1.0, None), ("t", 20.0, None)]),
        ({"ts": TS_MS, "sub": {"ts": TS_MS + 5, "x": 1}, "y": 2}, [("sub.x", 1.0, TS_US + 5000), ("y", 2.0, TS_US)]),
    ],
)
def test_times_of_records(body: object, expected: list[tuple[str, float, int | None]]) -> None:
    assert [(one.metric, one.value, one.time_us) for one in values(json.dumps(body).encode())] == expected


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff\xfe", reasons.NOT_TEXT),
        (b"hello", reasons.NOT_A_VALUE),
        (b"", reasons.NOT_A_VALUE),
        (b"1_000", reasons.NOT_A_VALUE),
        ("\u0661\u0662".encode(), reasons.NOT_A_VALUE),
        (b'{"t": 1', reasons.NOT_A_VALUE),
        (b'{"t": NaN}', reasons.NOT_FINITE),
        (b'{"t": nan}', reasons.NOT_FINITE),
        (b'{"t": nano}', reasons.NOT_A_VALUE),
        (b"NaN", reasons.NOT_FINITE),
        (b"1e999", reasons.NOT_FINITE),
        (b"9" * 400, reasons.NOT_FINITE),
        (b"{}", reasons.NO_VALUES),
        (b'{"a": []}', reasons.NO_VALUES),
        (b"[" * (DEPTH_MAX + 1) + b"1" + b"]" * (DEPTH_MAX + 1), reasons.TOO_DEEP),
        (b"[" * 100_000, reasons.TOO_DEEP),
        (json.dumps(list(range(VALUES_MAX + 1))).encode(), reasons.TOO_MANY),
        (b"[" + b"0," * 80_000 + b"1]", reasons.TOO_MANY),
        (b'"' + b"x" * BODY_BYTES_MAX + b'"', reasons.TOO_LARGE),
        (b'"\\ud800"', reasons.NOT_UNICODE),
        (b'{"\\udfff": 1, "a": 2}', reasons.NOT_UNICODE),
        (b'{"' + b"k" * (METRIC_CHARACTERS_MAX + 1) + b'": 1}', reasons.TOO_LONG),
        (b'{"' + b"k" * METRIC_CHARACTERS_MAX + b'": [1]}', reasons.TOO_LONG),
        (b'{"a": ' + b"9" * 5_000 + b"}", reasons.NOT_A_VALUE),
    ],
)
def test_what_cannot_be_read_says_why(body: bytes, reason: str) -> None:
    assert [value.reason for value in values(body)] == [reason]


def test_as_much_as_the_limits_let_through_is_read() -> None:
    assert len(values(json.dumps(list(range(VALUES_MAX))).encode())) == VALUES_MAX
    assert values(b"[" * DEPTH_MAX + b"1" + b"]" * DEPTH_MAX)[0].value == 1.0
    assert values(b'{"' + b"k" * METRIC_CHARACTERS_MAX + b'": 1}')[0].value == 1.0
    assert values(b" " * (BODY_BYTES_MAX - 1) + b"1")[0].value == 1.0


class TestContentType:
    @pytest.mark.parametrize(
        ("content_type", "body", "expected"),
        [
            ("text/plain", b"ON", Value("", text="ON")),
            ("text/plain; charset=utf-8", b"21.5", Value("", 21.5)),
            ("text/plain", b"  ", Value("", reason=reasons.NO_VALUES)),
            ("text/plain", b"\xff", Value("", reason=reasons.NOT_TEXT)),
            ("application/JSON;charset=utf-8", b'{"t":1}', Value("t", 1.0)),
            ("application/vnd.oma.lwm2m+json", b'{"t":1}', Value("t", 1.0)),
            ("application/json", b"007", Value("", 7.0)),
            ("application/cbor", b"\xa1\x61t\x01", Value("t", 1.0)),
            ("application/vnd.x+cbor", b"\xa1\x61t\x01", Value("t", 1.0)),
            ("application/octet-stream", b"\xd9\xd9\xf7\x18\x2a", Value("", 42.0)),
            ("application/protobuf", b"\x08\x01", Value("", reason=reasons.NO_SCHEMA)),
            ("image/jpeg", b"\xff\xd8", Value("", reason=reasons.NO_DECODER)),
        ],
    )
    def test_says_how_a_body_is_read(self, content_type: str, body: bytes, expected: Value) -> None:
        assert values(body, content_type) == [expected]

    def test_more_addresses_than_are_remembered(self) -> None:
        decoder = Decoder()
        for number in range(ADDRESSES_REMEMBERED + 10):
            assert decoder.values(EncodedMessage(b"1", f"a/{number}")) == [Value("", 1.0)]
        assert len(decoder._found) <= ADDRESSES_REMEMBERED


@pytest.mark.parametrize(
    ("tag", "held", "expected"),
    [
        (4, [-2, 2731], 27.31),
        (4, [-1, 3], 0.3),
        (4, [2, 5], 500.0),
        (4, [-2, -(2**70)], -(2**70) / 100),
        (4, [300, 10**50], None),
        (5, [-2, 3], 0.75),
        (5, [100_000, 1], None),
        (30, [1, 3], 1 / 3),
        (30, [1, 0], None),
    ],
)
def test_a_fraction_in_cbor_is_the_nearest_double_or_a_reject_of_its_own(
    tag: int, held: list[int], expected: float | None
) -> None:
    """RFC 8949 section 3.4.4, and the registered tag 30."""
    wrong = None if expected is not None else reasons.NOT_FINITE
    found = values(cbor2.dumps({"t": cbor2.CBORTag(tag, held), "u": 1}), "application/cbor")
    assert found == [Value("t", expected, reason=wrong), Value("u", 1.0)]


SELF_DESCRIBED = 55_799


@pytest.mark.parametrize("content_type", [None, "application/cbor"])
def test_objects_and_arrays_within_a_tag_are_read_as_those_without(content_type: str | None) -> None:
    """RFC 8949 section 3.4.6: a document that says that it is CBOR."""
    document = {"t": 1.5, "xs": [1, {"y": 2**70}], "place": cbor2.CBORTag(103, {"lat": [52.5]})}
    body = cbor2.dumps(cbor2.CBORTag(SELF_DESCRIBED, document))
    read = [Value("t", 1.5), Value("xs.0", 1.0), Value("xs.1.y", 2.0**70), Value("place.lat.0", 52.5)]
    assert values(body, content_type) == read


HOSTILE = {
    "nested arrays": (b"\x81" * BODY_BYTES_MAX, "application/cbor"),
    "an array said to be endless": (b"\x9b" + b"\xff" * 8, "application/cbor"),
    "bytes said to be endless": (b"\x5b" + b"\xff" * 8, "application/cbor"),
    "a document that contains itself": (bytes.fromhex("d81c81d81d00"), "application/cbor"),
    "10 to the power of 2^31": (bytes.fromhex("c4821a7fffffff01"), "application/cbor"),
    "2 to the power of 2^62": (bytes.fromhex("c5821b3fffffffffffffff01"), "application/cbor"),
    "a rational of nothing": (bytes.fromhex("d81e820100"), "application/cbor"),
    "a regular expression": (cbor2.dumps(cbor2.CBORTag(35, "(a+)+b")), "application/cbor"),
    "an integer of 200 000 bytes": (b"\xc2\x5a\x00\x03\x0d\x40" + b"\xff" * 200_000, "application/cbor"),
    "keys that are large integers": (
        b"\xb9\x40\x00"
        + b"".join(b"\xc2\x4a" + ((2**61 - 1) * (n + 8)).to_bytes(10, "big") + b"\x00" for n in range(0x4000)),
        "application/cbor",
    ),
    "SenML of 30 000 records": (b"[" + b'{"n":"a"},' * 26_000 + b"{}]", "application/senml+json"),
    "SenML of 10^308 seconds": (b'[{"bn":"a","t":1e308,"v":1}]', "application/senml+json"),
    "SenML of an integer of 4 000 digits": (
        b'[{"bn":"a","bv":0.5,"v":1' + b"0" * 4_000 + b"}]",
        "application/senml+json",
    ),
    "JSON of 200 000 digits": (b"[" + b"1" * 200_000 + b"]", "application/json"),
    "JSON of empty lists": (b"[" + b"[]," * 80_000 + b"[]]", "application/json"),
    "JSON with one key": (b"{" + b'"a":1,' * 40_000 + b'"a":2}', "application/json"),
    "a time of many digits": (b'{"ts":"' + b"9" * 200_000 + b'","a":1}', "application/json"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bodies_end_soon_and_are_bounded(name: str) -> None:
    body, content_type = HOSTILE[name]
    begun = time.thread_time()
    found = values(body, content_type)
    assert time.thread_time() - begun < 2.0
    assert 1 <= len(found) <= VALUES_MAX
    check(found)
    assert sum(len(value.metric) + len(value.text or "") for value in found) <= 2 * BODY_BYTES_MAX


def check(found: list[Value]) -> None:
    """Check the rules for every decoded value."""
    assert found
    for value in found:
        assert value.reason is None or value.reason in REASONS
        assert value.value is None or math.isfinite(value.value)
        assert value.reason is None or (value.value is None and value.text is None)
        assert value.metric.encode() is not None
        assert value.time_us is None or -(2**63) <= value.time_us < 2**63
        assert value.alias is None or -(2**63) <= value.alias < 2**63


_CONTENT_TYPES = st.sampled_from(
    [
        None,
        "",
        "text/plain",
        "application/json",
        "application/cbor",
        "application/senml+json",
        "application/senml+cbor",
        "x/y",
    ]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["n", "bn", "v", "t", "bt", "s", "ts", "time", "vs", "bver", "a_", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)
_BODIES = (
    st.binary(max_size=80)
    | st.text(max_size=40).map(str.encode)
    | _JSON.map(lambda said: json.dumps(said).encode())
    | _JSON.map(cbor2.dumps)
)
_ADDRESSES = st.sampled_from(
    ["a/b", "spBv1.0/g/NBIRTH/n", "spBv1.0/g/DDATA/n/d", "spBv1.0/STATE/host", "spBv1.0/x", ""]
)


@given(_BODIES, _CONTENT_TYPES, _ADDRESSES, st.integers(-(2**62), 2**62))
@settings(max_examples=600, deadline=None)
def test_every_body_says_something_that_columns_can_hold(body: bytes, said: str | None, address: str, at: int) -> None:
    check(DECODER.values(EncodedMessage(body, address, said, at)))


_LEAVES = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), _LEAVES, min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_a_flat_object_of_numbers_is_its_numbers(document: dict[str, float]) -> None:
    expected = {key: float(number) for key, number in document.items()}
    for body, content_type in (
        (json.dumps(document).encode(), "application/json"),
        (cbor2.dumps(document), "application/cbor"),
    ):
        assert {value.metric: value.value for value in values(body, content_type)} == expected


def test_a_schema_names_fields_and_units() -> None:
    registered = PayloadSchema("up/+", "json", time="at", device="who.id", units={"t": "Cel", "*": "1"})
    found = Decoder([registered]).values(
        EncodedMessage(b'{"at": "2026-03-14T09:26Z", "who": {"id": 7}, "t": 20}', "up/x")
    )
    assert found == [
        Value("who.id", 7.0, None, None, TS_US, "1", "7"),
        Value("t", 20.0, None, None, TS_US, "Cel", "7"),
    ]


FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (b"21.5", FORM, [Value("", 21.5)]),
        (b'{"t": 21.5}', FORM, [Value("t", 21.5)]),
        (b'{"t": 21.5}', "application/protobuf", [Value("t", 21.5)]),
        (b'{"t": 21.5}', "application/cbor", [Value("t", 21.5)]),
        (b"+21.5", "application/json", [Value("", 21.5)]),
        (b'{"t": 21.5}', "text/plain", [Value("t", 21.5)]),
        (b"{off}", "text/plain", [Value("", text="{off}")]),
        (b"t=21.5", FORM, [Value("", reason=reasons.NO_DECODER)]),
        (b"off", "application/json", [Value("", reason=reasons.NOT_JSON)]),
        (b"\x89PNG\r\n", "image/png", [Value("", reason=reasons.NO_DECODER)]),
    ],
)
def test_the_content_type_is_a_hint(body: bytes, content_type: str, expected: list[Value]) -> None:
    assert values(body, content_type) == expected
