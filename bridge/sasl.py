"""The SASL layer of an AMQP 1.0 connection (part 5, section 5.3), both roles, without I/O.

It stands before the engine: it takes the bytes of a connection until the outcome, gives its own bytes to send, and
hands on what belongs to the AMQP layer. Who is who is asked of a callable; this module keeps no secrets and logs none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from bridge.amqp_values import DecodeError, Described, Symbol, Symbols, Ubyte, Ulong, decode, encode

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"

FRAME_BYTES_MAX = 8192
"""Largest SASL frame taken. The standard's MIN-MAX-FRAME-SIZE is 512; bearer tokens in the field are larger."""

_MECHANISMS, _INIT, _CHALLENGE, _RESPONSE, _OUTCOME = 0x40, 0x41, 0x42, 0x43, 0x44
_OK, _AUTH = 0, 1
_SASL_FRAME = 1

ANONYMOUS = "anonymous"
"""Identity of those who gave none, where they are let in."""

Authenticate = Callable[[str, str, bytes], str | None]
"""(mechanism, claimed identity, secret) -> the identity, or None when the claim is not believed."""


class _Layer:
    """What both roles share: header first, then frames, until `done` or `failure`."""

    def __init__(self) -> None:
        self.done = False
        """The outcome is ok (or the layer was skipped); `rest` belongs to the AMQP layer."""
        self.failure: str | None = None
        """Why the layer failed: the connection closes once `take` has been written."""
        self.identity: str | None = None
        self.rest = b""
        self._input = b""
        self._output = b""
        self._header_seen = False

    def take(self) -> bytes:
        """Bytes to send now, once."""
        output, self._output = self._output, b""
        return output

    def receive(self, data: bytes) -> None:
        """Take bytes of the peer. Raises nothing: look at `done` and `failure` afterwards."""
        if self.failure is not None:
            return
        self._input += data
        try:
            if not self._header_seen:
                self._header_seen = self._read_header()
            while self._header_seen and not self.done and self.failure is None and self._read_frame():
                pass
        except DecodeError as error:
            self._fail(f"bad SASL frame: {error}")
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
        if not isinstance(body, Described) or not isinstance(body.value, list) or not isinstance(body.descriptor, int):
            self._fail("a SASL frame without a performative")
            return False
        self._on_frame(body.descriptor, body.value)
        return True

    def _send(self, code: int, fields: list[object]) -> None:
        body = encode(Described(Ulong(code), fields))
        self._output += struct.pack(">IBBH", len(body) + 8, 2, _SASL_FRAME, 0) + body


class SaslServer(_Layer):
    """The accepting side. ANONYMOUS and PLAIN are asked of `authenticate`, EXTERNAL is what TLS has proven.

    `anonymous`   the identity of an ANONYMOUS client and of one that skips the layer; None: neither is let in.
    `external`    the identity the transport layer has established; None: EXTERNAL is not offered.
    """

    def __init__(
        self, authenticate: Authenticate | None = None, *, anonymous: str | None = None, external: str | None = None
    ) -> None:
        super().__init__()
        self._authenticate = authenticate
        self._anonymous = anonymous
        self._external = external
        offered = [("EXTERNAL", external is not None), ("PLAIN", authenticate is not None)]
        offered.append(("ANONYMOUS", anonymous is not None))
        self.mechanisms = tuple(name for name, possible in offered if possible)

    def _read_header(self) -> bool:
        head = self._input[:8]
        if head == SASL_HEADER:
            self._input = self._input[8:]
            self._output += SASL_HEADER
            self._send(_MECHANISMS, [Symbols(self.mechanisms or ("",))])
            return True
        if head == AMQP_HEADER and self._anonymous is not None:
            self.identity, self.done = self._anonymous, True
        elif not (SASL_HEADER.startswith(head) or AMQP_HEADER.startswith(head)) or len(head) == 8:
            self._output += SASL_HEADER  # section 2.2: answer with a header we do support, then close
            self._fail("not an AMQP 1.0 client" if head != AMQP_HEADER else "SASL is required")
        return False

    def _on_frame(self, code: int, fields: Sequence[object]) -> None:
        if code != _INIT:
            self._fail(f"SASL performative 0x{code:02x} in place of sasl-init")
            return
        mechanism = fields[0] if fields else None
        response = fields[1] if len(fields) > 1 and isinstance(fields[1], bytes) else b""
        identity = self._check(str(mechanism), response) if mechanism in self.mechanisms else None
        self._send(_OUTCOME, [Ubyte(_AUTH if identity is None else _OK)])
        if identity is None:
            self._fail(f"authentication failed ({mechanism})")
        else:
            self.identity, self.done = identity, True

    def _check(self, mechanism: str, response: bytes) -> str | None:
        if mechanism == "EXTERNAL":
            return self._external
        if mechanism == "ANONYMOUS":
            return self._anonymous
        parts = response.split(b"\x00")  # RFC 4616: authorization identity, identity, password
        if len(parts) != 3 or self._authenticate is None:
            return None
        try:
            return self._authenticate(mechanism, parts[1].decode("utf-8"), parts[2])
        except UnicodeDecodeError:
            return None


class SaslClient(_Layer):
    """The connecting side: the strongest of EXTERNAL, PLAIN, ANONYMOUS that both sides can.

    EXTERNAL is tried when `external`, PLAIN when there is a `username`, ANONYMOUS when there is neither.
    """

    def __init__(self, username: str | None = None, password: str = "", *, external: bool = False) -> None:
        super().__init__()
        self._username = username
        self._password = password
        self._wanted = [
            name for name, possible in (("EXTERNAL", external), ("PLAIN", username is not None)) if possible
        ]
        self._wanted = self._wanted or ["ANONYMOUS"]
        self._output = SASL_HEADER

    def _read_header(self) -> bool:
        head = self._input[:8]
        if head == SASL_HEADER:
            self._input = self._input[8:]
            return True
        if len(head) == 8 or not SASL_HEADER.startswith(head):
            self._fail("the peer does not speak AMQP 1.0 with SASL")
        return False

    def _on_frame(self, code: int, fields: Sequence[object]) -> None:
        if code == _MECHANISMS:
            self._choose(fields[0] if fields else None)
        elif code == _OUTCOME and fields and fields[0] == _OK:
            self.identity, self.done = self._username, True
        elif code == _OUTCOME:
            self._fail(f"the peer refused our credentials (SASL outcome {fields[0] if fields else 'missing'})")
        else:
            self._fail(f"unexpected SASL performative 0x{code:02x}")

    def _choose(self, offered: object) -> None:
        names = [str(name) for name in offered] if isinstance(offered, list) else [str(offered)]
        mechanism = next((name for name in self._wanted if name in names), None)
        if mechanism is None:
            self._fail(f"the peer offers {', '.join(names)}, we can {', '.join(self._wanted)}")
            return
        response = b""
        if mechanism == "PLAIN":
            response = b"\x00" + (self._username or "").encode() + b"\x00" + self._password.encode()
        elif mechanism == "ANONYMOUS":
            response = b"anonymous"
        self._send(_INIT, [Symbol(mechanism), response])
