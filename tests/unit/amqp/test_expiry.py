"""Removal of the expiry time from a message: all other fields stay."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import sections as s
from bridge.amqp_values import Symbol, Timestamp, Ulong, decode, encode
from edge.broker.message.amqp_expiry import without_expiry

DATA = b"\x00\x53\x75\xa0\x01x"

FIELDS = st.one_of(
    st.none(), st.text(max_size=400), st.binary(max_size=20), st.builds(Ulong, st.integers(0, 2**64 - 1))
)


def message(properties: Any, annotations: Any = None) -> bytes:
    before = b"" if annotations is None else b"\x00\x53\x72" + encode(annotations)
    return before + b"\x00\x53\x73" + encode(properties) + DATA


@given(
    st.lists(FIELDS, min_size=8, max_size=8), st.lists(FIELDS, max_size=4), st.sampled_from([None, {Symbol("a"): 1}])
)
def test_other_fields_are_unchanged(before: list[Any], behind: list[Any], annotations: Any) -> None:
    found = without_expiry(message([*before, Timestamp(5), *behind], annotations))
    assert [each.code for each in s.sections(found)][-2:] == [s.PROPERTIES, s.DATA]
    properties = next(each for each in s.sections(found) if each.code == s.PROPERTIES)
    assert decode(found, properties.value) == ([*before, None, *behind], properties.end)
    assert found.endswith(DATA)


@pytest.mark.parametrize(
    "same",
    [
        DATA,
        message([]),
        message(["id"]),
        message([*[None] * 9]),
        b"\x00\x53\x73\xc1\x01\x00" + DATA,
        b"\x00\x53\x73\xc0\x02\x09\x40" + DATA,
        message([*[None] * 8, Timestamp(5)])[:-10],
        b"no message",
    ],
)
def test_message_without_expiry_or_unreadable_is_unchanged(same: bytes) -> None:
    assert without_expiry(same) == same
