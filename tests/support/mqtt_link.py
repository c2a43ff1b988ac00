"""One connection of a simulated device: MQTT 3.1.1 at QoS 1 in a few bytes, for thousands of them in one process.

paho's client has a thread for each connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable
from typing import Final, cast

CONNECT_S: Final = 30.0
ANSWER_S: Final = 30.0
"""Time for a PUBACK or SUBACK: a device that waits for longer connects again."""
KEEP_ALIVE_S: Final = 300


class LinkLost(Exception):
    """The connection has ended, or the gateway did not answer in time."""


class MqttLink(asyncio.Protocol):
    """Connection of one device. Methods raise `LinkLost`."""

    def __init__(self, take: Callable[[str, bytes], None]) -> None:
        """`take` gets topic and payload of each message that arrives."""
        self._take = take
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._next = 0
        self._waiting: dict[int, asyncio.Future[int]] = {}
        """Futures by packet identifier; 0 for CONNACK. The result is the code."""
        self.ended = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(
        cls, port: int, name: str, password: str, take: Callable[[str, bytes], None], user: str = ""
    ) -> MqttLink:
        """Connect to a port of this machine. Raises also `PermissionError` when the gateway refuses the login."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, link = await loop.create_connection(lambda: cls(take), "127.0.0.1", port)
                code = await link._request(0, _connect(name, user or name, password))
        except (OSError, TimeoutError) as error:
            raise LinkLost(str(error)) from None
        if code:
            link.cut()
            raise PermissionError(code)
        return link

    async def subscribe(self, pattern: str) -> bool:
        """Subscribe with QoS 1; return whether it was granted."""
        number = self._number()
        body = struct.pack(">H", number) + _text(pattern) + b"\x01"
        return await self._answered(number, _packet(0x82, body)) == 1

    async def publish(self, topic: str, payload: bytes) -> None:
        """Publish with QoS 1, and wait for the acknowledgement."""
        number = self._number()
        await self._answered(number, _packet(0x32, _text(topic) + struct.pack(">H", number) + payload))

    def send(self, topic: str, payload: bytes = b"") -> None:
        """Publish with QoS 0."""
        self._write(_packet(0x30, _text(topic) + payload))

    def cut(self) -> None:
        """End the connection without DISCONNECT, as a reset does."""
        if self._transport is not None:
            self._transport.abort()

    # --- of asyncio.Protocol --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.ended.done():
            self.ended.set_result(None)
        for each in self._waiting.values():
            if not each.done():
                each.set_exception(LinkLost("the connection has ended"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (found := _first_packet(self._buffer)) is not None:
            kind, begin, end = found
            body = bytes(self._buffer[begin:end])
            del self._buffer[:end]
            self._receive(kind, body)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _receive(self, kind: int, body: bytes) -> None:
        if kind == 0x20:
            self._settle(0, body[1])
        elif kind in (0x40, 0x90):
            self._settle(struct.unpack_from(">H", body)[0], body[2] if kind == 0x90 else 0)
        elif kind & 0xF0 == 0x30:
            (length,) = struct.unpack_from(">H", body)
            begin = 2 + length
            if kind & 0x06:
                self._write(b"\x40\x02" + body[begin : begin + 2])
                begin += 2
            self._take(body[2 : 2 + length].decode(), body[begin:])

    def _settle(self, number: int, code: int) -> None:
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(code)

    def _number(self) -> int:
        self._next = self._next % 0xFFFF + 1
        return self._next

    async def _answered(self, number: int, packet: bytes) -> int:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._request(number, packet)
        except TimeoutError:
            self.cut()
            raise LinkLost("no answer") from None

    async def _request(self, number: int, packet: bytes) -> int:
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._write(packet)
            return await waiting
        finally:
            del self._waiting[number]
            if waiting.done() and not waiting.cancelled():
                waiting.exception()  # retrieved, also when the timeout came first

    def _write(self, packet: bytes) -> None:
        if self._transport is None:
            raise LinkLost("the connection has ended")
        with contextlib.suppress(RuntimeError):
            self._transport.write(packet)


def _connect(name: str, user: str, password: str) -> bytes:
    flags = 0xC2  # user name, password, clean session
    head = _text("MQTT") + bytes((4, flags)) + struct.pack(">H", KEEP_ALIVE_S)
    return _packet(0x10, head + _text(name) + _text(user) + _text(password))


def _text(value: str) -> bytes:
    content = value.encode()
    return struct.pack(">H", len(content)) + content


def _packet(kind: int, body: bytes) -> bytes:
    length, rest = bytearray(), len(body)
    while True:
        rest, low = rest >> 7, rest & 0x7F
        length.append(low | (0x80 if rest else 0))
        if not rest:
            return bytes((kind,)) + bytes(length) + body


def _first_packet(data: bytearray) -> tuple[int, int, int] | None:
    """Return the first byte of the first packet, and begin and end of its body; None if it is not complete."""
    length = shift = 0
    for place in range(1, min(len(data), 5)):
        length |= (data[place] & 0x7F) << shift
        shift += 7
        if not data[place] & 0x80:
            end = place + 1 + length
            return (data[0], place + 1, end) if len(data) >= end else None
    return None
