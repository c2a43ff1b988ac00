"""The SASL layer of an AMQP 1.0 connection (part 5, section 5.3), both roles, without I/O.

It stands before the engine: it takes the bytes of a connection until the outcome, gives its own bytes to send, and
hands on what belongs to the AMQP layer. Who is who is asked of a callable; this module keeps no secrets and logs none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Protocol

from bridge.amqp_values import DecodeError, Described, Symbol, Symbols, Ubyte, Ulong, decode, encode
from bridge.bearer import MECHANISM as BEARER
from bridge.bearer import REFUSAL
from bridge.scram import MECHANISM as SCRAM
from bridge.scram import ScramClient, ScramError, ScramServer, Verifier

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"

FRAME_BYTES_MAX = 8192
"""Largest SASL frame taken. The standard's MIN-MAX-FRAME-SIZE is 512; bearer tokens in the field are larger."""

EARLY_BYTES_MAX = 65_536
"""Bytes taken from a client while its secret is looked at: an AMQP header and an open fit in many times over."""

_MECHANISMS, _INIT, _CHALLENGE, _RESPONSE, _OUTCOME = 0x40, 0x41, 0x42, 0x43, 0x44
_OK, _AUTH, _TEMPORARY = 0, 1, 4
_SASL_FRAME = 1

PLAIN = "PLAIN"
ANONYMOUS = "anonymous"
"""Identity of those who gave none, where they are let in."""

Authenticate = Callable[[str, str, bytes], str | None]
"""(mechanism, claimed identity, secret) -> the identity, or None when the claim is not believed."""


class Answer(Protocol):
    """How a `Credentials` tells its verdict."""

    def __call__(self, identity: str | None, *, temporary: bool = False) -> None:
        """`identity` None: refused; `temporary`: not for what was claimed, it may be tried again."""
        ...


class Credentials(Protocol):
    """Who a server asks about secrets, where looking at one takes time."""

    @property
    def mechanisms(self) -> frozenset[str]:
        """Those of OAUTHBEARER, SCRAM-SHA-256 and PLAIN that it can be asked about."""
        ...

    def plain(self, username: str, password: bytes, answer: Answer) -> None:
        """Call `answer` once, now or later; then the connection has to be given a turn (`receive_data(b"")`)."""
        ...

    def bearer(self, message: bytes, answer: Answer) -> None:
        """The same for the message of OAUTHBEARER (`bridge.bearer`)."""
        ...

    def scram(self, username: str) -> Verifier | None:
        """What is kept of the user; for a user that does not exist one that looks alike, and has no keys. None: nobody
        may try for a while."""
        ...

    def failed(self, username: str) -> None:
        """Somebody did not prove with SCRAM-SHA-256 to be this user."""
        ...


class _Layer:
    """What both roles share: header first, then frames, until `done` or `failure`."""

    def __init__(self) -> None:
        self.done = False
        """The outcome is ok (or the layer was skipped); `rest` belongs to the AMQP layer."""
        self.failure: str | None = None
        """Why the layer failed: the connection closes once `take` has been written."""
        self.identity: str | None = None
        self.deciding = False
        """Somebody is looking at a secret; what the peer sends meanwhile waits."""
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
        if not isinstance(body, Described) or not isinstance(body.value, list) or not isinstance(body.descriptor, int):
            self._fail("a SASL frame without a performative")
            return False
        self._on_frame(body.descriptor, body.value)
        return True

    def _send(self, code: int, fields: list[object]) -> None:
        body = encode(Described(Ulong(code), fields))
        self._output += struct.pack(">IBBH", len(body) + 8, 2, _SASL_FRAME, 0) + body


class SaslServer(_Layer):
    """The accepting side: ANONYMOUS, PLAIN, SCRAM-SHA-256 and OAUTHBEARER as far as there is somebody to ask, and
    EXTERNAL.

    `authenticate`  is asked about PLAIN, and answers at once.
    `credentials`   is asked about what it names in its place, and may take its time.
    `anonymous`     the identity of an ANONYMOUS client and of one that skips the layer; None: neither is let in.
    `external`      the identity the transport layer has established (may be set until the peer's header has come);
                    None: EXTERNAL is not offered.
    """

    def __init__(
        self,
        authenticate: Authenticate | None = None,
        *,
        credentials: Credentials | None = None,
        anonymous: str | None = None,
        external: str | None = None,
    ) -> None:
        super().__init__()
        self.external = external
        self._authenticate = authenticate
        self._credentials = credentials
        self._anonymous = anonymous
        self._mechanism = ""
        self._scram: ScramServer | None = None
        self._told = False
        """The client has to answer to the reason of our refusal (RFC 7628 section 3.2.3)."""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """What is offered, the strongest first."""
        asked = self._credentials.mechanisms if self._credentials is not None else frozenset()
        offered = [
            ("EXTERNAL", self.external is not None),
            (SCRAM, SCRAM in asked),
            (BEARER, BEARER in asked),
            (PLAIN, self._authenticate is not None or PLAIN in asked),
            ("ANONYMOUS", self._anonymous is not None),
        ]
        return tuple(name for name, possible in offered if possible)

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
        expected = _INIT if self._scram is None and not self._told else _RESPONSE
        if code != expected:
            name = "sasl-init" if expected == _INIT else "sasl-response"
            self._fail(f"SASL performative 0x{code:02x} in place of {name}")
        elif self._told:
            self._refuse(temporary=False)
        elif self._scram is not None:
            response = fields[0] if fields and isinstance(fields[0], bytes) else b""
            self._finish_scram(self._scram, response)
        else:
            self._mechanism = str(fields[0]) if fields else ""
            response = fields[1] if len(fields) > 1 and isinstance(fields[1], bytes) else b""
            if self._mechanism in self.mechanisms:
                self._begin(response)
            else:
                self._decided(None)

    def _begin(self, response: bytes) -> None:
        """sasl-init of a mechanism we offer."""
        if self._mechanism == "EXTERNAL":  # RFC 4422 appendix A: with an authorization identity, or none
            own = (self.external or "").encode()
            self._decided(self.external if response in (b"", own) else None)
        elif self._mechanism == "ANONYMOUS":
            self._decided(self._anonymous)
        elif self._mechanism == PLAIN:
            self._plain(response)
        elif self._credentials is not None and self._mechanism == BEARER:
            self.deciding = True
            self._credentials.bearer(response, self._borne)
        elif self._credentials is not None:
            self._begin_scram(self._credentials, response)

    def _plain(self, response: bytes) -> None:
        parts = response.split(b"\x00")  # RFC 4616: authorization identity, identity, password
        try:
            username = parts[1].decode("utf-8") if len(parts) == 3 else ""
        except UnicodeDecodeError:
            username = ""
        if not username or parts[0] not in (b"", parts[1]):  # a user acts for itself only
            self._decided(None)
        elif self._credentials is not None:
            self.deciding = True
            self._credentials.plain(username, parts[2], self._decided)
        elif self._authenticate is not None:
            self._decided(self._authenticate("PLAIN", username, parts[2]))

    def _begin_scram(self, credentials: Credentials, response: bytes) -> None:
        scram = ScramServer()
        try:
            scram.first(response)
        except ScramError:
            self._decided(None)
            return
        verifier = credentials.scram(scram.username)
        if verifier is None:
            self._decided(None, temporary=True)
            return
        self._scram = scram
        self._send(_CHALLENGE, [scram.challenge(verifier)])

    def _finish_scram(self, scram: ScramServer, response: bytes) -> None:
        try:
            final = scram.finish(response)
        except ScramError:
            if self._credentials is not None:
                self._credentials.failed(scram.username)
            self._decided(None)
        else:
            self._decided(scram.username, additional=final)

    def _borne(self, identity: str | None, *, temporary: bool = False) -> None:
        """A token was looked at: who is refused hears why first, and answers to it (RFC 7628 section 3.2.3)."""
        if identity is not None or temporary or self.failure is not None:
            self._decided(identity, temporary=temporary)
            return
        self.deciding = False
        self._told = True
        self._send(_CHALLENGE, [REFUSAL])

    def _decided(self, identity: str | None, *, temporary: bool = False, additional: bytes | None = None) -> None:
        """Send the outcome (section 5.3.3.6). Nothing happens when the layer has failed meanwhile."""
        self.deciding = False
        if self.failure is not None:
            return
        if identity is None:
            self._refuse(temporary=temporary)
            return
        self._send(_OUTCOME, [Ubyte(_OK)] if additional is None else [Ubyte(_OK), additional])
        self.identity, self.done = identity, True

    def _refuse(self, *, temporary: bool) -> None:
        self._send(_OUTCOME, [Ubyte(_TEMPORARY if temporary else _AUTH)])
        why = "busy" if temporary else "authentication failed"
        self._fail(f"{why} ({self._mechanism[:20]})")


class SaslClient(_Layer):
    """The connecting side: the strongest of EXTERNAL, SCRAM-SHA-256, PLAIN, ANONYMOUS that both sides can.

    EXTERNAL is tried when `external`, SCRAM-SHA-256 and PLAIN when there is a `username`, ANONYMOUS when there is
    neither.
    """

    def __init__(self, username: str | None = None, password: str = "", *, external: bool = False) -> None:
        super().__init__()
        self._username = username
        self._password = password
        self._scram: ScramClient | None = None
        self._proven = False
        known = username is not None
        possible = (("EXTERNAL", external), (SCRAM, known), ("PLAIN", known))
        self._wanted = [name for name, can in possible if can] or ["ANONYMOUS"]
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
        try:
            if code == _MECHANISMS:
                self._choose(fields[0] if fields else None)
            elif code == _CHALLENGE and self._scram is not None:
                self._challenged(self._scram, fields[0] if fields else None)
            elif code == _OUTCOME:
                self._ended(fields)
            else:
                self._fail(f"unexpected SASL performative 0x{code:02x}")
        except ScramError as error:
            self._fail(str(error))

    def _challenged(self, scram: ScramClient, challenge: object) -> None:
        data = challenge if isinstance(challenge, bytes) else b""
        if data.startswith(b"v="):  # some servers say the last word as a challenge, and not with the outcome
            scram.check(data)
            self._proven = True
            self._send(_RESPONSE, [b""])
        else:
            self._send(_RESPONSE, [scram.answer(data)])

    def _ended(self, fields: Sequence[object]) -> None:
        if not fields or fields[0] != _OK:
            self._fail(f"the peer refused our credentials (SASL outcome {fields[0] if fields else 'missing'})")
            return
        if self._scram is not None and not self._proven:
            self._scram.check(fields[1] if len(fields) > 1 and isinstance(fields[1], bytes) else b"")
        self.identity, self.done = self._username, True

    def _choose(self, offered: object) -> None:
        names = [str(name) for name in offered] if isinstance(offered, list) else [str(offered)]
        mechanism = next((name for name in self._wanted if name in names), None)
        if mechanism is None:
            self._fail(f"the peer offers {', '.join(names)}, we can {', '.join(self._wanted)}")
            return
        response = b""
        if mechanism == SCRAM:
            self._scram = ScramClient(self._username or "", self._password)
            response = self._scram.first()
        elif mechanism == "PLAIN":
            response = b"\x00" + (self._username or "").encode() + b"\x00" + self._password.encode()
        elif mechanism == "ANONYMOUS":
            response = b"anonymous"
        self._send(_INIT, [Symbol(mechanism), response])
