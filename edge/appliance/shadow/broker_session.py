"""MQTT session of the comparison at one of the brokers: it subscribes, reads, and acknowledges.

It speaks MQTT 5, or MQTT 3.1.1 where the broker knows no other version, with the codecs of the connectors. Sessions of
the comparison end with their connection, so nothing stays at a broker. Only the gateway is ever sent a PUBLISH.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from bridge.client_attempt import ConnectorError
from bridge.connectors.limits import CONNECT_TIMEOUT_S, READ_BYTES
from bridge.connectors.mqtt import packets, packets5
from bridge.connectors.mqtt.opening import MqttReader, MqttWriter, open_streams
from bridge.connectors.mqtt.service_terms import ORDINARY_TERMS
from bridge.connectors.settings import ClientIdentity
from bridge.dialer import AttemptError, PeerEndpoint
from edge.appliance.shadow.limits import KEEP_ALIVE_S, PUBACK_TIMEOUT_S

_Answer = TypeVar("_Answer", packets.ConnackReceived, packets.SubackReceived, packets.AckReceived)
FAILURES: Final = (AttemptError, OSError, TimeoutError, packets.MalformedBrokerPacket)
"""Exceptions by which a connection fails or ends."""
BRIDGE_STATES: Final = "$SYS/broker/connection/+/state"
"""Topics by which bridges of Mosquitto tell that they are connected."""
_REFUSED: Final = 0x80
_OLDER: Final = frozenset((1, 0x84))
"""CONNACK codes of an unsupported version, in MQTT 3.1.1 and MQTT 5."""
_SUBSCRIBE_ID: Final = packets.PACKET_ID_MAX
_RETAIN_AS_PUBLISHED: Final = 0x08
_NO_RETAINED: Final = 0x20
"""Retain Handling 2: no retained messages at the subscription (MQTT 5 section 3.8.3.1)."""


class BrokerAccess(NamedTuple):
    """Way to a broker, and our identity there."""

    endpoints: Sequence[PeerEndpoint]
    """They are tried in order."""
    identity: ClientIdentity
    tls: Callable[[], ssl.SSLContext] | None = None

    def named(self, suffix: str) -> BrokerAccess:
        """Return the same with another client identifier."""
        return self._replace(identity=self.identity._replace(client_id=f"{self.identity.client_id}{suffix}"))


class _OlderVersionError(ConnectorError):
    """The broker does not speak MQTT 5."""


class _MqttVersion(Protocol):
    """Encoders and the decoder of one version of MQTT."""

    retains_as_published: bool

    def connect(self, identity: ClientIdentity, *, clean: bool) -> bytes: ...
    def subscribe(self, filters: Sequence[str], qos: int, *, retained: bool) -> bytes: ...
    def publish(self, topic: str, payload: bytes, packet_id: int, *, retain: bool) -> bytes: ...
    def decode(self, frame: bytes) -> packets.Packet: ...


class _Version5:
    retains_as_published = True

    def connect(self, identity: ClientIdentity, *, clean: bool) -> bytes:
        return packets5.connect(
            identity.client_id,
            clean_start=clean,
            keep_alive_s=KEEP_ALIVE_S,
            username=identity.username,
            password=identity.password,
        )

    def subscribe(self, filters: Sequence[str], qos: int, *, retained: bool) -> bytes:
        options = _RETAIN_AS_PUBLISHED | (0 if retained else _NO_RETAINED)
        return packets5.subscribe(_SUBSCRIBE_ID, [(each, qos) for each in filters], options=options)

    def publish(self, topic: str, payload: bytes, packet_id: int, *, retain: bool) -> bytes:
        size = packets.REMAINING_LENGTH_MAX
        return packets5.publish(
            topic, payload, packet_id, dup=False, retain=retain, properties=b"", packet_bytes_max=size
        )

    def decode(self, frame: bytes) -> packets.Packet:
        return packets5.decode(frame)


class _Version311:
    retains_as_published = False

    def connect(self, identity: ClientIdentity, *, clean: bool) -> bytes:
        return packets.connect(
            identity.client_id,
            clean_session=clean,
            keep_alive_s=KEEP_ALIVE_S,
            username=identity.username,
            password=identity.password,
        )

    def subscribe(self, filters: Sequence[str], qos: int, *, retained: bool) -> bytes:
        return packets.subscribe(_SUBSCRIBE_ID, [(each, qos) for each in filters])

    def publish(self, topic: str, payload: bytes, packet_id: int, *, retain: bool) -> bytes:
        return packets.publish(topic, payload, packet_id, dup=False, retain=retain)

    def decode(self, frame: bytes) -> packets.Packet:
        return packets.decode(frame)


_VERSIONS: Final[Sequence[_MqttVersion]] = (_Version5(), _Version311())


class BrokerSession:
    """One connection to a broker."""

    def __init__(self, reader: MqttReader, writer: MqttWriter, version: _MqttVersion) -> None:
        self.present = False
        """The broker had a session of this client identifier."""
        self._reader, self._writer, self._version = reader, writer, version
        self._stream = packets.Packets(read=version.decode)
        self._early: list[packets.PublishReceived | packets.LargePublishReceived] = []
        self._wants_retained = False
        self._packet_id = 0

    async def open(self, identity: ClientIdentity, *, clean: bool) -> None:
        """Send CONNECT and wait for its answer. Raises ConnectorError."""
        self._writer.write(self._version.connect(identity, clean=clean))
        try:
            answer = await self._answer(packets.ConnackReceived)
        except (ConnectorError, ConnectionError) as error:
            raise _OlderVersionError(str(error)) from error
        if answer.code in _OLDER or (self._version.retains_as_published and answer.terms is None):
            raise _OlderVersionError("the broker speaks an older version of MQTT")
        if answer.code:
            why = answer.reason or f"reason {answer.code}"
            raise ConnectorError(f"the broker refuses the connection: {why}; check user, password and rights there")
        self.present = answer.session_present

    async def subscribe(self, filters: Sequence[str], *, qos: int, retained: bool) -> list[str]:
        """Subscribe; return the refused filters. With `retained` the messages of `read` are the retained ones, else
        those that are published from now on."""
        self._wants_retained = retained
        self._writer.write(self._version.subscribe(filters, qos, retained=retained))
        answer = await self._answer(packets.SubackReceived)
        return [each for each, code in zip(filters, answer.codes, strict=False) if code >= _REFUSED]

    async def read(
        self, timeout_s: float | None = None
    ) -> list[packets.PublishReceived | packets.LargePublishReceived]:
        """Return the next messages, without those that the subscription does not want; an empty list after `timeout_s`
        without bytes. `acknowledge` has to follow."""
        if self._early:
            early, self._early = self._early, []
            return early
        found: list[packets.PublishReceived | packets.LargePublishReceived] = []
        for packet in await self._next(timeout_s):
            match packet:
                case packets.PublishReceived() | packets.LargePublishReceived():
                    found.append(packet)
                case packets.DisconnectReceived():
                    raise ConnectorError(f"the broker ends the connection: {packet.reason or packet.code}")
        return found

    def is_wanted(self, packet: packets.PublishReceived | packets.LargePublishReceived) -> bool:
        """Return True for a message of the kind that was subscribed to. MQTT 3.1.1 sends retained messages to every
        subscriber, and only these have the flag; MQTT 5 flags updates of retained messages too."""
        if isinstance(packet, packets.LargePublishReceived):
            return not self._wants_retained
        if self._wants_retained:
            return packet.retain
        return self._version.retains_as_published or not packet.retain

    def acknowledge(self, taken: Sequence[packets.PublishReceived | packets.LargePublishReceived]) -> None:
        """Acknowledge messages with QoS 1."""
        answers = [packets.puback(each.packet_id) for each in taken if each.packet_id is not None]
        if answers:
            self._writer.write(b"".join(answers))

    async def publish(self, topic: str, payload: bytes, *, retain: bool) -> None:
        """Publish with QoS 1 and wait for the PUBACK. Raises ConnectorError when it is refused."""
        self._packet_id = self._packet_id % (packets.PACKET_ID_MAX - 1) + 1
        try:
            packet = self._version.publish(topic, payload, self._packet_id, retain=retain)
        except ValueError as error:
            raise ConnectorError(f"{topic[:80]}: {error}") from error
        self._writer.write(packet)
        answer = await self._answer(packets.AckReceived, PUBACK_TIMEOUT_S)
        if answer.code >= _REFUSED:
            raise ConnectorError(f"the gateway refuses the message to {topic[:80]}: reason {answer.code} of PUBACK")

    def ping(self) -> None:
        """Send PINGREQ."""
        if not self._writer.transport.is_closing():
            self._writer.write(packets.pingreq())

    def close(self) -> None:
        """Disconnect."""
        if not self._writer.transport.is_closing():
            self._writer.write(packets.disconnect())
            self._writer.close()

    # --- inside -----------------------------------------------------------------------------------------------

    async def _next(self, timeout_s: float | None) -> list[packets.Packet]:
        try:
            async with asyncio.timeout(timeout_s):
                data = await self._reader.read(READ_BYTES)
        except TimeoutError:
            return []
        if not data:
            raise ConnectorError("the broker closed the connection")
        return list(self._stream.feed(data))

    async def _answer(self, kind: type[_Answer], timeout_s: float = CONNECT_TIMEOUT_S) -> _Answer:
        """Return the next packet of a kind; keep messages that come before it."""
        found: _Answer | None = None
        async with asyncio.timeout(timeout_s):
            while found is None:
                for packet in await self._next(None):
                    if isinstance(packet, kind) and found is None:
                        found = packet
                    elif isinstance(packet, packets.PublishReceived | packets.LargePublishReceived):
                        self._early.append(packet)
                    elif isinstance(packet, packets.DisconnectReceived):
                        raise ConnectorError(f"the broker ends the connection: {packet.reason or packet.code}")
        return found


@contextlib.asynccontextmanager
async def session_at(access: BrokerAccess, *, clean: bool = True) -> AsyncIterator[BrokerSession]:
    """Connect to a broker while the body runs, with pings. Raises one of `FAILURES`."""
    session = await _connected(access, clean=clean)
    pings = asyncio.create_task(_keep_alive(session))
    try:
        yield session
    finally:
        pings.cancel()
        session.close()


async def _connected(access: BrokerAccess, *, clean: bool) -> BrokerSession:
    failure: Exception = ConnectorError("no endpoint is configured")
    for endpoint in access.endpoints:
        for version in _VERSIONS:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    reader, writer = await open_streams(endpoint, access.tls, None, ORDINARY_TERMS)
                    session = BrokerSession(reader, writer, version)
                    try:
                        await session.open(access.identity, clean=clean)
                    except BaseException:
                        writer.close()
                        raise
            except _OlderVersionError as error:
                failure = error
                continue
            except FAILURES as error:
                failure = error
                break
            return session
    raise failure


async def _keep_alive(session: BrokerSession) -> None:
    while True:
        await asyncio.sleep(KEEP_ALIVE_S / 3)
        session.ping()
