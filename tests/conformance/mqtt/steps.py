"""What a conformance scenario is made of. Scenarios are data: nothing here knows what it is run against."""

from __future__ import annotations

from typing import NamedTuple

from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.mqtt.packets import Packet

ANY_VERSION = 0
"""`version` of a CONNECT that takes the level its scenario is run with."""


class Send(NamedTuple):
    """The client `who` sends packets, or raw bytes, in one piece; its connection is opened when it has none."""

    who: str
    packets: tuple[Packet | bytes, ...]


class Expect(NamedTuple):
    """These packets come for `who`, and nothing in between.

    Compared is what the standard fixes: packets of one type keep their order, those of different types come as they
    like (a CONNACK comes first); packet identifiers the server chose, and properties a scenario does not name, may be
    anything. The identifiers are remembered for `Answer`.
    """

    who: str
    packets: tuple[Packet, ...]


class Answer(NamedTuple):
    """The client sends this kind of acknowledgement for the PUBLISH it received as number `index` (-1: the last)."""

    who: str
    kind: type
    index: int = -1
    reason: ReasonCode = ReasonCode.SUCCESS


class Closed(NamedTuple):
    """The server closes the connection of `who`. An MQTT 5 server may say why first, with one of `reasons`."""

    who: str
    reasons: tuple[ReasonCode, ...] = ()


class Drop(NamedTuple):
    """The client cuts its connection without a word."""

    who: str


class Silence(NamedTuple):
    """Nothing comes for `who`."""

    who: str


class Wait(NamedTuple):
    """Time passes, in seconds."""

    seconds: float


Step = Send | Expect | Answer | Closed | Drop | Silence | Wait


class Scenario(NamedTuple):
    """`statements` has, for each protocol level the scenario is run with, the normative statements it exercises."""

    name: str
    statements: dict[int, str]
    steps: tuple[Step, ...]


def send(who: str, *packets: Packet | bytes) -> Send:
    return Send(who, packets)


def expect(who: str, *packets: Packet) -> Expect:
    return Expect(who, packets)


def closed(who: str, *reasons: ReasonCode) -> Closed:
    return Closed(who, reasons)
