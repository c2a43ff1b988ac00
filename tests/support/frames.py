"""Peer that writes its own AMQP frames (part 2, section 2.3), including those that no library would send."""

from __future__ import annotations

import socket
import struct
from typing import Any, Final, NamedTuple, Self

from bridge.amqp_values import DescribedValue, Symbol, Uint, Ulong, decode, encode
from tests.support.hostile import WAIT_S

HEADER: Final = b"AMQP\x00\x01\x00\x00"
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
SENDER, RECEIVER = False, True
ERROR: Final = 0x1D
SOURCE, TARGET = 0x28, 0x29
ROOM: Final = Uint(1_000)
"""Windows of a session and credit: more than a test sends."""


class Frame(NamedTuple):
    """A performative with its fields; `code` None for an empty frame."""

    channel: int
    code: int | None
    fields: list[Any]
    payload: bytes = b""

    @property
    def error(self) -> str | None:
        """Return the condition of a close, end or detach."""
        described = next((each for each in self.fields if isinstance(each, DescribedValue)), None)
        return str(described.value[0]) if described is not None and described.descriptor == ERROR else None


def terminus(code: int, address: str | None, *rest: Any) -> DescribedValue:
    return DescribedValue(Ulong(code), [address, *rest])


def frame(code: int, *fields: Any, channel: int = 0, payload: bytes = b"", kind: int = 0) -> bytes:
    """Encode a frame; `kind` is 0 for AMQP, 1 for SASL."""
    body = encode(DescribedValue(Ulong(code), list(fields))) + payload
    return struct.pack(">IBBH", len(body) + 8, 2, kind, channel) + body


class FramePeer:
    """Socket that has sent its open, and sends further frames on demand."""

    def __init__(self, port: int, container_id: str = "frames") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self._received = b""
        self.socket.sendall(HEADER)
        self.send(OPEN, container_id)
        assert self._take(8) == HEADER
        self.opened = self.expect(OPEN)

    def send(self, code: int, *fields: Any, channel: int = 0, payload: bytes = b"") -> Self:
        self.socket.sendall(frame(code, *fields, channel=channel, payload=payload))
        return self

    def begin(self, channel: int = 0) -> Frame:
        """Open a session; return the answer."""
        self.send(BEGIN, None, Uint(0), ROOM, ROOM, channel=channel)
        return self.expect(BEGIN)

    def attach(
        self, name: str, handle: int, role: bool, address: str, *rest: Any, source: tuple[Any, ...] = ()
    ) -> Self:
        """Attach a link; `rest` are the fields from `unsettled` on, `source` those of a receiver's source."""
        mine = terminus(SOURCE, address, *source) if role is RECEIVER else terminus(SOURCE, None)
        theirs = terminus(TARGET, None) if role is RECEIVER else terminus(TARGET, address)
        count = Uint(0) if role is SENDER else None
        unsettled, *more = rest or (None,)
        return self.send(ATTACH, name, Uint(handle), role, None, None, mine, theirs, unsettled, None, count, *more)

    def grant(self, handle: int, credit: int) -> Self:
        fields = [Uint(0), ROOM, Uint(0), ROOM, Uint(handle), Uint(0), Uint(credit)]
        return self.send(FLOW, *fields)

    def transfer(self, handle: int, delivery_id: int, body: bytes) -> Self:
        message = b"\x00\x53\x75\xa0" + bytes((len(body),)) + body
        tag = struct.pack(">I", delivery_id)
        return self.send(TRANSFER, Uint(handle), Uint(delivery_id), tag, Uint(0), payload=message)

    def expect(self, code: int) -> Frame:
        """Return the next frame of this kind; skip others."""
        while (found := self.receive()) is not None:
            if found.code == code:
                return found
            assert found.code != CLOSE, found
        raise AssertionError("the gateway closed the socket")

    def receive(self) -> Frame | None:
        """Return the next frame; None at the end of the connection."""
        head = self._take(8)
        if len(head) < 8:
            return None
        size, offset, _, channel = struct.unpack(">IBBH", head)
        body = self._take(size - 8)[offset * 4 - 8 :]
        if not body:
            return Frame(channel, None, [])
        described, end = decode(body)
        assert isinstance(described, DescribedValue)
        return Frame(channel, described.descriptor, described.value, body[end:])

    def ended(self) -> str | None:
        """Return the condition of the gateway's close, and check that its socket is closed too."""
        try:
            return self.expect_close()
        finally:
            assert self.receive() is None

    def expect_close(self) -> str | None:
        while (found := self.receive()) is not None:
            if found.code == CLOSE:
                return found.error
        raise AssertionError("closed without a close")

    def _take(self, count: int) -> bytes:
        while len(self._received) < count:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                break
            if not data:
                break
            self._received += data
        found, self._received = self._received[:count], self._received[count:]
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def error(condition: str) -> DescribedValue:
    return DescribedValue(Ulong(ERROR), [Symbol(condition)])
