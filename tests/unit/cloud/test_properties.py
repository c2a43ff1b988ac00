"""MQTT 5 properties and AMQP sections in the lake."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.lake.properties import (
    EVENT_TIME_MS_MAX,
    MALFORMED,
    NOTHING,
    describe_amqp,
    describe_mqtt,
)


def utf8(text: str) -> bytes:
    return len(text.encode()).to_bytes(2, "big") + text.encode()


PARTS = [
    b"\x01\x01",
    b"\x02\x00\x00\x00\x3c",
    b"\x03" + utf8("application/json"),
    b"\x08" + utf8("reply/here"),
    b"\x09\x00\x02\x00\xff",
    b"\x26" + utf8("k") + utf8("v1"),
    b"\x26" + utf8("k") + utf8("v2"),
    b"\x26" + utf8("creation-time") + utf8("1795250665237"),
]
FULL = b"".join(PARTS)


def test_every_publish_property_has_its_name() -> None:
    described = describe_mqtt(FULL)
    assert described.content_type == "application/json"
    assert described.event_time_ms == 1_795_250_665_237
    assert described.properties is not None
    assert json.loads(described.properties) == {
        "payload-format-indicator": 1,
        "message-expiry-interval": 60,
        "response-topic": "reply/here",
        "correlation-data": base64.b64encode(b"\x00\xff").decode(),
        "user-properties": {"k": ["v1", "v2"], "creation-time": "1795250665237"},
    }


def test_missing_properties_are_null() -> None:
    assert describe_mqtt(b"") is NOTHING
    assert describe_amqp(None, {}) == NOTHING


WHOLE = {len(b"".join(PARTS[:n])) for n in range(len(PARTS) + 1)}
"""Lengths at which a property ends: properties that are cut there are valid."""


@pytest.mark.parametrize("length", [n for n in range(1, len(FULL)) if n not in WHOLE])
def test_every_truncation_lands_raw_and_is_marked(length: int) -> None:
    described = describe_mqtt(FULL[:length])
    assert described.content_type is None
    assert described.properties is not None
    found = json.loads(described.properties)
    assert found[MALFORMED].startswith("MQTT properties: ")
    assert base64.b64decode(found["waypost-raw-properties"]) == FULL[:length]


@given(st.binary(max_size=64))
def test_any_bytes_are_described_without_raising(data: bytes) -> None:
    described = describe_mqtt(data)
    assert described.properties is None or isinstance(json.loads(described.properties), dict)


@pytest.mark.parametrize("value", [0, -5, EVENT_TIME_MS_MAX + 1, True, "soon", "1" * 40, None, 1.5, b"12"])
def test_time_outside_the_calendar_is_no_event_time(value: object) -> None:
    assert describe_amqp(None, {"creation-time": value}).event_time_ms is None


def test_amqp_properties_are_stored() -> None:
    described = describe_amqp("text/plain", {"subject": "s", "creation-time": 5, "application-properties": {"a": 1}})
    assert described.content_type == "text/plain"
    assert described.event_time_ms == 5
    assert json.loads(described.properties or "") == {
        "subject": "s",
        "creation-time": 5,
        "application-properties": {"a": 1},
    }
