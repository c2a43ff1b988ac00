"""Messages of a ticket, one by one, in any encoding."""

from __future__ import annotations

from bridge.amqp_values import encode
from bridge.connectors.messages import MessageName, messages
from bridge.forwarders.outbox import Outgoing, SendOptions
from bridge.message import AMQP, RETAIN, Run, Stored
from bridge.plain import HOPS_PROPERTY, Hop, data_section
from edge.broker.message.mqtt_properties import Properties, encode_run
from edge.broker.message.translation import mqtt_runs

HOP = Hop("gw", "e1")


def outgoing(run: Run) -> Outgoing:
    return Outgoing(3, "cloud/7", Stored(40, 10, run), HOP, SendOptions())


def test_mqtt_messages_are_split() -> None:
    users = (("k", "v"), (HOPS_PROPERTY, "far other"))
    properties = encode_run(Properties(content_type="text/plain", user_property=users))
    found = list(messages(outgoing(Run("plant/7", "dev", 1 | RETAIN, properties, [b"a", b"b"], 5)), mqtt_runs))
    assert [(each.place, each.name, each.payload) for each in found] == [
        (0, MessageName(HOP, "plant/7", 10), b"a"),
        (1, MessageName(HOP, "plant/7", 11), b"b"),
    ]
    assert {(each.target, each.device, each.received_at, each.retain) for each in found} == {
        ("cloud/7", "dev", 5, True)
    }
    assert found[0].hops == ("far", "other", "gw")
    assert found[0].properties.users == (("k", "v"),)
    assert found[0].properties.content_type == "text/plain"


def test_amqp_messages_are_translated_in_place() -> None:
    text = b"\x00\x53\x77" + encode("text")
    run = Run("plant/7", "dev", AMQP | 1, b"", [data_section(b"1"), text, data_section(b"3")], 5)
    found = list(messages(outgoing(run), mqtt_runs))
    assert [(each.place, each.name.sequence, each.payload) for each in found] == [
        (0, 10, b"1"),
        (1, 11, b"text"),
        (2, 12, b"3"),
    ]
    assert found[0].hops == ("gw",)
