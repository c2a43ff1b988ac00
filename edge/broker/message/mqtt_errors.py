"""Errors of the MQTT protocol.

MqttError
├── RemoteError               the peer violated the standard; `reason` is the reason code of MQTT 5
│   ├── MalformedPacket       0x81: the packet cannot be parsed
│   └── ProtocolError         0x82, or a more specific code: the packet is not allowed
│       └── UnsupportedProtocolVersion   0x84
└── LocalError                a call that is not allowed in this state: a bug of ours
"""

from __future__ import annotations

from edge.broker.message.mqtt_reason_codes import ReasonCode


class MqttError(Exception):
    """Base class of all errors of the MQTT protocol."""


class RemoteError(MqttError):
    """The peer violated the standard (MQTT 5 section 4.13)."""

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
    """CONNECT with a known protocol name and an unsupported protocol level; `level` is the requested one."""

    reason = ReasonCode.UNSUPPORTED_PROTOCOL_VERSION

    def __init__(self, level: int) -> None:
        super().__init__(f"unsupported protocol level {level}")
        self.level = level


class LocalError(MqttError):
    """The owner of the connection made a call that is not allowed in its state."""
