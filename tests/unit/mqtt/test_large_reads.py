"""One call of the machine does little work for a large read; later calls do the rest."""

from __future__ import annotations

from typing import Any

import pytest

from edge.broker.limits import Limits
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.events import (
    DisconnectedEvent,
    PublishEvent,
    SubscribeEvent,
    SubscriptionRequest,
    UnsubscribeEvent,
)
from edge.broker.mqtt.limits import EVENTS_AT_ONCE, FILTERS_AT_ONCE, FILTERS_MAX
from edge.broker.mqtt.state import SessionState
from tests.support.mqtt_connection import Opened

COUNT = 5 * EVENTS_AT_ONCE


def calls(opened: Opened, *what: p.Packet | bytes) -> list[list[Any]]:
    """Return the events of each call that these packets take."""
    data = b"".join(each if isinstance(each, bytes) else each.encode(opened.version) for each in what)
    found = [list(opened.connection.receive_data(data, opened.now))]
    while opened.connection.more:
        found.append(list(opened.connection.receive_data(b"", opened.now)))
    return found


def flat(found: list[list[Any]]) -> list[Any]:
    return [event for each in found for event in each]


def topics(found: list[list[Any]]) -> list[str]:
    return [event.run.address for event in flat(found) if isinstance(event, PublishEvent)]


def filters(start: int, stop: int) -> tuple[SubscriptionRequest, ...]:
    return tuple(SubscriptionRequest(f"f/{i}", 1) for i in range(start, stop))


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("known", [False, True])
def test_publishes_to_many_topics_come_in_parts(qos: int, known: bool) -> None:
    opened = Opened(5)
    sent = [p.Publish(f"t/{i}", b"x", qos=qos, packet_id=i + 1 if qos else 0) for i in range(COUNT)]
    if known:
        opened.send(*[p.Publish(f"t/{i}", b"x") for i in range(COUNT)])
    found = calls(opened, *sent)
    assert max(map(len, found)) <= EVENTS_AT_ONCE
    assert len(found) >= COUNT // EVENTS_AT_ONCE
    assert topics(found) == [f"t/{i}" for i in range(COUNT)]


def test_similar_messages_are_one_event() -> None:
    found = calls(Opened(5), *[p.Publish("t", b"x", qos=1, packet_id=i + 1) for i in range(COUNT)])
    assert [len(event.run.bodies) for event in flat(found)] == [COUNT]


def test_packets_without_an_event_are_bounded() -> None:
    opened = Opened(4)
    found = calls(opened, *[p.PingReq()] * COUNT, p.Publish("last", b"x"))
    assert len(found) >= COUNT // EVENTS_AT_ONCE
    assert topics(found) == ["last"]
    assert len(opened.sent()) == COUNT


@pytest.mark.parametrize("count", [1, FILTERS_AT_ONCE, FILTERS_AT_ONCE + 1, 5 * FILTERS_AT_ONCE])
def test_filters_come_in_parts_with_nothing_between_them(count: int) -> None:
    opened = Opened(5)
    asked = filters(0, count)
    wanted = tuple(each.filter for each in asked)
    found = calls(
        opened, p.Publish("before", b"x"), p.Subscribe(1, asked), p.Unsubscribe(2, wanted), p.Publish("after", b"x")
    )
    before, *between, after = flat(found)
    assert (before.run.address, after.run.address) == ("before", "after")
    subscribing = [event for event in between if isinstance(event, SubscribeEvent)]
    unsubscribing = [event for event in between if isinstance(event, UnsubscribeEvent)]
    assert between == [*subscribing, *unsubscribing]
    assert [request for part in subscribing for request in part.requests] == list(asked)
    assert [each for part in unsubscribing for each in part.filters] == list(wanted)
    for parts in (subscribing, unsubscribing):
        assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
        assert len(parts) == -(-count // FILTERS_AT_ONCE)
    assert max(len(part.requests) for part in subscribing) <= FILTERS_AT_ONCE
    for each in found:
        assert (
            sum(isinstance(event, SubscribeEvent | UnsubscribeEvent) for event in each) <= 1 or count <= FILTERS_AT_ONCE
        )


def test_bytes_received_meanwhile_are_read_afterwards() -> None:
    opened = Opened(5)
    connection = opened.connection
    before = connection.held_bytes
    found = list(connection.receive_data(p.Subscribe(1, filters(0, 20 * FILTERS_AT_ONCE)).encode(5), opened.now))
    late = p.Publish("late", bytes(1000)).encode(5)
    assert connection.more
    for i in range(0, len(late), 100):
        found += connection.receive_data(late[i : i + 100], opened.now)
    assert connection.held_bytes >= before + len(late)
    while connection.more:
        found += connection.receive_data(b"", opened.now)
    assert [type(event) for event in found] == [SubscribeEvent] * 20 + [PublishEvent]


def test_packets_behind_connect_come_in_parts() -> None:
    connection = MqttConnection(Limits(), 0.0)
    data = b"".join(p.Publish(f"t/{i}", b"x").encode(4) for i in range(COUNT))
    connection.receive_data(p.Connect("c", 4).encode(4) + data, 0.0)
    assert not connection.more, "nothing is taken before CONNACK"
    found = [list(connection.accept(SessionState(), False))]
    while connection.more:
        found.append(list(connection.receive_data(b"", 0.0)))
    assert max(map(len, found)) <= EVENTS_AT_ONCE
    assert topics(found) == [f"t/{i}" for i in range(COUNT)]


def test_disconnect_behind_many_packets_is_read() -> None:
    opened = Opened(4)
    found = calls(opened, *[p.Publish(f"t/{i}", b"x") for i in range(COUNT)], p.Disconnect())
    assert topics(found) == [f"t/{i}" for i in range(COUNT)]
    assert isinstance(flat(found)[-1], DisconnectedEvent)
    assert not flat(found)[-1].publish_will
    assert not opened.connection.more


@pytest.mark.parametrize("end", ["eof", "shed", "disconnect"])
def test_end_drops_the_rest(end: str) -> None:
    opened = Opened(5)
    connection = opened.connection
    asked = p.Subscribe(1, filters(0, 3 * FILTERS_AT_ONCE)).encode(5)
    connection.receive_data(asked + p.Publish("t", b"x").encode(5), opened.now)
    last: list[Any] = []
    if end == "eof":
        last += connection.receive_eof(opened.now)
    elif end == "shed":
        last += connection.shed()
    else:
        connection.disconnect(ReasonCode.SESSION_TAKEN_OVER)
    assert not connection.more
    assert connection.receive_data(b"", opened.now) == ()
    last += connection.receive_eof(opened.now)
    assert [type(event) for event in last] == [DisconnectedEvent]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("kind", [p.Subscribe, p.Unsubscribe])
def test_too_many_filters_in_a_packet_close(version: int, kind: type[p.Subscribe] | type[p.Unsubscribe]) -> None:
    def packet(count: int) -> p.Packet:
        asked = filters(0, count)
        return p.Subscribe(1, asked) if kind is p.Subscribe else p.Unsubscribe(1, tuple(each.filter for each in asked))

    opened = Opened(version)
    assert len(opened.send(packet(FILTERS_MAX))) == FILTERS_MAX // FILTERS_AT_ONCE
    assert not opened.sent()
    (ended,) = opened.send(packet(FILTERS_MAX + 1))
    assert isinstance(ended, DisconnectedEvent)
    said = opened.sent()
    assert [each.reason for each in said if isinstance(each, p.Disconnect)] == [ReasonCode.QUOTA_EXCEEDED] * (
        version == 5
    )
