"""Scenarios that need a whole broker behind the machine: retained messages, delayed wills, groups, expiry, refusals.

Statement numbers are as in `corpus`. Each scenario uses its own topics, so that its remains affect no other.
"""

from __future__ import annotations

from edge.broker.limits import Limits
from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode as R
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.events import SubscriptionRequest as Request
from tests.conformance.mqtt.corpus import closed, hex_, join, kept, opened, subscribed
from tests.conformance.mqtt.steps import Answer, Drop, Scenario, Silence, Step, Wait, expect, send

RECEIVE_MAXIMUM = Limits().receive_maximum
IDENTIFIED = Properties(subscription_identifier=(7,))


def retained(who: str, topic: str, payload: bytes, qos: int = 0) -> tuple[Step, ...]:
    """PUBLISH with RETAIN, followed by a ping, so that it has been processed."""
    publish = p.Publish(topic, payload, qos, retain=True, packet_id=8 if qos else 0)
    answers = (p.PubAck(8), p.PingResp()) if qos else (p.PingResp(),)
    return send(who, publish, p.PingReq()), expect(who, *answers)


RETAINED = [
    Scenario(
        "a retained message is for who subscribes later",
        {4: "3.3.1-5 3.3.1-6 3.3.1-8", 5: "3.3.1-5 3.3.1-9"},
        (
            *opened("a"),
            *retained("a", "kept/later", b"old"),
            *retained("a", "kept/later", b"new", 1),
            *opened("b"),
            send("b", p.Subscribe(1, (Request("kept/later/#", 1),))),
            expect("b", p.SubAck(1, (1,)), p.Publish("kept/later", b"new", 1, retain=True)),
            Silence("b"),
            *retained("a", "kept/later", b""),
        ),
    ),
    Scenario(
        "an empty retained message clears and is not kept",
        {4: "3.3.1-10 3.3.1-11", 5: "3.3.1-6 3.3.1-7"},
        (
            *opened("a"),
            *retained("a", "kept/cleared", b"x"),
            *retained("a", "kept/cleared", b""),
            *opened("b"),
            *subscribed("b", "kept/cleared", 0),
            Silence("b"),
        ),
    ),
    Scenario(
        "a message without RETAIN leaves the retained one alone",
        {4: "3.3.1-12", 5: "3.3.1-8"},
        (
            *opened("a"),
            *retained("a", "kept/alone", b"kept"),
            send("a", p.Publish("kept/alone", b"passing"), p.Publish("kept/alone", b""), p.PingReq()),
            expect("a", p.PingResp()),
            *opened("b"),
            send("b", p.Subscribe(1, (Request("kept/alone", 0),))),
            expect("b", p.SubAck(1, (0,)), p.Publish("kept/alone", b"kept", retain=True)),
            *retained("a", "kept/alone", b""),
        ),
    ),
    Scenario(
        "retained messages are sent again to who subscribes again",
        {4: "3.8.4-3", 5: "3.8.4-4 3.8.4-3"},
        (
            *opened("a"),
            *retained("a", "kept/again", b"kept"),
            *(
                send("a", p.Subscribe(1, (Request("kept/again", 0),))),
                expect("a", p.SubAck(1, (0,)), p.Publish("kept/again", b"kept", retain=True)),
            )
            * 2,
            *retained("a", "kept/again", b"")[:1],
            expect("a", p.PingResp(), p.Publish("kept/again", b"")),
        ),
    ),
    Scenario(
        "retain handling 1: only for a new subscription",
        {5: "3.3.1-10"},
        (
            *opened("a"),
            *retained("a", "kept/one", b"kept"),
            *opened("b"),
            send("b", p.Subscribe(1, (Request("kept/one", 0, retain_handling=1),))),
            expect("b", p.SubAck(1, (0,)), p.Publish("kept/one", b"kept", retain=True)),
            send("b", p.Subscribe(2, (Request("kept/one", 0, retain_handling=1),))),
            expect("b", p.SubAck(2, (0,))),
            Silence("b"),
            *retained("a", "kept/one", b""),
        ),
    ),
    Scenario(
        "retain handling 2: never",
        {5: "3.3.1-11"},
        (
            *opened("a"),
            *retained("a", "kept/two", b"kept"),
            *opened("b"),
            *subscribed("b", "kept/two", 0, retain_handling=2),
            Silence("b"),
            *retained("a", "kept/two", b""),
        ),
    ),
    Scenario(
        "a retained message that has expired is not sent",
        {5: "3.3.2-5"},
        (
            *opened("a"),
            send("a", p.Publish("kept/short", b"x", retain=True, properties=Properties(message_expiry_interval_s=1))),
            Wait(1.6),
            *opened("b"),
            *subscribed("b", "kept/short", 0),
            Silence("b"),
        ),
    ),
]

WILLS = [
    Scenario(
        "a will with RETAIN is retained",
        {4: "3.1.2-17", 5: "3.1.2-15"},
        (
            *opened("a", will=p.WillMessage("will/kept", b"gone", 0, True)),
            Drop("a"),
            *opened("b"),
            Wait(0.3),
            send("b", p.Subscribe(1, (Request("will/kept", 0),))),
            expect("b", p.SubAck(1, (0,)), p.Publish("will/kept", b"gone", retain=True)),
            *retained("b", "will/kept", b"")[:1],
            expect("b", p.PingResp(), p.Publish("will/kept", b"")),
        ),
    ),
    Scenario(
        "a delayed will is not sent when the client is back in time",
        {5: "3.1.3-9"},
        (
            *opened("b"),
            *subscribed("b", "will/late", 0),
            *kept(
                "a", present=False, will=p.WillMessage("will/late", b"1", 0, False, Properties(will_delay_interval_s=1))
            ),
            Drop("a"),
            *kept("a", present=True),
            Wait(1.5),
            Silence("b"),
        ),
    ),
    Scenario(
        "a delayed will is sent when its time has come",
        {5: "3.1.2-8"},
        (
            *opened("b"),
            *subscribed("b", "will/due", 0),
            *kept(
                "a", present=False, will=p.WillMessage("will/due", b"1", 0, False, Properties(will_delay_interval_s=1))
            ),
            Drop("a"),
            Silence("b"),
            Wait(1.0),
            expect("b", p.Publish("will/due", b"1")),
        ),
    ),
    Scenario(
        "a delayed will is sent when its session ends",
        {5: "3.1.2-8"},
        (
            *opened("b"),
            *subscribed("b", "will/end", 0),
            *kept(
                "a", present=False, will=p.WillMessage("will/end", b"1", 0, False, Properties(will_delay_interval_s=60))
            ),
            send("a2", join("a")),
            expect("a2", p.ConnAck()),
            closed("a", R.SESSION_TAKEN_OVER),
            expect("b", p.Publish("will/end", b"1")),
        ),
    ),
    Scenario(
        "DISCONNECT that ends the session does not wait with the will",
        {5: "3.14.4-3"},
        (
            *opened("b"),
            *subscribed("b", "will/now", 0),
            *kept(
                "a", present=False, will=p.WillMessage("will/now", b"1", 0, False, Properties(will_delay_interval_s=60))
            ),
            send("a", p.Disconnect(R.DISCONNECT_WITH_WILL_MESSAGE, Properties(session_expiry_interval_s=0))),
            expect("b", p.Publish("will/now", b"1")),
        ),
    ),
]

SUBSCRIPTIONS = [
    Scenario(
        "one copy for overlapping subscriptions, at the highest QoS, under every identifier",
        {5: "3.3.4-2 3.3.4-4"},
        (
            *opened("a"),
            *opened("b"),
            send("a", p.Subscribe(1, (Request("over/#", 0),), Properties(subscription_identifier=(7,)))),
            expect("a", p.SubAck(1, (0,))),
            send("a", p.Subscribe(2, (Request("over/x", 1),), Properties(subscription_identifier=(7,)))),
            expect("a", p.SubAck(2, (1,))),
            send("b", p.Publish("over/x", b"x", 1, packet_id=3)),
            expect("a", p.Publish("over/x", b"x", 1)),
            Silence("a"),
        ),
    ),
    Scenario(
        "one copy for overlapping subscriptions of MQTT 3.1.1",
        {4: "3.3.5-1"},
        (
            *opened("a"),
            *opened("b"),
            *subscribed("a", "over/#", 0),
            *subscribed("a", "over/4", 1),
            send("b", p.Publish("over/4", b"x", 1, packet_id=3)),
            expect("a", p.Publish("over/4", b"x", 1)),
        ),
    ),
    Scenario(
        "names with a dollar sign are not matched by a wildcard at the front",
        {4: "4.7.2-1", 5: "4.7.2-1"},
        (
            *opened("a"),
            *subscribed("a", "#", 0),
            *subscribed("a", "+/dollar", 0),
            *opened("b"),
            *subscribed("b", "$own/+", 0),
            send("b", p.Publish("$own/dollar", b"x")),
            expect("b", p.Publish("$own/dollar", b"x")),
            Silence("a"),
        ),
    ),
    Scenario(
        "the members of a shared subscription take turns",
        {5: "4.8.2-3"},
        (
            *opened("a"),
            *subscribed("a", "$share/pair/turns", 1),
            *opened("b"),
            send("b", *(p.Publish("turns", b"%d" % i, 2, packet_id=i) for i in (1, 2))),
            expect("b", p.PubRec(1), p.PubRec(2)),
            expect("a", p.Publish("turns", b"1", 1), p.Publish("turns", b"2", 1)),
            Silence("a"),
        ),
    ),
    Scenario(
        "what a member refuses goes to no other",
        {5: "4.8.2-6"},
        (
            *opened("a"),
            *subscribed("a", "$share/refuse/no", 1),
            *opened("b"),
            send("b", p.Publish("no", b"1", 1, packet_id=1)),
            expect("b", p.PubAck(1)),
            expect("a", p.Publish("no", b"1", 1)),
            Answer("a", p.PubAck, reason=R.QUOTA_EXCEEDED),
            *subscribed("b", "$share/refuse/no", 1),
            send("a", p.Disconnect()),
            closed("a"),
            Silence("b"),
        ),
    ),
    Scenario(
        "messages are kept for who is away, in their order",
        {4: "4.5.0-1 4.1.0-1 4.6.0-6", 5: "4.5.0-1 4.1.0-1 4.6.0-6"},
        (
            *kept("a", present=False),
            *subscribed("a", "away", 1),
            Drop("a"),
            *opened("b"),
            send("b", *(p.Publish("away", b"%d" % i, 1, packet_id=i) for i in (1, 2, 3))),
            expect("b", p.PubAck(1), p.PubAck(2), p.PubAck(3)),
            *kept("a", present=True),
            expect("a", *(p.Publish("away", b"%d" % i, 1) for i in (1, 2, 3))),
        ),
    ),
    Scenario(
        "what is left of an expiry interval is told",
        {5: "3.3.2-6 3.3.2-5"},
        (
            *kept("a", present=False),
            *subscribed("a", "aging", 1),
            Drop("a"),
            *opened("b"),
            send(
                "b",
                p.Publish("aging", b"short", 1, packet_id=1, properties=Properties(message_expiry_interval_s=1)),
                p.Publish("aging", b"long", 1, packet_id=2, properties=Properties(message_expiry_interval_s=100)),
            ),
            expect("b", p.PubAck(1), p.PubAck(2)),
            Wait(1.2),
            *kept("a", present=True),
            expect("a", p.Publish("aging", b"long", 1, properties=Properties(message_expiry_interval_s=99))),
            Silence("a"),
        ),
    ),
    Scenario(
        "a session ends when its expiry interval has passed",
        {5: "3.1.2-23 4.1.0-2"},
        (
            send("a", join("a", clean_start=False, properties=Properties(session_expiry_interval_s=1))),
            expect("a", p.ConnAck()),
            Drop("a"),
            Wait(1.6),
            *kept("a", present=False),
        ),
    ),
]

ANSWERS = [
    Scenario(
        "a refusal does not overtake",
        {5: "4.6.0-2 3.4.2-1"},
        (
            *kept("a", present=False),
            *subscribed("a", "turn", 1),
            *opened("b"),
            send(
                "b",
                p.Publish("turn", b"1", 1, packet_id=1),
                p.Publish("$SYS/no", b"2", 1, packet_id=2),
                p.Publish("turn", b"3", 1, packet_id=3),
            ),
            expect("b", p.PubAck(1), p.PubAck(2, R.NOT_AUTHORIZED), p.PubAck(3)),
        ),
    ),
    Scenario(
        "and says why to who wants to know",
        {5: "3.1.2-29"},
        (
            *opened("b"),
            send("b", p.Publish("$SYS/no", b"2", 1, packet_id=2)),
            expect("b", p.PubAck(2, R.NOT_AUTHORIZED, Properties(reason_string="not authorized"))),
        ),
    ),
    Scenario(
        "a payload that is not the text it is said to be",
        {5: "3.3.2-4"},
        (
            *opened("a"),
            *subscribed("a", "text", 0),
            *opened("b"),
            send(
                "b",
                *(
                    p.Publish("text", each, qos, packet_id=i, properties=Properties(payload_format_indicator=1))
                    for i, (each, qos) in enumerate(
                        [("grün".encode(), 1), (b"\xff", 1), (b"plain", 1), (b"\xff", 2)], start=1
                    )
                ),
            ),
            expect("b", p.PubAck(1), p.PubAck(2, R.PAYLOAD_FORMAT_INVALID), p.PubAck(3)),
            expect("b", p.PubRec(4, R.PAYLOAD_FORMAT_INVALID)),
            expect("a", p.Publish("text", "grün".encode()), p.Publish("text", b"plain")),
            send("b", p.Publish("text", b"\xff", properties=Properties(payload_format_indicator=1))),
            closed("b", R.PAYLOAD_FORMAT_INVALID),
            Silence("a"),
        ),
    ),
    Scenario(
        "a keep alive of ours is told and counts",
        {5: "3.2.2-21"},
        (
            send("a", join("a", keep_alive_s=0)),
            expect("a", p.ConnAck(properties=Properties(server_keep_alive_s=60))),
        ),
    ),
    Scenario(
        "response information for who asks",
        {5: "3.1.2-28"},
        (
            send("a", join("a", properties=Properties(request_response_information=1))),
            expect("a", p.ConnAck(properties=Properties(response_information="replies/a"))),
        ),
    ),
    Scenario(
        "more than our receive maximum",
        {5: "3.3.4-7 4.13.1-1"},
        (
            *opened("a"),
            send("a", *(p.Publish("many", b"", 2, packet_id=i) for i in range(1, RECEIVE_MAXIMUM + 1))),
            expect("a", *(p.PubRec(i) for i in range(1, RECEIVE_MAXIMUM + 1))),
            send("a", p.Publish("many", b"", 2, packet_id=RECEIVE_MAXIMUM + 1)),
            closed("a", R.RECEIVE_MAXIMUM_EXCEEDED),
        ),
    ),
    Scenario(
        "at the receive maximum everything else goes on",
        {5: "4.9.0-3"},
        (
            send("a", join("a", properties=Properties(receive_maximum=1))),
            expect("a", p.ConnAck()),
            *subscribed("a", "full", 1),
            send("a", *(p.Publish("full", b"%d" % i, 1, packet_id=i) for i in (1, 2))),
            expect("a", p.PubAck(1), p.PubAck(2), p.Publish("full", b"1", 1)),
            send("a", p.PingReq(), p.Subscribe(4, (Request("other", 0),))),
            expect("a", p.PingResp(), p.SubAck(4, (0,))),
            Answer("a", p.PubAck),
            expect("a", p.Publish("full", b"2", 1)),
        ),
    ),
    Scenario(
        "PUBACK with wrong flags",
        {4: "2.2.2-2", 5: "2.1.3-1"},
        (*opened("a"), send("a", hex_("42 02 0001")), closed("a", R.MALFORMED_PACKET, R.PROTOCOL_ERROR)),
    ),
]

BROKER_SCENARIOS = [*RETAINED, *WILLS, *SUBSCRIPTIONS, *ANSWERS]
