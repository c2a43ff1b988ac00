"""Bytes of a WebSocket client, and a machine that echoes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: gw:1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: chat, mqtt\r\n\r\n"
)


MASK = b"\1\2\3\4"


def frame(
    opcode: int, payload: bytes = b"", *, final: bool = True, masked: bool = True, size: int | None = None
) -> bytes:
    """Return a frame as a client writes it (section 5.2); `size` is the length in its header."""
    size = len(payload) if size is None else size
    mask_bit = 0x80 if masked else 0
    head = bytes(((0x80 if final else 0) | opcode,))
    if size < 126:
        head += bytes((mask_bit | size,))
    elif size < 1 << 16:
        head += bytes((mask_bit | 126,)) + size.to_bytes(2, "big")
    else:
        head += bytes((mask_bit | 127,)) + size.to_bytes(8, "big")
    if masked:
        payload = bytes(byte ^ MASK[i % 4] for i, byte in enumerate(payload))
        head += MASK
    return head + payload


class EchoMachine:
    """Machine that echoes its input and records it as events; `quit` closes it."""

    def __init__(self, deadline: float | None = 10.0) -> None:
        self.closed = self.more = False
        self.deadline = deadline
        self.held_bytes = 0
        self.ended = 0
        self.out = b""

    def receive_data(self, data: bytes, now: float) -> Sequence[Any]:
        self.out += data
        self.closed = data == b"quit"
        return [data]

    def receive_eof(self, now: float) -> Sequence[Any]:
        self.ended += 1
        self.closed = True
        return ["eof"]

    def handle_timeout(self, now: float, *, listening: bool = True) -> Sequence[Any]:
        return ["timeout" if listening else "not heard"]

    def shed(self) -> Sequence[object]:
        return ()

    @property
    def spoken(self) -> str:
        return ""

    @property
    def has_output(self) -> bool:
        return True

    def data_to_send(self) -> bytes:
        data, self.out = self.out, b""
        return data
