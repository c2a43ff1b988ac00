"""Enhanced authentication (MQTT 5 section 4.12): which AUTH packets may come now, and those we send.

Knows no mechanism and no secret: what the data means is between the client and `edge.broker.security.mechanisms`.
"""

from __future__ import annotations

from typing import Final

from edge.broker.message.mqtt_errors import ProtocolError
from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.mqtt.events import Authenticate
from edge.broker.mqtt.handshake import Auth


class Dialogue:
    """The AUTH packets of one connection; `method` is what its CONNECT named, None when it named none."""

    __slots__ = ("_asked", "_deciding", "method")

    def __init__(self, method: str | None) -> None:
        self.method = method
        self._deciding = method is not None
        self._asked = False

    def take(self, packet: Auth, *, opened: bool) -> Authenticate:
        """The event for an AUTH of the client. Raises ProtocolError for one that may not come now."""
        if self.method is None:
            raise ProtocolError("AUTH without an authentication method in CONNECT")  # [MQTT-4.12.0-7]
        if packet.properties.authentication_method != self.method:
            raise ProtocolError("AUTH with another authentication method")  # [MQTT-4.12.0-5] [MQTT-4.12.1-1]
        again = packet.reason is ReasonCode.RE_AUTHENTICATE
        if again and (not opened or self._asked or self._deciding):
            raise ProtocolError("re-authentication while an authentication is under way")
        if not again and (packet.reason is not ReasonCode.CONTINUE_AUTHENTICATION or not self._asked):
            raise ProtocolError(f"AUTH of a client with reason {packet.reason.words}")  # [MQTT-4.12.0-3]
        self._asked, self._deciding = False, True
        return Authenticate(packet.properties.authentication_data or b"", again)

    def ask(self, data: bytes) -> bytes:
        """AUTH that asks the client to go on [MQTT-4.12.0-2]."""
        self._asked, self._deciding = True, False
        return self._auth(ReasonCode.CONTINUE_AUTHENTICATION, data)

    def succeeded(self, data: bytes) -> bytes:
        """AUTH that ends a re-authentication well (section 4.12.1)."""
        self.ended()
        return self._auth(ReasonCode.SUCCESS, data)

    def ended(self) -> None:
        """The client is authenticated: from now on it may do it again."""
        self._asked = self._deciding = False

    def _auth(self, reason: ReasonCode, data: bytes) -> bytes:
        return Auth(reason, Properties(authentication_method=self.method, authentication_data=data)).encode(5)


NO_METHOD: Final = Dialogue(None)
"""Of every connection whose CONNECT names none: it changes with nothing that happens to it."""


def dialogue(method: str | None) -> Dialogue:
    """For a connection whose CONNECT names this method."""
    return NO_METHOD if method is None else Dialogue(method)
