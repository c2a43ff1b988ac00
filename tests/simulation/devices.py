"""MQTT devices over the network: they keep unanswered messages, and send them again on the next connection."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_wire import read_fixed_header
from edge.broker.mqtt import packets
from edge.broker.mqtt.events import SubscriptionRequest
from tests.simulation.gateway import MQTT
from tests.simulation.history import History
from tests.simulation.network import Network
from tests.simulation.scheduler import Process, Scheduler

WINDOW = 8
"""Number of messages that a device has in flight."""


class Device:
    """MQTT client with a persistent session that publishes, subscribes, or does both."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        network: Network,
        history: History,
        random: Random,
        *,
        version: int,
        qos: int,
        publishes: Sequence[str] = (),
        subscribes: str | None = None,
    ) -> None:
        self.name = name
        self.process = Process(name)
        self.sending = True
        self.period_s = 0.1
        self.subscription = f"mqtt/{name}/{subscribes}"
        self._scheduler = scheduler
        self._network = network
        self._history = history
        self._random = random
        self._version = version
        self.qos = qos
        self._publishes = publishes
        self.subscribes = subscribes
        self._transport: Any = None
        self._open = False
        self._data = b""
        self._sent = 0
        self._waiting: dict[int, tuple[str, str, bool]] = {}
        """(message, address, PUBREC received) by packet identifier, oldest first."""
        self._received: set[int] = set()
        """QoS 2 packet identifiers of deliveries that are not released yet."""
        scheduler.after(random.random() * 0.1, self.process, self._connect)
        if publishes:
            scheduler.after(random.random() * 0.2, self.process, self._publish)

    @property
    def waiting(self) -> int:
        """Return the number of messages without an answer."""
        return len(self._waiting)

    # --- the stream -------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        future = _Attempt(self)
        self._network.connect(self.process, lambda: self, MQTT.host, MQTT.port, future)  # type: ignore[arg-type]
        self._scheduler.after(2.0, self.process, future.give_up)

    def connection_made(self, transport: Any) -> None:
        if self._transport is not None:
            transport.abort()
            return
        self._transport, self._open, self._data = transport, False, b""
        properties = Properties(session_expiry_interval_s=100_000) if self._version == 5 else Properties()
        self._write(packets.Connect(self.name, self._version, clean_start=False, keep_alive_s=3, properties=properties))
        self._scheduler.after(1.5, self.process, self._ping, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (header := read_fixed_header(self._data, 0)) is not None:
            body, length = header[0], header[1]
            if len(self._data) < body + length:
                break
            packet = packets.decode(self._data[0], self._data[body : body + length], self._version)
            self._data = self._data[body + length :]
            self._take(packet)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport, self._open = None, False
        self._scheduler.after(0.05 + self._random.random() * 0.3, self.process, self._connect)

    def _write(self, packet: packets.Packet) -> None:
        if self._transport is not None:
            self._transport.write(packet.encode(self._version))

    def _ping(self, transport: Any) -> None:
        if transport is self._transport:
            self._write(packets.PingReq())
            self._scheduler.after(1.5, self.process, self._ping, transport)

    # --- the protocol -----------------------------------------------------------------------------------------

    def _take(self, packet: Any) -> None:
        match packet:
            case packets.ConnAck():
                self._opened(packet)
            case packets.PubAck():
                self._answered(packet.packet_id, packet.reason >= 0x80)
            case packets.PubRec() if packet.reason >= 0x80:
                self._answered(packet.packet_id, refused=True)
            case packets.PubRec():
                self._recorded(packet.packet_id)
            case packets.PubComp():
                self._waiting.pop(packet.packet_id, None)
            case packets.Publish():
                self._deliver(packet)
            case packets.PubRel():
                self._received.discard(packet.packet_id)
                self._write(packets.PubComp(packet.packet_id))

    def _opened(self, packet: packets.ConnAck) -> None:
        if packet.reason:
            self._transport.abort()
            return
        self._open = True
        self._history.record("connected", self.name)
        if self.subscribes is not None:
            self._write(packets.Subscribe(1, (SubscriptionRequest(self.subscribes, self.qos),)))
        if not packet.session_present:
            self._received.clear()
            if any(recorded for _, _, recorded in self._waiting.values()):
                self._history.record("session lost", self.name)
            self._waiting = {
                packet_id: (message, address, False)
                for packet_id, (message, address, recorded) in self._waiting.items()
                if not recorded  # the gateway accepted it and has forgotten this
            }
        for packet_id, (message, address, recorded) in list(self._waiting.items()):
            if recorded:
                self._write(packets.PubRel(packet_id))
            else:
                self._send(packet_id, message, address, dup=True)

    def _publish(self) -> None:
        if not self.sending:
            return
        self._scheduler.after(self.period_s * 2 * self._random.random(), self.process, self._publish)
        if not self._open or len(self._waiting) >= WINDOW:
            return
        for _ in range(self._random.choice((1, 1, 1, 3))):
            address = self._random.choice(self._publishes)
            packet_id = next(free for free in range(1, 2 * WINDOW) if free not in self._waiting)
            message = f"{self.name}.{self._sent}"
            self._sent += 1
            self._waiting[packet_id] = (message, address, False)
            self._send(packet_id, message, address, dup=False)

    def _send(self, packet_id: int, message: str, address: str, *, dup: bool) -> None:
        self._history.record("send", self.name, address, (message,), self.qos)
        self._write(packets.Publish(address, message.encode(), self.qos, dup=dup, packet_id=packet_id))

    def _answered(self, packet_id: int, refused: bool) -> None:
        found = self._waiting.pop(packet_id, None)
        if found is not None and refused:
            self._history.record("refused", self.name, (found[0],), "MQTT")
        elif found is not None:
            self._history.record("acked", self.name, (found[0],))

    def _recorded(self, packet_id: int) -> None:
        found = self._waiting.get(packet_id)
        if found is not None and not found[2]:
            self._waiting[packet_id] = (found[0], found[1], True)
            self._history.record("acked", self.name, (found[0],))
        self._write(packets.PubRel(packet_id))

    def _deliver(self, packet: packets.Publish) -> None:
        if packet.qos == 2 and packet.packet_id in self._received:
            self._write(packets.PubRec(packet.packet_id))
            return
        names = (packet.payload.decode(),)
        self._history.record("delivered", self.name, self.subscription, packet.topic, names)
        self._history.record("took", self.name, self.subscription, names)
        if packet.qos == 1:
            self._write(packets.PubAck(packet.packet_id))
        elif packet.qos == 2:
            self._received.add(packet.packet_id)
            self._write(packets.PubRec(packet.packet_id))


class _Attempt:
    """Attempt that replaces a future in `Network.connect`: without an answer the device retries."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._over = False

    def done(self) -> bool:
        return self._over

    def set_result(self, _result: Any) -> None:
        self._over = True

    def set_exception(self, _error: BaseException) -> None:
        self._over = True
        device = self._device
        device._scheduler.after(0.2 + device._random.random() * 0.3, device.process, device._connect)

    def give_up(self) -> None:
        if not self._over:
            self.set_exception(TimeoutError())
