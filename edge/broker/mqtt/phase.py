"""Phases of one MQTT connection on the server: which packets are allowed in each, and which phase follows.

    CONNECTING ──CONNECT──▶ DECIDING ──ACCEPT──▶ OPEN
        │                    │    ▲ │              │
        │          CHALLENGE │    │ │ REFUSE       │ DISCONNECT
        │                    ▼    │ AUTH           │ CLOSE
        │            AUTHENTICATING │              ▼
        └─────────CLOSE───────┴─────┴─▶ REFUSED   CLOSED

`PACKETS` gives the next phase for every packet of a client, or the statement of the standard that the packet violates.
In a phase without a row no packet is read: packets in DECIDING wait (section 3.1.4). `STEPS` gives the next phase for
our own actions; a missing one is a bug of ours. `authentication` has the states of AUTH.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

from bridge.limits import LOGIN_WAIT_S_MAX
from edge.broker.message.mqtt_errors import LocalError, MalformedPacket, ProtocolError, RemoteError
from edge.broker.message.mqtt_wire import PacketType


class ConnectionPhase(enum.Enum):
    """Phase of a connection."""

    CONNECTING = "waiting for CONNECT"
    DECIDING = "waiting for the session's answer to CONNECT, or to AUTH before CONNACK"
    AUTHENTICATING = "waiting for AUTH before CONNACK"
    OPEN = "open"
    REFUSED = "closed before it was open"
    CLOSED = "closed after it was open"


class ConnectionStep(enum.Enum):
    """Actions of the server."""

    ACCEPT = "CONNACK"
    CHALLENGE = "AUTH that asks the client to continue, before CONNACK"
    REFUSE = "CONNACK with an error"
    CLOSE = "the network connection ends, closed by either side"


class Violation(NamedTuple):
    """Why a packet is not allowed: normative statement, text, and error class with its reason code (section 2.4)."""

    clause: str
    text: str
    error: type[RemoteError] = ProtocolError


_FIRST: Final = Violation("MQTT-3.1.0-1", "the first packet is not CONNECT")
_SECOND: Final = Violation("MQTT-3.1.0-2", "a second CONNECT")
_EARLY: Final = Violation("MQTT-3.1.2-30", "neither AUTH nor DISCONNECT before CONNACK")
_DIRECTION: Final = Violation("MQTT 5 table 2-1", "{kind} from a client")
_RESERVED: Final = Violation("MQTT 5 table 2-1", "packet type 0", MalformedPacket)
_MQTT_5: Final = Violation("MQTT 3.1.1 table 2.1", "packet type 15 before MQTT 5", MalformedPacket)

_P = PacketType
PACKETS: Final[Mapping[ConnectionPhase, Mapping[PacketType, ConnectionPhase | Violation]]] = {
    ConnectionPhase.CONNECTING: {
        **dict.fromkeys(PacketType, _FIRST),
        _P.CONNECT: ConnectionPhase.DECIDING,
    },
    ConnectionPhase.AUTHENTICATING: {
        **dict.fromkeys(PacketType, _EARLY),
        _P.AUTH: ConnectionPhase.DECIDING,
        _P.DISCONNECT: ConnectionPhase.REFUSED,
    },
    ConnectionPhase.OPEN: {
        _P.WILL: _RESERVED,
        _P.CONNECT: _SECOND,
        _P.CONNACK: _DIRECTION,
        _P.PUBLISH: ConnectionPhase.OPEN,
        _P.PUBACK: ConnectionPhase.OPEN,
        _P.PUBREC: ConnectionPhase.OPEN,
        _P.PUBREL: ConnectionPhase.OPEN,
        _P.PUBCOMP: ConnectionPhase.OPEN,
        _P.SUBSCRIBE: ConnectionPhase.OPEN,
        _P.SUBACK: _DIRECTION,
        _P.UNSUBSCRIBE: ConnectionPhase.OPEN,
        _P.UNSUBACK: _DIRECTION,
        _P.PINGREQ: ConnectionPhase.OPEN,
        _P.PINGRESP: _DIRECTION,
        _P.DISCONNECT: ConnectionPhase.CLOSED,
        _P.AUTH: ConnectionPhase.OPEN,
    },
}
"""Phase that follows a packet. Before MQTT 5 there is no AUTH: see `after_packet`."""

STEPS: Final[Mapping[ConnectionPhase, Mapping[ConnectionStep, ConnectionPhase]]] = {
    ConnectionPhase.CONNECTING: {ConnectionStep.CLOSE: ConnectionPhase.REFUSED},
    ConnectionPhase.DECIDING: {
        ConnectionStep.ACCEPT: ConnectionPhase.OPEN,
        ConnectionStep.CHALLENGE: ConnectionPhase.AUTHENTICATING,
        ConnectionStep.REFUSE: ConnectionPhase.REFUSED,
        ConnectionStep.CLOSE: ConnectionPhase.REFUSED,
    },
    ConnectionPhase.AUTHENTICATING: {
        ConnectionStep.REFUSE: ConnectionPhase.REFUSED,
        ConnectionStep.CLOSE: ConnectionPhase.REFUSED,
    },
    ConnectionPhase.OPEN: {ConnectionStep.CLOSE: ConnectionPhase.CLOSED},
    ConnectionPhase.REFUSED: {},
    ConnectionPhase.CLOSED: {},
}

ENDED: Final = (ConnectionPhase.REFUSED, ConnectionPhase.CLOSED)
"""The socket is to be closed. Reading has ended, and calls of the session have no effect."""
READING: Final = tuple(PACKETS)[::-1]
"""Phases in which packets are read, the busiest first."""
BEFORE_OPEN: Final = {
    ConnectionPhase.CONNECTING: 0.0,
    ConnectionPhase.DECIDING: LOGIN_WAIT_S_MAX,
    ConnectionPhase.AUTHENTICATING: 0.0,
}
"""Phases with a time limit, and seconds added to it while the client waits for us."""
OPENED: Final = (ConnectionPhase.OPEN, ConnectionPhase.CLOSED)
"""Phases after CONNACK."""


def after_packet(phase: ConnectionPhase, kind: int, version: int) -> ConnectionPhase:
    """Return the phase that follows a packet of this type (the high four bits of its first byte).

    Raises MalformedPacket or ProtocolError if the packet is not allowed.
    """
    follows = PACKETS[phase][PacketType(kind)]
    if phase is ConnectionPhase.OPEN and kind == PacketType.AUTH and version < 5:
        follows = _MQTT_5
    if isinstance(follows, Violation):
        raise follows.error(follows.text.format(kind=PacketType(kind).name))
    return follows


def check_first_byte(phase: ConnectionPhase, first: int) -> None:
    """Check the first byte of a packet before CONNACK, to detect other protocols early (TLS begins with 0x16).

    Raises MalformedPacket or ProtocolError.
    """
    after_packet(phase, first >> 4, 5)
    if phase is ConnectionPhase.CONNECTING and first & 15:
        raise MalformedPacket("reserved bits of CONNECT")


def after_step(phase: ConnectionPhase, step: ConnectionStep) -> ConnectionPhase:
    """Return the phase that follows an action of the server. Raises LocalError if it is not allowed."""
    follows = STEPS[phase].get(step)
    if follows is None:
        raise LocalError(f"{step.name} while {phase.value}")
    return follows
