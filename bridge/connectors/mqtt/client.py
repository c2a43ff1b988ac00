"""Connection to an MQTT broker: the asyncio side of `session`.

A protocol error of the peer ends the connection with one line for operators. The forwarders then send unacknowledged
messages again, and so does the peer.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from bridge.client_attempt import Answered, ConnectorError
from bridge.connectors.coroutines import first_to_end
from bridge.connectors.limits import (
    CONNECT_TIMEOUT_S,
    MQTT_EARLY_BYTES_MAX,
    MQTT_PACKET_BYTES_MAX,
    MQTT_PACKET_COST_BYTES,
    READ_BYTES,
    TOKEN_RENEWAL_TIMEOUT_S,
)
from bridge.connectors.messages import Translate
from bridge.connectors.mqtt import packets
from bridge.connectors.mqtt.arrival import arrival, not_wanted, too_large
from bridge.connectors.mqtt.dialects import DIALECTS, MqttDialect
from bridge.connectors.mqtt.opening import MqttReader, MqttWriter, open_streams
from bridge.connectors.mqtt.service_terms import ORDINARY_TERMS, ServiceTerms
from bridge.connectors.mqtt.session import InFlightPublishes, PendingAnswers
from bridge.connectors.mqtt.suspect import SuspectMessage
from bridge.connectors.settings import ClientIdentity, MqttSettings
from bridge.dialer import PeerEndpoint
from bridge.forwarders.inbox import ForwarderInbox, Incoming
from bridge.forwarders.outbox import Outgoing
from bridge.forwarders.outcome import ForwardOutcome
from bridge.limits import DIALED_UNREAD_BYTES_MAX
from bridge.topic_filter import without_share
from bridge.transport.served import UnreadError
from bridge.transport.slow_lane import SLICE_S

_Answer = TypeVar("_Answer", packets.ConnackReceived, packets.SubackReceived)
_SUBSCRIBE_ID: Final = packets.PACKET_ID_MAX
_REFUSED: Final = 0x80
_CONNACK_HEADER: Final = 0x20
_NOT_THIS_VERSION: Final = frozenset((1, 0x84))
"""CONNACK codes of an unsupported version, in MQTT 3.1.1 and MQTT 5."""
_NOT_NOW: Final = frozenset((0x80, 0x97))
"""PUBACK codes for a message that the broker may take later: unspecified error, quota exceeded."""
_NOT_SETTLED: Final = "the token expires before all messages are acknowledged; they are sent again"
PINGS_UNHEARD_MAX: Final = 3
"""Pings within a keep-alive: after this many without a packet of the broker, the connection counts as lost."""
_OLDER_REASON: Final = {0x85: 2, 0x86: 4, 0x87: 5, 0x88: 3, 0x89: 3, 0x8A: 5, 0x8C: 4}
"""Return codes of MQTT 3.1.1 by the equivalent reason code of MQTT 5."""
_REASONS: Final = {
    1: "it speaks neither MQTT 5 nor MQTT 3.1.1",
    2: "it rejects our client id; set the connector's container to another name",
    3: "it is not available now",
    4: "bad user name or password; check the connector's credentials",
    5: "not authorized; check the rights of this user or certificate at the broker",
}
"""Return codes of CONNACK (MQTT 3.1.1 table 3.1)."""


class MqttTraffic(Protocol):
    """Part of `bridge.client_attempt.ConnectorTraffic` that this client uses."""

    inboxes: Sequence[ForwarderInbox]

    def up(self, peer: str) -> None: ...

    async def outgoing(self, messages_max: int, bytes_max: int) -> list[Outgoing]: ...

    def settle(self, ticket: int, outcome: ForwardOutcome, why: str = "", count: int | None = None) -> None: ...

    async def receive(self, inbox: ForwarderInbox, message: Incoming, answered: Answered) -> None: ...


class _PeerEndedError(ConnectorError):
    """The broker ended the connection."""


class _NotUnderstoodError(ConnectorError):
    """The broker's answer to CONNECT suggests that it does not support this version."""


class _Subscribed:
    """Subscriptions of the session at the broker that this process has made."""

    def __init__(self) -> None:
        self.dialect: MqttDialect | None = None
        self.filters: list[tuple[str, int]] = []


class MqttClient:
    """`bridge.client_attempt.ConnectorClient` of an MQTT broker; lives as long as the connector."""

    def __init__(
        self,
        identity: ClientIdentity,
        settings: MqttSettings,
        *,
        translate: Translate,
        matches: Callable[[str, str], bool],
        now_ns: Callable[[], int],
        tls: Callable[[], ssl.SSLContext] | None = None,
        interface: str | None = None,
        dialects: Sequence[MqttDialect] = DIALECTS,
        terms: ServiceTerms = ORDINARY_TERMS,
    ) -> None:
        """`matches`: of a filter and a topic name; `now_ns` is UTC. `tls` creates the context for one connection, and
        may raise OSError. `interface`: the network interface to use. `dialects` are tried in order at each attempt.
        `terms` are those of a cloud service.
        """
        self._dialects = dialects
        self._terms = terms
        self._subscribed = _Subscribed()
        self._identity = identity
        self._interface = interface
        self._settings = settings
        self._matches = matches
        self._tls = tls
        self._publishes = InFlightPublishes(
            translate,
            settings.in_flight_max if terms.quota is None else min(settings.in_flight_max, terms.quota.in_flight_max),
            now_ns,
        )
        if terms.disconnects:
            self._publishes.watch(SuspectMessage())

    async def run(self, endpoint: PeerEndpoint, traffic: MqttTraffic) -> None:
        """Run one connection, from its first packet to its end, or several where a password has to be renewed."""
        await self._connect(endpoint, traffic)
        while self._terms.renew_after_s is not None:  # it returned without an error
            await self._connect(endpoint, traffic)

    async def _connect(self, endpoint: PeerEndpoint, traffic: MqttTraffic) -> None:
        """Run one connection, in the best version that the broker supports."""
        for dialect in self._dialects[:-1]:
            try:
                await self._speak(dialect, endpoint, traffic)
            except _NotUnderstoodError:
                continue
            return
        await self._speak(self._dialects[-1], endpoint, traffic)

    async def _speak(self, dialect: MqttDialect, endpoint: PeerEndpoint, traffic: MqttTraffic) -> None:
        terms, loop = self._terms, asyncio.get_running_loop()
        renew_at = None if terms.renew_after_s is None else loop.time() + terms.renew_after_s
        identity = self._identity if terms.sign is None else terms.sign(self._identity)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await open_streams(endpoint, self._tls, self._interface, terms)
        connection = _Connection(
            identity,
            self._settings,
            self._publishes,
            self._matches,
            traffic,
            reader,
            writer,
            dialect,
            self._subscribed,
            terms,
            renew_at,
        )
        try:
            await connection.serve()
        except (_PeerEndedError, ConnectionError):
            self._publishes.peer_ended()
            raise
        finally:
            connection.write_answers()
            self._publishes.disconnected()
            if not writer.transport.is_closing():
                writer.write(packets.disconnect())
                writer.close()


class _Early:
    """Packets that arrived before the broker's answers to CONNECT and SUBSCRIBE."""

    def __init__(self) -> None:
        self.packets: list[packets.Packet] = []
        self._seen = 0
        """Number of packets that `take` has checked."""
        self._bytes = 0

    async def add(self, packet: packets.Packet) -> None:
        """Add a packet. Raises ConnectorError when there are too many bytes."""
        self.packets.append(packet)
        self._bytes += MQTT_PACKET_COST_BYTES
        if isinstance(packet, packets.PublishReceived):
            self._bytes += len(packet.topic) + len(packet.payload)
        if self._bytes > MQTT_EARLY_BYTES_MAX:
            raise ConnectorError("the broker sends too many messages before its answer to our subscription")

    def take(self, kind: type[_Answer]) -> _Answer | None:
        """Remove and return the first packet of a kind; None without one."""
        for at in range(self._seen, len(self.packets)):
            packet = self.packets[at]
            if isinstance(packet, kind):
                del self.packets[at]
                self._seen = at
                return packet
        self._seen = len(self.packets)
        return None


class _Connection:
    """State of one connection."""

    def __init__(
        self,
        identity: ClientIdentity,
        settings: MqttSettings,
        publishes: InFlightPublishes,
        matches: Callable[[str, str], bool],
        traffic: MqttTraffic,
        reader: MqttReader,
        writer: MqttWriter,
        dialect: MqttDialect,
        subscribed: _Subscribed,
        service: ServiceTerms,
        renew_at: float | None,
    ) -> None:
        """`renew_at`: time of the loop at which the password has to be renewed; None: never."""
        self._dialect, self._subscribed = dialect, subscribed
        self._service, self._renew_at = service, renew_at
        self._filters = [(without_share(inbox.remote), inbox) for inbox in traffic.inboxes]
        self._draining = False
        """True while waiting for the last acknowledgements: messages that arrive are left to the next connection."""
        self._terms = packets.ConnackTerms()
        self._repeats = False
        """We have subscribed, so the broker may send retained messages again."""
        self._identity = identity
        self._settings = settings
        self._publishes = publishes
        self._matches = matches
        self._traffic = traffic
        self._reader = reader
        self._writer = writer
        self._stream = packets.Packets(read=dialect.decode)
        self._pending_answers = PendingAnswers()
        self._answered: list[int] = []
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Event()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._listens = False
        """True while waiting for bytes of the broker; False while handling them."""
        self._unheard = 0
        """Pings sent while listening, since the last bytes of the broker."""
        self._inboxes: Sequence[ForwarderInbox] = traffic.inboxes

    async def serve(self) -> None:
        """Run until the password has to be renewed. Raises ConnectorError or OSError when the peer or the connection
        fails."""
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            early = await self._open()
        self._publishes.connected(self._traffic.settle, self._dialect, self._terms)
        self._traffic.up(self._dialect.peer)
        tasks = [self._receive(early), self._send_in_time(), self._keep_alive(), self._fail()]
        if self._service.quota is not None:
            tasks.append(self._watch_acknowledgements(self._service.quota.acknowledgement_timeout_s))
        await first_to_end(*tasks)
        if self._outstanding:  # a message arrived in the meantime; its answer must not reach the next connection
            raise ConnectorError(_NOT_SETTLED)

    # --- opening ----------------------------------------------------------------------------------------------

    async def _open(self) -> list[packets.Packet]:
        """Send CONNECT and SUBSCRIBE; return the packets that arrived before the answers to both."""
        # without inboxes no session is needed, and an earlier one is dropped
        clean, keep_alive_s = not self._inboxes, math.ceil(self._settings.keep_alive_s)
        self._writer.write(self._dialect.connect(self._identity, clean=clean, keep_alive_s=keep_alive_s))
        early = _Early()
        await self._each(await self._greeting(), early.add)
        answer = await self._until(packets.ConnackReceived, early)
        self._judge(answer)
        self._terms = answer.terms or self._terms
        if self._inboxes:
            await self._subscribe(early, present=answer.session_present)
        return early.packets

    def _judge(self, answer: packets.ConnackReceived) -> None:
        """Raise ConnectorError when the broker refuses the connection."""
        code = answer.code
        if code:
            usual = _REASONS.get(_OLDER_REASON.get(code, code)) or answer.reason or f"reason {code}"
            reason = self._dialect.refusals.get(code, usual)
            kind = _NotUnderstoodError if code in _NOT_THIS_VERSION else ConnectorError
            raise kind(f"the broker refuses the connection: {reason}")
        if self._dialect.names and answer.terms is None:
            raise _NotUnderstoodError("the broker answered in an older MQTT version than requested")
        if answer.terms is not None and not answer.terms.qos_max:
            raise ConnectorError("the broker does not support QoS 1, which forwarding needs for acknowledgements")

    async def _subscribe(self, early: _Early, *, present: bool) -> None:
        """Subscribe, unless the session has the same subscriptions and the broker would send retained messages again.
        With MQTT 5 it does not (Retain Handling 1)."""
        wanted = list(dict.fromkeys((inbox.remote, min(inbox.qos, 1)) for inbox in self._inboxes))
        known = self._subscribed
        if present and not self._dialect.names and (known.dialect, known.filters) == (self._dialect, wanted):
            return
        self._repeats = not (present and self._dialect.names)
        self._writer.write(self._dialect.subscribe(_SUBSCRIBE_ID, wanted))
        granted = await self._until(packets.SubackReceived, early)
        refused = [name for (name, _), code in zip(wanted, granted.codes, strict=False) if code >= _REFUSED]
        if refused:
            raise ConnectorError(f"the broker refuses a subscription to {refused[0]}: check our rights at the broker")
        known.dialect, known.filters = self._dialect, wanted

    async def _until(self, kind: type[_Answer], early: _Early) -> _Answer:
        """Return the first packet of a kind; keep the packets before it."""
        while (found := early.take(kind)) is None:
            await self._each(await self._read(), early.add)
        return found

    # --- both ways --------------------------------------------------------------------------------------------

    async def _send_in_time(self) -> None:
        """Send until the password has to be renewed, then wait for the outstanding acknowledgements of both sides.

        So the next connection continues without a repeated message. Raises ConnectorError when they do not come.
        """
        try:
            async with asyncio.timeout_at(self._renew_at) as limit:
                await self._send()
        except TimeoutError:
            if not limit.expired():
                raise  # of the operating system: the connection is lost
        self._draining = True
        try:
            async with asyncio.timeout(TOKEN_RENEWAL_TIMEOUT_S):
                while self._outstanding:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            raise ConnectorError(_NOT_SETTLED) from None

    @property
    def _outstanding(self) -> int:
        """Messages without an acknowledgement, in both directions."""
        return self._publishes.sent + len(self._pending_answers)

    async def _send(self) -> None:
        """Send the forwarders' messages, within the limit of unacknowledged ones."""
        while True:
            if self._publishes.room <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            quota, room = self._service.quota, self._publishes.room
            messages = size = 0
            taken = await self._traffic.outgoing(
                room if quota is None else min(room, quota.messages_at_once), READ_BYTES
            )
            for outgoing in taken:
                written = self._publishes.publish(outgoing)
                self._writer.write(written)
                messages, size = messages + len(outgoing), size + len(written)
            await self._writer.drain()
            if quota is not None:
                await asyncio.sleep(quota.pause_s(messages, size))

    async def _watch_acknowledgements(self, timeout_s: float) -> None:
        """Fail when a message has no PUBACK for the timeout: the service has discarded it."""
        while True:
            oldest = self._publishes.oldest
            await asyncio.sleep(timeout_s)
            unsent = self._writer.transport.get_write_buffer_size()
            if oldest is not None and oldest is self._publishes.oldest and not unsent:
                raise ConnectorError(f"no PUBACK for a message in {timeout_s:g} s; it is sent again")

    async def _receive(self, early: Sequence[packets.Packet]) -> None:
        for packet in early:
            await self._take(packet)
        while True:
            await self._each(await self._read(), self._take)

    async def _each(self, data: bytes, take: Callable[[packets.Packet], Awaitable[None]]) -> None:
        """Handle the packets that these bytes complete, one by one, and yield to other tasks after each slice."""
        until = self._loop.time() + SLICE_S
        for packet in self._packets(data):
            await take(packet)
            if self._loop.time() > until:
                self._settle()
                await asyncio.sleep(0)
                until = self._loop.time() + SLICE_S
        self._settle()

    def _settle(self) -> None:
        """Settle the messages that the broker has acknowledged."""
        self._publishes.flush()
        if self._publishes.room > 0:
            self._room.set()

    async def _take(self, packet: packets.Packet) -> None:
        match packet:
            case packets.AckReceived():
                if packet.code in _NOT_NOW:
                    raise ConnectorError(f"the broker cannot accept a message now: reason {packet.code}")
                refused = packet.code >= _REFUSED
                why = f"the broker refuses it: reason {packet.code} of PUBACK" if refused else ""
                self._publishes.acknowledged(packet.packet_id, why)
            case packets.PublishReceived() | packets.LargePublishReceived():
                await self._arrived(packet)
            case packets.PingrespReceived():
                pass
            case packets.DisconnectReceived():
                raise _PeerEndedError(f"the broker ends the connection: {packet.reason or f'reason {packet.code}'}")
            case _:
                raise ConnectorError(f"the broker sent an unexpected packet: {type(packet).__name__}")

    async def _arrived(self, publication: packets.PublishReceived | packets.LargePublishReceived) -> None:
        """Give a message to its forwarder."""
        if self._draining and publication.packet_id is not None:
            return  # it has no PUBACK, so it is sent again over the next connection
        token = None if publication.packet_id is None else self._pending_answers.arrived(publication.packet_id)
        inbox = next((each for pattern, each in self._filters if self._matches(pattern, publication.topic)), None)
        if inbox is None:  # of a removed forwarder; the broker has kept its subscription
            if not self._inboxes:
                self._answer(token)
                return
            inbox, incoming = self._inboxes[0], not_wanted(token, publication)
        elif isinstance(publication, packets.LargePublishReceived):
            incoming = too_large(token, publication, MQTT_PACKET_BYTES_MAX)
        else:
            incoming = arrival(token, publication, repeats=self._repeats)
        await self._traffic.receive(inbox, incoming, partial(self._committed, token))

    def _committed(self, token: int | None, outcome: ForwardOutcome) -> None:
        if outcome is not ForwardOutcome.RELEASED:
            self._answer(token)
        elif not self._failed.done():  # it comes again over the next connection
            self._failed.set_exception(ConnectorError("a message was not accepted here; it will be sent again"))

    def _answer(self, token: int | None) -> None:
        """Acknowledge a message together with the others of this turn; one with QoS 0 has no token."""
        if token is None:
            return
        if not self._answered:
            self._loop.call_soon(self.write_answers)
        self._answered.append(token)

    def write_answers(self) -> None:
        """Acknowledge messages that are on disk."""
        answered, self._answered = self._answered, []
        self._room.set()
        if not self._writer.transport.is_closing():
            self._writer.write(self._pending_answers.committed(answered))

    async def _keep_alive(self) -> None:
        """Send PINGREQs, and fail when the broker was silent for the keep-alive while we listened."""
        limit = min(self._settings.keep_alive_s, self._terms.keep_alive_s or math.inf)
        while True:
            await asyncio.sleep(limit / PINGS_UNHEARD_MAX)
            if self._unheard >= PINGS_UNHEARD_MAX:
                raise ConnectorError(f"the broker has been silent for {limit:g} s")
            # counted and not timed: this process may have been stopped, with the broker's answers in the socket
            self._unheard += self._listens
            self._writer.write(packets.pingreq())

    async def _fail(self) -> None:
        await self._failed

    # --- bytes ------------------------------------------------------------------------------------------------

    async def _greeting(self) -> bytes:
        """Return the first bytes of the peer, after a check: a server of another protocol would never end a packet."""
        try:
            data = await self._read()
        except (ConnectorError, ConnectionError) as error:  # brokers that do not know the version disconnect
            raise _NotUnderstoodError(str(error)) from error
        if data[0] != _CONNACK_HEADER:
            raise ConnectorError("the peer does not speak MQTT")
        return data

    async def _read(self) -> bytes:
        self._listens = True
        data = await self._reader.read(READ_BYTES)
        self._listens, self._unheard = False, 0
        if not data:
            raise _PeerEndedError("the broker closed the connection")
        unread_bytes = self._writer.transport.get_write_buffer_size()
        if unread_bytes > DIALED_UNREAD_BYTES_MAX:
            raise UnreadError(unread_bytes)
        return data

    def _packets(self, data: bytes) -> Iterator[packets.Packet]:
        try:
            yield from self._stream.feed(data)
        except packets.MalformedBrokerPacket as error:
            raise ConnectorError(f"the broker violated MQTT: {error}") from None
