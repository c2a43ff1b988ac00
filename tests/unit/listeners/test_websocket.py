"""WebSocket around a machine that echoes, byte by byte; sections are those of RFC 6455."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from wsproto import ConnectionType, WSConnection, events

from bridge.transport.websocket import (
    FRAMES_AT_ONCE,
    HANDSHAKE_BYTES_MAX,
    SEND_BYTES_MAX,
    WebSocketClient,
    WebSocketConnection,
)
from edge.broker.listeners.frames import Frames
from edge.broker.security.site import Site
from tests.support.websocket_frames import MASK, UPGRADE, EchoMachine, frame


def connection(
    inner: EchoMachine | None = None,
    *,
    message_bytes_max: int = 1000,
    guarded: bool = False,
    identity: str | None = None,
) -> WebSocketConnection:
    """Return a connection to a listener with the host name ``gw``."""
    site = Site(["gw"], exposed=True)
    frames = Frames("mqtt", message_bytes_max=message_bytes_max, site=site, guarded=lambda: guarded)
    found = frames.around(inner or EchoMachine(), identity)
    assert isinstance(found, WebSocketConnection)
    return found


def opened(inner: EchoMachine | None = None, *, message_bytes_max: int = 1000) -> WebSocketConnection:
    found = connection(inner, message_bytes_max=message_bytes_max)
    assert found.receive_data(UPGRADE, 0.0) == []
    assert found.data_to_send().startswith(b"HTTP/1.1 101 ")
    return found


class TestHandshake:
    """Opening handshake (section 4.2)."""

    def test_handshake_is_accepted(self) -> None:
        found = connection()
        found.receive_data(UPGRADE, 0.0)
        head = found.data_to_send().lower()
        assert b"sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in head  # the example of section 1.3
        assert b"sec-websocket-protocol: mqtt\r\n" in head
        assert not found.closed
        assert found.path == "/mqtt"

    def test_handshake_is_read_byte_by_byte(self) -> None:
        found = connection()
        for i in range(len(UPGRADE)):
            found.receive_data(UPGRADE[i : i + 1], 0.0)
        assert found.data_to_send().startswith(b"HTTP/1.1 101 ")

    @pytest.mark.parametrize(
        ("old", "new", "status"),
        [
            (b"chat, mqtt", b"amqp", 400),
            (b"Sec-WebSocket-Protocol: chat, mqtt\r\n", b"", 400),
            (b"Upgrade: websocket\r\nConnection: Upgrade\r\n", b"", 426),
            (b"Upgrade: websocket\r\n", b"Upgrade: h2c\r\n", 426),
            (b"Version: 13", b"Version: 8", 426),
            (b"GET", b"POST", 400),
            (b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", b"", 400),
            (b"GET /mqtt HTTP/1.1", b"\x16\x03\x01\x02\x00", 400),
            (b"Host: gw:1", b"Host: \xff\xfe", 400),
            (b"chat, mqtt", b"\xff", 400),
            (b"Host: gw:1", b"Host: gw:1\r\nOrigin: https://elsewhere.example", 403),
            (b"Host: gw:1", b"Host: gw:1\r\nOrigin: null", 403),
            (b"Host: gw:1", b"Host: gw:1\r\nOrigin: http://[", 403),
            (b"Host: gw:1", b"Host: elsewhere.example\r\nOrigin: http://elsewhere.example", 403),
            (b"Host: gw:1", b"Host: elsewhere.example", 403),
        ],
    )
    def test_invalid_handshakes_are_refused(self, old: bytes, new: bytes, status: int) -> None:
        assert old in UPGRADE
        inner = EchoMachine()
        found = connection(inner)
        found.receive_data(UPGRADE.replace(old, new), 0.0)
        answer = found.data_to_send()
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        assert (b"Upgrade: websocket" in head) == (status == 426)
        assert found.closed
        assert inner.ended == 1
        assert found.receive_data(b"more", 0.0) == ()

    @pytest.mark.parametrize("origin", [b"http://gw", b"https://gw:8443", b"http://localhost:3000", b"http://[::1]"])
    def test_allowed_origins_are_accepted(self, origin: bytes) -> None:
        found = connection()
        found.receive_data(UPGRADE.replace(b"Host: gw:1", b"Host: gw:1\r\nOrigin: " + origin), 0.0)
        assert found.data_to_send().startswith(b"HTTP/1.1 101 ")

    def test_certificate_does_not_replace_the_origin(self) -> None:
        found = connection(guarded=True, identity="pump7")
        found.receive_data(UPGRADE.replace(b"Host: gw:1", b"Host: gw:1\r\nOrigin: https://elsewhere.example"), 0.0)
        assert found.data_to_send().startswith(b"HTTP/1.1 403 ")

    def test_any_origin_is_accepted_where_clients_authenticate(self) -> None:
        found = connection(guarded=True)
        found.receive_data(UPGRADE.replace(b"Host: gw:1", b"Host: gw:1\r\nOrigin: https://elsewhere.example"), 0.0)
        assert found.data_to_send().startswith(b"HTTP/1.1 101 ")

    def test_endless_request_closes(self) -> None:
        found = connection()
        for _ in range(HANDSHAKE_BYTES_MAX // 64 + 1):
            found.receive_data(b"x" * 64, 0.0)
        assert found.data_to_send()[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400")
        assert found.closed

    def test_missing_request_times_out(self) -> None:
        found = connection(EchoMachine(deadline=10.0))
        assert found.deadline == 10.0
        assert found.handle_timeout(9.0) == ["timeout"]
        assert not found.closed
        assert found.handle_timeout(10.0) == ["timeout", "eof"]
        assert found.data_to_send().startswith(b"HTTP/1.1 408 ")
        assert found.closed
        assert found.deadline is None


class TestFrames:
    """Frames and closing (sections 5 and 7)."""

    def test_read_is_one_call_of_the_inner_machine(self) -> None:
        found = opened()
        data = frame(2, b"one") + frame(2, b"two", final=False) + frame(9, b"a") + frame(9, b"b") + frame(0, b"three")
        assert found.receive_data(data, 1.0) == [b"onetwothree"]
        assert found.data_to_send() == frame(10, b"b", masked=False) + frame(2, b"onetwothree", masked=False)

    def test_large_output_is_sent_in_several_messages(self) -> None:
        inner = EchoMachine()
        found = opened(inner)
        inner.out = bytes(SEND_BYTES_MAX + 5)
        sizes = []
        client = WSConnection(ConnectionType.CLIENT)
        client.send(events.Request(host="h", target="/", subprotocols=["mqtt"]))
        rest = found.data_to_send()
        while rest:
            size = rest[1] if rest[1] < 126 else int.from_bytes(rest[2:10] if rest[1] == 127 else rest[2:4], "big")
            head = 2 if rest[1] < 126 else 10 if rest[1] == 127 else 4
            assert rest[0] == 0x82, "a whole message each"
            sizes.append(size)
            rest = rest[head + size :]
        assert sizes == [SEND_BYTES_MAX, 5]

    @pytest.mark.parametrize(
        ("data", "code"),
        [
            (frame(1, b"text"), 1003),
            (frame(2, b"x" * 1001), 1009),
            (frame(2, b"x" * 600, final=False) + frame(0, b"x" * 401), 1009),
            (frame(2, b"x", masked=False), 1002),
            (frame(3, b"x"), 1002),
            (frame(0, b"x"), 1002),
            (frame(9, b"x" * 126), 1002),
            (frame(9, b"x", final=False), 1002),
            (b"\xf2\x80" + MASK, 1002),
            (frame(8, b"\x03\xe8bye"), 1000),
            (frame(8, b"\x03\xe9"), 1001),
            (frame(8, b"\x0f\xa1"), 4001),
            (frame(8), 1000),
            (frame(8, b"\x03"), 1002),
            (frame(1, b"\xff"), 1007),
        ],
    )
    def test_violations_close_with_their_code(self, data: bytes, code: int) -> None:
        inner = EchoMachine()
        found = opened(inner)
        told = found.receive_data(frame(2, b"before") + data, 1.0)
        assert told[0].startswith(b"before")
        assert told[-1] == "eof"
        assert inner.ended == 1
        answer = found.data_to_send()
        assert found.closed
        assert answer[0] == 0x88
        assert int.from_bytes(answer[2:4], "big") == code
        assert found.receive_data(frame(2, b"after"), 1.0) == ()

    def test_claimed_size_takes_no_memory(self) -> None:
        found = opened()
        found.receive_data(frame(2, b"", size=1 << 40), 1.0)
        assert found.receive_data(b"x" * 1001, 1.0)[-1] == "eof"
        assert int.from_bytes(found.data_to_send()[2:4], "big") == 1009

    def test_inner_machine_may_end_the_connection(self) -> None:
        found = opened()
        found.receive_data(frame(2, b"quit"), 1.0)
        assert not found.closed
        assert found.data_to_send() == frame(2, b"quit", masked=False) + frame(8, b"\x03\xe8", masked=False)
        assert found.closed

    def test_eof_closes(self) -> None:
        found = opened()
        assert found.receive_eof(1.0) == ["eof"]
        assert found.closed
        assert found.data_to_send() == b""

    def test_deadline_is_that_of_the_inner_machine(self) -> None:
        inner = EchoMachine(deadline=7.0)
        found = opened(inner)
        assert found.deadline == 7.0
        assert found.handle_timeout(7.0) == ["timeout"]
        assert found.handle_timeout(7.0, listening=False) == ["not heard"]
        assert not found.closed


class Parts(EchoMachine):
    """Machine that processes one byte a call."""

    def __init__(self) -> None:
        super().__init__()
        self.left = b""

    @property
    def more(self) -> bool:
        return bool(self.left) and not self.closed

    @more.setter
    def more(self, value: bool) -> None: ...

    def receive_data(self, data: bytes, now: float) -> Sequence[Any]:
        self.left += data
        one, self.left = self.left[:1], self.left[1:]
        return [one] if one else []


def calls(found: WebSocketConnection, data: bytes) -> list[Sequence[Any]]:
    """Return the events of each call that these bytes take."""
    told = [found.receive_data(data, 1.0)]
    while found.more:
        told.append(found.receive_data(b"", 1.0))
    return told


def test_many_frames_are_processed_in_parts() -> None:
    found = opened()
    told = calls(found, frame(9, b"") * (5 * FRAMES_AT_ONCE) + frame(2, b"last"))
    assert len(told) >= 5
    assert told[-1] == [b"last"]
    assert found.held_bytes == 0
    assert found.data_to_send().endswith(frame(2, b"last", masked=False))


@pytest.mark.parametrize("end", [frame(8, b"\x03\xe8"), frame(1, b"text")], ids=["close", "text"])
def test_end_waits_for_earlier_frames(end: bytes) -> None:
    inner = Parts()
    found = opened(inner)
    told = calls(found, frame(2, b"abc") + frame(2, b"def") + end + frame(2, b"never"))
    assert [event for each in told for event in each] == [b"a", b"b", b"c", b"d", b"e", b"f", "eof"]
    assert found.closed
    assert found.data_to_send()[0] == 0x88
    assert inner.ended == 1


def test_frames_after_the_inner_machine_ended_are_dropped() -> None:
    found = opened(Parts())
    first = frame(2, b"ab") * FRAMES_AT_ONCE
    told = calls(found, first + frame(2, b"cd"))
    assert b"".join(event for each in told for event in each) == b"ab" * FRAMES_AT_ONCE + b"cd"


def test_turn_without_bytes_goes_to_the_inner_machine() -> None:
    """`Driver.wake` continues SASL after the verdict on a password (`bridge.transport.connection`)."""
    assert opened().receive_data(b"", 0.0) == [b""]
    assert connection().receive_data(b"", 0.0) == [], "before it is open there is nothing to wait for"


class TestClient:
    """The client's end against the server's end (section 4.1)."""

    @staticmethod
    def pair(subprotocol: str = "mqtt") -> tuple[WebSocketClient, WebSocketConnection]:
        return WebSocketClient(EchoMachine(None), subprotocol, host="gw:1", path="/way?x"), connection()

    @staticmethod
    def exchange(client: WebSocketClient, server: WebSocketConnection) -> list[Any]:
        """Exchange bytes once; return the events of the client."""
        server.receive_data(client.data_to_send(), 0.0)
        return list(client.receive_data(server.data_to_send(), 0.0))

    def test_bytes_pass_both_ways(self) -> None:
        client, server = self.pair()
        inside = client.inner
        assert isinstance(inside, EchoMachine)
        inside.out = b"said before there is a WebSocket"
        assert self.exchange(client, server) == []
        assert client.opened
        assert server.path == "/way?x"
        assert self.exchange(client, server) == [b"said before there is a WebSocket"]  # echoed once each way
        inside.out = bytes(range(256)) * 1_000
        client_bytes = client.data_to_send()
        assert client_bytes.count(bytes(range(256))) == 0  # masked (section 5.3)

    def test_answer_is_read_byte_by_byte(self) -> None:
        client, server = self.pair()
        server.receive_data(client.data_to_send(), 0.0)
        for byte in server.data_to_send():
            assert not client.opened
            client.receive_data(bytes((byte,)), 0.0)
        assert client.opened

    def test_other_subprotocol_is_refused(self) -> None:
        client, server = self.pair("amqp")
        assert self.exchange(client, server) == ["eof"]
        assert client.closed
        assert client.refused == "it refused the WebSocket: HTTP status 400"

    @pytest.mark.parametrize(
        ("answer", "why"),
        [
            (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\n\r\nno\r\n", "HTTP status 403"),
            (b"HTTP/1.1 302 Found\r\nLocation: https://elsewhere/\r\n\r\n", "HTTP status 302"),
            (b"HTTP/1.1 200 OK\r\n\r\n<html>", "HTTP status 200"),
            (b"SSH-2.0-OpenSSH_9\r\n\r\n", "it is not a WebSocket server"),
            (b"HTTP/1.1 200 OK\r\nX: " + b"x" * HANDSHAKE_BYTES_MAX, "larger than"),
        ],
    )
    def test_server_without_websocket_is_refused(self, answer: bytes, why: str) -> None:
        client, _ = self.pair()
        assert client.receive_data(answer, 0.0) == ["eof"]
        assert client.closed
        assert why in client.refused

    def test_server_without_a_subprotocol_is_refused(self) -> None:
        client, server = self.pair()
        server.receive_data(client.data_to_send(), 0.0)
        answer = server.data_to_send().replace(b"Sec-WebSocket-Protocol: mqtt\r\n", b"")
        assert client.receive_data(answer, 0.0) == ["eof"]
        assert "does not speak mqtt" in client.refused

    def test_abort_closes(self) -> None:
        client, server = self.pair()
        client.fail("paused")
        assert client.closed
        server.receive_data(UPGRADE, 0.0)
        assert client.receive_data(server.data_to_send(), 0.0) == ()
        assert client.refused == "paused"

    def test_peer_may_close(self) -> None:
        client, server = self.pair()
        self.exchange(client, server)
        client.data_to_send()
        server.inner.closed = True  # type: ignore[misc]
        assert client.receive_data(server.data_to_send(), 0.0) == ["eof"]
        assert client.closed
