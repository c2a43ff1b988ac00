"""MQTT 5 reason codes (section 2.4) and the return codes of older versions.

Knows numbers only: no packet, no connection.
"""

from __future__ import annotations

import enum


class ReasonCode(enum.IntEnum):
    """Result of an operation; 0x80 and above is a failure."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL_MESSAGE = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2

    @property
    def failed(self) -> bool:
        """True for failures."""
        return self >= ReasonCode.UNSPECIFIED_ERROR

    def refuses(self, version: int) -> bool:
        """Return True if the code ends the exchange of a message.

        Before MQTT 5 an answer has no code and means success, so no other code is sent.
        """
        return self.failed or (version < 5 and self is not ReasonCode.SUCCESS)

    @property
    def words(self) -> str:
        """Name in words: ``not authorized``."""
        return self.name.lower().replace("_", " ")


_RETURN_CODES = {
    ReasonCode.SUCCESS: 0,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: 2,
    ReasonCode.SERVER_UNAVAILABLE: 3,
    ReasonCode.SERVER_BUSY: 3,
    ReasonCode.SERVER_SHUTTING_DOWN: 3,
    ReasonCode.QUOTA_EXCEEDED: 3,
    ReasonCode.USE_ANOTHER_SERVER: 3,
    ReasonCode.SERVER_MOVED: 3,
    ReasonCode.CONNECTION_RATE_EXCEEDED: 3,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
    ReasonCode.BANNED: 5,
    ReasonCode.BAD_AUTHENTICATION_METHOD: 5,
}

_REASONS = {
    0: ReasonCode.SUCCESS,
    1: ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    2: ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    3: ReasonCode.SERVER_UNAVAILABLE,
    4: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    5: ReasonCode.NOT_AUTHORIZED,
}


def connack_return_code(reason: ReasonCode) -> int | None:
    """Return the CONNACK return code of MQTT 3.1 and 3.1.1 (section 3.2.2.3) for a reason code.

    None: no return code says it, so the connection is closed without a CONNACK [MQTT-3.2.2-6].
    """
    return _RETURN_CODES.get(reason)


def reason_of_return_code(code: int) -> ReasonCode | None:
    """Return the reason code for a CONNACK return code of MQTT 3.1 and 3.1.1; None if reserved."""
    return _REASONS.get(code)
