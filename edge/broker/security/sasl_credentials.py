"""Connect the SASL layer of one AMQP connection to the authenticator."""

from __future__ import annotations

from collections.abc import Callable

from bridge.sasl import ANONYMOUS, PLAIN, CredentialAnswer, bearer, scram
from bridge.sasl.scram import ScramVerifier
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.proof import Decided, LoginVerdict, VerifiedIdentity


class SaslCredentials:
    """Implements `bridge.sasl.CredentialChecker` for one AMQP connection with the authenticator of the broker."""

    def __init__(self, gate: Authenticator) -> None:
        self.source = ""
        """Address of the peer, once connected."""
        self.proven: VerifiedIdentity | None = None
        """Identity of the peer, once authenticated."""
        self._gate = gate
        self._wake: Callable[[], None] | None = None

    def connected(self, wake: Callable[[], None], source: str) -> None:
        """Set the transport. `wake` resumes the connection after a verdict that came later; `source` is the address
        of the peer."""
        self._wake, self.source = wake, source

    @property
    def mechanisms(self) -> frozenset[str]:
        """SASL mechanisms that clients of this space may use."""
        if self._gate.tokens:
            return frozenset((bearer.MECHANISM, PLAIN))
        return frozenset((scram.MECHANISM, PLAIN)) if self._gate.passwords else frozenset()

    def plain(self, username: str, password: bytes, answer: CredentialAnswer) -> None:
        if username == ANONYMOUS and not self._gate.tokens:  # the name of clients without authentication
            answer(None)
            return
        self._ask(answer, lambda decided: self._gate.check(username, password, decided, self.source))

    def bearer(self, message: bytes, answer: CredentialAnswer) -> None:
        self._ask(answer, lambda decided: self._gate.check_bearer(message, decided, self.source))

    def scram(self, username: str) -> ScramVerifier | None:
        if self._gate.throttles(self.source, username):
            return None
        self.proven = self._gate.identify(username)  # valid once the exchange succeeds
        return self._gate.scram(username)

    def failed(self, username: str) -> None:
        self._gate.failed(self.source, username)

    def succeeded(self, username: str) -> str:
        self._gate.succeeded(self.source, username)
        return username if self.proven is None else self.proven.user

    def _ask(self, answer: CredentialAnswer, ask: Callable[[Decided], None]) -> None:
        asking = True

        def decided(verdict: LoginVerdict, proven: VerifiedIdentity | None) -> None:
            self.proven = proven
            answer(proven.user if proven is not None else None, temporary=verdict is LoginVerdict.BUSY)
            if not asking and self._wake is not None:
                self._wake()

        ask(decided)
        asking = False
