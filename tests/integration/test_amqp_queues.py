"""Selectors, priorities and groups on queues of a running gateway, with Proton's Python API."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from proton import Message, Timeout
from proton.reactor import Selector
from proton.utils import BlockingConnection, BlockingReceiver

from tests.support.amqp_client import amqp_client, connect_amqp
from tests.support.paho_client import mqtt_client
from tests.support.processes import Waypost

WAIT_S = 20.0


@pytest.fixture
def connection(gateway: Waypost) -> Iterator[BlockingConnection]:
    connection = connect_amqp(gateway)
    yield connection
    connection.close()


def take(receiver: BlockingReceiver, count: int) -> list[Any]:
    got = []
    for _ in range(count):
        message = receiver.receive(timeout=WAIT_S)
        body = message.body
        got.append(bytes(body) if isinstance(body, memoryview) else body)  # a view into the message's memory
        receiver.accept()
    return got


def test_selectors_divide_a_queue(connection: BlockingConnection, gateway: Waypost) -> None:
    hot = connection.create_receiver("queue/select", credit=50, name="hot", options=Selector("temperature > 30"))
    rest = connection.create_receiver("queue/select", credit=50, name="rest", options=Selector("NOT temperature > 30"))
    sender = connection.create_sender("queue/select")
    for i in range(20):
        sender.send(Message(body=i, properties={"temperature": 25 + i}))
    assert take(hot, 14) == list(range(6, 20))
    assert take(rest, 6) == list(range(6))
    with mqtt_client(gateway, "select-mqtt", version=5) as device:
        device.client.publish("queue/select", b"untold", 1).wait_for_publish(WAIT_S)
    everything = connection.create_receiver("queue/select", credit=5, name="everything")
    assert take(everything, 1) == [b"untold"]


def test_backlog_that_a_selector_skips_does_not_delay_it(connection: BlockingConnection) -> None:
    sender = connection.create_sender("queue/backlog")
    for i in range(3000):
        message = Message(body=i, properties={"kind": "bulk"}, durable=True)
        sender.link.send(message)
    sender.send(Message(body="wanted", properties={"kind": "rare"}))
    wanted = connection.create_receiver("queue/backlog", credit=1, options=Selector("kind = 'rare'"))
    assert take(wanted, 1) == ["wanted"]
    wanted.close()
    assert take(connection.create_receiver("queue/backlog", credit=100, name="bulk"), 3000) == list(range(3000))


def test_messages_of_higher_priority_go_first(connection: BlockingConnection) -> None:
    sender = connection.create_sender("queue/priority")
    for i, priority in enumerate([4, 0, 9, 4, 7, 9]):
        sender.send(Message(body=i, priority=priority, durable=True))
    assert take(connection.create_receiver("queue/priority", credit=10), 6) == [2, 5, 4, 0, 3, 1]


def test_groups_stay_with_their_consumer(connection: BlockingConnection, gateway: Waypost) -> None:
    with amqp_client(gateway) as other:
        receivers = [one.create_receiver("queue/group", credit=100) for one in (connection, other)]
        sender = connection.create_sender("queue/group")
        for i in range(60):
            sender.send(Message(body=i, group_id=f"g{i % 10}", group_sequence=i))
        place: dict[int, int] = {}
        total, deadline = 0, time.monotonic() + WAIT_S
        while total < 60 and time.monotonic() < deadline:
            for i, receiver in enumerate(receivers):
                with contextlib.suppress(Timeout):
                    while True:
                        body = receiver.receive(timeout=0.2).body
                        receiver.accept()
                        total += 1
                        assert place.setdefault(body % 10, i) == i
        assert total == 60
        assert set(place.values()) == {0, 1}
