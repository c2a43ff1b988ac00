"""One table of packets: bytes, their versions, and the decoded packet or the error they must cause.

`unit` decodes and encodes them, `property` cuts them short and splits them, `conformance` sends them.
"""

from __future__ import annotations

from typing import NamedTuple

from edge.broker.message.mqtt_errors import MalformedPacket, ProtocolError, RemoteError, UnsupportedProtocolVersion
from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode as R
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.events import SubscriptionRequest as Request


class Case(NamedTuple):
    """Expected `packet` or `error`; with `exact` the packet encodes to the same bytes."""

    name: str
    data: bytes
    versions: tuple[int, ...]
    packet: p.Packet | None = None
    error: type[RemoteError] | None = None
    reason: R | None = None
    exact: bool = True


def good(name: str, data: str, versions: tuple[int, ...], packet: p.Packet, *, exact: bool = True) -> Case:
    return Case(name, bytes.fromhex(data), versions, packet, exact=exact)


def bad(
    name: str, data: str, versions: tuple[int, ...], error: type[RemoteError] = MalformedPacket, reason: R | None = None
) -> Case:
    return Case(name, bytes.fromhex(data), versions, error=error, reason=reason)


OLD, V31, V311, V5, ALL = (3, 4), (3,), (4,), (5,), (3, 4, 5)

GOOD = [
    good("CONNECT 3.1", "10 0f 0006 4d5149736470 03 02 003c 0001 61", V31, p.Connect("a", 3, keep_alive_s=60)),
    good("CONNECT 3.1.1", "10 0d 0004 4d515454 04 02 0000 0001 61", V311, p.Connect("a", 4)),
    good("CONNECT 3.1.1 without an id", "10 0c 0004 4d515454 04 02 0000 0000", V311, p.Connect("", 4)),
    good("CONNECT 5", "10 0e 0004 4d515454 05 00 0000 00 0001 61", V5, p.Connect("a", 5, clean_start=False)),
    good(
        "CONNECT 3.1.1 with everything",
        "10 1d 0004 4d515454 04 ee 000a 0001 61 0003 772f78 0002 6869 0001 75 0002 7077",
        V311,
        p.Connect("a", 4, True, 10, "u", b"pw", p.WillMessage("w/x", b"hi", 1, True)),
    ),
    good(
        "CONNECT 5 with a will and properties",
        "10 22 0004 4d515454 05 14 0000 08 11 0000000a 21 0005 0001 61 05 18 00000003 0001 77 0001 78",
        V5,
        p.Connect(
            "a",
            5,
            clean_start=False,
            will=p.WillMessage("w", b"x", 2, properties=Properties(will_delay_interval_s=3)),
            properties=Properties(session_expiry_interval_s=10, receive_maximum=5),
        ),
    ),
    good("CONNECT 5 with a password alone", "10 11 0004 4d515454 05 42 0000 00 0001 61 0001 70", V5,
         p.Connect("a", 5, password=b"p")),
    good("CONNECT 3.1 whose user name is missing", "10 0f 0006 4d5149736470 03 c2 003c 0001 61", V31,
         p.Connect("a", 3, keep_alive_s=60), exact=False),
    good("CONNACK", "20 02 01 00", V311, p.ConnAck(True)),
    good("CONNACK 0x05", "20 02 00 05", OLD, p.ConnAck(False, R.NOT_AUTHORIZED)),
    good("CONNACK 5", "20 06 00 00 03 22 0010", V5, p.ConnAck(properties=Properties(topic_alias_maximum=16))),
    good("PUBLISH QoS 0", "30 06 0001 74 68 69 21", OLD, p.Publish("t", b"hi!")),
    good("PUBLISH QoS 0, empty", "31 03 0001 74", OLD, p.Publish("t", retain=True)),
    good("PUBLISH QoS 1", "32 06 0001 74 0007 21", OLD, p.Publish("t", b"!", 1, packet_id=7)),
    good("PUBLISH QoS 2, DUP and RETAIN", "3d 05 0001 74 ffff", OLD, p.Publish("t", b"", 2, True, True, 65535)),
    good("PUBLISH 5", "32 07 0001 74 0007 00 21", V5, p.Publish("t", b"!", 1, packet_id=7)),
    good("PUBLISH 5 with an alias only", "30 07 0000 03 23 0001 21", V5,
         p.Publish("", b"!", properties=Properties(topic_alias=1))),
    good("PUBLISH of U+FEFF", "30 05 0003 efbbbf", OLD, p.Publish("\ufeff")),
    good("PUBACK", "40 02 0001", ALL, p.PubAck(1)),
    good("PUBACK 5 with a reason", "40 03 0001 10", V5, p.PubAck(1, R.NO_MATCHING_SUBSCRIBERS)),
    good("PUBACK 5 with a property", "40 08 0001 00 04 1f 0001 78", V5,
         p.PubAck(1, properties=Properties(reason_string="x"))),
    good("PUBACK 5, long without need", "40 04 0001 00 00", V5, p.PubAck(1), exact=False),
    good("PUBREC", "50 02 0102", ALL, p.PubRec(258)),
    good("PUBREC 5 with an error", "50 03 0102 97", V5, p.PubRec(258, R.QUOTA_EXCEEDED)),
    good("PUBREL", "62 02 0102", ALL, p.PubRel(258)),
    good("PUBREL 3.1, sent again", "6a 02 0102", V31, p.PubRel(258), exact=False),
    good("PUBCOMP", "70 02 0102", ALL, p.PubComp(258)),
    good("PUBCOMP 5 of nothing", "70 03 0102 92", V5, p.PubComp(258, R.PACKET_IDENTIFIER_NOT_FOUND)),
    good("SUBSCRIBE", "82 0b 000a 0001 61 01 0002 622f 00", OLD, p.Subscribe(10, (Request("a", 1), Request("b/", 0)))),
    good("SUBSCRIBE 5", "82 09 000a 02 0b 07 0001 61 2e", V5,
         p.Subscribe(10, (Request("a", 2, True, True, 2),), Properties(subscription_identifier=(7,)))),
    good("SUBACK", "90 04 000a 01 80", OLD, p.SubAck(10, (1, 0x80))),
    good("SUBACK 5", "90 05 000a 00 01 87", V5, p.SubAck(10, (1, 0x87))),
    good("UNSUBSCRIBE", "a2 08 000b 0001 61 0001 62", OLD, p.Unsubscribe(11, ("a", "b"))),
    good("UNSUBSCRIBE 5", "a2 06 000b 00 0001 61", V5, p.Unsubscribe(11, ("a",))),
    good("UNSUBACK", "b0 02 000b", OLD, p.UnsubAck(11)),
    good("UNSUBACK 5", "b0 05 000b 00 00 11", V5, p.UnsubAck(11, (0, 0x11))),
    good("PINGREQ", "c0 00", ALL, p.PingReq()),
    good("PINGRESP", "d0 00", ALL, p.PingResp()),
    good("DISCONNECT", "e0 00", ALL, p.Disconnect()),
    good("DISCONNECT 5 with a reason", "e0 01 04", V5, p.Disconnect(R.DISCONNECT_WITH_WILL_MESSAGE)),
    good("DISCONNECT 5 with an expiry", "e0 07 00 05 11 00000005", V5,
         p.Disconnect(properties=Properties(session_expiry_interval_s=5))),
    good("AUTH", "f0 08 18 06 15 0003 617069", V5,
         p.Auth(R.CONTINUE_AUTHENTICATION, Properties(authentication_method="api"))),
]  # fmt: skip

BAD = [
    bad("CONNECT of another protocol", "10 0d 0004 58585858 04 02 0000 0001 61", ALL),
    bad("CONNECT of level 6", "10 0d 0004 4d515454 06 02 0000 0001 61", ALL, UnsupportedProtocolVersion),
    bad("CONNECT MQTT of level 3", "10 0d 0004 4d515454 03 02 0000 0001 61", ALL, UnsupportedProtocolVersion),
    bad("CONNECT MQIsdp of level 4", "10 0f 0006 4d5149736470 04 02 0000 0001 61", ALL, UnsupportedProtocolVersion),
    bad("CONNECT with the reserved flag", "10 0d 0004 4d515454 04 03 0000 0001 61", ALL),
    bad("CONNECT with header flags", "11 0d 0004 4d515454 04 02 0000 0001 61", ALL),
    bad("CONNECT with will QoS 3", "10 13 0004 4d515454 04 1e 0000 0001 61 0001 77 0001 78", ALL),
    bad("CONNECT with will QoS, no will", "10 0d 0004 4d515454 04 0a 0000 0001 61", ALL),
    bad("CONNECT with will retain, no will", "10 0d 0004 4d515454 04 22 0000 0001 61", ALL),
    bad("CONNECT with a password alone", "10 10 0004 4d515454 04 42 0000 0001 61 0001 70", ALL),
    bad("CONNECT without its user name", "10 0d 0004 4d515454 04 82 0000 0001 61", ALL),
    bad("CONNECT with bytes behind it", "10 0e 0004 4d515454 04 02 0000 0001 61 00", ALL),
    bad("CONNECT that keeps a nameless session", "10 0c 0004 4d515454 04 00 0000 0000", ALL, ProtocolError,
        R.CLIENT_IDENTIFIER_NOT_VALID),
    bad("CONNECT 3.1 without an id", "10 0e 0006 4d5149736470 03 02 003c 0000", ALL, ProtocolError,
        R.CLIENT_IDENTIFIER_NOT_VALID),
    bad("CONNECT with U+0000 in its id", "10 0d 0004 4d515454 04 02 0000 0001 00", ALL),
    bad("CONNECT with a surrogate in its id", "10 0f 0004 4d515454 04 02 0000 0003 eda080", ALL),
    bad("CONNECT with ill-formed UTF-8", "10 0d 0004 4d515454 04 02 0000 0001 ff", ALL),
    bad("CONNECT 5 with receive maximum 0", "10 11 0004 4d515454 05 02 0000 03 21 0000 0001 61", ALL, ProtocolError),
    bad("CONNECT 5 with a property twice", "10 18 0004 4d515454 05 02 0000 0a 11 00000001 11 00000001 0001 61", ALL,
        ProtocolError),
    bad("CONNECT 5 with another packet's property", "10 11 0004 4d515454 05 02 0000 03 23 0001 0001 61", ALL),
    bad("CONNECT 5 with authentication data alone", "10 12 0004 4d515454 05 02 0000 04 16 0001 78 0001 61", ALL,
        ProtocolError),
    bad("CONNACK with reserved flags", "20 02 02 00", ALL[:2]),
    bad("CONNACK with a reserved code", "20 02 00 06", OLD),
    bad("PUBLISH QoS 3", "36 05 0001 74 0001", ALL),
    bad("PUBLISH QoS 0 with DUP", "38 03 0001 74", (4, 5)),
    bad("PUBLISH with packet identifier 0", "32 05 0001 74 0000", ALL, ProtocolError),
    bad("PUBLISH shorter than its topic", "30 03 0005 74", ALL),
    bad("PUBLISH without room for its identifier", "32 04 0001 74 00", ALL),
    bad("PUBLISH 5 with topic alias 0", "30 07 0001 74 03 23 0000", V5, ProtocolError, R.TOPIC_ALIAS_INVALID),
    bad("PUBLISH 5 with an unknown property", "30 06 0001 74 02 7f00", V5),
    bad("PUBLISH 5 shorter than its properties", "30 04 0001 74 09", V5),
    bad("PUBLISH 5 with a wildcard to answer to", "30 08 0001 74 04 08 0001 23", V5, ProtocolError),
    bad("PUBLISH 5 with format 2", "30 06 0001 74 02 0102", V5, ProtocolError),
    bad("PUBLISH 5 with a long property length", "30 05 0001 74 8000", V5),
    bad("PUBACK without an identifier", "40 00", ALL),
    bad("PUBACK with identifier 0", "40 02 0000", ALL, ProtocolError),
    bad("PUBACK with flags", "42 02 0001", (4, 5)),
    bad("PUBACK with a reason", "40 03 0001 00", OLD),
    bad("PUBACK 5 with an unknown reason", "40 03 0001 55", V5),
    bad("PUBACK 5 with another packet's reason", "40 03 0001 8e", V5),
    bad("PUBREL without its flags", "60 02 0001", (4, 5)),
    bad("SUBSCRIBE without its flags", "80 06 0001 0001 61 00", (4, 5)),
    bad("SUBSCRIBE to nothing", "82 02 0001", OLD, ProtocolError),
    bad("SUBSCRIBE 5 to nothing", "82 03 0001 00", V5, ProtocolError),
    bad("SUBSCRIBE with identifier 0", "82 06 0000 0001 61 00", OLD, ProtocolError),
    bad("SUBSCRIBE with QoS 3", "82 06 0001 0001 61 03", OLD, ProtocolError),
    bad("SUBSCRIBE with reserved option bits", "82 06 0001 0001 61 04", V311),
    bad("SUBSCRIBE 5 with reserved option bits", "82 07 0001 00 0001 61 40", V5),
    bad("SUBSCRIBE 5 with retain handling 3", "82 07 0001 00 0001 61 30", V5, ProtocolError),
    bad("SUBSCRIBE 5 with identifier 0", "82 09 0001 02 0b00 0001 61 00", V5, ProtocolError),
    bad("SUBSCRIBE without options", "82 05 0001 0001 61", OLD),
    bad("SUBACK with a reserved code", "90 03 000a 03", OLD),
    bad("UNSUBSCRIBE from nothing", "a2 02 0001", OLD, ProtocolError),
    bad("UNSUBSCRIBE without its flags", "a0 05 0001 0001 61", (4, 5)),
    bad("UNSUBACK with a payload", "b0 03 0001 00", OLD),
    bad("PINGREQ with a payload", "c0 01 00", ALL),
    bad("PINGREQ with flags", "c1 00", (4, 5)),
    bad("DISCONNECT with a payload", "e0 01 00", OLD),
    bad("DISCONNECT with flags", "e1 00", (4, 5)),
    bad("DISCONNECT 5 with an unknown reason", "e0 01 03", V5),
    bad("AUTH before MQTT 5", "f0 00", OLD),
    bad("packet type 0", "00 00", ALL),
]  # fmt: skip

CASES = GOOD + BAD
