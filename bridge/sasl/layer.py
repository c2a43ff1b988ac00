"""Base of both roles of SASL over AMQP: header, frames, and the state of the exchange (section 5.3)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from bridge.amqp_values import DecodeError, DescribedValue, Ulong, decode, encode

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"

FRAME_BYTES_MAX = 8192
"""Largest accepted SASL frame. The standard's MIN-MAX-FRAME-SIZE is 512; bearer tokens in the field are larger."""

EARLY_BYTES_MAX = 65_536
"""Bytes accepted from a client while its secret is verified; an AMQP header and an open need a fraction of that."""

MECHANISMS, INIT, CHALLENGE, RESPONSE, OUTCOME = 0x40, 0x41, 0x42, 0x43, 0x44
"""Descriptors of the performatives (section 5.3.3)."""
OK, AUTH, TEMPORARY = 0, 1, 4
"""Codes of the outcome (section 5.3.3.6)."""
_SASL_FRAME = 1


class Layer:
    """Base of both roles: header first, then frames, until `done` or `failure`."""

    def __init__(self) -> None:
        self.done = False
        """The outcome is ok (or the layer was skipped); `rest` belongs to the AMQP layer."""
        self.failure: str | None = None
        """Reason of a failure: the connection closes once the bytes of `take` have been written."""
        self.identity: str | None = None
        self.deciding = False
        """A secret is being verified; further bytes of the peer wait."""
        self.rest = b""
        self._input = b""
        self._output = b""
        self._header_seen = False

    @property
    def held_bytes(self) -> int:
        """Unread bytes of the peer."""
        return len(self._input)

    def take(self) -> bytes:
        """Return the bytes to send now, and clear them."""
        output, self._output = self._output, b""
        return output

    def receive(self, data: bytes) -> None:
        """Handle bytes of the peer. Raises nothing: check `done` and `failure` afterwards."""
        if self.failure is not None:
            return
        self._input += data
        try:
            if not self._header_seen:
                self._header_seen = self._read_header()
            while self._header_seen and not self.done and self.failure is None and not self.deciding:
                if not self._read_frame():
                    break
        except DecodeError as error:
            self._fail(f"bad SASL frame: {error}")
        if self.deciding and len(self._input) > EARLY_BYTES_MAX:
            self._fail(f"more than {EARLY_BYTES_MAX} bytes before the outcome")
        if self.done:
            self.rest, self._input = self._input, b""

    def _read_header(self) -> bool:
        raise NotImplementedError

    def _on_frame(self, code: int, fields: Sequence[object]) -> None:
        raise NotImplementedError

    def _fail(self, why: str) -> None:
        self.failure = why

    def _read_frame(self) -> bool:
        data = self._input
        if len(data) < 8:
            return False
        size, offset, kind = struct.unpack_from(">IBB", data)
        if not 8 <= size <= FRAME_BYTES_MAX or offset < 2 or offset * 4 > size or kind != _SASL_FRAME:
            self._fail("not a SASL frame")
            return False
        if len(data) < size:
            return False
        self._input = data[size:]
        body, _ = decode(data[:size], offset * 4)
        if (
            not isinstance(body, DescribedValue)
            or not isinstance(body.value, list)
            or not isinstance(body.descriptor, int)
        ):
            self._fail("a SASL frame without a performative")
            return False
        self._on_frame(body.descriptor, body.value)
        return True

    def _send(self, code: int, fields: list[object]) -> None:
        body = encode(DescribedValue(Ulong(code), fields))
        self._output += struct.pack(">IBBH", len(body) + 8, 2, _SASL_FRAME, 0) + body
