"""Producers and consumers that survive kills of their gateway and record what they know."""

from __future__ import annotations

import socket
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from proton import Message, ProtonException
from proton.handlers import MessagingHandler
from proton.reactor import Container, DurableSubscription

from edge.broker.message.mqtt_wire import read_fixed_header
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.events import SubscriptionRequest
from tests.fault.kills.checker import Consumed

VERSION = 4
WAIT_S = 10.0
RETRY_S = 0.1
TICK_S = 0.1
AMQP_WINDOW = 5
PACE_S = 0.002
"""Pause between two messages of a producer, which leaves the machine to the gateway."""


class Client(threading.Thread):
    """Client that reconnects until it is stopped; `failure` is an unexpected error."""

    def __init__(self, name: str, port: int) -> None:
        super().__init__(name=name, daemon=True)
        self.port = port
        self.ready = threading.Event()
        """Set when it has subscribed, or connected once."""
        self.ended = threading.Event()
        self._failure: BaseException | None = None

    @abstractmethod
    def connection(self) -> None:
        """Use one connection; return when `ended`."""

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                self.connection()
            except (OSError, ProtonException):
                self.ended.wait(RETRY_S)
            except BaseException as failure:  # reported in `end`
                self._failure = failure
                return

    def end(self) -> None:
        self.ended.set()
        self.join(WAIT_S * 3)
        assert not self.is_alive(), self.name
        if self._failure is not None:
            raise self._failure


class Wire:
    """An MQTT connection of a persistent session, packet by packet."""

    def __init__(self, port: int, client_id: str) -> None:
        self._data = b""
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        try:
            self.send(p.Connect(client_id, VERSION, clean_start=False))
            connack = self.next(WAIT_S)
            assert isinstance(connack, p.ConnAck)
            self.session_present = connack.session_present
        except BaseException:
            self._socket.close()
            raise

    def send(self, *packets: p.Packet) -> None:
        self._socket.sendall(b"".join(packet.encode(VERSION) for packet in packets))

    def next(self, timeout_s: float) -> p.Packet:
        """Return the next packet; raise TimeoutError, which is an OSError, without one in time."""
        self._socket.settimeout(timeout_s)
        while True:
            header = read_fixed_header(self._data, 0)
            if header is not None and header[0] + header[1] <= len(self._data):
                stop = header[0] + header[1]
                first, body, self._data = self._data[0], self._data[header[0] : stop], self._data[stop:]
                return p.decode(first, body, VERSION)
            more = self._socket.recv(65_536)
            if not more:
                raise ConnectionResetError
            self._data += more

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class MqttPublisher(Client):
    """Publishes one message at a time.

    At QoS 2 it continues the session after a disconnect, exactly once. At QoS 1 it drops a message that was not acked.
    """

    def __init__(self, name: str, port: int, topic: str, qos: int, *, retain: bool = False) -> None:
        super().__init__(name, port)
        self._topic = topic
        self._qos = qos
        self._retain = retain
        self._released = True
        """The last message was answered with PUBREC."""
        self.sent = 0
        self.acked: list[bytes] = []
        self.connections: list[tuple[float, int]] = []
        """Start of each connection (monotonic seconds), and the number of messages sent before it."""

    def connection(self) -> None:
        with Wire(self.port, self.name) as wire:
            self.connections.append((time.monotonic(), self.sent))
            self.ready.set()
            if self.sent and self._qos == 2:
                self._finish(wire, again=True)
            while not self.ended.wait(PACE_S):
                self.sent += 1
                self._released = False
                self._finish(wire, again=False)

    def _finish(self, wire: Wire, *, again: bool) -> None:
        body, packet_id = b"%s:%d" % (self.name.encode(), self.sent - 1), (self.sent - 1) % 65_535 + 1
        if not self._released:
            wire.send(p.Publish(self._topic, body, self._qos, retain=self._retain, dup=again, packet_id=packet_id))
            assert isinstance(wire.next(WAIT_S), p.PubRec if self._qos == 2 else p.PubAck)
            self._released = True
            self.acked.append(body)
        if self._qos == 2:
            wire.send(p.PubRel(packet_id))
            assert isinstance(wire.next(WAIT_S), p.PubComp)


class MqttConsumer(Client):
    """Subscription of a persistent session, for messages of QoS 1 and 2."""

    def __init__(self, name: str, port: int, pattern: str, qos: int) -> None:
        super().__init__(name, port)
        self.consumed = Consumed(name, exactly_once=qos == 2)
        self._pattern = pattern
        self._qos = qos
        self._seen: set[int] = set()
        self._connected = 0.0

    def connection(self) -> None:
        with Wire(self.port, self.name) as wire:
            self._connected = time.monotonic()
            if not self.ready.is_set():
                wire.send(p.Subscribe(1, (SubscriptionRequest(self._pattern, self._qos),)))
                assert isinstance(wire.next(WAIT_S), p.SubAck)
                self.ready.set()
            else:
                assert wire.session_present, "the session was forgotten"
            while not self.ended.is_set():
                try:
                    packet = wire.next(0.2)
                except TimeoutError:
                    continue
                self._take(wire, packet)

    def _take(self, wire: Wire, packet: p.Packet) -> None:
        if isinstance(packet, p.PubRel):
            self._seen.discard(packet.packet_id)
            wire.send(p.PubComp(packet.packet_id))
            return
        assert isinstance(packet, p.Publish)
        if packet.qos == 1 or packet.packet_id not in self._seen:
            self.consumed.got.append((time.monotonic(), packet.payload))
            self.consumed.came_on.setdefault(packet.payload, self._connected)
        if packet.qos == 2:
            self._seen.add(packet.packet_id)
        wire.send(p.PubRec(packet.packet_id) if packet.qos == 2 else p.PubAck(packet.packet_id))
        self.consumed.acked.setdefault(packet.payload, time.monotonic())


class AmqpClient(Client, MessagingHandler):  # type: ignore[misc]  # Proton has no types
    """Connection of Proton's own client, with one container each."""

    def __init__(self, name: str, port: int, address: str, **options: Any) -> None:
        Client.__init__(self, name, port)
        MessagingHandler.__init__(self, auto_accept=False, auto_settle=True, **options)
        self._address = address
        self._connection: Any = None
        self._selectables: list[Any] = []

    def connection(self) -> None:
        container = Container(self)
        container.container_id = self.name
        try:
            container.run()
        finally:
            for selectable in self._selectables:  # Proton sometimes leaves one open, and select() ends at 1 024
                selectable.close()
            self._selectables.clear()
        self.ended.wait(RETRY_S)

    def on_selectable_init(self, event: Any) -> None:
        self._selectables.append(event.selectable)

    def on_start(self, event: Any) -> None:
        self._connection = event.container.connect(f"127.0.0.1:{self.port}", reconnect=False)
        event.container.schedule(TICK_S, self)

    def on_timer_task(self, event: Any) -> None:
        if not self.ended.is_set():
            event.container.schedule(TICK_S, self)
        elif self.idle():
            self._connection.close()
            event.container.stop()
        else:
            event.container.schedule(TICK_S, self)

    def idle(self) -> bool:
        """Return whether nothing is in flight, so that the connection may end."""
        return True

    def on_transport_error(self, event: Any) -> None:
        event.container.stop()

    def on_disconnected(self, event: Any) -> None:
        event.container.stop()


class AmqpProducer(AmqpClient):
    """Sends as credit and a small window allow; `acked` has the accepted messages."""

    def __init__(self, name: str, port: int, address: str, *, may_be_full: bool = False) -> None:
        """Create a producer. `may_be_full`: the gateway may refuse messages when it is full."""
        super().__init__(name, port, address)
        self._may_be_full = may_be_full
        self.sent = 0
        self._waiting: dict[Any, bytes] = {}
        self.acked: list[bytes] = []

    def on_connection_opened(self, event: Any) -> None:
        self._waiting.clear()
        event.container.create_sender(event.connection, self._address)
        self.ready.set()

    def on_sendable(self, event: Any) -> None:
        self._send(event.sender)

    def on_accepted(self, event: Any) -> None:
        self.acked.append(self._waiting.pop(event.delivery.tag))
        self._send(event.link)

    def on_rejected(self, event: Any) -> None:
        condition = event.delivery.remote.condition
        assert self._may_be_full, f"{self.name}: rejected: {condition}"
        assert condition.name == "amqp:resource-limit-exceeded", condition
        self._waiting.pop(event.delivery.tag)
        self._send(event.link)

    def idle(self) -> bool:
        return not self._waiting

    def _send(self, sender: Any) -> None:
        while sender.credit and len(self._waiting) < AMQP_WINDOW and not self.ended.is_set():
            body = b"%s:%d" % (self.name.encode(), self.sent)
            self.sent += 1
            self._waiting[sender.send(Message(body=body, durable=True)).tag] = body
            time.sleep(PACE_S)


class AmqpConsumer(AmqpClient):
    """Takes from a queue, or from its own durable subscription; rejects messages that match `rejects`."""

    def __init__(
        self,
        name: str,
        port: int,
        address: str,
        *,
        durable: bool = False,
        rejects: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        super().__init__(name, port, address, prefetch=20)
        self.consumed = Consumed(name)
        self._rejects = rejects
        self._connected = 0.0
        self._options: Any = DurableSubscription() if durable else None

    def on_connection_opened(self, event: Any) -> None:
        self._connected = time.monotonic()
        event.container.create_receiver(
            event.connection, self._address, name=f"{self.name}-link", options=self._options
        )

    def on_link_opened(self, event: Any) -> None:
        self.ready.set()

    def on_message(self, event: Any) -> None:
        body = bytes(event.message.body)
        self.consumed.got.append((time.monotonic(), body))
        self.consumed.came_on.setdefault(body, self._connected)
        if self._rejects(body):
            self.reject(event.delivery)
        else:
            self.accept(event.delivery)
        self.consumed.acked.setdefault(body, time.monotonic())
