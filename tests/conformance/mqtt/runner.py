"""Runs scenarios against any MQTT server, and reports failures with their place.

A `Target` opens links. `loopback.LoopbackTarget` is the machine itself with a broker of a few lines;
`socket_target.SocketTarget` is a running server.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from edge.broker.message.mqtt_properties import NONE, Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.message.mqtt_wire import PacketType, read_fixed_header
from edge.broker.mqtt import packets as p
from tests.conformance.mqtt.steps import ANY_VERSION, Answer, Closed, Drop, Expect, Scenario, Send, Silence, Step, Wait


class Link(Protocol):
    """The client's end of one connection."""

    closed: bool
    """True once the server has closed it, and all earlier data has been received."""

    def send(self, data: bytes) -> None:
        """Send the data; ignores a connection that the server has closed in the meantime."""
        ...

    def receive(self, *, quiet: bool) -> bytes:
        """Return the next bytes; none when nothing arrives for long (for a moment, with `quiet`)."""
        ...

    def drop(self) -> None:
        """Break the connection without a DISCONNECT."""
        ...


class Target(Protocol):
    """System under test."""

    def open(self) -> Link: ...

    def wait(self, seconds: float) -> None: ...

    def reset(self) -> None:
        """Forget sessions; the next scenario uses its client ids and topics for the first time."""
        ...


class Failure(AssertionError):
    """A scenario deviated from the standard."""


class Client:
    """One client of a scenario: a link, and the packets received over it."""

    def __init__(self, link: Link, version: int, publish_ids: list[int]) -> None:
        """`publish_ids`: packet identifiers received over this connection and earlier ones."""
        self.link = link
        self.version = version
        self.publish_ids = publish_ids
        self._data = b""

    def next(self, *, quiet: bool = False) -> p.Packet | None:
        """Return the next packet; None when no packet arrives."""
        while True:
            header = read_fixed_header(self._data, 0)
            if header is not None and header[0] + header[1] <= len(self._data):
                stop = header[0] + header[1]
                first, body, self._data = self._data[0], self._data[header[0] : stop], self._data[stop:]
                packet = p.decode(first, body, self._version(first, body))
                if isinstance(packet, p.Publish):
                    self.publish_ids.append(packet.packet_id)
                return packet
            if self.link.closed:
                return None
            more = self.link.receive(quiet=quiet)
            if not more and not self.link.closed:
                return None
            self._data += more

    def _version(self, first: int, body: bytes) -> int:
        """Return the version of an answer: after a CONNECT that it does not understand, a server may use either."""
        if first >> 4 == PacketType.CONNACK:
            return 4 if len(body) == 2 else 5
        return self.version


def at_version(packet: p.Packet | bytes, version: int) -> bytes:
    """Convert a packet of the corpus to `version`."""
    if isinstance(packet, bytes):
        return packet
    if isinstance(packet, p.Connect) and packet.version == ANY_VERSION:
        block = packet.properties if version == 5 else NONE
        packet = msgspec.structs.replace(packet, version=version, properties=block)
    return packet.encode(version)


def differs(expected: p.Packet, found: p.Packet | None, version: int) -> bool:
    """Return True when `found` differs from the expected packet in a part that the standard fixes."""
    if found is None or type(found) is not type(expected):
        return True
    changes: dict[str, object] = {}
    for name in found.__struct_fields__:  # type: ignore[attr-defined]
        wanted, got = getattr(expected, name), getattr(found, name)
        if name == "properties" and not _contains(got, wanted):
            return True
        free = name == "properties" or (name == "packet_id" and not wanted)
        # MQTT 5 servers may report more than SUCCESS: no matching subscribers, packet identifier not found.
        said = name == "reason" and (isinstance(expected, p.PubComp) or not (wanted.failed or got.failed))
        before = name == "codes" and version < 5 and isinstance(expected, p.UnsubAck)
        if free or said or before:
            changes[name] = got
    return found != msgspec.structs.replace(expected, **changes)


def _contains(found: Properties, wanted: Properties) -> bool:
    for name in wanted.__struct_fields__:
        value = getattr(wanted, name)
        if value is not None and value != () and getattr(found, name) != value:
            return False
    return True


class Run:
    """One scenario at one protocol level."""

    def __init__(self, target: Target, version: int) -> None:
        self._target = target
        self._version = version
        self._clients: dict[str, Client] = {}
        self._publish_ids: dict[str, list[int]] = {}

    def play(self, scenario: Scenario) -> None:
        """Run the scenario. Raises Failure."""
        self._target.reset()
        try:
            for number, step in enumerate(scenario.steps, 1):
                wrong = self._step(step)
                if wrong:
                    raise Failure(f"{scenario.name} (level {self._version}), step {number} {step}: {wrong}")
        finally:
            for client in self._clients.values():
                client.link.drop()

    def _step(self, step: Step) -> str:
        """Run a step; return the error, or an empty text."""
        match step:
            case Send(who, packets):
                self._open(who).link.send(b"".join(at_version(packet, self._version) for packet in packets))
            case Expect(who, packets):
                return self._expect(self._clients[who], list(packets))
            case Answer(who, kind, index, reason):
                client = self._clients[who]
                client.link.send(kind(client.publish_ids[index], reason).encode(self._version))
            case Closed(who, reasons):
                return self._closed(self._clients[who], reasons)
            case Drop(who):
                self._clients.pop(who).link.drop()
            case Silence(who):
                found = self._clients[who].next(quiet=True)
                return f"found {found}" if found is not None else ""
            case Wait(seconds):
                self._target.wait(seconds)
        return ""

    def _open(self, who: str) -> Client:
        """Return the client; reconnect if it has no connection or the server has closed it."""
        client = self._clients.get(who)
        if client is None or client.link.closed:
            if client is not None:
                client.link.drop()
            client = self._clients[who] = Client(
                self._target.open(), self._version, self._publish_ids.setdefault(who, [])
            )
        return client

    def _expect(self, client: Client, expected: list[p.Packet]) -> str:
        while expected:
            found = client.next()
            first = isinstance(expected[0], p.ConnAck)
            index = next((i for i, packet in enumerate(expected) if first or type(packet) is type(found)), 0)
            if differs(expected[index], found, self._version):
                return f"expected {expected[index]}, found {found}"
            del expected[index]
        return ""

    def _closed(self, client: Client, reasons: tuple[ReasonCode, ...]) -> str:
        found = client.next()
        if found is not None:
            if not isinstance(found, (p.Disconnect, p.ConnAck)) or (
                self._version < 5 and isinstance(found, p.Disconnect)
            ):
                return f"expected the end, found {found}"
            if not found.reason.failed or (reasons and self._version == 5 and found.reason not in reasons):
                return f"expected the end with {reasons}, found {found}"
            found = client.next()
        if found is not None or not client.link.closed:
            return f"the connection is open, found {found}"
        return ""
