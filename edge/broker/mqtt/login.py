"""Authenticate the client of one MQTT connection: by certificate, name and password, or a SASL mechanism.

It answers CONNECT and AUTH as far as authentication is concerned. Authorization is the handler's task.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.events import AuthenticateEvent, ConnectEvent
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.mechanisms import Authenticated, AuthenticationFailed, Challenge, SaslExchange, start_exchange
from edge.broker.security.proof import LoginVerdict, VerifiedIdentity


class AdmittingSession(Protocol):
    """The part of a connection's handler that takes over after authentication."""

    def admit(self, connect: ConnectEvent, proven: VerifiedIdentity | None, data: bytes | None = None) -> None:
        """Admit the client; `proven` is None without authentication. `data` is sent with CONNACK."""
        ...

    def renewed(self, proven: VerifiedIdentity) -> bool:
        """Process a re-authentication. Return False if the client may not continue as this user."""
        ...

    def handle(self, events: Sequence[Any]) -> None:
        """Process events of packets that waited."""
        ...

    def flush_soon(self) -> None:
        """Send the written bytes soon."""
        ...


class MqttLogin:
    """Authentication of one connection."""

    def __init__(
        self,
        gate: Authenticator | None,
        connection: MqttConnection,
        session: AdmittingSession,
        identity: str | None,
        source: str,
    ) -> None:
        """`identity`: name in the verified certificate; `source`: address of the peer. Without a `gate` there is no
        authentication."""
        self._gate = gate
        self._connection = connection
        self._session = session
        self._identity = identity
        self._source = source
        self._connect: ConnectEvent | None = None
        self._exchange: SaslExchange | None = None
        self._open = False

    def start(self, connect: ConnectEvent) -> None:
        """Authenticate the client of a CONNECT. Its further packets wait for the verdict, like CONNACK."""
        if self._connection.closed:
            return  # it sent too much before CONNACK
        gate, identity = self._gate, self._identity
        self._connect = connect
        method = connect.authentication_method
        if method is not None:
            known = (method, self._source, connect.client_id)
            self._exchange = start_exchange(gate, *known) if gate is not None else None
            if self._exchange is None:
                self._connection.refuse(ReasonCode.BAD_AUTHENTICATION_METHOD)  # [MQTT-4.12.0-1]
            else:
                self._exchange.step(connect.authentication_data, self._next)
        elif gate is None or gate.open:
            self._session.admit(connect, None)
        elif identity is not None and connect.username in (None, identity) and connect.password is None:
            self._session.admit(connect, VerifiedIdentity(identity))  # verified by TLS
        else:
            decided = partial(self._decided, connect)
            gate.check(connect.username, connect.password, decided, self._source, connect.client_id)

    def resume(self, event: AuthenticateEvent) -> None:
        """Process an AUTH: of the current exchange, or the first of a re-authentication (section 4.12.1)."""
        connect = self._connect
        if event.again and self._gate is not None and connect is not None:
            self._open = True
            method = connect.authentication_method or ""
            self._exchange = start_exchange(self._gate, method, self._source, connect.client_id)
        if self._exchange is None:  # the method was disabled
            self._refuse(LoginVerdict.REFUSED)
        else:
            self._exchange.step(event.data, self._next)

    def _next(self, step: Challenge | Authenticated | AuthenticationFailed) -> None:
        connection = self._connection
        if connection.closed or self._connect is None:
            return  # the client has disconnected
        match step:
            case Challenge(data):
                self._session.handle(connection.challenge(data))
            case AuthenticationFailed(verdict):
                self._refuse(verdict)
            case Authenticated(proven, data):
                self._exchange = None
                self._proven(self._connect, proven, data)
        self._session.flush_soon()

    def _proven(self, connect: ConnectEvent, proven: VerifiedIdentity, data: bytes | None) -> None:
        if self._open:
            if self._session.renewed(proven):
                self._connection.authenticated(data or b"")
            else:
                self._connection.disconnect(ReasonCode.NOT_AUTHORIZED)
        elif connect.username not in (None, "", proven.user, proven.login):
            self._refuse(LoginVerdict.REFUSED)
        else:
            self._session.admit(connect, proven, data)

    def _decided(self, connect: ConnectEvent, verdict: LoginVerdict, proven: VerifiedIdentity | None) -> None:
        if self._connection.closed:
            return  # the client has disconnected
        if proven is None:
            self._refuse(verdict)
        else:
            self._session.admit(connect, proven)
        self._session.flush_soon()

    def _refuse(self, verdict: LoginVerdict) -> None:
        """Refuse the client [MQTT-4.12.0-4], also on an open connection [MQTT-4.12.1-2]."""
        self._exchange = None
        if verdict is LoginVerdict.BUSY:
            reason = ReasonCode.SERVER_BUSY
        else:
            reason = ReasonCode.NOT_AUTHORIZED if self._open else ReasonCode.BAD_USER_NAME_OR_PASSWORD
        self._connection.disconnect(reason)
