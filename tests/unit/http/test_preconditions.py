"""Conditional changes: If-Match and If-None-Match (RFC 9110 section 13)."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from edge.broker.http.preconditions import Precondition, precondition_of, tag_of
from edge.broker.http.refusal import RequestRefused

TAG, OTHER = tag_of({"allow": ["recv:#"]}), tag_of({"allow": []})


def condition(**fields: str) -> Precondition:
    headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()]
    return precondition_of(Request({"type": "http", "headers": headers}))


def outcome(wanted: Precondition, tag: str | None) -> int:
    try:
        wanted.check(tag)
    except RequestRefused as refused:
        return refused.status
    return 200


def test_equal_states_have_the_same_tag() -> None:
    assert tag_of({"a": 1, "b": [2]}) == tag_of({"b": [2], "a": 1}) != tag_of({"a": 1, "b": [3]})


@pytest.mark.parametrize(
    ("fields", "tag", "wanted"),
    [
        ({}, TAG, 200),
        ({}, None, 200),
        ({"if_match": TAG}, TAG, 200),
        ({"if_match": f"W/{TAG}"}, TAG, 200),
        ({"if_match": f"{OTHER}, {TAG}"}, TAG, 200),
        ({"if_match": TAG}, OTHER, 412),
        ({"if_match": TAG}, None, 412),
        ({"if_match": "*"}, TAG, 200),
        ({"if_match": "*"}, None, 412),
        ({"if_none_match": "*"}, None, 200),
        ({"if_none_match": "*"}, TAG, 412),
    ],
)
def test_condition_is_checked(fields: dict[str, str], tag: str | None, wanted: int) -> None:
    assert outcome(condition(**fields), tag) == wanted


@pytest.mark.parametrize(
    "fields",
    [
        {"if_match": "plain"},
        {"if_match": ""},
        {"if_match": f"{TAG} {TAG}"},
        {"if_match": ",".join([TAG] * 17)},
        {"if_none_match": TAG},
    ],
)
def test_malformed_condition_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(RequestRefused) as refused:
        condition(**fields)
    assert refused.value.status == 400


def test_refusal_has_the_present_tag() -> None:
    with pytest.raises(RequestRefused) as refused:
        condition(if_match=TAG).check(OTHER)
    assert refused.value.headers["ETag"] == OTHER
