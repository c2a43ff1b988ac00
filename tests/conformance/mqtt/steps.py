"""Elements of a conformance scenario. Scenarios are data, independent of the system under test."""

from __future__ import annotations

from typing import NamedTuple

from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.mqtt.packets import Packet

ANY_VERSION = 0
"""`version` of a CONNECT that uses the level of its scenario's run."""


class Send(NamedTuple):
    """The client `who` sends packets, or raw bytes, in one piece; it connects first if it has no connection."""

    who: str
    packets: tuple[Packet | bytes, ...]


class Expect(NamedTuple):
    """These packets arrive for `who`, and no others in between.

    The comparison covers the parts that the standard fixes: packets of one type keep their order, those of different
    types may mix (a CONNACK is first). Packet identifiers chosen by the server, and properties that a scenario does not
    name, may have any value. The identifiers are kept for `Answer`.
    """

    who: str
    packets: tuple[Packet, ...]


class Answer(NamedTuple):
    """The client sends this type of acknowledgement for the PUBLISH received as number `index` (-1: the last)."""

    who: str
    kind: type
    index: int = -1
    reason: ReasonCode = ReasonCode.SUCCESS


class Closed(NamedTuple):
    """The server closes the connection of `who`. An MQTT 5 server may first send one of `reasons`."""

    who: str
    reasons: tuple[ReasonCode, ...] = ()


class Drop(NamedTuple):
    """The client breaks its connection without a DISCONNECT."""

    who: str


class Silence(NamedTuple):
    """No packet arrives for `who`."""

    who: str


class Wait(NamedTuple):
    """Wait for some seconds."""

    seconds: float


Step = Send | Expect | Answer | Closed | Drop | Silence | Wait


class Scenario(NamedTuple):
    """`statements` has the normative statements that the scenario exercises, by protocol level."""

    name: str
    statements: dict[int, str]
    steps: tuple[Step, ...]


def send(who: str, *packets: Packet | bytes) -> Send:
    return Send(who, packets)


def expect(who: str, *packets: Packet) -> Expect:
    return Expect(who, packets)


def closed(who: str, *reasons: ReasonCode) -> Closed:
    return Closed(who, reasons)
