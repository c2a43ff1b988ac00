"""WebSocket clients that send expensive data: the standard's code closes them, and others are served."""

from __future__ import annotations

import contextlib
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge.broker.mqtt import packets
from tests.fault.hostile.figures import Figures
from tests.fault.hostile.watch import watched
from tests.support.processes import Waypost, edge, resident_mib

WAIT_S = 20.0
FLOOR_S = 0.5
"""Floor for the p99 of another client, with two busy cores."""
GROWTH_MIB_MAX = 40.0
REQUEST = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)
CONTINUATION, TEXT, BINARY, CLOSE, PING = 0x0, 0x1, 0x2, 0x8, 0x9
FIN, COMPRESSED = 0x80, 0x40
CONNECT = packets.Connect("bomber", 4).encode(4)


def frame(first: int, data: bytes = b"", *, size: int | None = None, masked: bool = True) -> bytes:
    """Return a frame with a zero mask; `size` overrides the length of the data."""
    length, mark = len(data) if size is None else size, 0x80 if masked else 0
    if length < 126:
        head = bytes([first, mark | length])
    elif length < 1 << 16:
        head = bytes([first, mark | 126]) + struct.pack(">H", length)
    else:
        head = bytes([first, mark | 127]) + struct.pack(">Q", length)
    return head + (bytes(4) if masked else b"") + data


deflated = zlib.compressobj(9, zlib.DEFLATED, -15)
BOMB = deflated.compress(bytes(100 << 20)) + deflated.flush()
"""100 MiB of zeros in 100 KiB."""
ENDED = {
    "a compressed frame": (frame(FIN | COMPRESSED | BINARY, BOMB), 1002),
    "a frame without a mask": (frame(FIN | BINARY, CONNECT, masked=False), 1002),
    "a ping of 126 bytes": (frame(FIN | PING, bytes(126)), 1002),
    "a ping of 2^62 bytes": (frame(FIN | PING, bytes(99), size=1 << 62), 1002),
    "a ping in pieces": (frame(PING, b"x"), 1002),
    "a continuation of nothing": (frame(FIN | CONTINUATION, b"x"), 1002),
    "a message in a message": (frame(BINARY, b"x") + frame(FIN | BINARY, b"y"), 1002),
    "text": (frame(FIN | TEXT, b"x"), 1003),
    "an opcode nobody knows": (frame(FIN | 0x3, b"x"), 1002),
    "a frame of 2^63 bytes": (frame(FIN | BINARY, b"x", size=1 << 63), 1002),
}
"""Frames that end a connection, with the close code (RFC 6455 section 7.4.1)."""


@contextlib.contextmanager
def opened(gateway: Waypost) -> Iterator[socket.socket]:
    """Open a WebSocket without an extension."""
    with socket.create_connection(("127.0.0.1", gateway.port("mqtt-ws")), timeout=WAIT_S) as peer:
        peer.sendall(REQUEST)
        head = b""
        while b"\r\n\r\n" not in head:
            head += peer.recv(1)
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"xtensions" not in head, "nothing is compressed"
        yield peer


def rest(peer: socket.socket) -> bytes:
    """Return all data up to the gateway's end."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while data := peer.recv(1 << 16):
            found += data
    return found


@pytest.mark.parametrize("name", ENDED)
def test_invalid_frame_ends_connection_with_its_code(gateway: Waypost, name: str) -> None:
    data, code = ENDED[name]
    before = resident_mib(gateway.pid)
    with opened(gateway) as peer:
        peer.sendall(data)
        end = rest(peer)
        assert end[:1] == bytes([FIN | CLOSE])
        assert struct.unpack(">H", end[2:4])[0] == code
    assert resident_mib(gateway.pid) - before < GROWTH_MIB_MAX


FLOODS = {
    "a message without end": frame(BINARY, b"") + frame(CONTINUATION, bytes(1 << 16)) * 1_000,
    "empty pieces": frame(BINARY, b"") + frame(CONTINUATION, b"") * 300_000,
    "pings": frame(FIN | PING, bytes(125)) * 100_000,
    "one byte a piece": frame(BINARY, CONNECT[:1]) + b"".join(frame(CONTINUATION, b"\xff") for _ in range(100_000)),
    "a frame of 1 TiB": frame(FIN | BINARY, bytes(64 << 20), size=1 << 40),
}


@pytest.mark.parametrize("name", FLOODS)
def test_flood_of_frames_disturbs_no_other_client(
    gateway: Waypost, control: Waypost, figures: Callable[[Figures], None], name: str
) -> None:
    """Tens of MiB of meaningless frames leave memory unchanged, and other round trips short."""
    before = resident_mib(gateway.pid)
    with watched(gateway, control, f"WebSocket: {name}", figures, floor_s=FLOOR_S, grown_mib=GROWTH_MIB_MAX):
        with opened(gateway) as peer, contextlib.suppress(ConnectionError, TimeoutError):
            peer.settimeout(2.0)
            peer.sendall(FLOODS[name])
            rest(peer)
        assert resident_mib(gateway.pid) - before < GROWTH_MIB_MAX


def test_attacks_leave_no_traceback_in_log(tmp_path: Path) -> None:
    """The attacks leave no traceback in the log."""
    with edge(tmp_path, "gw", "--mqtt-ws", "127.0.0.1:0") as running:
        for data, _ in ENDED.values():
            with opened(running) as peer:
                peer.sendall(data)
                rest(peer)
        assert running.stop() == 0
        assert "Traceback" not in running.log.read_text()
