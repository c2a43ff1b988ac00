"""What can go wrong between an MQTT peer and us.

MqttError
├── RemoteError               the peer broke the standard; `reason` is what MQTT 5 answers
│   ├── MalformedPacket       0x81: it cannot be parsed
│   └── ProtocolError         0x82, or a more telling code: it can be parsed and is not allowed
│       └── UnsupportedProtocolVersion   0x84
└── LocalError                our own caller asked for what is not legal now: a bug of ours
"""

from __future__ import annotations

from edge.broker.message.mqtt_reason_codes import ReasonCode


class MqttError(Exception):
    """Base of all errors of this package."""


class RemoteError(MqttError):
    """The peer sent what the standard forbids (MQTT 5 section 4.13)."""

    reason: ReasonCode = ReasonCode.UNSPECIFIED_ERROR

    def __init__(self, message: str, reason: ReasonCode | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason


class MalformedPacket(RemoteError):
    """A control packet that cannot be parsed according to the standard."""

    reason = ReasonCode.MALFORMED_PACKET


class ProtocolError(RemoteError):
    """A control packet that can be parsed but is not allowed by the protocol, or not in this state."""

    reason = ReasonCode.PROTOCOL_ERROR


class UnsupportedProtocolVersion(ProtocolError):
    """CONNECT of a protocol we know by name, at a level we do not speak; `level` is what it asked for."""

    reason = ReasonCode.UNSUPPORTED_PROTOCOL_VERSION

    def __init__(self, level: int) -> None:
        super().__init__(f"unsupported protocol level {level}")
        self.level = level


class LocalError(MqttError):
    """The owner of the connection called what is not legal in its state."""
