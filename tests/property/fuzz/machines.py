"""Targets that feed one machine directly: a hub's connection, a gateway's, HTTP heads, WebSocket, SASL.

The broker's own streams go through a whole broker (`target.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import h11

from bridge.amqp_connection import AmqpConnection
from bridge.amqp_values import Symbol, Symbols, Ubyte
from bridge.batch import Batch
from bridge.engine import Engine
from bridge.flow import Outcomes
from bridge.hub_links import HubLinks
from bridge.intake import Intake, UnreadDelivery
from bridge.message import Run, Stored
from bridge.plain import Arrival, Hop
from bridge.reports import Reports
from bridge.sasl import ANONYMOUS, SaslClient, SaslServer
from bridge.sasl.layer import CHALLENGE, INIT, MECHANISMS, OUTCOME, RESPONSE, SASL_HEADER
from bridge.sasl.scram import ScramKeys, ScramVerifier, derive
from bridge.sasl.server import CredentialAnswer
from bridge.transport.websocket import MQTT, WebSocketConnection
from bridge.uplink import Uplink
from edge.broker.http.limits import HTTP_HEAD_BYTES_MAX
from edge.broker.listeners.web.framing import Framing
from edge.broker.security.site import ForeignRequest, RequestOrigin, Site
from tests.property.fuzz.parser import Parser, reads
from tests.support.frames import frame
from tests.support.machines import calls, take_all
from tests.support.shell import Shell

TURNS_MAX: Final = 200
"""Limit of event loop turns that an intake may request after a stream."""
KEYS: Final[ScramKeys] = derive("s3cret", bytes(16), 1)


# --- a hub's connection ---------------------------------------------------------------------------------------------


class Service:
    """Service of a hub that lands everything at once."""

    def has_room(self, intake: Intake) -> bool:
        return True

    def __init__(self) -> None:
        self.unread_bytes = 0
        self.connected = 0
        self._landed: list[tuple[Intake, int]] = []

    def gateway_connected(self, gateway: str, intake: Intake) -> None:
        self.connected += 1

    def gateway_disconnected(self, gateway: str, intake: Intake) -> None:
        self.connected -= 1

    def unread_changed(self, intake: Intake, by: int) -> None:
        self.unread_bytes += by

    def batch_arrived(self, intake: Intake, token: int, batch: Batch, ends: Mapping[int, int], gateway: str) -> None:
        assert sum(len(stored.run) for stored in batch.stored()) == len(batch)
        self._landed.append((intake, token))

    def messages_arrived(self, intake: Intake, messages: Sequence[tuple[int, Arrival]], gateway: str) -> None:
        self._landed += [(intake, token) for token, _ in messages]

    def status_arrived(self, intake: Intake, document: dict[str, Any], gateway: str) -> None:
        """Discard the status."""

    def ledger_arrived(self, intake: Intake, token: int, document: dict[str, Any], gateway: str) -> None:
        self._landed.append((intake, token))

    def manifests_arrived(self, intake: Intake, token: int, document: dict[str, Any], gateway: str) -> None:
        self._landed.append((intake, token))

    def unreadable_arrived(self, intake: Intake, token: int, unread: UnreadDelivery, gateway: str) -> None:
        self._landed.append((intake, token))

    def answer(self) -> None:
        landed, self._landed = self._landed, []
        for intake, token in landed:
            intake.accept((token,))


class HubEnd:
    """Intake with its engine."""

    def __init__(self) -> None:
        self.service = Service()
        self.engine = Engine(
            container_id="hub", server=True, sasl=SaslServer(lambda *_: ANONYMOUS, anonymous=ANONYMOUS), now=0.0
        )
        self.shell = Shell()
        self.intake = Intake(self.engine, self.service, self.shell)

    def receive(self, data: bytes) -> bytes:
        """Process data of the peer; return the answer."""
        for events in calls(self.engine, data, 0.0):
            self.intake.handle(events)
        for _ in range(TURNS_MAX):
            if not self.shell.steps:
                break
            self.shell.turn()
        self.service.answer()
        return self.engine.data_to_send()

    def end(self) -> None:
        """Close the socket, and check that nothing is left of the connection."""
        self.intake.handle(self.engine.receive_eof(1.0))
        assert not self.service.connected
        assert not self.service.unread_bytes
        assert self.intake.unsettled == (0, 0)


def take_hub(data: bytes) -> None:
    hub = HubEnd()
    for piece in reads(data):
        hub.receive(piece)
        if hub.engine.closed:
            break
    hub.end()


# --- a gateway's connection -----------------------------------------------------------------------------------------


class Forwarder:
    """Subscription of an uplink that counts deliveries and outcomes."""

    def __init__(self) -> None:
        self.settled = 0

    def settle(self, consumer: Any, first: int, last: int, outcome: Any) -> None:
        self.settled += last - first + 1

    def pump(self) -> None:
        """Do nothing: the log is empty."""


class GatewayEnd:
    """Link of a gateway with messages and reports to send."""

    MESSAGES: Final = 6

    def __init__(self) -> None:
        self.uplink = Uplink("uplink", Hop("gw1", "e"), space="s", outcomes=Outcomes("accepted", "rejected"))
        self.forwarder = Forwarder()
        self.uplink.live.add(self.forwarder)
        for position in range(self.MESSAGES):
            run = Run("a", "d", 1, b"", [b"21.5"], 5)
            self.uplink.live.deliver(self.forwarder, [Stored(position, position, run)])
        self.reports = Reports()
        self.answers: list[bool] = []
        self.reports.ledger({"ranges": []}, self.answers.append)
        self.link = AmqpConnection(
            Engine(container_id="gw1", server=False, now=0.0), HubLinks(self.uplink, self.reports)
        )

    def receive(self, data: bytes) -> bytes:
        """Process data of the hub; return the answer."""
        take_all(self.link, data, 0.0)
        return self.link.data_to_send()

    def end(self) -> None:
        """Close the socket. The uplink keeps messages without an outcome."""
        self.link.receive_eof(1.0)
        waiting, _ = self.uplink.in_flight
        assert self.forwarder.settled <= self.MESSAGES
        assert waiting <= self.MESSAGES


def take_link(data: bytes) -> None:
    gateway = GatewayEnd()
    gateway.link.data_to_send()
    for piece in reads(data):
        gateway.receive(piece)
        if gateway.link.closed:
            break
    gateway.end()


def conversation() -> tuple[bytes, bytes]:
    """Return the two sides of a conversation without errors."""
    gateway, hub = GatewayEnd(), HubEnd()
    up = down = b""
    said = gateway.link.data_to_send()
    while said:
        up += said
        answer = hub.receive(said)
        down += answer
        said = gateway.receive(answer) if answer else b""
    assert gateway.forwarder.settled == GatewayEnd.MESSAGES
    return up, down


# --- HTTP and WebSocket ---------------------------------------------------------------------------------------------


def take_http_head(data: bytes) -> None:
    """Parse a sequence of requests, as far as each ends before the next one begins."""
    framing = Framing(HTTP_HEAD_BYTES_MAX)
    site = Site(["gw"], exposed=True, machine="gw.example")
    for piece in filter(None, reads(data)):
        framing.receive_data(piece)
        while True:
            event = framing.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                break
            if isinstance(event, h11.Request):
                _look_at_site(site, dict(event.headers))
            if framing.their_state is h11.DONE:
                framing.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                framing.send(h11.EndOfMessage())
                if framing.our_state is not h11.DONE:
                    return
                framing.start_next_cycle()


def _look_at_site(site: Site, headers: Mapping[bytes, bytes]) -> None:
    said = {name.decode("ascii"): value.decode("latin-1") for name, value in headers.items()}
    asked = RequestOrigin(said.get("host"), said.get("origin"), said.get("sec-fetch-site"))
    for guarded in (True, False):
        try:
            site.check(asked, guarded=guarded)
        except ForeignRequest:
            continue


class Echo:
    """Machine inside a WebSocket that echoes its input."""

    closed = False
    deadline: float | None = None
    held_bytes = 0
    has_output = True
    more = False

    def __init__(self) -> None:
        self.ended = 0
        self._output = b""

    def receive_data(self, data: bytes, now: float) -> Sequence[Any]:
        assert not self.ended, "bytes of a peer that is gone"
        self._output += data
        return ()

    def receive_eof(self, now: float) -> Sequence[Any]:
        self.ended += 1
        self.closed = True
        return ()

    def handle_timeout(self, now: float, *, listening: bool = True) -> Sequence[Any]:
        return ()

    def shed(self) -> Sequence[Any]:
        return ()

    def data_to_send(self) -> bytes:
        output, self._output = self._output, b""
        return output


def take_websocket(data: bytes) -> None:
    inner = Echo()
    connection = WebSocketConnection(inner, MQTT, message_bytes_max=4_096)
    for piece in reads(data):
        take_all(connection, piece, 0.0)
        connection.data_to_send()
        if connection.closed:
            break
    if not connection.closed:
        connection.receive_eof(1.0)
    assert inner.ended == 1


# --- SASL -----------------------------------------------------------------------------------------------------------


class Credentials:
    """Knows the secret of every user, and refuses every token."""

    mechanisms = frozenset(("OAUTHBEARER", "SCRAM-SHA-256", "PLAIN"))

    def plain(self, username: str, password: bytes, answer: CredentialAnswer) -> None:
        answer(username if password == b"s3cret" else None)

    def bearer(self, message: bytes, answer: CredentialAnswer) -> None:
        answer(None)

    def scram(self, username: str) -> ScramVerifier | None:
        return ScramVerifier(bytes(16), 1, [KEYS])

    def failed(self, username: str) -> None:
        """Do nothing: failures are not counted."""

    def succeeded(self, username: str) -> str:
        """Return the user: successes are not recorded."""
        return username


def take_sasl(data: bytes) -> None:
    server = SaslServer(credentials=Credentials(), anonymous=None, external="CN=device")
    for piece in reads(data):
        server.receive(piece)
        server.take()
    assert server.done is (server.identity is not None)
    assert not (server.done and server.failure)
    assert server.identity in (None, "CN=device") or b"s3cret" in data or b"SCRAM" in data


def take_sasl_client(data: bytes) -> None:
    client = SaslClient("user", "s3cret", external=bool(data[:1]) and data[0] >= 128, plain=True)
    for piece in reads(data):
        client.receive(piece)
        client.take()
    assert not (client.done and client.failure)


def _frames(*frames: tuple[int, list[Any]]) -> bytes:
    return SASL_HEADER + b"".join(frame(code, *fields, kind=1) for code, fields in frames)


UP, DOWN = conversation()
REQUEST: Final = (
    b"GET /mqtt HTTP/1.1\r\nHost: gw:1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: chat, mqtt\r\n\r\n"
)
MACHINES: Final = {
    "hub": Parser(take_hub, (), [b"\0" + UP, b"\3" + UP]),
    "link": Parser(take_link, (), [b"\0" + DOWN, b"\3" + DOWN]),
    "http-head": Parser(
        take_http_head,
        (h11.RemoteProtocolError,),
        [
            b"\0GET /healthz HTTP/1.1\r\nHost: gw:8080\r\nOrigin: http://gw:8080\r\n\r\n",
            b"\3POST /t/a HTTP/1.1\r\nHost: [::1]:80\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3;x=y\r\nabc\r\n0\r\nA: b\r\n\r\n",
            b"\0POST /t/a HTTP/1.1\r\nHost: gw\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.0\r\n\r\n",
        ],
    ),
    "websocket": Parser(
        take_websocket,
        (),
        [
            b"\0" + REQUEST + b"\x82\x84\1\2\3\4abcd\x89\x80\1\2\3\4\x88\x82\0\0\0\0\x03\xe8",
            b"\3" + REQUEST + b"\x02\x81\0\0\0\0a\x80\x81\0\0\0\0b\x82\xfe\x01\0\0\0\0\0" + bytes(256),
        ],
    ),
    "sasl": Parser(
        take_sasl,
        (),
        [
            b"\0" + _frames((INIT, [Symbol("PLAIN"), b"\0user\0s3cret"])),
            b"\2" + _frames((INIT, [Symbol("EXTERNAL"), b""])),
            b"\0" + _frames((INIT, [Symbol("OAUTHBEARER"), b"n,,\1auth=Bearer x.y.z\1\1"]), (RESPONSE, [b"\1"])),
            b"\0"
            + _frames((INIT, [Symbol("SCRAM-SHA-256"), b"n,,n=user,r=client"]), (RESPONSE, [b"c=biws,r=x,p=AA=="])),
        ],
    ),
    "sasl-client": Parser(
        take_sasl_client,
        (),
        [
            b"\0"
            + _frames(
                (MECHANISMS, [Symbols(("SCRAM-SHA-256", "PLAIN"))]),
                (CHALLENGE, [b"r=clientserver,s=AAAAAAAAAAAAAAAAAAAAAA==,i=4096"]),
                (OUTCOME, [Ubyte(0), b"v=AA=="]),
            ),
            b"\x80" + _frames((MECHANISMS, [Symbols(("EXTERNAL",))]), (OUTCOME, [Ubyte(0)])),
            b"\3" + _frames((MECHANISMS, [Symbol("PLAIN")]), (OUTCOME, [Ubyte(1)])),
        ],
    ),
}
