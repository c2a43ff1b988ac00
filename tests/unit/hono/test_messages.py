"""A device's AMQP message in the form of Hono's Telemetry API."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Message, symbol

from bridge import sections as s
from edge.broker.hono.errors import DeviceError
from edge.broker.hono.messages import AMQP_ADAPTER, EMPTY_NOTIFICATION, MessageSource, complete_message
from edge.broker.message.translation import parse_message

SOURCE = MessageSource("4711", AMQP_ADAPTER, "telemetry")


def bare(body: Any, content_type: str | None = None, *, data: bool = False) -> bytes:
    message = Message(body=body, inferred=data)
    if content_type is not None:
        message.content_type = symbol(content_type)
    return bytes(message.encode())


def codes(message: bytes) -> list[int]:
    return [section.code for section in s.sections(message)]


@pytest.mark.parametrize(
    ("body", "payload"), [("text", b"text"), (7, b"7"), ({"a": 1}, b'{"a":1}'), (b"data", b"data"), ("", b"")]
)
def test_single_data_section_is_accepted(body: Any, payload: bytes) -> None:
    found = complete_message(bare(body, "text/plain"), "telemetry/T", SOURCE, 0)
    assert [code for code in codes(found) if code in (s.DATA, s.SEQUENCE, s.VALUE)] == [s.DATA]
    assert parse_message(found).body == payload
    assert parse_message(found).application["device_id"] == "4711"


def test_several_data_sections_are_joined() -> None:
    two = bare(b"x", "text/plain", data=True) + b"\x00\x53\x75\xa0\x01y"
    found = complete_message(two, "telemetry/T", SOURCE, 0)
    assert codes(found).count(s.DATA) == 1
    assert parse_message(found).body == b"xy"


@pytest.mark.parametrize(
    ("body", "content_type"), [(b"not empty", EMPTY_NOTIFICATION), ("not empty", EMPTY_NOTIFICATION), (b"", None)]
)
def test_invalid_messages_are_refused(body: Any, content_type: str | None) -> None:
    with pytest.raises(DeviceError) as caught:
        complete_message(bare(body, content_type), "event/T", SOURCE, 0)
    assert caught.value.status == 400


def test_empty_notification_is_accepted() -> None:
    assert parse_message(complete_message(bare(b"", EMPTY_NOTIFICATION), "event/T", SOURCE, 0)).body == b""
