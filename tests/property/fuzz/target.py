"""A whole broker in memory that reads one byte stream after another: shared by hypothesis and atheris.

A stream goes through the real listener's driver into the real session, router and store. For any bytes:

- no exception leaves a callback or is logged by the driver that caught it;
- a connection that has ended ends its socket;
- output is well-formed;
- another client, which is always connected, receives its own message after every stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, Literal

from bridge.resources.endpoint import ListenEndpoint
from bridge.transport.driver import ConnectionDriver
from bridge.transport.slow_lane import slow_lane_of
from edge.broker.configuration import AddressConfiguration, BrokerConfiguration, Listener
from edge.broker.configuration import Protocol as Spoken
from edge.broker.limits import Limits
from edge.broker.model.addresses import AddressRule, AddressType
from edge.broker.mqtt import packets
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.server import Broker
from tests.support.memory_store import MemoryStore
from tests.support.mqtt_connection import split

Protocol = Literal["mqtt", "amqp"]
TURNS = 8
"""Turns of the loop after each piece: read, commit, answer, write, and some spare ones."""
STREAMS_MAX = 400
"""Streams for each broker: persistent sessions accumulate, so a new broker takes over after this number."""
PACKET_BYTES_MAX = 4_096


class Transport(asyncio.Transport):
    """Socket with an other end that keeps all output."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.ended = False
        self.protocol: Any = None

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert not self.ended, "written to a socket that was closed"
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: all output is taken at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.ended

    def close(self) -> None:
        self.ended = True

    abort = close

    def pause_reading(self) -> None:
        """Do nothing: the harness continues to feed, as a kernel may have a read under way."""

    def resume_reading(self) -> None:
        """Do nothing; see `pause_reading`."""


class LoggedErrors(logging.Handler):
    """Errors of a session that the driver, the router and deliveries caught."""

    def __init__(self, errors: list[object]) -> None:
        super().__init__(logging.ERROR)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        self._errors.append(record.getMessage())


class Target:
    """Feeds streams to a broker and checks the invariants."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._escaped)
        self._errors: list[object] = []
        self._logged = LoggedErrors(self._errors)
        logging.getLogger().addHandler(self._logged)
        self._streams = STREAMS_MAX
        self._round = 0
        self._broker: Broker
        self._witness: ConnectionDriver
        self._heard: Transport

    def feed(self, protocol: Protocol, pieces: Iterator[bytes]) -> bytes:
        """Run one connection from beginning to end; return its output. Raise AssertionError when an invariant fails."""
        self._begin_anew()
        driver, transport = self._connect(protocol)
        for piece in pieces:
            if transport.ended:
                break
            transport.protocol.data_received(piece)
            self._turn()
            while slow_lane_of(self._loop).waiting:
                self._turn()  # the machine has more input, which it processes in slices
        self._turn()
        assert transport.ended or not driver.connection.closed, "the machine has ended and the socket is open"
        driver.connection_lost(None)
        self._turn()
        assert driver.connection.closed
        sent = bytes(transport.written)
        self._other_session_feels_nothing()
        return sent

    def close(self) -> None:
        """Close the loop; call it at the end of a test."""
        logging.getLogger().removeHandler(self._logged)
        self._loop.close()

    # --- inside -----------------------------------------------------------------------------------------------

    def _begin_anew(self) -> None:
        """Start another stream, with a new broker after every `STREAMS_MAX` streams."""
        if self._streams >= STREAMS_MAX:
            self._begin()
        self._streams += 1

    def _begin(self) -> None:
        self._streams = 0
        rules = [AddressConfiguration(AddressRule(f"{kind.value}/#", kind)) for kind in AddressType]
        limits = Limits(packet_bytes_max=PACKET_BYTES_MAX, inflight_max=20, receive_maximum=20)
        anywhere = ListenEndpoint("127.0.0.1", 0)
        listeners = (Listener(Spoken.MQTT, anywhere), Listener(Spoken.AMQP, anywhere))
        configuration = BrokerConfiguration(addresses=tuple(rules), listeners=listeners, limits=limits)

        async def make() -> Broker:
            return Broker(configuration, MemoryStore(post=self._loop.call_soon), resident=lambda: 0)

        self._broker = self._loop.run_until_complete(make())
        self._witness, self._heard = self._connect("mqtt")
        subscribe = packets.Subscribe(1, (SubscriptionRequest("witness/only", 1),))
        self._witness.data_received(packets.Connect("a witness nobody guesses", 4).encode() + subscribe.encode(4))
        self._turn()
        self._heard.written.clear()

    def _connect(self, protocol: Protocol) -> tuple[ConnectionDriver, Transport]:
        async def make() -> tuple[ConnectionDriver, Transport]:
            driver = self._broker.listeners.by_name[protocol]._accept()
            assert isinstance(driver, ConnectionDriver)
            transport = Transport()
            transport.set_protocol(driver)
            driver.connection_made(transport)
            return driver, transport

        return self._loop.run_until_complete(make())

    def _turn(self) -> None:
        for _ in range(TURNS):
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
        assert not self._errors, self._errors

    def _other_session_feels_nothing(self) -> None:
        self._round += 1
        body = b"round %d" % self._round
        self._witness.data_received(packets.Publish("witness/only", body, qos=1, packet_id=7).encode(4))
        self._turn()
        found = split(bytes(self._heard.written), 4)
        self._heard.written.clear()
        received = [packet for packet in found if isinstance(packet, packets.Publish)]
        assert [packet.payload for packet in received] == [body], found
        assert sum(isinstance(packet, packets.PubAck) for packet in found) == 1, found
        for packet in received:
            self._witness.data_received(packets.PubAck(packet.packet_id).encode(4))
        self._turn()

    def _escaped(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._errors.append(context)
