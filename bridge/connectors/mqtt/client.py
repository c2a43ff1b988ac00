"""One connection to an MQTT broker: the asyncio side of `session`.

Whatever the peer does wrong ends the connection with one line for a person; the forwarders give again what has no
PUBACK, and the peer sends again what has none of ours.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

from bridge.client_attempt import Carriage, ConnectorError
from bridge.connecting import socket_to, streams_over
from bridge.connectors.coroutines import first_to_end
from bridge.connectors.limits import (
    CONNECT_TIMEOUT_S,
    MQTT_EARLY_BYTES_MAX,
    MQTT_PACKET_BYTES_MAX,
    MQTT_PACKET_COST_BYTES,
    READ_BYTES,
)
from bridge.connectors.messages import Translate
from bridge.connectors.mqtt import packets
from bridge.connectors.mqtt.session import OwedAnswers, PublishesUnderWay
from bridge.connectors.settings import Identity, MqttSettings
from bridge.dialer import Endpoint
from bridge.forwarders.inbox import Inbox, Incoming
from bridge.forwarders.outcome import Outcome
from bridge.limits import DIALED_UNREAD_BYTES_MAX
from bridge.message import RETAIN, Run
from bridge.transport.served import UnreadError
from bridge.transport.slow_lane import SLICE_S

_Answer = TypeVar("_Answer", packets.ConnectionAnswer, packets.SubscriptionAnswer)
_SUBSCRIBE_ID: Final = packets.PACKET_ID_MAX
_REFUSED: Final = 0x80
_CONNACK_HEADER: Final = 0x20
_TOPIC_SHOWN_MAX: Final = 200
"""Characters of a topic name in a line of the log."""
PINGS_UNHEARD_MAX: Final = 3
"""Pings within a keep alive: after so many without a word of the broker it is taken to be gone."""
_REASONS: Final = {
    1: "it does not speak MQTT 3.1.1",
    2: "it does not take our client id; set the connector's container to another name",
    3: "it is not available now",
    4: "it does not take the user name or password; see the connector's credentials",
    5: "it does not let us in; see the rights of this user or certificate there",
}
"""Return codes of CONNACK (MQTT 3.1.1 table 3.1)."""


class MqttClient:
    """`bridge.client_attempt.Client` of an MQTT broker; one for the connector's life."""

    def __init__(
        self,
        identity: Identity,
        settings: MqttSettings,
        *,
        translate: Translate,
        matches: Callable[[str, str], bool],
        tls: Callable[[], ssl.SSLContext] | None = None,
        interface: str | None = None,
    ) -> None:
        """`matches`: a filter, and a topic name. `tls` makes the context for one connection, and may raise OSError.
        `interface`: the network interface to leave by.
        """
        self._identity = identity
        self._interface = interface
        self._settings = settings
        self._matches = matches
        self._tls = tls
        self._publishes = PublishesUnderWay(translate, settings.in_flight_max)

    async def run(self, endpoint: Endpoint, carriage: Carriage) -> None:
        """One connection, from its first packet to its end."""
        context = self._tls() if endpoint.tls and self._tls is not None else None
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            opened = await socket_to(endpoint.host, endpoint.port, self._interface)
            reader, writer = await streams_over(opened, context, endpoint.host)
        connection = _Connection(
            self._identity, self._settings, self._publishes, self._matches, carriage, reader, writer
        )
        try:
            await connection.serve()
        finally:
            connection.write_answers()
            self._publishes.disconnected()
            if not writer.transport.is_closing():
                writer.write(packets.disconnect())
                writer.close()


class _Early:
    """Packets that came before the broker's answers to what we asked first."""

    def __init__(self) -> None:
        self.packets: list[packets.Packet] = []
        self._seen = 0
        """Those that were looked at."""
        self._bytes = 0

    async def add(self, packet: packets.Packet) -> None:
        """Raises ConnectorError where too much has come."""
        self.packets.append(packet)
        self._bytes += MQTT_PACKET_COST_BYTES
        if isinstance(packet, packets.Publication):
            self._bytes += len(packet.topic) + len(packet.payload)
        if self._bytes > MQTT_EARLY_BYTES_MAX:
            raise ConnectorError("the broker sends messages without end, and no answer to our subscription")

    def take(self, kind: type[_Answer]) -> _Answer | None:
        """The first of a kind, which is taken out; None: none has come."""
        for at in range(self._seen, len(self.packets)):
            packet = self.packets[at]
            if isinstance(packet, kind):
                del self.packets[at]
                self._seen = at
                return packet
        self._seen = len(self.packets)
        return None


class _Connection:
    """One connection's state."""

    def __init__(
        self,
        identity: Identity,
        settings: MqttSettings,
        publishes: PublishesUnderWay,
        matches: Callable[[str, str], bool],
        carriage: Carriage,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._identity = identity
        self._settings = settings
        self._publishes = publishes
        self._matches = matches
        self._carriage = carriage
        self._reader = reader
        self._writer = writer
        self._stream = packets.Packets()
        self._owed = OwedAnswers()
        self._answered: list[int] = []
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Event()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._listens = False
        """We wait for what the broker sends; not while we are at what it has sent."""
        self._unheard = 0
        """Pings that we sent while we listened, since the broker was heard."""
        self._inboxes: Sequence[Inbox] = carriage.inboxes

    async def serve(self) -> None:
        """Until the peer or the connection fails: ConnectorError or OSError."""
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            early = await self._open()
        self._publishes.connected(self._carriage.settle)
        self._carriage.up("an MQTT broker")
        await first_to_end(self._receive(early), self._send(), self._keep_alive(), self._fail())

    # --- opening ----------------------------------------------------------------------------------------------

    async def _open(self) -> list[packets.Packet]:
        """CONNECT and SUBSCRIBE; returns the packets that came before the peer's answers to both."""
        identity = self._identity
        self._writer.write(
            packets.connect(
                identity.client_id,
                clean_session=not self._inboxes,  # nothing to keep there, and what an earlier life left is dropped
                keep_alive_s=math.ceil(self._settings.keep_alive_s),
                username=identity.username,
                password=identity.password,
            )
        )
        early = _Early()
        await self._each(await self._greeting(), early.add)
        answer = await self._until(packets.ConnectionAnswer, early)
        if answer.code:
            raise ConnectorError(f"the broker refuses the connection: {_REASONS.get(answer.code, answer.code)}")
        if self._inboxes:
            wanted = list(dict.fromkeys((inbox.remote, min(inbox.qos, 1)) for inbox in self._inboxes))
            self._writer.write(packets.subscribe(_SUBSCRIBE_ID, wanted))
            granted = await self._until(packets.SubscriptionAnswer, early)
            refused = [name for (name, _), code in zip(wanted, granted.codes, strict=False) if code == _REFUSED]
            if refused:
                raise ConnectorError(f"the broker refuses a subscription to {refused[0]}: see our rights there")
        return early.packets

    async def _until(self, kind: type[_Answer], early: _Early) -> _Answer:
        """The first packet of a kind; those that come before it are kept."""
        while (found := early.take(kind)) is None:
            await self._each(await self._read(), early.add)
        return found

    # --- both ways --------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        """Whatever the forwarders have, as far as there is room under way."""
        while True:
            if self._publishes.room <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            for outgoing in await self._carriage.outgoing(self._publishes.room, READ_BYTES):
                self._writer.write(self._publishes.publish(outgoing))
            await self._writer.drain()

    async def _receive(self, early: Sequence[packets.Packet]) -> None:
        for packet in early:
            await self._take(packet)
        while True:
            await self._each(await self._read(), self._take)

    async def _each(self, data: bytes, take: Callable[[packets.Packet], Awaitable[None]]) -> None:
        """Have the packets these bytes complete taken, one after the other; others have their turns in between."""
        until = self._loop.time() + SLICE_S
        for packet in self._packets(data):
            await take(packet)
            if self._loop.time() > until:
                self._settle()
                await asyncio.sleep(0)
                until = self._loop.time() + SLICE_S
        self._settle()

    def _settle(self) -> None:
        """Tell the forwarders what the broker has acknowledged."""
        self._publishes.flush()
        if self._publishes.room > 0:
            self._room.set()

    async def _take(self, packet: packets.Packet) -> None:
        match packet:
            case packets.Acknowledgement():
                self._publishes.acknowledged(packet.packet_id)
            case packets.Publication():
                flags = packet.qos | (RETAIN if packet.retain else 0)
                await self._arrived(packet, Run(packet.topic, "", flags, b"", [packet.payload]))
            case packets.LargePublication():
                size = f"the message to {packet.topic[:_TOPIC_SHOWN_MAX]} has {packet.packet_bytes} bytes"
                fault = f"{size}; at most {MQTT_PACKET_BYTES_MAX} are taken"
                await self._arrived(packet, Run(packet.topic, "", 0, b"", []), fault)
            case packets.PingAnswer():
                pass
            case _:
                raise ConnectorError(f"the broker sent a {type(packet).__name__} nobody asked for")

    async def _arrived(
        self, publication: packets.Publication | packets.LargePublication, run: Run, fault: str = ""
    ) -> None:
        """Give a message to its forwarder. `fault`: why it cannot be taken."""
        token = None if publication.packet_id is None else self._owed.arrived(publication.packet_id)
        inbox = next((each for each in self._inboxes if self._matches(each.remote, publication.topic)), None)
        if inbox is None:  # of a forwarder that is gone; the broker kept its subscription
            self._answer(token)
            return
        incoming = Incoming(token, (publication.topic,), b"", (), run, fault=fault)
        await self._carriage.receive(inbox, incoming, partial(self._committed, token))

    def _committed(self, token: int | None, outcome: Outcome) -> None:
        if outcome is not Outcome.RELEASED:
            self._answer(token)
        elif not self._failed.done():  # it comes again over the next connection
            self._failed.set_exception(ConnectorError("a message was not taken here; it will be sent again"))

    def _answer(self, token: int | None) -> None:
        """Acknowledge it with the others of this turn; one with QoS 0 has no token."""
        if token is None:
            return
        if not self._answered:
            self._loop.call_soon(self.write_answers)
        self._answered.append(token)

    def write_answers(self) -> None:
        """Acknowledge what is here for good."""
        answered, self._answered = self._answered, []
        if not self._writer.transport.is_closing():
            self._writer.write(self._owed.committed(answered))

    async def _keep_alive(self) -> None:
        """A PINGREQ well before the broker misses us, and an end when it was silent for as long while we listened."""
        limit = self._settings.keep_alive_s
        while True:
            await asyncio.sleep(limit / PINGS_UNHEARD_MAX)
            if self._unheard >= PINGS_UNHEARD_MAX:
                raise ConnectorError(f"the broker has been silent for {limit:g} s")
            # A count, and no time: this process may have stood still, with the broker's answers in the socket.
            self._unheard += self._listens
            self._writer.write(packets.pingreq())

    async def _fail(self) -> None:
        await self._failed

    # --- bytes ------------------------------------------------------------------------------------------------

    async def _greeting(self) -> bytes:
        """The first bytes of the peer; of another protocol's server a packet would not end."""
        data = await self._read()
        if data[0] != _CONNACK_HEADER:
            raise ConnectorError("the peer does not speak MQTT 3.1.1")
        return data

    async def _read(self) -> bytes:
        self._listens = True
        data = await self._reader.read(READ_BYTES)
        self._listens, self._unheard = False, 0
        if not data:
            raise ConnectorError("the broker closed the connection")
        unread_bytes = self._writer.transport.get_write_buffer_size()
        if unread_bytes > DIALED_UNREAD_BYTES_MAX:
            raise UnreadError(unread_bytes)
        return data

    def _packets(self, data: bytes) -> Iterator[packets.Packet]:
        try:
            yield from self._stream.feed(data)
        except packets.MalformedPacket as error:
            raise ConnectorError(f"the broker sent what MQTT 3.1.1 does not allow: {error}") from None
