"""Server role of SASL. Callables verify the secrets; this module stores and logs none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from bridge.amqp_values import Symbols, Ubyte
from bridge.sasl.bearer import MECHANISM as BEARER
from bridge.sasl.bearer import OLDER_MECHANISM, REFUSAL
from bridge.sasl.layer import (
    AMQP_HEADER,
    AUTH,
    CHALLENGE,
    INIT,
    MECHANISMS,
    OK,
    OUTCOME,
    RESPONSE,
    SASL_HEADER,
    TEMPORARY,
    Layer,
)
from bridge.sasl.scram import MECHANISM as SCRAM
from bridge.sasl.scram import ScramError, ScramServer, ScramVerifier
from bridge.transport.peer_protocol import foreign_protocol

PLAIN = "PLAIN"
ANONYMOUS = "anonymous"
"""Identity of clients without credentials, where they are admitted."""

Authenticate = Callable[[str, str, bytes], str | None]
"""(mechanism, claimed identity, secret) -> the identity, or None when the secret is wrong."""


class CredentialAnswer(Protocol):
    """Callback with the result of a `CredentialChecker`."""

    def __call__(self, identity: str | None, *, temporary: bool = False) -> None:
        """`identity` None: refused; `temporary`: refused for now, and the client may try again."""
        ...


class CredentialChecker(Protocol):
    """Verifies secrets, possibly over time."""

    @property
    def mechanisms(self) -> frozenset[str]:
        """Supported mechanisms out of OAUTHBEARER, SCRAM-SHA-256 and PLAIN."""
        ...

    def plain(self, username: str, password: bytes, answer: CredentialAnswer) -> None:
        """Verify a password: call `answer` once, now or later, and then run the connection (`receive_data(b"")`)."""
        ...

    def bearer(self, message: bytes, answer: CredentialAnswer) -> None:
        """Verify the message of OAUTHBEARER (`bridge.sasl.bearer`), as `plain`."""
        ...

    def scram(self, username: str) -> ScramVerifier | None:
        """Return the verifier of a user; for an unknown user one that looks the same but has no keys. None: attempts
        for this user are blocked for now."""
        ...

    def failed(self, username: str) -> None:
        """Record a failed SCRAM-SHA-256 exchange for this user."""
        ...

    def succeeded(self, username: str) -> str:
        """Record a successful SCRAM-SHA-256 exchange of this user; return its identity."""
        ...


class SaslServer(Layer):
    """Server role: EXTERNAL and ANONYMOUS, and PLAIN, SCRAM-SHA-256, OAUTHBEARER and XOAUTH2 as far as `credentials`
    support them.

    `authenticate`  verifies PLAIN and answers at once.
    `credentials`   verifies the mechanisms that it supports in place of `authenticate`, possibly over time.
    `anonymous`     the identity of an ANONYMOUS client and of one that skips the layer; None: neither is admitted.
    `external`      the identity from the transport layer (may be set until the peer's header has arrived);
                    None: EXTERNAL is not offered.
    """

    def __init__(
        self,
        authenticate: Authenticate | None = None,
        *,
        credentials: CredentialChecker | None = None,
        anonymous: str | None = None,
        external: str | None = None,
    ) -> None:
        super().__init__()
        self.external = external
        self._authenticate = authenticate
        self._credentials = credentials
        self._anonymous = anonymous
        self.spoken = ""
        """Protocol that the client speaks instead of AMQP 1.0; empty: AMQP 1.0, or unknown."""
        self._mechanism = ""
        self.hostname = ""
        """Name of the requested host in sasl-init; empty: none."""
        self._scram: ScramServer | None = None
        self._refusal_sent = False
        """The client has to answer our refusal challenge (RFC 7628 section 3.2.3)."""

    @property
    def mechanism(self) -> str:
        """The mechanism that the client has chosen; empty before."""
        return self._mechanism

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Offered mechanisms, the strongest first."""
        asked = self._credentials.mechanisms if self._credentials is not None else frozenset()
        offered = [
            ("EXTERNAL", self.external is not None),
            (SCRAM, SCRAM in asked),
            (BEARER, BEARER in asked),
            (OLDER_MECHANISM, BEARER in asked),
            (PLAIN, self._authenticate is not None or PLAIN in asked),
            ("ANONYMOUS", self._anonymous is not None),
        ]
        return tuple(name for name, possible in offered if possible)

    def _read_header(self) -> bool:
        head = self._input[:8]
        if head == SASL_HEADER:
            self._input = self._input[8:]
            self._output += SASL_HEADER
            self._send(MECHANISMS, [Symbols(self.mechanisms or ("",))])
            return True
        if head == AMQP_HEADER and self._anonymous is not None:
            self.identity, self.done = self._anonymous, True
        elif not (SASL_HEADER.startswith(head) or AMQP_HEADER.startswith(head)) or len(head) == 8:
            self.spoken = foreign_protocol(head, "AMQP")
            self._output += SASL_HEADER  # section 2.2: answer with a supported header, then close
            self._fail("not an AMQP 1.0 client" if head != AMQP_HEADER else "SASL is required")
        return False

    def _on_frame(self, code: int, fields: Sequence[object]) -> None:
        expected = INIT if self._scram is None and not self._refusal_sent else RESPONSE
        if code != expected:
            name = "sasl-init" if expected == INIT else "sasl-response"
            self._fail(f"SASL performative 0x{code:02x} in place of {name}")
        elif self._refusal_sent:
            self._refuse(temporary=False)
        elif self._scram is not None:
            response = fields[0] if fields and isinstance(fields[0], bytes) else b""
            self._finish_scram(self._scram, response)
        else:
            self._mechanism = str(fields[0]) if fields else ""
            response = fields[1] if len(fields) > 1 and isinstance(fields[1], bytes) else b""
            self.hostname = fields[2] if len(fields) > 2 and isinstance(fields[2], str) else ""
            if self._mechanism in self.mechanisms:
                self._begin(response)
            else:
                self._decided(None)

    def _begin(self, response: bytes) -> None:
        """Handle sasl-init of an offered mechanism."""
        if self._mechanism == "EXTERNAL":  # RFC 4422 appendix A: with an authorization identity, or none
            own = (self.external or "").encode()
            self._decided(self.external if response in (b"", own) else None)
        elif self._mechanism == "ANONYMOUS":
            self._decided(self._anonymous)
        elif self._mechanism == PLAIN:
            self._plain(response)
        elif self._credentials is not None and self._mechanism in (BEARER, OLDER_MECHANISM):
            self.deciding = True
            self._credentials.bearer(response, self._decided_bearer)
        elif self._credentials is not None:
            self._begin_scram(self._credentials, response)

    def _plain(self, response: bytes) -> None:
        parts = response.split(b"\x00")  # RFC 4616: authorization identity, identity, password
        try:
            username = parts[1].decode("utf-8") if len(parts) == 3 else ""
        except UnicodeDecodeError:
            username = ""
        if not username or parts[0] not in (b"", parts[1]):  # a user may act only for itself
            self._decided(None)
        elif self._credentials is not None:
            self.deciding = True
            self._credentials.plain(username, parts[2], self._decided)
        elif self._authenticate is not None:
            self._decided(self._authenticate("PLAIN", username, parts[2]))

    def _begin_scram(self, credentials: CredentialChecker, response: bytes) -> None:
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
        self._send(CHALLENGE, [scram.challenge(verifier)])

    def _finish_scram(self, scram: ScramServer, response: bytes) -> None:
        try:
            final = scram.finish(response)
        except ScramError:
            if self._credentials is not None:
                self._credentials.failed(scram.username)
            self._decided(None)
        else:
            identity = scram.username
            if self._credentials is not None:
                identity = self._credentials.succeeded(scram.username)
            self._decided(identity, additional=final)

    def _decided_bearer(self, identity: str | None, *, temporary: bool = False) -> None:
        """Handle the result for a token. OAUTHBEARER sends the reason of a refusal as a challenge first, which the
        client answers (RFC 7628 section 3.2.3); clients of XOAUTH2 do not expect a challenge."""
        if identity is not None or temporary or self.failure is not None or self._mechanism != BEARER:
            self._decided(identity, temporary=temporary)
            return
        self.deciding = False
        self._refusal_sent = True
        self._send(CHALLENGE, [REFUSAL])

    def _decided(self, identity: str | None, *, temporary: bool = False, additional: bytes | None = None) -> None:
        """Send the outcome (section 5.3.3.6). Do nothing when the layer has failed in the meantime."""
        self.deciding = False
        if self.failure is not None:
            return
        if identity is None:
            self._refuse(temporary=temporary)
            return
        self._send(OUTCOME, [Ubyte(OK)] if additional is None else [Ubyte(OK), additional])
        self.identity, self.done = identity, True

    def _refuse(self, *, temporary: bool) -> None:
        self._send(OUTCOME, [Ubyte(TEMPORARY if temporary else AUTH)])
        why = "busy" if temporary else "authentication failed"
        self._fail(f"{why} ({self._mechanism[:20]})")
