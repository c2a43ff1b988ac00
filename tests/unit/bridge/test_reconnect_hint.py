"""Hint of a hub that stops: when its gateways are to connect again."""

from __future__ import annotations

import pytest

from bridge.engine import Condition
from bridge.hub_addresses import RECONNECT_AFTER_MS
from bridge.hub_links import requested_wait_s
from bridge.limits import RECONNECT_AFTER_S_MAX


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250", 0.25),
        ("0", 0.0),
        ("99999999999999", RECONNECT_AFTER_S_MAX),
        ("-5", 0.0),
        ("²", 0.0),
        ("soon", 0.0),
        ("", 0.0),
    ],
)
def test_hint_is_read_within_its_limit(text: str, seconds: float) -> None:
    assert requested_wait_s(Condition("amqp:connection:forced", "", ((RECONNECT_AFTER_MS, text),))) == seconds


def test_other_ends_have_no_hint() -> None:
    assert requested_wait_s(None) == 0.0
    assert requested_wait_s(Condition("amqp:connection:forced", "the gateway has connected again")) == 0.0
