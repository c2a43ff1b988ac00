"""The corpus: packet sequences with the normative statements of MQTT 3.1.1 and MQTT 5 that they exercise.

The numbers of the two standards differ, so each scenario lists them by protocol level, without their ``MQTT-``.
"""

from __future__ import annotations

from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode as R
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.events import SubscriptionRequest as Request
from tests.conformance.mqtt.steps import ANY_VERSION, Answer, Drop, Scenario, Silence, Step, Wait, closed, expect, send

MALFORMED = (R.MALFORMED_PACKET, R.PROTOCOL_ERROR)


def join(client_id: str, **fields: object) -> p.Connect:
    """CONNECT at the protocol level of the scenario's run (properties only go to MQTT 5 servers)."""
    return p.Connect(client_id, ANY_VERSION, **fields)  # type: ignore[arg-type]


def opened(who: str, **fields: object) -> tuple[Step, ...]:
    return send(who, join(who, **fields)), expect(who, p.ConnAck())


def subscribed(who: str, topic_filter: str, qos: int, **options: object) -> tuple[Step, ...]:
    request = Request(topic_filter, qos, **options)  # type: ignore[arg-type]
    return send(who, p.Subscribe(9, (request,))), expect(who, p.SubAck(9, (qos,)))


KEPT = Properties(session_expiry_interval_s=300)
"""Properties that keep an MQTT 5 session after its connection; older versions only need `clean_start=False`."""


def kept(who: str, *, present: bool, **fields: object) -> tuple[Step, ...]:
    return send(who, join(who, clean_start=False, properties=KEPT, **fields)), expect(who, p.ConnAck(present))


def refused(name: str, data: bytes, statements: dict[int, str], *reasons: R) -> Scenario:
    """Scenario in which these bytes on an open connection are a violation."""
    return Scenario(name, statements, (*opened("a"), send("a", data), closed("a", *(reasons or MALFORMED))))


def hex_(text: str) -> bytes:
    return bytes.fromhex(text)


CONNECTING = [
    Scenario("CONNECT is answered with CONNACK", {4: "3.1.4-4 3.2.0-1", 5: "3.1.4-5 3.2.0-1 3.2.2-8"}, opened("a")),
    Scenario(
        "the first packet must be CONNECT",
        {4: "3.1.0-1", 5: "3.1.0-1"},
        (send("a", p.PingReq()), closed("a")),
    ),
    Scenario(
        "a second CONNECT is a violation",
        {4: "3.1.0-2", 5: "3.1.0-2 3.2.0-2"},
        (*opened("a"), send("a", join("a")), closed("a", R.PROTOCOL_ERROR)),
    ),
    Scenario(
        "another protocol name",
        {4: "3.1.2-1", 5: "3.1.2-1"},
        (send("a", hex_("100d 0004 4d515155 04 02 003c 0001 61")), closed("a")),
    ),
    Scenario(
        "an unknown level of an old client",
        {4: "3.1.2-2 3.2.2-4 3.2.2-5"},
        (
            send("a", hex_("100d 0004 4d515454 02 02 003c 0001 61")),
            expect("a", p.ConnAck(False, R.UNSUPPORTED_PROTOCOL_VERSION)),
            closed("a"),
        ),
    ),
    Scenario(
        "an unknown level to come",
        {5: "3.1.2-2 3.2.2-6 3.2.2-7"},
        (send("a", hex_("100e 0004 4d515454 07 02 003c 00 0001 61")), closed("a", R.UNSUPPORTED_PROTOCOL_VERSION)),
    ),
    Scenario(
        "the reserved connect flag",
        {4: "3.1.2-3 3.1.4-1", 5: "3.1.2-3 3.1.4-1"},
        (send("a", hex_("100d 0004 4d515454 04 03 003c 0001 61")), closed("a")),
    ),
    Scenario(
        "will QoS without a will",
        {4: "3.1.2-13 3.1.2-11", 5: "3.1.2-11"},
        (send("a", hex_("100d 0004 4d515454 04 0a 003c 0001 61")), closed("a")),
    ),
    Scenario(
        "will retain without a will",
        {4: "3.1.2-15 3.1.2-11", 5: "3.1.2-13"},
        (send("a", hex_("100d 0004 4d515454 04 22 003c 0001 61")), closed("a")),
    ),
    Scenario(
        "will QoS 3",
        {4: "3.1.2-14", 5: "3.1.2-12"},
        (send("a", hex_("1013 0004 4d515454 04 1e 003c 0001 61 0001 77 0001 78")), closed("a")),
    ),
    Scenario(
        "a password without a user name",
        {4: "3.1.2-22"},
        (send("a", hex_("1010 0004 4d515454 04 42 003c 0001 61 0001 70")), closed("a")),
    ),
    Scenario(
        "a user name that is not there",
        {4: "3.1.2-19 3.1.3-1", 5: "3.1.2-17 3.1.3-1"},
        (send("a", hex_("100d 0004 4d515454 04 82 003c 0001 61")), closed("a")),
    ),
    Scenario(
        "no client identifier, new session",
        {4: "3.1.3-6", 5: "3.1.3-6 3.1.3-7 3.2.2-16"},
        (send("a", join("")), expect("a", p.ConnAck()), send("a", p.PingReq()), expect("a", p.PingResp())),
    ),
    Scenario(
        "no client identifier, kept session",
        {4: "3.1.3-7 3.1.3-8 3.1.3-9"},
        (
            send("a", join("", clean_start=False)),
            expect("a", p.ConnAck(False, R.CLIENT_IDENTIFIER_NOT_VALID)),
            closed("a"),
        ),
    ),
    Scenario(
        "client identifiers up to 23 bytes",
        {4: "3.1.3-5 3.1.3-3", 5: "3.1.3-5 3.1.3-3"},
        (send("a", join("ABCDEFGHIJKLMNOPqrstu09")), expect("a", p.ConnAck())),
    ),
    Scenario(
        "ill-formed UTF-8 in the client identifier",
        {4: "1.4.0-1 3.1.3-4", 5: "1.5.4-1 3.1.3-4"},
        (send("a", hex_("100f 0004 4d515454 04 02 003c 0003 eda080")), closed("a")),
    ),
    Scenario(
        "U+0000 in the client identifier",
        {4: "1.4.0-2", 5: "1.5.4-2"},
        (send("a", hex_("100d 0004 4d515454 04 02 003c 0001 00")), closed("a")),
    ),
    Scenario(
        "what follows a refused CONNECT is not processed",
        {4: "3.1.4-5", 5: "3.1.4-6"},
        (
            *opened("b"),
            *subscribed("b", "t", 0),
            send("a", hex_("100d 0004 4d515454 02 02 003c 0001 61"), p.Publish("t", b"no")),
            Silence("b"),
        ),
    ),
    Scenario(
        "what follows an accepted CONNECT at once is processed",
        {4: "3.1.4-4", 5: "3.1.4-5"},
        (
            send("a", join("a"), p.PingReq(), p.Publish("t", b"1", 1, packet_id=5)),
            expect("a", p.ConnAck(), p.PingResp(), p.PubAck(5)),
        ),
    ),
    Scenario(
        "no packet within one and a half keep alive periods",
        {4: "3.1.2-24", 5: "3.1.2-22 3.2.2-22"},
        (*opened("a", keep_alive_s=1), Wait(1.8), closed("a", R.KEEP_ALIVE_TIMEOUT)),
    ),
    Scenario(
        "a ping keeps the connection alive",
        {4: "3.1.2-24 3.12.4-1", 5: "3.1.2-22 3.12.4-1"},
        (
            *opened("a", keep_alive_s=1),
            *(Wait(1.0), send("a", p.PingReq()), expect("a", p.PingResp())) * 2,
        ),
    ),
    Scenario(
        "receive maximum 0",
        {5: "3.1.4-1"},
        (send("a", hex_("1011 0004 4d515454 05 02 003c 03 210000 0001 61")), closed("a", *MALFORMED)),
    ),
]

SESSIONS = [
    Scenario(
        "a clean start forgets the session",
        {4: "3.1.2-6 3.2.2-1 3.2.2-3", 5: "3.1.2-4 3.1.4-4 3.2.2-2"},
        (
            *kept("a", present=False),
            *subscribed("a", "t", 1),
            send("a", p.Disconnect()),
            closed("a"),
            *opened("a"),
            *opened("b"),
            send("b", p.Publish("t", b"x", 1, packet_id=1)),
            expect("b", p.PubAck(1)),
            Silence("a"),
        ),
    ),
    Scenario(
        "a session is resumed with its subscriptions",
        {4: "3.1.2-4 3.1.2-5 3.2.2-2 3.1.3-2", 5: "3.1.2-5 3.1.2-6 3.1.2-23 3.2.2-3 3.1.3-2"},
        (
            *kept("a", present=False),
            *subscribed("a", "t", 1),
            send("a", p.Disconnect()),
            closed("a"),
            *kept("a", present=True),
            *opened("b"),
            send("b", p.Publish("t", b"x", 1, packet_id=1)),
            expect("a", p.Publish("t", b"x", 1)),
        ),
    ),
    Scenario(
        "a second connection of a client takes over",
        {4: "3.1.4-2", 5: "3.1.4-3"},
        (
            *opened("a"),
            send("a2", join("a")),
            expect("a2", p.ConnAck()),
            closed("a", R.SESSION_TAKEN_OVER),
            send("a2", p.PingReq()),
            expect("a2", p.PingResp()),
        ),
    ),
    Scenario(
        "QoS 1 that was not acknowledged is sent again",
        {4: "4.4.0-1 3.3.1-1 4.3.2-1 2.3.1-4", 5: "4.4.0-1 3.3.1-1 4.3.2-3 4.3.2-2"},
        (
            *kept("a", present=False),
            *subscribed("a", "t", 1),
            *opened("b"),
            send("b", p.Publish("t", b"1", 1, packet_id=1), p.Publish("t", b"2", 1, packet_id=2)),
            expect("a", p.Publish("t", b"1", 1), p.Publish("t", b"2", 1)),
            Answer("a", p.PubAck, 0),
            send("a", p.PingReq()),
            expect("a", p.PingResp()),
            Drop("a"),
            *kept("a", present=True),
            expect("a", p.Publish("t", b"2", 1, dup=True)),
            Answer("a", p.PubAck),
            Silence("a"),
        ),
    ),
    Scenario(
        "QoS 2 goes on where it was",
        {4: "4.4.0-1 4.3.3-1", 5: "4.4.0-1 4.3.3-3 4.3.3-4 4.3.3-5 4.3.3-6"},
        (
            *kept("a", present=False),
            *subscribed("a", "t", 2),
            *opened("b"),
            send("b", p.Publish("t", b"1", 2, packet_id=1)),
            expect("b", p.PubRec(1)),
            send("b", p.PubRel(1)),
            expect("b", p.PubComp(1)),
            expect("a", p.Publish("t", b"1", 2)),
            Answer("a", p.PubRec),
            expect("a", p.PubRel(0)),
            Drop("a"),
            *kept("a", present=True),
            expect("a", p.PubRel(0)),
            Answer("a", p.PubComp),
            Silence("a"),
        ),
    ),
]

WILLS = [
    Scenario(
        "the will is published when the connection is cut",
        {4: "3.1.2-8 3.1.2-9 3.1.2-16", 5: "3.1.2-7 3.1.2-8 3.1.2-9 3.1.2-14"},
        (
            *opened("b"),
            *subscribed("b", "w", 1),
            *opened("a", will=p.WillMessage("w", b"gone", 1)),
            Drop("a"),
            expect("b", p.Publish("w", b"gone", 1)),
        ),
    ),
    Scenario(
        "the will is published after a violation",
        {4: "3.1.2-8", 5: "3.1.2-8"},
        (
            *opened("b"),
            *subscribed("b", "w", 0),
            *opened("a", will=p.WillMessage("w", b"gone")),
            send("a", hex_("0000")),
            expect("b", p.Publish("w", b"gone")),
        ),
    ),
    Scenario(
        "the will is dropped by DISCONNECT",
        {4: "3.1.2-10 3.14.4-3", 5: "3.1.2-10 3.14.4-3"},
        (
            *opened("b"),
            *subscribed("b", "w", 0),
            *opened("a", will=p.WillMessage("w", b"gone")),
            send("a", p.Disconnect()),
            closed("a"),
            Silence("b"),
        ),
    ),
    Scenario(
        "DISCONNECT with the will",
        {5: "3.14.4-3"},
        (
            *opened("b"),
            *subscribed("b", "w", 0),
            *opened("a", will=p.WillMessage("w", b"gone")),
            send("a", p.Disconnect(R.DISCONNECT_WITH_WILL_MESSAGE)),
            expect("b", p.Publish("w", b"gone")),
        ),
    ),
]

PUBLISHING = [
    Scenario(
        "QoS 0 is answered with nothing",
        {4: "4.3.1-1 3.3.4-1 2.3.1-5", 5: "4.3.1-1 3.3.4-1"},
        (*opened("a"), send("a", p.Publish("t", b"x"), p.PingReq()), expect("a", p.PingResp())),
    ),
    Scenario(
        "QoS 1 is answered with PUBACK",
        {4: "3.3.4-1 2.3.1-6 4.3.2-2", 5: "3.3.4-1 2.2.1-5 4.3.2-4 3.4.2-1"},
        (*opened("a"), send("a", p.Publish("t", b"x", 1, packet_id=77)), expect("a", p.PubAck(77))),
    ),
    Scenario(
        "PUBACKs come in the order of the PUBLISHes",
        {4: "4.6.0-2", 5: "4.6.0-2"},
        (
            *opened("a"),
            send("a", *[p.Publish(f"t{n % 3}", b"x", 1, packet_id=n) for n in (5, 1, 9, 2)]),
            expect("a", p.PubAck(5), p.PubAck(1), p.PubAck(9), p.PubAck(2)),
        ),
    ),
    Scenario(
        "QoS 1 with the same identifier after PUBACK is a new message",
        {4: "4.3.2-2", 5: "4.3.2-5"},
        (
            *opened("a"),
            *subscribed("a", "t", 0),
            send("a", p.Publish("t", b"1", 1, packet_id=1)),
            expect("a", p.PubAck(1), p.Publish("t", b"1")),
            send("a", p.Publish("t", b"2", 1, dup=True, packet_id=1)),
            expect("a", p.PubAck(1), p.Publish("t", b"2")),
        ),
    ),
    Scenario(
        "QoS 2 is published once",
        {4: "4.3.3-2 3.3.4-1 2.3.1-6", 5: "4.3.3-8 4.3.3-10 4.3.3-11 4.3.3-12 3.5.2-1 3.7.2-1"},
        (
            *opened("a"),
            *opened("b"),
            *subscribed("b", "t", 0),
            send("a", p.Publish("t", b"1", 2, packet_id=1)),
            expect("a", p.PubRec(1)),
            send("a", p.Publish("t", b"1", 2, dup=True, packet_id=1)),
            expect("a", p.PubRec(1)),
            send("a", p.PubRel(1)),
            expect("a", p.PubComp(1)),
            expect("b", p.Publish("t", b"1")),
            send("a", p.Publish("t", b"2", 2, packet_id=1)),
            expect("a", p.PubRec(1)),
            send("a", p.PubRel(1)),
            expect("a", p.PubComp(1)),
            expect("b", p.Publish("t", b"2")),
            Silence("b"),
        ),
    ),
    Scenario(
        "QoS 2 sent again over a new connection is published once",
        {4: "4.3.3-2 4.4.0-1", 5: "4.3.3-10"},
        (
            *opened("b"),
            *subscribed("b", "t", 0),
            *kept("a", present=False),
            send("a", p.Publish("t", b"1", 2, packet_id=1)),
            expect("a", p.PubRec(1)),
            Drop("a"),
            *kept("a", present=True),
            send("a", p.Publish("t", b"1", 2, dup=True, packet_id=1)),
            expect("a", p.PubRec(1)),
            send("a", p.PubRel(1)),
            expect("a", p.PubComp(1)),
            expect("b", p.Publish("t", b"1")),
            Silence("b"),
        ),
    ),
    Scenario(
        "DUP is not handed on",
        {4: "3.3.1-3", 5: "3.3.1-3"},
        (
            *opened("a"),
            *subscribed("a", "t", 1),
            send("a", p.Publish("t", b"1", 1, dup=True, packet_id=1)),
            expect("a", p.PubAck(1), p.Publish("t", b"1", 1)),
        ),
    ),
    Scenario(
        "U+FEFF stays in a topic name",
        {4: "1.4.0-3", 5: "1.5.4-3"},
        (
            *opened("a"),
            *subscribed("a", "\ufefft", 0),
            send("a", p.Publish("\ufefft", b"1")),
            expect("a", p.Publish("\ufefft", b"1")),
        ),
    ),
    Scenario(
        "RETAIN is cleared for an established subscription",
        {4: "3.3.1-9", 5: "3.3.1-12"},
        (
            *opened("a"),
            *subscribed("a", "conformance/r", 0),
            send("a", p.Publish("conformance/r", b"1", retain=True)),
            expect("a", p.Publish("conformance/r", b"1")),
            send("a", p.Publish("conformance/r", b"", retain=True)),
            expect("a", p.Publish("conformance/r", b"")),
        ),
    ),
    Scenario(
        "RETAIN is kept where asked for",
        {5: "3.3.1-13"},
        (
            *opened("a"),
            *subscribed("a", "conformance/r", 0, retain_as_published=True),
            send("a", p.Publish("conformance/r", b"", retain=True)),
            expect("a", p.Publish("conformance/r", b"", retain=True)),
        ),
    ),
    Scenario(
        "properties are handed on unaltered and in order",
        {5: "3.3.2-4 3.3.2-15 3.3.2-16 3.3.2-17 3.3.2-18 3.3.2-20"},
        (
            *opened("a"),
            *subscribed("a", "t", 0),
            send("a", p.Publish("t", b"{}", properties=Properties(
                payload_format_indicator=1, content_type="a/b", response_topic="r/1", correlation_data=b"\0\1",
                user_property=(("z", "1"), ("a", "2"), ("z", "0")),
            ))),
            expect("a", p.Publish("t", b"{}", properties=Properties(
                payload_format_indicator=1, content_type="a/b", response_topic="r/1", correlation_data=b"\0\1",
                user_property=(("z", "1"), ("a", "2"), ("z", "0")),
            ))),
        ),
    ),
    Scenario(
        "a topic alias stands for its topic on its connection only",
        {5: "3.3.2-7 3.3.2-12"},
        (
            *opened("b"),
            *subscribed("b", "t", 0),
            *opened("a"),
            send("a", p.Publish("t", b"1", properties=Properties(topic_alias=1)),
                 p.Publish("", b"2", properties=Properties(topic_alias=1))),
            expect("b", p.Publish("t", b"1"), p.Publish("t", b"2")),
            *opened("c"),
            send("c", p.Publish("", b"3", properties=Properties(topic_alias=1))),
            closed("c", R.PROTOCOL_ERROR, R.TOPIC_ALIAS_INVALID),
        ),
    ),
    refused("a topic alias above the maximum", p.Publish("t", properties=Properties(topic_alias=65_535)).encode(5),
            {5: "3.3.2-9 3.2.2-17"}, R.TOPIC_ALIAS_INVALID),
    refused("topic alias 0", hex_("30 07 0001 74 03 23 0000"), {5: "3.3.2-8"}, R.TOPIC_ALIAS_INVALID, *MALFORMED),
    refused("a wildcard in a response topic", hex_("30 08 0001 74 04 08 0001 23"), {5: "3.3.2-14"}, *MALFORMED),
    refused("a subscription identifier in a client's PUBLISH", hex_("30 06 0001 74 02 0b01"), {5: "3.3.4-6"}),
    refused("QoS 3", hex_("36 05 0001 74 0001"), {4: "3.3.1-4", 5: "3.3.1-4"}),
    refused("DUP at QoS 0", hex_("38 04 0001 74 00"), {4: "3.3.1-2", 5: "3.3.1-2"}),
    refused("packet identifier 0", hex_("32 06 0001 74 0000 00"), {4: "2.3.1-1", 5: "2.2.1-3"}),
    refused("a wildcard in a topic name", hex_("30 05 0002 612b 00"), {4: "3.3.2-2 4.7.1-1", 5: "3.3.2-2 4.7.0-1"},
            R.TOPIC_NAME_INVALID, *MALFORMED),
    refused("an empty topic name", hex_("30 03 0000 00"), {4: "4.7.3-1", 5: "4.7.3-1"},
            R.TOPIC_NAME_INVALID, *MALFORMED),
    refused("U+0000 in a topic name", hex_("30 05 0002 6100 00"), {4: "1.4.0-2 4.7.3-2", 5: "1.5.4-2 4.7.3-2"},
            R.TOPIC_NAME_INVALID, *MALFORMED),
    refused("ill-formed UTF-8 in a topic name", hex_("30 05 0002 c328 00"),
            {4: "1.4.0-1 3.3.2-1", 5: "1.5.4-1 3.3.2-1"}, R.TOPIC_NAME_INVALID, *MALFORMED),
]  # fmt: skip

SUBSCRIBING = [
    Scenario(
        "SUBSCRIBE is answered with one code a filter, in order",
        {4: "3.8.4-1 3.8.4-2 3.8.4-4 3.8.4-5 3.9.3-1 2.3.1-7", 5: "3.8.4-1 3.8.4-2 3.8.4-5 3.8.4-6 3.9.3-1 2.2.1-6"},
        (
            *opened("a"),
            send("a", p.Subscribe(300, (Request("a", 2), Request("b", 0), Request("c/#", 1)))),
            expect("a", p.SubAck(300, (2, 0, 1))),
        ),
    ),
    Scenario(
        "the QoS delivered is the smaller of both",
        {4: "3.8.4-6", 5: "3.8.4-8"},
        (
            *opened("a"),
            *subscribed("a", "t", 1),
            *opened("b"),
            send("b", p.Publish("t", b"0")),
            expect("a", p.Publish("t", b"0")),
            send("b", p.Publish("t", b"2", 2, packet_id=2)),
            expect("b", p.PubRec(2)),
            send("b", p.PubRel(2)),
            expect("b", p.PubComp(2)),
            expect("a", p.Publish("t", b"2", 1)),
        ),
    ),
    Scenario(
        "subscribing again replaces",
        {4: "3.8.4-3", 5: "3.8.4-3"},
        (
            *opened("a"),
            *subscribed("a", "t", 1),
            *subscribed("a", "t", 0),
            send("a", p.Publish("t", b"1", 1, packet_id=1)),
            expect("a", p.PubAck(1), p.Publish("t", b"1")),
            Silence("a"),
        ),
    ),
    Scenario(
        "the subscription identifier comes with what matched",
        {5: "3.3.4-3"},
        (
            *opened("a"),
            send("a", p.Subscribe(1, (Request("t/#", 0),), Properties(subscription_identifier=(42,)))),
            expect("a", p.SubAck(1, (0,))),
            send("a", p.Publish("t/1", b"x")),
            expect("a", p.Publish("t/1", b"x", properties=Properties(subscription_identifier=(42,)))),
        ),
    ),
    Scenario(
        "no local",
        {5: "3.8.3-3"},
        (
            *opened("a"),
            *subscribed("a", "t", 0, no_local=True),
            send("a", p.Publish("t", b"x"), p.PingReq()),
            expect("a", p.PingResp()),
        ),
    ),
    Scenario(
        "UNSUBSCRIBE ends the deliveries",
        {4: "3.10.4-1 3.10.4-2 3.10.4-4 2.3.1-7", 5: "3.10.4-1 3.10.4-2 3.10.4-4 3.10.4-5 3.11.3-2"},
        (
            *opened("a"),
            *subscribed("a", "t", 0),
            send("a", p.Unsubscribe(8, ("t",))),
            expect("a", p.UnsubAck(8, (0,))),
            send("a", p.Publish("t", b"x"), p.PingReq()),
            expect("a", p.PingResp()),
        ),
    ),
    Scenario(
        "UNSUBSCRIBE of nothing is answered too",
        {4: "3.10.4-5 3.10.4-6", 5: "3.10.4-5 3.10.4-6 3.11.3-1"},
        (
            *opened("a"),
            *subscribed("a", "t", 0),
            send("a", p.Unsubscribe(8, ("x", "t"))),
            expect("a", p.UnsubAck(8, (0x11, 0))),
        ),
    ),
    refused("SUBSCRIBE with wrong flags", hex_("80 07 0001 00 0001 61 00"),
            {4: "3.8.1-1 2.2.2-2", 5: "3.8.1-1 2.1.3-1"}),
    refused("UNSUBSCRIBE with wrong flags", hex_("a0 06 0001 00 0001 61"), {4: "3.10.1-1", 5: "3.10.1-1"}),
    refused("SUBSCRIBE to nothing", hex_("82 02 0001"), {4: "3.8.3-3"}),
    refused("SUBSCRIBE 5 to nothing", hex_("82 03 0001 00"), {5: "3.8.3-2"}),
    refused("UNSUBSCRIBE from nothing", hex_("a2 02 0001"), {4: "3.10.3-2"}),
    refused("UNSUBSCRIBE 5 from nothing", hex_("a2 03 0001 00"), {5: "3.10.3-2"}),
    refused("SUBSCRIBE with QoS 3", hex_("82 06 0001 0001 61 03"), {4: "3-8.3-4"}),
    refused("SUBSCRIBE with reserved option bits", hex_("82 06 0001 0001 61 10"), {4: "3-8.3-4"}),
    refused("SUBSCRIBE 5 with reserved option bits", hex_("82 07 0001 00 0001 61 c0"), {5: "3.8.3-5"}),
    refused("no local on a shared subscription", p.Subscribe(1, (Request("$share/g/t", 0, no_local=True),)).encode(5),
            {5: "3.8.3-4"}),
    refused("# not at the end", hex_("82 09 0001 0004 612f232f 00"), {4: "4.7.1-2"}, R.TOPIC_FILTER_INVALID),
    refused("# not at the end, MQTT 5", hex_("82 0a 0001 00 0004 612f232f 00"), {5: "4.7.1-1"},
            R.TOPIC_FILTER_INVALID, *MALFORMED),
    refused("+ within a level", hex_("82 07 0001 0002 612b 00"), {4: "4.7.1-3"}, R.TOPIC_FILTER_INVALID),
    refused("+ within a level, MQTT 5", hex_("82 08 0001 00 0002 612b 00"), {5: "4.7.1-2"},
            R.TOPIC_FILTER_INVALID, *MALFORMED),
    refused("a share name with a wildcard", p.Subscribe(1, (Request("$share/+/t", 0),)).encode(5), {5: "4.8.2-2"},
            R.TOPIC_FILTER_INVALID, *MALFORMED),
    refused("a share without a name", p.Subscribe(1, (Request("$share//t", 0),)).encode(5), {5: "4.8.2-1"},
            R.TOPIC_FILTER_INVALID, *MALFORMED),
]  # fmt: skip


def connecting(name: str, properties: str, *reasons: R) -> Scenario:
    """Scenario in which a CONNECT of MQTT 5 with these properties (and their length) gets a CONNACK, and is closed."""
    body = hex_("0004 4d515454 05 02 003c" + properties + "0001 61")
    return Scenario(name, {5: "3.1.4-1 4.13.1-1"}, (send("a", bytes((0x10, len(body))) + body), closed("a", *reasons)))


PROPERTIES = [
    connecting("a session expiry twice", "0a 1100000001 1100000001", R.PROTOCOL_ERROR),
    connecting("a receive maximum twice", "06 210001 210001", R.PROTOCOL_ERROR),
    connecting("a maximum packet size of 0", "05 2700000000", R.PROTOCOL_ERROR),
    connecting("a maximum packet size twice", "0a 2700001000 2700001000", R.PROTOCOL_ERROR),
    connecting("a topic alias maximum twice", "06 220001 220001", R.PROTOCOL_ERROR),
    connecting("a request for problem information of 2", "02 1702", R.PROTOCOL_ERROR),
    connecting("a request for response information twice", "04 1901 1901", R.PROTOCOL_ERROR),
    connecting("authentication data without a method", "04 16 0001 61", R.PROTOCOL_ERROR),
    connecting("a property CONNECT does not have", "03 230001", *MALFORMED),
    connecting("a property nobody knows", "02 7f00", *MALFORMED),
    connecting("a property that ends too early", "02 1100", *MALFORMED),
    connecting("a user property of ill-formed UTF-8", "08 26 0001 61 0002 c328", *MALFORMED),
    refused("subscription identifier 0", hex_("82 09 0001 02 0b00 0001 61 00"), {5: "4.13.1-1"}, R.PROTOCOL_ERROR),
    refused("a subscription identifier twice", hex_("82 0b 0001 04 0b01 0b02 0001 61 00"), {5: "4.13.1-1"},
            R.PROTOCOL_ERROR),
    refused("a payload format of 2", hex_("30 06 0001 74 02 0102"), {5: "3.3.2-4"}, R.PROTOCOL_ERROR),
    refused("a message expiry twice", hex_("30 0e 0001 74 0a 0200000001 0200000001"), {5: "3.3.2-5"}, R.PROTOCOL_ERROR),
    refused("a topic alias twice", hex_("30 0a 0001 74 06 230001 230001"), {5: "3.3.2-7"}, R.PROTOCOL_ERROR),
    refused("a response topic twice", hex_("30 0c 0001 74 08 08000161 08000161"), {5: "4.13.1-1"}, R.PROTOCOL_ERROR),
    refused("an empty response topic", hex_("30 07 0001 74 03 08 0000"), {5: "3.3.2-13"}, *MALFORMED),
    refused("a content type of ill-formed UTF-8", hex_("30 09 0001 74 05 03 0002 c328"), {5: "3.3.2-19"}, *MALFORMED),
    refused("neither topic nor alias", hex_("30 03 0000 00"), {5: "3.3.2-8"}, R.PROTOCOL_ERROR, R.TOPIC_NAME_INVALID),
    refused("a session expiry in DISCONNECT after 0 in CONNECT", hex_("e0 07 00 05 1100000001"), {5: "4.13.1-1"},
            R.PROTOCOL_ERROR),
    refused("a reason code DISCONNECT does not have", hex_("e0 01 03"), {5: "3.14.2-1"}, *MALFORMED),
]  # fmt: skip

OTHERS = [
    refused("PUBREL with wrong flags", hex_("60 02 0001"), {4: "3.6.1-1", 5: "3.6.1-1"}),
    refused("DISCONNECT with flags", hex_("e1 00"), {4: "3.14.1-1", 5: "3.14.1-1"}),
    refused("AUTH out of the blue", hex_("f0 00"), {5: "4.12.0-7"}),
    Scenario(
        "an authentication method nobody knows",
        {5: "4.12.0-1"},
        (
            send("a", join("a", properties=Properties(authentication_method="none"))),
            closed("a", R.BAD_AUTHENTICATION_METHOD, R.NOT_AUTHORIZED),
        ),
    ),
    refused("packet type 15", hex_("f0 00"), {4: "4.8.0-1"}),
    refused("a packet only servers send", hex_("d0 00"), {4: "4.8.0-1", 5: "4.13.1-1"}),
    Scenario(
        "PINGREQ is answered with PINGRESP",
        {4: "3.12.4-1", 5: "3.12.4-1"},
        (*opened("a"), send("a", p.PingReq()), expect("a", p.PingResp())),
    ),
    Scenario(
        "PUBREL of nothing is answered with PUBCOMP",
        {4: "4.3.3-2", 5: "4.3.3-11"},
        (*opened("a"), send("a", p.PubRel(9)), expect("a", p.PubComp(9))),
    ),
    Scenario(
        "PUBREC with an error ends the exchange",
        {5: "4.4.0-2 4.3.3-4"},
        (
            *kept("a", present=False),
            *subscribed("a", "t", 2),
            *opened("b"),
            send("b", p.Publish("t", b"1", 2, packet_id=1)),
            expect("b", p.PubRec(1)),
            send("b", p.PubRel(1)),
            expect("a", p.Publish("t", b"1", 2)),
            Answer("a", p.PubRec, reason=R.QUOTA_EXCEEDED),
            Silence("a"),
            Drop("a"),
            *kept("a", present=True),
            Silence("a"),
        ),
    ),
    Scenario(
        "no more than the client's receive maximum",
        {5: "3.3.4-9"},
        (
            send("a", join("a", properties=Properties(receive_maximum=2))),
            expect("a", p.ConnAck()),
            *subscribed("a", "t", 1),
            *opened("b"),
            send("b", *[p.Publish("t", bytes((n,)), 1, packet_id=n) for n in (1, 2, 3)]),
            expect("a", p.Publish("t", b"\1", 1), p.Publish("t", b"\2", 1)),
            Silence("a"),
            Answer("a", p.PubAck, 0),
            expect("a", p.Publish("t", b"\3", 1)),
        ),
    ),
    Scenario(
        "no packet larger than the client takes",
        {5: "3.1.2-24 3.1.2-25"},
        (
            send("a", join("a", properties=Properties(maximum_packet_size=60))),
            expect("a", p.ConnAck()),
            *subscribed("a", "t", 1),
            *opened("b"),
            send("b", p.Publish("t", b"x" * 100, 1, packet_id=1), p.Publish("t", b"y", 1, packet_id=2)),
            expect("a", p.Publish("t", b"y", 1)),
        ),
    ),
    Scenario(
        "no more topic aliases than the client takes",
        {5: "3.1.2-26 3.1.2-27"},
        (
            send("a", join("a", properties=Properties(topic_alias_maximum=1))),
            expect("a", p.ConnAck()),
            *subscribed("a", "topic/#", 1),
            *opened("b"),
            *subscribed("b", "topic/#", 1),
            *opened("c"),
            send("c", *(p.Publish(f"topic/{i % 2}", b"x", 1, packet_id=i) for i in range(2, 6))),
            expect("a", p.Publish("topic/0", b"x", 1, properties=Properties(topic_alias=1))),
            expect("a", p.Publish("topic/1", b"x", 1)),
            expect("a", p.Publish("", b"x", 1, properties=Properties(topic_alias=1))),
            expect("b", *(p.Publish(f"topic/{i % 2}", b"x", 1) for i in range(2, 6))),
        ),
    ),
]

SCENARIOS = [*CONNECTING, *SESSIONS, *WILLS, *PUBLISHING, *SUBSCRIBING, *PROPERTIES, *OTHERS]
