"""Messages that a forwarder carries, in both encodings."""

from __future__ import annotations

import pytest

from bridge.amqp_values import encode
from bridge.message import AMQP, Run
from bridge.plain import data_section
from edge.broker.configuration import Only
from edge.broker.message.mqtt_properties import Properties, encode_run
from edge.broker.router.forwarder_filter import wanted_by

SEVERE = Properties(user_property=(("severity", "5"), ("site", "north")))
BODIES = [b'{"t": 31}', b'{"t": 1}', b"no json"]


def mqtt(address: str = "plant/7") -> Run:
    return Run(address, "dev", 1, encode_run(SEVERE), list(BODIES))


def amqp(address: str = "plant/7") -> Run:
    bodies = [
        b"\x00\x53\x74" + encode({"severity": 5 + i, "site": "north"}) + data_section(body)
        for i, body in enumerate(BODIES)
    ]
    return Run(address, "dev", AMQP | 1, b"", bodies)


def test_all_messages_pass_without_a_filter() -> None:
    assert wanted_by(None)(mqtt()) is None


@pytest.mark.parametrize("run", [mqtt(), amqp()])
@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (Only(address="plant/+"), None),
        (Only(address="plant/8"), [False] * 3),
        (Only(body="$.t > 30"), [True, False, False]),
        (Only(properties="site = 'north'"), [True] * 3),
        (Only(properties="site = 'south'"), [False] * 3),
        (Only(properties="site LIKE 'n%'", body="$.t"), [True, True, False]),
        (Only(address="plant/#", properties="site = 'north'", body="$.t < 2"), [False, True, False]),
    ],
)
def test_all_conditions_must_hold(run: Run, only: Only, expected: list[bool] | None) -> None:
    assert wanted_by(only)(run) == expected


def test_each_amqp_message_is_checked() -> None:
    assert wanted_by(Only(properties="severity >= 6"))(amqp()) == [False, True, True]


def test_unreadable_message_does_not_pass() -> None:
    run = Run("plant/7", "dev", AMQP | 1, b"", [b"\x00\x53\x75"])
    assert wanted_by(Only(body="!$.x"))(run) == [False]
