"""Bodies to values, without Spark."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.transforms import decode
from spark.transforms.decode import Value, values


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
    ],
)
def test_values_of_a_body(body: bytes, expected: list[Value]) -> None:
    assert values(body) == expected


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff\xfe", decode.NOT_TEXT),
        (b"hello", decode.NOT_A_VALUE),
        (b"", decode.NOT_A_VALUE),
        (b"1_000", decode.NOT_A_VALUE),
        ("\u0661\u0662".encode(), decode.NOT_A_VALUE),
        (b'{"t": 1', decode.NOT_A_VALUE),
        (b'{"t": NaN}', decode.NOT_A_VALUE),
        (b"NaN", decode.NOT_FINITE),
        (b"1e999", decode.NOT_FINITE),
        (b"9" * 400, decode.NOT_FINITE),
        (b"{}", decode.NO_VALUES),
        (b'{"a": []}', decode.NO_VALUES),
        (b"[" * 17 + b"1" + b"]" * 17, decode.TOO_DEEP),
        (b"[" * 100_000, decode.TOO_DEEP),
        (json.dumps(list(range(257))).encode(), decode.TOO_MANY),
        (b"[" + b"0," * 80_000 + b"1]", decode.TOO_MANY),
        (b'"' + b"x" * decode.BODY_BYTES_MAX + b'"', decode.TOO_LARGE),
        (b'"\\ud800"', decode.NOT_UNICODE),
        (b'{"\\udfff": 1}', decode.NOT_UNICODE),
        (b'{"' + b"k" * 1_025 + b'": 1}', decode.TOO_LONG),
        (b'{"a": ' + b"9" * 5_000 + b"}", decode.NOT_A_VALUE),
    ],
)
def test_what_cannot_be_read_says_why(body: bytes, reason: str) -> None:
    assert [value.reason for value in values(body)] == [reason]


def test_one_bad_number_does_not_take_the_good_ones_with_it() -> None:
    assert values(b'{"a": 1, "b": 1e999}') == [Value("a", 1.0), Value("b", reason=decode.NOT_FINITE)]


@given(st.binary(max_size=80) | st.text(max_size=40).map(str.encode))
@settings(max_examples=300, deadline=None)
def test_every_body_says_something_and_every_value_is_finite(body: bytes) -> None:
    found = values(body)
    assert found
    for value in found:
        assert value.reason is None or value.reason in decode.REASONS
        assert value.value is None or math.isfinite(value.value)
        assert value.reason is None or (value.value is None and value.text is None)


_LEAVES = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), _LEAVES, min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_a_flat_object_of_numbers_is_its_numbers(document: dict[str, float]) -> None:
    found = values(json.dumps(document).encode())
    assert {value.metric: value.value for value in found} == {key: float(number) for key, number in document.items()}
