"""Every property of the table is known to the other modules that read properties."""

from __future__ import annotations

from typing import Any, Final

import pytest

from bridge import plain, publish_properties
from bridge.connectors.mqtt import packets5
from bridge.message import AMQP, Run
from bridge.sections import bare_message
from cloud.lake.properties import MALFORMED, describe_mqtt
from edge.broker.message import mqtt_properties as table
from edge.broker.message.mqtt_properties import PROPERTIES, Properties, Property, decode_run, encode_run
from edge.broker.message.mqtt_wire import PacketType
from edge.broker.message.translation import amqp_messages, mqtt_runs
from edge.broker.mqtt import connect
from edge.broker.mqtt.packets import WillMessage
from tests.property.mqtt import strategies

END_HERE: Final = {"topic_alias", "subscription_identifier"}
"""Properties of PUBLISH that the broker does not forward."""
NOT_IN_AMQP: Final[set[str]] = set()
"""Forwarded properties that are not translated to AMQP."""
NOT_IN_PLAIN_AMQP: Final = {"payload_format_indicator"}
"""Forwarded properties that AMQP connectors do not translate."""
FORWARDED: Final = [row for row in PROPERTIES if PacketType.PUBLISH in row.packets and row.name not in END_HERE]
VALUES: Final[dict[table.PropertyType, Any]] = {
    table.BYTE: 1,
    table.TWO_BYTE_INTEGER: 1,
    table.FOUR_BYTE_INTEGER: 1,
    table.VARIABLE_BYTE_INTEGER: 1,
    table.BINARY_DATA: b"a",
    table.STRING: "a",
    table.STRING_PAIR: ("a", "b"),
}
LAST: Final = encode_run(Properties(user_property=(("last", "1"),)))
"""Follows the property under test: a reader that does not know the property cannot find what follows it."""

every = pytest.mark.parametrize("row", PROPERTIES, ids=lambda row: row.name)
forwarded = pytest.mark.parametrize("row", FORWARDED, ids=lambda row: row.name)


def encoded(row: Property) -> bytes:
    return bytes((row.identifier,)) + row.kind.encode(VALUES[row.kind])


@every
def test_connectors_read_it(row: Property) -> None:
    try:
        found = dict(packets5._properties(encoded(row) + LAST))
    except packets5.MalformedBrokerPacket:
        found = {}
    assert {row.identifier, 0x26} <= set(found), "add identifier and size to bridge/connectors/mqtt/packets5.py"


@forwarded
def test_other_protocols_read_it(row: Property) -> None:
    found = publish_properties.read(encoded(row) + LAST)
    assert found.users[-1:] == (("last", "1"),), "read the identifier in bridge/publish_properties.py"


@forwarded
def test_the_lake_shows_it(row: Property) -> None:
    described = describe_mqtt(encoded(row))
    assert MALFORMED not in (described.properties or ""), "add the identifier to cloud/lake/properties.py"


@forwarded
def test_a_will_keeps_it(row: Property) -> None:
    if PacketType.WILL not in row.packets:
        return
    value = (VALUES[row.kind],) if row.repeated else VALUES[row.kind]
    will = connect._will(WillMessage("topic", b"", properties=Properties(**{row.name: value})), "client")
    assert will.run.properties == encoded(row), "keep the property in _will of edge/broker/mqtt/connect.py"


@forwarded
def test_it_comes_back_from_amqp(row: Property) -> None:
    if row.name in NOT_IN_AMQP:
        return
    (message,) = amqp_messages(Run("a", "d", 0, encoded(row), [b"x"]))
    end, start = bare_message(message)
    (back,) = mqtt_runs(Run("a", "d", AMQP, message[:end], [message[start:]]))
    assert back.properties == encoded(row), (
        "translate the property in edge/broker/message/translation.py (_amqp_prefix, to_mqtt), "
        "or add it to NOT_IN_AMQP here"
    )


@forwarded
def test_amqp_connectors_translate_it(row: Property) -> None:
    if row.name in NOT_IN_PLAIN_AMQP:
        return
    (message,) = plain.messages(plain.Hop("gw", "epoch"), 0, Run("a", "d", 0, encoded(row), [b"x"]))
    (back,) = mqtt_runs(plain.parse(message).run)
    found = getattr(decode_run(back.properties), row.name)
    values = found if row.repeated else (found,)  # the connector adds user properties with the message's name
    assert VALUES[row.kind] in values, (
        "translate the property in _translated of bridge/plain.py, or add it to NOT_IN_PLAIN_AMQP here"
    )


def test_packets_of_property_tests_have_it() -> None:
    missing = {row.name for row in PROPERTIES} - set(strategies._VALUES)
    assert not missing, "add a strategy to _VALUES in tests/property/mqtt/strategies.py"
