"""SASL mechanisms for the enhanced authentication of MQTT 5 (section 4.12), without I/O.

AMQP carries the same mechanisms in its SASL frames (`bridge.sasl`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from bridge.hidden import hides
from bridge.sasl import bearer, scram
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.proof import LoginVerdict, VerifiedIdentity


@hides("data")
class Challenge(NamedTuple):
    """Data that the client has to answer."""

    data: bytes


@hides("data")
class Authenticated(NamedTuple):
    """Success; `data` is the last message to the client."""

    proven: VerifiedIdentity
    data: bytes | None = None


class AuthenticationFailed(NamedTuple):
    """Failure; the verdict is REFUSED or BUSY."""

    verdict: LoginVerdict


Next = Callable[[Challenge | Authenticated | AuthenticationFailed], None]


class SaslExchange(Protocol):
    """One authentication with one mechanism."""

    def step(self, data: bytes, answer: Next) -> None:
        """Process a message of the client; `answer` is called once, now or later.

        Must not be called again after `Authenticated` or `AuthenticationFailed`.
        """
        ...


def start_exchange(gate: Authenticator, method: str, source: str, client: str = "") -> SaslExchange | None:
    """Start an exchange for a client at the address `source`; None if the mechanism is not enabled. `client`: its
    client identifier."""
    if method == scram.MECHANISM and gate.passwords:
        return _Scram(gate, source, client)
    if method == bearer.MECHANISM and gate.tokens:
        return _Bearer(gate, source, client)
    return None


class _Scram:
    def __init__(self, gate: Authenticator, source: str, client: str) -> None:
        self._gate = gate
        self._source = source
        self._client = client
        self._server = scram.ScramServer()
        self._challenged = False
        self._proven = VerifiedIdentity("")

    def step(self, data: bytes, answer: Next) -> None:
        server = self._server
        try:
            if not self._challenged:
                self._challenged = True
                server.first(data)
                if self._gate.throttles(self._source, server.username, self._client):
                    answer(AuthenticationFailed(LoginVerdict.BUSY))
                else:
                    self._proven = self._gate.identify(server.username)  # of the same moment as its keys
                    answer(Challenge(server.challenge(self._gate.scram(server.username))))
                return
            final = server.finish(data)
        except scram.ScramError:
            self._gate.failed(self._source, server.username, self._client)
            answer(AuthenticationFailed(LoginVerdict.REFUSED))
            return
        self._gate.succeeded(self._source, server.username)
        answer(Authenticated(self._proven, final))


class _Bearer:
    def __init__(self, gate: Authenticator, source: str, client: str) -> None:
        self._gate = gate
        self._source = source
        self._client = client

    def step(self, data: bytes, answer: Next) -> None:
        def decided(verdict: LoginVerdict, proven: VerifiedIdentity | None) -> None:
            answer(AuthenticationFailed(verdict) if proven is None else Authenticated(proven))

        self._gate.check_bearer(data, decided, self._source, self._client)
