"""Hypothesis strategies for every packet that a conforming peer can send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from edge.broker.message.mqtt_properties import NONE, PROPERTIES, Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.message.mqtt_wire import PacketType, is_text
from edge.broker.mqtt import handshake, packets
from edge.broker.mqtt.events import SubscriptionRequest

versions = st.sampled_from((3, 4, 5))
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)
names = st.text(st.characters(exclude_characters="\0+#", exclude_categories=("Cs",)), min_size=1, max_size=12)
filters = st.one_of(names, st.sampled_from(["#", "+", "a/+/b", "+/#", "$share/g/a/+", "/"])).filter(
    lambda each: not each.startswith("$share/") or each == "$share/g/a/+"
)
blobs = st.binary(max_size=40)
packet_ids = st.integers(1, 65_535)
qos = st.integers(0, 2)
two = st.integers(0, 65_535)
four = st.integers(0, 0xFFFF_FFFF)
flags = st.integers(0, 1)

_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "payload_format_indicator": flags,
    "message_expiry_interval_s": four,
    "content_type": texts,
    "response_topic": names,
    "correlation_data": blobs,
    "subscription_identifier": st.integers(1, 268_435_455),
    "session_expiry_interval_s": four,
    "assigned_client_identifier": texts,
    "server_keep_alive_s": two,
    "authentication_method": texts,
    "authentication_data": blobs,
    "request_problem_information": flags,
    "will_delay_interval_s": four,
    "request_response_information": flags,
    "response_information": texts,
    "server_reference": texts,
    "reason_string": texts,
    "receive_maximum": st.integers(1, 65_535),
    "topic_alias_maximum": two,
    "topic_alias": st.integers(1, 16),
    "maximum_qos": flags,
    "retain_available": flags,
    "user_property": st.tuples(texts, texts),
    "maximum_packet_size": st.integers(1, 0xFFFF_FFFF),
    "wildcard_subscription_available": flags,
    "subscription_identifier_available": flags,
    "shared_subscription_available": flags,
}


def properties(kind: PacketType, version: int, *, without: tuple[str, ...] = ()) -> st.SearchStrategy[Properties]:
    """Draw properties that this packet can have; none before MQTT 5."""
    if version < 5:
        return st.just(NONE)
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for row in PROPERTIES:
        if kind not in row.packets or row.name in without:
            continue
        values = _VALUES[row.name]
        if row.name in {"user_property", "subscription_identifier"}:
            values = st.lists(values, min_size=1, max_size=3 if kind in row.repeated else 1).map(tuple)
        optional[row.name] = values
    chosen = st.fixed_dictionaries({}, optional=optional).map(lambda values: Properties(**values) if values else NONE)
    return st.one_of(st.just(NONE), chosen)


def reasons(allowed: frozenset[ReasonCode]) -> st.SearchStrategy[ReasonCode]:
    return st.sampled_from(sorted(allowed))


def wills(version: int) -> st.SearchStrategy[packets.WillMessage]:
    return st.builds(packets.WillMessage, names, blobs, qos, st.booleans(), properties(PacketType.WILL, version))


def _is_what_it_says(message: packets.WillMessage | packets.Publish) -> bool:
    """Return whether the payload is text if it is declared as text; brokers refuse other messages."""
    return message.properties.payload_format_indicator != 1 or is_text(message.payload)


@st.composite
def connects(draw: st.DrawFn, version: int, *, acceptable: bool = False) -> packets.Connect:
    clean_start = draw(st.booleans())
    nameless = version == 5 or (version == 4 and clean_start)
    username = draw(st.none() | texts)
    password = draw(st.none() | blobs) if username is not None or version == 5 else None
    # The server disconnects a client with a small packet limit as soon as one of its packets is larger.
    without = ("authentication_method", "authentication_data", "maximum_packet_size") if acceptable else ()
    block = draw(properties(PacketType.CONNECT, version, without=without))
    will = draw(st.none() | (wills(version).filter(_is_what_it_says) if acceptable else wills(version)))
    if block.authentication_method is None and block.authentication_data is not None:
        block = Properties(authentication_method="m", authentication_data=block.authentication_data)
    return packets.Connect(
        draw(texts if nameless else texts.filter(bool)),
        version,
        clean_start,
        draw(two),
        username,
        password,
        will,
        block,
    )


def publishes(version: int, *, from_client: bool = False) -> st.SearchStrategy[packets.Publish]:
    without = ("subscription_identifier", "topic_alias") if from_client else ()

    def build(topic: str, payload: bytes, qos: int, retain: bool, dup: bool, packet_id: int, block: Any) -> Any:
        return packets.Publish(topic, payload, qos, retain, dup and qos > 0, packet_id if qos else 0, block)

    block = properties(PacketType.PUBLISH, version, without=without)
    made = st.builds(build, names, blobs, qos, st.booleans(), st.booleans(), packet_ids, block)
    return made.filter(_is_what_it_says) if from_client else made


def acknowledgements(version: int) -> st.SearchStrategy[packets.Packet]:
    def one(cls: Any) -> st.SearchStrategy[packets.Packet]:
        if version < 5:
            return st.builds(cls, packet_ids)
        return st.builds(cls, packet_ids, reasons(cls.reasons), properties(cls.kind, version))

    return st.one_of(*map(one, (packets.PubAck, packets.PubRec, packets.PubRel, packets.PubComp)))


def subscribes(version: int) -> st.SearchStrategy[packets.Subscribe]:
    if version == 5:
        local = st.booleans()
        request = st.builds(SubscriptionRequest, filters, qos, st.just(False), local, st.integers(0, 2))
    else:
        request = st.builds(SubscriptionRequest, filters, qos)
    requests = st.lists(request, min_size=1, max_size=4).map(tuple)
    return st.builds(packets.Subscribe, packet_ids, requests, properties(PacketType.SUBSCRIBE, version))


def unsubscribes(version: int) -> st.SearchStrategy[packets.Unsubscribe]:
    block = properties(PacketType.UNSUBSCRIBE, version)
    return st.builds(packets.Unsubscribe, packet_ids, st.lists(filters, min_size=1, max_size=4).map(tuple), block)


def _of_server(version: int) -> list[st.SearchStrategy[Any]]:
    codes = st.sampled_from([0, 1, 2, 0x80] if version < 5 else [0, 1, 2, 0x80, 0x87, 0x97, 0xA2])
    unsubscribed = st.lists(st.sampled_from([0, 0x11, 0x87]), max_size=4).map(tuple) if version == 5 else st.just(())
    old = [ReasonCode.SUCCESS, ReasonCode.NOT_AUTHORIZED, ReasonCode.SERVER_UNAVAILABLE]
    connack = reasons(handshake.CONNACK_REASONS) if version == 5 else st.sampled_from(old)
    return [
        st.builds(
            packets.ConnAck,
            st.booleans() if version > 3 else st.just(False),
            connack,
            properties(PacketType.CONNACK, version),
        ),
        st.builds(
            packets.SubAck,
            packet_ids,
            st.lists(codes, min_size=1, max_size=4).map(tuple),
            properties(PacketType.SUBACK, version),
        ),
        st.builds(packets.UnsubAck, packet_ids, unsubscribed, properties(PacketType.UNSUBACK, version)),
        st.just(packets.PingResp()),
    ]


def any_packet(version: int) -> st.SearchStrategy[packets.Packet]:
    """Draw any packet of this version, of client or server."""
    choices = [
        connects(version),
        publishes(version),
        acknowledgements(version),
        subscribes(version),
        unsubscribes(version),
        st.just(packets.PingReq()),
        *_of_server(version),
    ]
    if version == 5:
        disconnect = properties(PacketType.DISCONNECT, version)
        auth = properties(PacketType.AUTH, version)
        choices += [
            st.builds(packets.Disconnect, reasons(handshake.CLIENT_DISCONNECT_REASONS), disconnect),
            st.builds(packets.Auth, reasons(handshake.AUTH_REASONS), auth),
        ]
    else:
        choices.append(st.just(packets.Disconnect()))
    return st.one_of(choices)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[int, list[packets.Packet]]:
    """Draw CONNECT and packets that a client may send after it, in any order."""
    version = draw(versions)
    few = st.sampled_from(["a", "a/b", "c"])
    body = st.sampled_from([b"", b"x", b"y" * 150])
    blocks = [NONE, Properties(content_type="a"), Properties(content_type="b"), Properties(message_expiry_interval_s=5)]
    alike = st.builds(
        lambda topic, payload, qos, number, block: packets.Publish(
            topic, payload, qos, packet_id=number if qos else 0, properties=block
        ),
        few,
        body,
        qos,
        st.integers(1, 6),
        st.sampled_from(blocks if version == 5 else [NONE]),
    )
    step = st.one_of(
        st.lists(alike, min_size=1, max_size=6),
        publishes(version, from_client=True).map(lambda packet: [packet]),
        st.lists(st.builds(packets.PubAck, st.integers(1, 6)), min_size=1, max_size=4),
        st.one_of(subscribes(version), unsubscribes(version), st.just(packets.PingReq())).map(lambda packet: [packet]),
    )
    steps = draw(st.lists(step, max_size=8))
    first = draw(connects(version, acceptable=True))
    return version, [first, *(packet for part in steps for packet in part)]


@st.composite
def encoded_publishes(draw: st.DrawFn, version: int, topics: Sequence[str] = ("a", "a/b", "plant/7/temp")) -> bytes:
    """Draw a PUBLISH of few topic names, with or without properties, up to one with three length bytes."""
    properties = NONE
    if version == 5:
        properties = draw(
            st.sampled_from(
                (
                    NONE,
                    Properties(content_type="text/plain"),
                    Properties(user_property=(("a", "b"),) * 12),
                    Properties(topic_alias=1),
                    Properties(payload_format_indicator=1),
                )
            )
        )
    qos = draw(st.sampled_from((0, 0, 1, 1, 1, 2)))
    size = draw(st.sampled_from((0, 1, 100, 130, 400, 17_000)))
    packet = packets.Publish(
        draw(st.sampled_from(topics)),
        draw(st.sampled_from((b"x", b"\xff"))) * size,
        qos=qos,
        retain=draw(st.booleans()),
        dup=bool(qos) and draw(st.booleans()),
        packet_id=draw(st.sampled_from((1, 2, 3, 65_535))) if qos else 0,
        properties=properties,
    )
    return packet.encode(version)
