"""Where the server's end of one MQTT connection stands, and what may come there.

CONNECTING ──CONNECT──▶ DECIDING ──accept──▶ OPEN
    │                    │    ▲ │              │
    │          challenge │    │ │ refuse       │
    │                    ▼    │ AUTH           │
    │            AUTHENTICATING │              │
    └─────────────────┴─────────┴──────────────┴──▶ CLOSED
"""

from __future__ import annotations

import enum
from typing import Final

from edge.broker.message.mqtt_errors import ProtocolError
from edge.broker.message.mqtt_wire import PacketType


class Phase(enum.Enum):
    """Where a connection stands."""

    CONNECTING = "waiting for CONNECT"
    DECIDING = "waiting for the session's answer to CONNECT, or to AUTH before CONNACK"
    AUTHENTICATING = "waiting for AUTH before CONNACK"
    OPEN = "open"
    CLOSED = "closed"


READING: Final = frozenset({Phase.CONNECTING, Phase.AUTHENTICATING, Phase.OPEN})
"""Packets are looked at; in DECIDING they wait."""
UNACCEPTED: Final = frozenset({Phase.DECIDING, Phase.AUTHENTICATING})
"""CONNECT has come and CONNACK has not been sent."""


def check_early(phase: Phase, first: int) -> None:
    """Raises ProtocolError for a packet that begins with this byte and may not come before CONNACK."""
    if phase is Phase.CONNECTING:
        if first != PacketType.CONNECT << 4:  # [MQTT-3.1.0-1]
            raise ProtocolError("the first packet is not CONNECT")
    elif first >> 4 not in (PacketType.AUTH, PacketType.DISCONNECT):  # [MQTT-3.1.2-30]
        raise ProtocolError("neither AUTH nor DISCONNECT before CONNACK")
