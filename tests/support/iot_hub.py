"""MQTT server with the documented rules of Azure IoT Hub (learn.microsoft.com/azure/iot/iot-mqtt-connect-to-iot-hub and
iot-hub/authenticate-authorize-sas), written apart from the connector.

It takes MQTT 3.1.1 only, one connection for each device, and the documented user names, tokens and topics. Anything
else ends the connection, which is all that a device of IoT Hub learns. Nothing here was compared with a real hub.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import time
from collections.abc import AsyncIterator
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from tests.support.mqtt_peer import Link, Sent
from tests.support.serving import serving

HOST = "contoso.azure-devices.net"
KEY = base64.b64encode(b"the key of one device").decode()
MESSAGE_BYTES_MAX = 262_144


class Received(NamedTuple):
    """A message to the cloud."""

    body: bytes
    properties: dict[str, str]
    """Application properties, and system properties by their keys in the topic (`$.mid`)."""
    dup: bool


class Violation(Exception):
    """The client did what IoT Hub does not allow; its connection ends."""


class _Fields:
    """Reads the fields of a CONNECT packet."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def take(self, count: int) -> bytes:
        taken, self._body = self._body[:count], self._body[count:]
        assert len(taken) == count
        return taken

    def text(self) -> str:
        return self.take(int.from_bytes(self.take(2))).decode()


class IotHub:
    """One device of a hub, and its modules."""

    def __init__(self, device: str = "gw1", module: str | None = None, key: str = KEY) -> None:
        self.port = 0
        self.messages: list[Received] = []
        self.connects = 0
        """Accepted connections."""
        self.passwords: list[str] = []
        self.refused: list[str] = []
        """Reasons of refused connections, and of ended ones."""
        self.keep_alives: list[int] = []
        self.encodes = True
        """False: the device's identifier is not encoded in the topics of messages to it."""
        self.poison = b""
        """Body of messages for which the hub ends the connection, as for one that it cannot read."""
        self.acknowledge = True
        """False: messages to the cloud get no PUBACK."""
        self._client = device if module is None else f"{device}/{module}"
        path = f"devices/{quote(device, safe='')}" + ("" if module is None else f"/modules/{quote(module, safe='')}")
        self.events = f"{path}/messages/events/"
        """Topic for messages to the cloud."""
        self._filter = f"{path}/messages/devicebound/#" if module is None else f"{path}/#"
        self._inbound = f"{path}/messages/devicebound/" if module is None else f"{path}/inputs/in1/"
        self._resource = f"{HOST}/devices/{device}" + ("" if module is None else f"/modules/{module}")
        self._key = base64.b64decode(key)
        self._queue: dict[int, tuple[bytes, str]] = {}
        """Messages for the device without a PUBACK."""
        self._packet_ids = 0
        self._subscribed = False
        self._current: Link | None = None

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[IotHub]:
        async with serving(self._serve) as self.port:
            yield self

    def send(self, body: bytes, properties: str = "") -> None:
        """Queue a message for the device; `properties` is encoded."""
        self._packet_ids += 1
        self._queue[self._packet_ids] = (body, properties)
        if self._subscribed and self._current is not None:
            self._deliver(self._current, self._packet_ids)

    @property
    def unsettled(self) -> int:
        """Messages for the device that it has not acknowledged."""
        return len(self._queue)

    # --- one connection ---------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer)
        try:
            expires_s = self._connect(link, await link.take())
            async with asyncio.timeout(max(0.0, expires_s - time.time())):
                while True:
                    packet = await link.take()
                    if packet.kind == 14:
                        break
                    self._handle(link, packet)
        except TimeoutError:
            self.refused.append("the token has expired")
        except Violation as why:
            self.refused.append(str(why))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            if self._current is link:
                self._current = None

    def _connect(self, link: Link, packet: Sent) -> float:
        """Accept a client; return the time at which its token ends."""
        fields = _Fields(packet.body)
        if packet.kind != 1 or fields.take(7) != b"\x00\x04MQTT\x04":
            raise Violation("not MQTT 3.1.1")
        flags, keep_alive_s = fields.take(1)[0], int.from_bytes(fields.take(2))
        client_id = fields.text()
        username = fields.text() if flags & 0x80 else ""
        password = fields.text() if flags & 0x40 else ""
        expires_s = self._expiry(password)
        known = client_id == self._client and username == f"{HOST}/{self._client}/?api-version=2021-04-12"
        if not known or expires_s <= time.time():
            link.writer.write(b"\x20\x02\x00\x05")
            raise Violation("not authorized")
        if self._current is not None:
            self._current.writer.close()  # one connection for each device
        present = self._subscribed and not flags & 2
        if not present:
            self._subscribed = False
        self._current = link
        self.connects += 1
        self.passwords.append(password)
        self.keep_alives.append(keep_alive_s)
        link.writer.write(bytes((0x20, 2, present, 0)))
        if present:
            for packet_id in list(self._queue):
                self._deliver(link, packet_id)
        return expires_s

    def _expiry(self, password: str) -> float:
        """Return the time at which a token ends; 0 for one that is not valid for this device."""
        kind, _, rest = password.partition(" ")
        parts = dict(pair.split("=", 1) for pair in rest.split("&") if "=" in pair)
        if kind != "SharedAccessSignature" or set(parts) != {"sr", "sig", "se"}:
            return 0.0
        signed = f"{parts['sr']}\n{parts['se']}".encode()
        wanted = base64.b64encode(hmac.digest(self._key, signed, "sha256")).decode()
        good = hmac.compare_digest(wanted, unquote(parts["sig"])) and unquote(parts["sr"]) == self._resource
        return float(parts["se"]) if good else 0.0

    def _handle(self, link: Link, packet: Sent) -> None:
        match packet.kind:
            case 3:
                self._published(link, packet)
            case 4:
                self._queue.pop(packet.packet_id, None)
            case 8:
                self._subscribe(link, packet)
            case 12:
                link.writer.write(b"\xd0\x00")
            case other:
                raise Violation(f"a packet of type {other}")

    def _published(self, link: Link, packet: Sent) -> None:
        qos = packet.flags >> 1 & 3
        if qos == 2:
            raise Violation("QoS 2")
        topic, body = packet.topic, packet.payload
        if not qos:
            body = packet.body[2 + int.from_bytes(packet.body[:2]) :]
        if not topic.startswith(self.events) or "/" in topic.removeprefix(self.events):
            raise Violation(f"a topic that IoT Hub does not have: {topic}")
        if self.poison and body == self.poison:
            raise Violation("a message that the hub does not take")
        bag = topic.removeprefix(self.events).replace("+", "%2B")  # parse_qsl would read it as a space
        properties = dict(parse_qsl(bag, keep_blank_values=True, strict_parsing=bool(bag)))
        size = len(body) + sum(
            len(value) + (0 if name.startswith("$.") else len(name)) for name, value in properties.items()
        )
        if size > MESSAGE_BYTES_MAX:
            raise Violation("a message that is too large")
        if "" in properties or len(properties.get("$.cid", "")) > 128 or not properties.get("$.cid", "x").isprintable():
            raise Violation("a property that IoT Hub does not take")
        if packet.flags & 1:
            properties["mqtt-retain"] = "true"
        self.messages.append(Received(body, properties, packet.again))
        if qos and self.acknowledge:
            link.writer.write(b"\x40\x02" + packet.packet_id.to_bytes(2))

    def _subscribe(self, link: Link, packet: Sent) -> None:
        length = int.from_bytes(packet.body[2:4])
        pattern, qos = packet.body[4 : 4 + length].decode(), packet.body[4 + length]
        good = pattern == self._filter
        link.writer.write(b"\x90\x03" + packet.body[:2] + bytes((min(qos, 1) if good else 0x80,)))
        if good:
            self._subscribed = True
            for packet_id in list(self._queue):
                self._deliver(link, packet_id)

    def _deliver(self, link: Link, packet_id: int) -> None:
        body, properties = self._queue[packet_id]
        topic = ((self._inbound if self.encodes else unquote(self._inbound)) + properties).encode()
        content = len(topic).to_bytes(2) + topic + packet_id.to_bytes(2) + body
        length = bytearray()
        left = len(content)
        while True:
            left, low = divmod(left, 128)
            length.append(low | (0x80 if left else 0))
            if not left:
                break
        link.writer.write(b"\x32" + bytes(length) + content)
