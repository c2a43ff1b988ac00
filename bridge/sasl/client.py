"""Client role of SASL."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.amqp_values import Symbol
from bridge.sasl.layer import CHALLENGE, INIT, MECHANISMS, OK, OUTCOME, RESPONSE, SASL_HEADER, Layer
from bridge.sasl.scram import MECHANISM as SCRAM
from bridge.sasl.scram import ScramClient, ScramError


class SaslClient(Layer):
    """Authenticate with the strongest of EXTERNAL, SCRAM-SHA-256, PLAIN and ANONYMOUS that both sides support.

    EXTERNAL is tried with `external`, SCRAM-SHA-256 with a `username`, ANONYMOUS with neither. PLAIN shows the password
    to the peer and to the network, so it needs a `username` and `plain`.
    """

    def __init__(
        self, username: str | None = None, password: str = "", *, external: bool = False, plain: bool = False
    ) -> None:
        super().__init__()
        self._username = username
        self._password = password
        self._scram: ScramClient | None = None
        self._proven = False
        known = username is not None
        possible = (("EXTERNAL", external), (SCRAM, known), ("PLAIN", known and plain))
        self._plain_withheld = known and not plain
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
            if code == MECHANISMS:
                self._choose(fields[0] if fields else None)
            elif code == CHALLENGE and self._scram is not None:
                self._challenged(self._scram, fields[0] if fields else None)
            elif code == OUTCOME:
                self._ended(fields)
            else:
                self._fail(f"unexpected SASL performative 0x{code:02x}")
        except ScramError as error:
            self._fail(str(error))

    def _challenged(self, scram: ScramClient, challenge: object) -> None:
        data = challenge if isinstance(challenge, bytes) else b""
        if data.startswith(b"v="):  # some servers send server-final-message as a challenge, not with the outcome
            scram.check(data)
            self._proven = True
            self._send(RESPONSE, [b""])
        else:
            self._send(RESPONSE, [scram.answer(data)])

    def _ended(self, fields: Sequence[object]) -> None:
        if not fields or fields[0] != OK:
            self._fail(f"the peer refused our credentials (SASL outcome {fields[0] if fields else 'missing'})")
            return
        if self._scram is not None and not self._proven:
            self._scram.check(fields[1] if len(fields) > 1 and isinstance(fields[1], bytes) else b"")
        self.identity, self.done = self._username, True

    def _choose(self, offered: object) -> None:
        names = [str(name) for name in offered] if isinstance(offered, list) else [str(offered)]
        mechanism = next((name for name in self._wanted if name in names), None)
        if mechanism is None:
            why = f"the peer offers {', '.join(names)}, and this connector can use {', '.join(self._wanted)}"
            if self._plain_withheld and "PLAIN" in names:
                why += "; PLAIN would send the password unencrypted: use TLS, or set credentials.plainWithoutTls"
            self._fail(why)
            return
        response = b""
        if mechanism == SCRAM:
            self._scram = ScramClient(self._username or "", self._password)
            response = self._scram.first()
        elif mechanism == "PLAIN":
            response = b"\x00" + (self._username or "").encode() + b"\x00" + self._password.encode()
        elif mechanism == "ANONYMOUS":
            response = b"anonymous"
        self._send(INIT, [Symbol(mechanism), response])
