"""MQTT broker controlled by a test, packet by packet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

from tests.support.serving import serving

CONNACK = b"\x20\x02\x00\x00"
SUBACK = b"\x90\x03\xff\xff\x01"


class Sent(NamedTuple):
    """A packet of the client."""

    kind: int
    flags: int
    body: bytes

    @property
    def packet_id(self) -> int:
        """Packet identifier of a PUBLISH with QoS 1, or of an acknowledgement."""
        at = 2 + int.from_bytes(self.body[:2]) if self.kind == 3 else 0
        return int.from_bytes(self.body[at : at + 2])

    @property
    def topic(self) -> str:
        return self.body[2 : 2 + int.from_bytes(self.body[:2])].decode()

    @property
    def payload(self) -> bytes:
        return self.body[4 + int.from_bytes(self.body[:2]) :]

    @property
    def again(self) -> bool:
        return bool(self.flags & 8)


def puback(packet_id: int) -> bytes:
    return b"\x40\x02" + packet_id.to_bytes(2)


def publish(packet_id: int, topic: bytes, payload: bytes, flags: int = 2) -> bytes:
    name = len(topic).to_bytes(2) + topic + (packet_id.to_bytes(2) if flags & 6 else b"")
    assert len(name) + len(payload) < 128
    return bytes((0x30 | flags, len(name) + len(payload))) + name + payload


class Link:
    """One connection of the client, on the broker's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def take(self) -> Sent:
        """Return the next packet; IncompleteReadError at the end."""
        first = (await self._reader.readexactly(1))[0]
        length = shift = 0
        while True:
            byte = (await self._reader.readexactly(1))[0]
            length |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        return Sent(first >> 4, first & 15, await self._reader.readexactly(length))

    async def opened(self, *, subscribed: bool = False) -> Sent:
        """Accept the client; return its CONNECT."""
        connect = await self.take()
        assert connect.kind == 1
        self.writer.write(CONNACK)
        if subscribed:
            assert (await self.take()).kind == 8
            self.writer.write(SUBACK)
        return connect

    async def left(self) -> list[Sent]:
        """Return the packets until the client disconnects."""
        found: list[Sent] = []
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                found.append(await self.take())
        return found


class MqttPeer:
    """Listener; `link` waits for the client's next connection."""

    def __init__(self) -> None:
        self.port = 0
        self._links: asyncio.Queue[Link] = asyncio.Queue()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[MqttPeer]:
        async with serving(self._serve) as self.port:
            yield self

    async def link(self) -> Link:
        async with asyncio.timeout(10):
            return await self._links.get()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._links.put_nowait(Link(reader, writer))
        await writer.wait_closed()  # the user of the link ends it
