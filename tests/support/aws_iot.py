"""MQTT server with the documented rules of AWS IoT Core, written apart from the connector.

It takes MQTT 5 and 3.1.1 over TCP, and over a WebSocket with a request that is signed by Signature Version 4;
botocore, AWS's own library, computes the signature that a request must have. Quotas are those of the page "AWS IoT
Core endpoints and quotas"; a violation ends the connection. Nothing here was compared with AWS itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from wsproto import ConnectionType, WSConnection, events

from tests.support.mqtt_peer import Link, Sent
from tests.support.serving import serving

REGION = "eu-west-1"
KEY_ID, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
PAYLOAD_BYTES_MAX = 131_072
CONNACK_5 = b"\x20\x10\x00\x00\x0d\x21\x00\x64\x24\x01\x27\x00\x02\x48\x00\x13\x04\xb0"
"""Receive Maximum 100, Maximum QoS 1, Maximum Packet Size 149 504, Server Keep Alive 1 200 s."""


class Published(NamedTuple):
    """A message to the cloud."""

    topic: str
    body: bytes
    dup: bool


class Violation(Exception):
    """The client did what AWS IoT Core does not allow; its connection ends."""


class _Framed:
    """Writer of MQTT bytes into WebSocket frames."""

    def __init__(self, socket: WSConnection, writer: asyncio.StreamWriter) -> None:
        self._socket, self._writer = socket, writer

    def write(self, data: bytes) -> None:
        self._writer.write(self._socket.send(events.BytesMessage(data)))


class AwsIotCore:
    """Endpoint of one account."""

    def __init__(self, *, level_max: int = 5, websocket: bool = False, secret: str = SECRET) -> None:
        """`level_max`: 4 for a server that takes MQTT 3.1.1 only."""
        self.port = 0
        self.messages: list[Published] = []
        self.connects: list[int] = []
        """Protocol levels of accepted connections."""
        self.violations: list[str] = []
        self.paths: list[str] = []
        """Paths of requests for a WebSocket."""
        self.protocols: list[str | None] = []
        """Names that the TLS handshakes agreed on (ALPN)."""
        self.discards = 0
        """Messages that are discarded without a PUBACK, as those above the rate."""
        self._level_max = level_max
        self._websocket = websocket
        self._secret = secret
        self._writers: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[AwsIotCore]:
        async with serving(self._serve, tls=tls) as self.port:
            yield self

    def end(self) -> None:
        """End all connections."""
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        secured = writer.get_extra_info("ssl_object")
        if secured is not None:
            self.protocols.append(secured.selected_alpn_protocol())
        try:
            if self._websocket:
                await self._serve_frames(reader, writer)
            else:
                await self._speak(Link(reader, writer))
        except Violation as why:
            self.violations.append(str(why))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass

    # --- WebSocket --------------------------------------------------------------------------------------------

    async def _serve_frames(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        socket, content = WSConnection(ConnectionType.SERVER), asyncio.StreamReader()
        speaking: asyncio.Task[None] | None = None
        try:
            while data := await reader.read(65_536):
                socket.receive_data(data)
                for event in socket.events():
                    if isinstance(event, events.Request):
                        self.paths.append(event.target)
                        self._check_signature(event)
                        writer.write(socket.send(events.AcceptConnection(subprotocol="mqtt")))
                        framed: asyncio.StreamWriter = _Framed(socket, writer)  # type: ignore[assignment]
                        speaking = asyncio.ensure_future(self._speak(Link(content, framed)))
                    elif isinstance(event, events.BytesMessage):
                        content.feed_data(bytes(event.data))
                    elif isinstance(event, events.CloseConnection):
                        return
                if speaking is not None and speaking.done():
                    speaking.result()
                    return
        except Violation:
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            raise
        finally:
            content.feed_eof()
            if speaking is not None:
                speaking.cancel()
                await asyncio.gather(speaking, return_exceptions=True)

    def _check_signature(self, request: events.Request) -> None:
        url = urlsplit(f"https://{request.host}{request.target}")
        fields = dict(parse_qsl(url.query))
        signature, date = fields.pop("X-Amz-Signature", ""), fields.get("X-Amz-Date", "")
        if url.path != "/mqtt" or list(request.subprotocols) != ["mqtt"] or not date:
            raise Violation("not a signed request for MQTT")
        age_s = datetime.now(UTC).timestamp() - _seconds(date)
        if not -300 <= age_s <= int(fields["X-Amz-Expires"]):
            raise Violation("a signature that has ended")
        unsigned = url.query.partition("&X-Amz-Signature=")[0]
        signed = AWSRequest(method="GET", url=f"https://{request.host}/mqtt?{unsigned}")
        signed.context["timestamp"] = date
        expected = SigV4QueryAuth(Credentials(KEY_ID, self._secret), "iotdevicegateway", REGION)
        text = expected.string_to_sign(signed, expected.canonical_request(signed))
        if signature != expected.signature(text, signed):
            raise Violation("a signature that is not valid")

    # --- MQTT -------------------------------------------------------------------------------------------------

    async def _speak(self, link: Link) -> None:
        packet = await link.take()
        level = packet.body[6]
        if packet.kind != 1 or packet.body[:6] != b"\x00\x04MQTT" or level not in (4, 5):
            raise Violation(f"protocol level {level}")
        if level > self._level_max:
            link.writer.write(b"\x20\x02\x00\x01")
            return
        self.connects.append(level)
        link.writer.write(CONNACK_5 if level == 5 else b"\x20\x02\x00\x00")
        while (packet := await link.take()).kind != 14:
            if packet.kind == 3:
                self._published(link, packet, level)
            elif packet.kind == 12:
                link.writer.write(b"\xd0\x00")
            else:
                raise Violation(f"a packet of type {packet.kind}")

    def _published(self, link: Link, packet: Sent, level: int) -> None:
        body = packet.payload
        if level == 5:
            size = shift = at = 0
            while True:
                byte = body[at]
                size, shift, at = size | (byte & 0x7F) << shift, shift + 7, at + 1
                if byte < 0x80:
                    break
            body = body[at + size :]
        topic = packet.topic
        if packet.flags >> 1 & 3 != 1:
            raise Violation("not QoS 1")
        if len(body) > PAYLOAD_BYTES_MAX:
            raise Violation("a payload that is too large")
        counted = "/".join(topic.split("/")[3:]) if topic.startswith("$aws/rules/") else topic
        if counted.count("/") > 7 or len(counted.encode()) > 256 or (topic[0] == "$" and counted == topic):
            raise Violation(f"a topic that is not allowed: {topic}")
        if self.discards:
            self.discards -= 1
            return
        self.messages.append(Published(topic, body, packet.again))
        link.writer.write(b"\x40\x02" + packet.packet_id.to_bytes(2))


def _seconds(date: str) -> float:
    return datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
