"""Sockets of MQTT clients that repeat earlier packets: handled in one batch, each answered correctly."""

from __future__ import annotations

import contextlib
import socket
import struct

import pytest

from edge.broker.mqtt import packets
from tests.support.hostile import Raw
from tests.support.processes import Waypost

KEPT = "kept/data"


@pytest.fixture(scope="module", autouse=True)
def keeper(gateway: Waypost) -> None:
    """Create a session of an absent client for which messages are stored."""
    client = Raw(gateway).connect("keeper", clean_start=False)
    client.subscribe("#", qos=1)
    client.send(packets.Disconnect()).rest()
    client.close()


def publish(packet_id: int, body: bytes = b"x") -> packets.Publish:
    return packets.Publish(KEPT, body, 1, packet_id=packet_id)


def answered(client: Raw, packet_id: int) -> None:
    answer = client.receive()
    assert isinstance(answer, packets.PubAck), answer
    assert answer.packet_id == packet_id


def taught(gateway: Waypost, name: str, packet_id: int = 1) -> Raw:
    """Return a client that the gateway handles on the fast path from its next message on."""
    client = Raw(gateway).connect(name)
    for _ in range(2):
        client.send(publish(packet_id))
        answered(client, packet_id)
    return client


def reset(client: Raw) -> None:
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize(("count", "rounds"), [(3, 40), (24, 5)], ids=["few", "many"])
def test_answers_of_a_closed_connection_reach_no_other_client(gateway: Waypost, count: int, rounds: int) -> None:
    """The next client reuses the number of the closed socket.

    `count`: few sockets are handled with the interpreter lock, many without it.
    """
    neighbour = taught(gateway, f"neighbour-{count}", 7)
    for number in range(rounds):
        gone = [taught(gateway, f"gone-{number}-{each}", 100 + each) for each in range(count)]
        for each, client in enumerate(gone):
            client.send(publish(200 + each))
        neighbour.send(publish(number + 1))
        for client in gone[1:]:
            reset(client)
        gone[0].close()
        following = [taught(gateway, f"next-{number}-{each}", 300 + each) for each in range(count)]
        for each, client in enumerate(following):
            client.send(publish(400 + each))
        answered(neighbour, number + 1)
        for each, client in enumerate(following):
            answered(client, 400 + each)
            client.close()
    neighbour.close()


def test_messages_sent_before_the_end_of_a_connection_are_accepted(gateway: Waypost) -> None:
    client = taught(gateway, "half", 1)
    listener = Raw(gateway).connect("listener")
    listener.subscribe("after/#")
    client.send(*(publish(n) for n in range(2, 50)), packets.Publish("after/all", b"done", 0))
    client.socket.shutdown(socket.SHUT_WR)
    heard = listener.receive()
    assert isinstance(heard, packets.Publish)
    assert heard.payload == b"done"
    with contextlib.suppress(OSError):
        client.rest()
    client.close()
    listener.close()


def test_large_and_small_messages_stay_in_order(gateway: Waypost) -> None:
    client = taught(gateway, "large", 1)
    for number in range(2, 30):
        client.send(publish(number, b"y" * (number % 5) * 60_000), publish(number + 1000))
        answered(client, number)
        answered(client, number + 1000)
    client.close()


def test_client_that_does_not_read_gets_its_answers_later(gateway: Waypost) -> None:
    """Answers beyond the socket's buffer leave by the transport, in order."""
    client = Raw(gateway, receive_bytes=4096).connect("deaf")
    count = 60_000
    for first in range(1, count, 1000):
        client.send(b"".join(publish(n).encode(4) for n in range(first, first + 1000)))
    for number in range(1, count + 1):
        answered(client, number)
    client.close()
