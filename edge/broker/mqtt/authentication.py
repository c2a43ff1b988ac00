"""Enhanced authentication (MQTT 5 section 4.12): the table of which AUTH may come now, and the packets we send.

Knows no mechanism and no secret: what the data means is between the client and `edge.broker.security.mechanisms`.

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
    """Where the authentication of one client stands."""

    DECIDING = "the session decides on what the client said last"
    CHALLENGED = "the client is to go on"
    AUTHENTICATED = "the client is who it says, and may authenticate again"


CONTINUE, AGAIN = ReasonCode.CONTINUE_AUTHENTICATION, ReasonCode.RE_AUTHENTICATE

FOLLOWS: Final[Mapping[tuple[AuthenticationState, ReasonCode], AuthenticationState]] = {
    (AuthenticationState.CHALLENGED, CONTINUE): AuthenticationState.DECIDING,
    (AuthenticationState.AUTHENTICATED, AGAIN): AuthenticationState.DECIDING,  # section 4.12.1
}
"""By the reason code of the client's AUTH; whatever is not here breaks [MQTT-4.12.0-3] or section 4.12.1."""


class AuthenticationExchange:
    """The AUTH packets of one connection; `method` is what its CONNECT named, None when it named none."""

    __slots__ = ("_stands", "method")

    def __init__(self, method: str | None) -> None:
        self.method = method
        self._stands = AuthenticationState.AUTHENTICATED if method is None else AuthenticationState.DECIDING

    def take(self, packet: Auth) -> AuthenticateEvent:
        """The event for an AUTH of the client. Raises ProtocolError for one that may not come now."""
        if self.method is None:
            raise ProtocolError("AUTH without an authentication method in CONNECT")  # [MQTT-4.12.0-7]
        if packet.properties.authentication_method != self.method:
            raise ProtocolError("AUTH with another authentication method")  # [MQTT-4.12.0-5] [MQTT-4.12.1-1]
        follows = FOLLOWS.get((self._stands, packet.reason))
        if follows is None:
            raise ProtocolError(f"AUTH of a client with reason {packet.reason.words}, while {self._stands.value}")
        self._stands = follows
        return AuthenticateEvent(packet.properties.authentication_data or b"", again=packet.reason is AGAIN)

    def challenge(self, data: bytes) -> bytes:
        """AUTH that asks the client to go on [MQTT-4.12.0-2]. Raises LocalError when there is nothing to decide."""
        if self._stands is not AuthenticationState.DECIDING:
            raise LocalError(f"a challenge while {self._stands.value}")
        self._stands = AuthenticationState.CHALLENGED
        return self._auth(ReasonCode.CONTINUE_AUTHENTICATION, data)

    def succeed(self, data: bytes) -> bytes:
        """AUTH that ends a re-authentication well (section 4.12.1)."""
        self.end()
        return self._auth(ReasonCode.SUCCESS, data)

    def end(self) -> None:
        """The client is authenticated: from now on it may do it again."""
        self._stands = AuthenticationState.AUTHENTICATED

    def _auth(self, reason: ReasonCode, data: bytes) -> bytes:
        return Auth(reason, Properties(authentication_method=self.method, authentication_data=data)).encode(5)


NO_METHOD: Final = AuthenticationExchange(None)
"""Of every connection whose CONNECT names none: it changes with nothing that happens to it."""


def dialogue(method: str | None) -> AuthenticationExchange:
    """For a connection whose CONNECT names this method."""
    return NO_METHOD if method is None else AuthenticationExchange(method)
