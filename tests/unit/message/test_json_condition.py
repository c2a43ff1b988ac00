"""Conditions on JSON bodies: their meaning, invalid ones, and a bound of time for any body."""

from __future__ import annotations

import json
import time

import pytest

from edge.broker.limits import (
    JSON_CONDITION_BODY_BYTES_MAX,
    JSON_CONDITION_LENGTH_MAX,
    JSON_CONDITION_TERMS_MAX,
    SELECTOR_DEPTH_MAX,
)
from edge.broker.message.json_condition import JsonCondition, JsonConditionError

READING = json.dumps(
    {"temp": 31.5, "unit": "C", "ok": True, "none": None, "list": [1, [2, 3]], "a b": {"c-d": "it's"}, "é": 1}
).encode()


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("$.temp > 30", True),
        ("$.temp<=31.5", True),
        ("30 < $.temp && $.unit == 'C'", True),
        ('$.unit == "F" || $.temp < 0', False),
        ("$.unit >= 'B'", True),
        ("$.temp", True),
        ("$.missing", False),
        ("!$.missing", True),
        ("$.none", True),
        ("$.none == null", True),
        ("$.missing == null", False),
        ("$.missing != 1", True),
        ("$.missing == $.absent", True),
        ("$.ok == true", True),
        ("$.ok == 1", False),
        ("$.ok > 0", False),
        ("$.temp == '31.5'", False),
        ("$.temp != '31.5'", True),
        ("$.temp > 'a'", False),
        ("$.list[1][0] == 2", True),
        ("$.list[-1][-1] == 3", True),
        ("$.list[2]", False),
        ("$.list.x", False),
        ("$['a b']['c-d'] == 'it\\'s'", True),
        ('$["a b"]["c-d"] == "it\'s"', True),
        ("$.é == 1e0", True),
        ("$ == 1", False),
        ("!($.temp > 30 && $.unit == 'F')", True),
        ("$.temp > 100 || $.ok && $.unit == 'C'", True),
    ],
)
def test_condition_evaluates_to_its_meaning(condition: str, holds: bool) -> None:
    assert JsonCondition(condition).holds(READING) is holds


@pytest.mark.parametrize("body", [b"", b"no json", b"\xff", b'{"temp":', b"[" * 5_000])
def test_conditions_are_false_for_bodies_that_are_not_json(body: bytes) -> None:
    assert not JsonCondition("!$.x").holds(body)


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("", "term 1"),
        ("$.a >", "found the end"),
        ("1", "comparison"),
        ("$.a == b", "character 8"),
        ("$..a", "character"),
        ("$.*", "character"),
        ("$[?@.x]", "character"),
        ("$.a 1", "&&"),
        ("($.a", r"\)"),
        ("$.a = 1", "character"),
        ("$.a == 01", "character 8"),
        ("$.a == '\\q'", "not a valid string"),
        ("$.a == 1 == 2", "&&"),
    ],
)
def test_invalid_conditions_raise(condition: str, says: str) -> None:
    with pytest.raises(JsonConditionError, match=says):
        JsonCondition(condition)


def test_bounds_are_enforced() -> None:
    JsonCondition("$." + "a" * (JSON_CONDITION_LENGTH_MAX - 2))
    with pytest.raises(JsonConditionError, match="characters"):
        JsonCondition("$." + "a" * (JSON_CONDITION_LENGTH_MAX - 1))
    JsonCondition("&&".join(["$"] * (JSON_CONDITION_TERMS_MAX // 2)))
    with pytest.raises(JsonConditionError, match="terms"):
        JsonCondition("&&".join(["$"] * (JSON_CONDITION_TERMS_MAX // 2 + 1)))
    with pytest.raises(JsonConditionError, match="deeper"):
        JsonCondition("!" * (SELECTOR_DEPTH_MAX + 1) + "$")
    fits = b'{"a":"%s"}' % (b"x" * (JSON_CONDITION_BODY_BYTES_MAX - 8))
    assert len(fits) == JSON_CONDITION_BODY_BYTES_MAX
    assert JsonCondition("$.a").holds(fits)
    assert not JsonCondition("$.a").holds(fits + b" ")


def test_evaluation_time_is_bounded_for_any_body() -> None:
    condition = JsonCondition("$.a == 1 || $['b'] == 2")
    worst = [
        b"[" * JSON_CONDITION_BODY_BYTES_MAX,
        b"[" + b"1," * (JSON_CONDITION_BODY_BYTES_MAX // 2 - 1) + b"1]",
        b'{"a":' * (JSON_CONDITION_BODY_BYTES_MAX // 5),
    ]
    began = time.process_time()
    for body in worst:
        condition.holds(body)
    assert time.process_time() - began < 0.5
