"""Client side for tests: splits bytes into packets, and opens connections."""

from __future__ import annotations

from typing import Any

from edge.broker.limits import Limits
from edge.broker.message.mqtt_wire import read_fixed_header
from edge.broker.mqtt import packets
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.state import SessionState
from tests.support.machines import take_all

VERSIONS = (3, 4, 5)


def split(data: bytes, version: int) -> list[packets.Packet]:
    """Return the packets in `data`, without a rest."""
    found: list[packets.Packet] = []
    pos = 0
    while pos < len(data):
        header = read_fixed_header(data, pos)
        assert header is not None, "a packet without its end"
        body, length, shortest = header
        assert shortest
        assert body + length <= len(data), "a packet without its end"
        found.append(packets.decode(data[pos], data[body : body + length], version))
        pos = body + length
    return found


class Opened:
    """A connection after CONNECT and `accept`, with helpers for tests."""

    def __init__(
        self,
        version: int = 4,
        connect: packets.Connect | None = None,
        state: SessionState | None = None,
        limits: Limits | None = None,
        **accept: Any,
    ) -> None:
        self.version = version
        self.now = 100.0
        self.state = state if state is not None else SessionState()
        self.connection = MqttConnection(limits or Limits(), self.now)
        connect = connect or packets.Connect("c", version)
        (event,) = self.connection.receive_data(connect.encode(), self.now)
        self.connect = event
        self.events = list(self.connection.accept(self.state, state is not None, **accept))
        self.first = self.sent()

    def send(self, *what: packets.Packet | bytes) -> list[Any]:
        """Give the connection packets in one read; return its events."""
        data = b"".join(each if isinstance(each, bytes) else each.encode(self.version) for each in what)
        return take_all(self.connection, data, self.now)

    def sent(self) -> list[packets.Packet]:
        """Return the output of the connection as packets."""
        return split(self.connection.data_to_send(), self.version)
