"""One connection of a simulated device: MQTT 3.1.1 at QoS 1, on amqtt's packets, for thousands of them in one process.

amqtt's own client has several tasks for each connection, and drops a reading without PUBACK after 5 seconds
(`simulator/decisions`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Final, cast

from amqtt.mqtt.publish import PublishPacket

from bridge.connectors.mqtt import packets
from bridge.connectors.mqtt.packets import (
    AckReceived,
    ConnackReceived,
    MalformedBrokerPacket,
    Packet,
    Packets,
    PublishReceived,
    SubackReceived,
)
from simulator.links import DeviceLinkFault, LinkLogin, LinkLost, LinkPlace

CONNECT_S: Final = 30.0
ANSWER_S: Final = 30.0
"""Time for a PUBACK or SUBACK: a device that waits for longer connects again."""
KEEP_ALIVE_S: Final = 120
"""A link without other packets sends PINGREQ in half of this time."""
_CONNACK: Final = 0
"""Key of the wait for CONNACK: no packet identifier."""
_REFUSED: Final = frozenset({4, 5})
"""Return codes of CONNACK for user and password (MQTT 3.1.1 section 3.2.2.3)."""

TakeMessage = Callable[["MqttLink", str, bytes], None]
"""Takes topic and payload of a message, and the link over which it came."""


class MqttLink(asyncio.Protocol):
    """Connection of one device. Methods raise `LinkLost`."""

    def __init__(self, take: TakeMessage) -> None:
        """`take` gets each message that arrives."""
        self._take = take
        self._packets = Packets()
        self._transport: asyncio.Transport | None = None
        self._next = 0
        self._waiting: dict[int, asyncio.Future[int]] = {}
        """Futures by packet identifier. The result is the code of the answer."""
        self._written = False
        """True if something was written since the last look of the keep-alive."""
        self._timer: asyncio.TimerHandle | None = None
        self._fault = DeviceLinkFault.CLOSED
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()

    @classmethod
    async def open(cls, place: LinkPlace, login: LinkLogin, take: TakeMessage) -> MqttLink:
        """Connect and log in."""
        loop = asyncio.get_running_loop()
        link: MqttLink | None = None
        try:
            async with asyncio.timeout(CONNECT_S):
                _, link = await loop.create_connection(
                    lambda: cls(take),
                    place.host,
                    place.port,
                    ssl=place.tls,
                    server_hostname=place.host if place.tls is not None else None,
                )
                code = await link._request(_CONNACK, _connect(login))
        except ssl.SSLCertVerificationError as error:
            raise LinkLost(DeviceLinkFault.NOT_TRUSTED, error.verify_message) from None
        except TimeoutError:
            if link is not None:
                link.cut()
            raise LinkLost(DeviceLinkFault.NO_ANSWER) from None
        except OSError as error:
            raise LinkLost(DeviceLinkFault.UNREACHABLE, str(error)) from None
        if code:
            link.cut()
            raise LinkLost(
                DeviceLinkFault.LOGIN_REFUSED if code in _REFUSED else DeviceLinkFault.BUSY, f"CONNACK {code}"
            )
        link._keep_alive()
        return link

    async def subscribe(self, pattern: str) -> bool:
        """Subscribe with QoS 1; return whether it was granted."""
        number = self._number()
        return await self._answered(number, packets.subscribe(number, [(pattern, 1)])) == 1

    async def publish(self, topic: str, payload: bytes) -> None:
        """Publish with QoS 1, and wait for the acknowledgement."""
        number = self._number()
        await self._answered(number, packets.publish(topic, payload, number, dup=False, retain=False))

    def send(self, topic: str, payload: bytes = b"") -> None:
        """Publish with QoS 0."""
        self._write(bytes(PublishPacket.build(topic, payload, None, False, 0, False).to_bytes()))

    def close(self) -> None:
        """Say goodbye and end the connection."""
        with contextlib.suppress(LinkLost):
            self._write(packets.disconnect())
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """End the connection without DISCONNECT, as a reset does."""
        if self._transport is not None:
            self._transport.abort()

    # --- of asyncio.Protocol --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if not self.ended.done():
            self.ended.set_result(None)
        for each in self._waiting.values():
            if not each.done():
                each.set_exception(LinkLost(self._fault))

    def data_received(self, data: bytes) -> None:
        try:
            for packet in self._packets.feed(data):
                self._receive(packet)
        except MalformedBrokerPacket:
            self._fault = DeviceLinkFault.NOT_MQTT
            self.cut()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _receive(self, packet: Packet) -> None:
        match packet:
            case AckReceived(packet_id):
                self._settle(packet_id, 0)
            case ConnackReceived(_, code):
                self._settle(_CONNACK, code)
            case SubackReceived(packet_id, codes):
                self._settle(packet_id, codes[0])
            case PublishReceived(packet_id, topic, payload):
                self._take(self, topic, payload)
                if packet_id is not None:
                    with contextlib.suppress(LinkLost):
                        self._write(packets.puback(packet_id))

    def _settle(self, number: int, code: int) -> None:
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(code)

    def _number(self) -> int:
        self._next = self._next % packets.PACKET_ID_MAX + 1
        return self._next

    def _keep_alive(self) -> None:
        """Send PINGREQ if nothing else was written, and look again later."""
        if self._transport is None:
            return
        if not self._written:
            self._write(packets.pingreq())
        self._written = False
        self._timer = asyncio.get_running_loop().call_later(KEEP_ALIVE_S / 2, self._keep_alive)

    async def _answered(self, number: int, packet: bytes) -> int:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._request(number, packet)
        except TimeoutError:
            self._fault = DeviceLinkFault.NO_ANSWER
            self.cut()
            raise LinkLost(DeviceLinkFault.NO_ANSWER) from None

    async def _request(self, number: int, packet: bytes) -> int:
        waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        try:
            self._write(packet)
            return await waiting
        finally:
            del self._waiting[number]
            if waiting.done() and not waiting.cancelled():
                waiting.exception()  # retrieved, also when the timeout came first

    def _write(self, packet: bytes) -> None:
        if self._transport is None:
            raise LinkLost(self._fault)
        self._written = True
        with contextlib.suppress(RuntimeError):
            self._transport.write(packet)


def _connect(login: LinkLogin) -> bytes:
    return packets.connect(
        login.device,
        clean_session=not login.keeps_session,
        keep_alive_s=KEEP_ALIVE_S,
        username=login.user or None,
        password=login.password if login.user else None,
    )
