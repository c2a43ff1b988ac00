"""Enhanced authentication (MQTT 5 section 4.12): which AUTH packets are allowed when, and those we send.

It knows no mechanism and no secret. `edge.broker.security.mechanisms` interprets the data.

    DECIDING ──CHALLENGE──▶ CHALLENGED ──CONTINUE──▶ DECIDING ──SUCCEED──▶ AUTHENTICATED ──AGAIN──▶ DECIDING
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from edge.broker.message.mqtt_errors import LocalError, ProtocolError
from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.mqtt.events import AuthenticateEvent
from edge.broker.mqtt.handshake import Auth


class AuthenticationState(enum.Enum):
    """State of the authentication of one client."""

    DECIDING = "the session checks the last message of the client"
    CHALLENGED = "the client has to continue"
    AUTHENTICATED = "the client is authenticated and may re-authenticate"


CONTINUE, AGAIN = ReasonCode.CONTINUE_AUTHENTICATION, ReasonCode.RE_AUTHENTICATE

FOLLOWS: Final[Mapping[tuple[AuthenticationState, ReasonCode], AuthenticationState]] = {
    (AuthenticationState.CHALLENGED, CONTINUE): AuthenticationState.DECIDING,
    (AuthenticationState.AUTHENTICATED, AGAIN): AuthenticationState.DECIDING,  # section 4.12.1
}
"""Next state by state and reason code of the client's AUTH. Others violate [MQTT-4.12.0-3] or section 4.12.1."""


class AuthenticationExchange:
    """AUTH packets of one connection. `method` is the authentication method of its CONNECT, None if it has none."""

    __slots__ = ("_state", "method")

    def __init__(self, method: str | None) -> None:
        self.method = method
        self._state = AuthenticationState.AUTHENTICATED if method is None else AuthenticationState.DECIDING

    def take(self, packet: Auth) -> AuthenticateEvent:
        """Return the event for an AUTH of the client. Raises ProtocolError if it is not allowed now."""
        if self.method is None:
            raise ProtocolError("AUTH without an authentication method in CONNECT")  # [MQTT-4.12.0-7]
        if packet.properties.authentication_method != self.method:
            raise ProtocolError("AUTH with another authentication method")  # [MQTT-4.12.0-5] [MQTT-4.12.1-1]
        follows = FOLLOWS.get((self._state, packet.reason))
        if follows is None:
            raise ProtocolError(f"AUTH of a client with reason {packet.reason.words}, while {self._state.value}")
        self._state = follows
        return AuthenticateEvent(packet.properties.authentication_data or b"", again=packet.reason is AGAIN)

    def challenge(self, data: bytes) -> bytes:
        """Encode an AUTH that asks the client to continue [MQTT-4.12.0-2]. Raises LocalError in another state."""
        if self._state is not AuthenticationState.DECIDING:
            raise LocalError(f"a challenge while {self._state.value}")
        self._state = AuthenticationState.CHALLENGED
        return self._auth(ReasonCode.CONTINUE_AUTHENTICATION, data)

    def succeed(self, data: bytes) -> bytes:
        """Encode the AUTH of a successful re-authentication (section 4.12.1)."""
        self.end()
        return self._auth(ReasonCode.SUCCESS, data)

    def end(self) -> None:
        """Mark the client as authenticated; from now on it may re-authenticate."""
        self._state = AuthenticationState.AUTHENTICATED

    def _auth(self, reason: ReasonCode, data: bytes) -> bytes:
        return Auth(reason, Properties(authentication_method=self.method, authentication_data=data)).encode(5)


NO_METHOD: Final = AuthenticationExchange(None)
"""Exchange of all connections without an authentication method. It never changes."""


def start_exchange(method: str | None) -> AuthenticationExchange:
    """Return the exchange of a connection with this method in its CONNECT."""
    return NO_METHOD if method is None else AuthenticationExchange(method)
